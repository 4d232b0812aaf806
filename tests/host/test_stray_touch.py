"""A touch of memory that is away faults under check=3, so that no mistake passes unseen.

Each program notes the address of a feature map, lets it go, and reads there later, as a kernel
would that nobody told of the move.
"""

from __future__ import annotations

import ctypes
import signal

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import fresh
from tests.helpers.models import WORKLOADS

CHAIN = WORKLOADS["chain"]


class NotesItsAddress(nn.Module):
    """Passes its input on and remembers where it was, not what it was."""

    address = 0

    def forward(self, x: Tensor) -> Tensor:
        self.address = x.data_ptr()
        return x


def forward_then_touch() -> int:
    """Reads at the address of an early feature map once the forward is over."""
    model, note = CHAIN.build(), NotesItsAddress()
    assert isinstance(model, nn.Sequential)
    model.insert(40, note)
    loss = CHAIN.loss(model, CHAIN.batch(torch.Generator().manual_seed(1)))
    byte = ctypes.string_at(note.address, 1)[0]
    loss.backward()
    return byte


@pytest.mark.parametrize("policy", ["all", "dyn"])
def test_a_stray_touch_of_what_is_away_faults(policy: str) -> None:
    install = {"budget": "12MiB", "policy": policy, "check": 3}

    ended = fresh.run(forward_then_touch, install=install)

    assert ended.exit_code == -signal.SIGSEGV, ended.text


def test_the_same_touch_of_what_stayed_does_not() -> None:
    fresh.call(forward_then_touch, install={"budget": "64MiB", "policy": "dyn", "check": 3})
