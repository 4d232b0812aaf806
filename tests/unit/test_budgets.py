"""The two budgets: defaults from what is left, and refusals with numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vdnn_alloc.budgets import Budgets, Room, decide
from vdnn_alloc.errors import ConfigError

GIB = 1 << 30
GPU = Room(device_free=80 * GIB, host_left=200 * GIB, minimum_budget=GIB, shares_host_memory=False)
HOST = replace(GPU, device_free=100 * GIB, host_left=100 * GIB, shares_host_memory=True)


def test_defaults_are_the_free_device_less_a_twentieth_and_four_fifths_of_the_host() -> None:
    assert decide(None, None, GPU) == Budgets(76 * GIB, 160 * GIB)


def test_on_the_host_backend_both_come_out_of_the_same_memory() -> None:
    assert decide(10 * GIB, None, HOST) == Budgets(10 * GIB, 72 * GIB)
    assert decide(None, 30 * GIB, HOST) == Budgets(65 * GIB, 30 * GIB)

    default = decide(None, None, HOST)
    assert default.device + default.host <= HOST.host_left


@pytest.mark.parametrize(
    ("device", "host", "words"),
    [
        (81 * GIB, None, ["budget=81.0 GiB", "80.0 GiB"]),
        (GIB - 1, None, ["the least is 1.00 GiB"]),
        (None, 201 * GIB, ["host_budget=201 GiB", "200 GiB"]),
    ],
)
def test_more_than_there_is_or_too_little_is_refused_with_the_numbers(
    device: int | None, host: int | None, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        decide(device, host, GPU)
    assert [word for word in words if word not in str(caught.value)] == []
