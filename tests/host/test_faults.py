"""A driver that refuses is absorbed or becomes an out-of-memory error; no number changes.

The n-th call of one primitive fails once, in the forward and backward of a step. If the step
raises, the program repeats it, as a user would who catches the error.
"""

from __future__ import annotations

import pytest
import torch

from tests.helpers import fresh
from tests.helpers.compare import digests
from tests.helpers.models import WORKLOADS
from tests.helpers.run_training import make_optimizer

CHAIN = WORKLOADS["chain"]
STEPS = 4


def train(primitive: str | None, nth: int, at_step: int) -> tuple[list[str], bool, bool]:
    """The numbers; whether the fault was reached; whether it surfaced."""
    torch.manual_seed(21)
    model = CHAIN.build()
    optimizer = make_optimizer("sgd", model)
    reached = surfaced = False
    for number in range(STEPS):
        batch = CHAIN.batch(torch.Generator().manual_seed(number))
        if primitive is not None and number == at_step:
            reached, surfaced = attempt(model, batch, primitive, nth)
        optimizer.zero_grad()
        CHAIN.loss(model, batch).backward()
        optimizer.step()
    return digests(model), reached, surfaced


def attempt(
    model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor], primitive: str, nth: int
) -> tuple[bool, bool]:
    """One forward and backward with the fault armed; its gradients are dropped by the caller."""
    from tests.helpers import simulation

    model.zero_grad()
    surfaced = False
    with simulation.fault(primitive, nth) as armed:
        try:
            CHAIN.loss(model, batch).backward()
        except torch.OutOfMemoryError:
            surfaced = True
    simulation.validate()
    return armed.reached, surfaced


def without_faults() -> list[str]:
    """What PyTorch alone computes."""
    return train(None, 0, 0)[0]


@pytest.fixture(scope="module")
def stock() -> list[str]:
    return list(fresh.call(without_faults).result)


# create, map and pin are called only while the first steps are being learned, copies always.
FAULTS = [
    *[("create_frame", nth, 0) for nth in (1, 2, 3, 20, 90)],
    *[("reserve", nth, 0) for nth in (1, 2, 3, 20)],
    *[("map", nth, 0) for nth in (1, 2, 3, 20)],
    *[("set_access", nth, 0) for nth in (1, 2, 3, 20)],
    *[("pin", nth, 0) for nth in (1, 2, 3)],
    *[("copy_out", nth, step) for nth in (1, 2, 3, 20) for step in (0, 2)],
    *[("copy_in", nth, step) for nth in (1, 2, 3, 20) for step in (0, 2)],
]


@pytest.mark.parametrize(("primitive", "nth", "step"), FAULTS)
def test_a_refusal_is_absorbed_or_surfaces_and_training_goes_on_bit_for_bit(
    primitive: str, nth: int, step: int, stock: list[str]
) -> None:
    ours = fresh.call(train, primitive, nth, step, install={"budget": "12MiB", "policy": "dyn"})

    numbers, reached, surfaced = ours.result
    assert reached or surfaced, f"{primitive} was not called {nth} times in step {step}"
    assert numbers == stock
    assert ours.stats is not None
    assert ours.stats["created_bytes_max"] <= ours.stats["budget_bytes"]
