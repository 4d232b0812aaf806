"""Training on a GPU under 60 % of the peak: the same bits, within the budget, without driver calls
once it has settled."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from bench.device_memory import PeakUse, is_mapped, used_bytes
from tests.helpers import fresh, gpu_training

if TYPE_CHECKING:
    from tests.helpers.gpu_training import Trained

PERCENT = 60


@cache
def unlimited() -> tuple[Trained, int]:
    """Under a budget that never binds."""
    ended = fresh.call(
        gpu_training.train_and_peak, install=gpu_training.settings(policy="none")
    ).result
    assert isinstance(ended, tuple)
    return ended


@cache
def stock() -> Trained:
    return fresh.call(gpu_training.train).result  # type: ignore[no-any-return]


def tight_budget() -> int:
    return unlimited()[1] * PERCENT // 100


def test_without_pressure_nothing_moves_and_the_bits_are_stocks() -> None:
    trained, _ = unlimited()
    assert (trained.losses, trained.digests) == (stock().losses, stock().digests)
    assert trained.offloaded[-1] == 0


def test_under_pressure_the_bits_are_stocks_and_the_budget_holds() -> None:
    ended = fresh.call(gpu_training.train, install=gpu_training.settings(tight_budget()))
    trained = ended.result
    assert (trained.losses, trained.digests) == (stock().losses, stock().digests)
    assert trained.offloaded[-1] > 0
    assert max(trained.created) <= tight_budget()


def test_the_driver_is_not_called_for_memory_once_the_loop_has_settled() -> None:
    trained = fresh.call(
        gpu_training.train, 8, install=gpu_training.settings(tight_budget())
    ).result
    assert trained.map_calls[4] == trained.map_calls[-1]


def use_beyond_the_allocator() -> int:
    """What stock uses outside its allocator: contexts, modules, libraries."""
    gpu_training.train()
    return used_bytes() - torch.cuda.memory_reserved()


def peak_use() -> int:
    torch.cuda.synchronize()
    with PeakUse() as use:
        gpu_training.train()
    return use.peak_bytes


def test_the_driver_itself_never_sees_more_than_the_budget_in_use() -> None:
    outside = fresh.call(use_beyond_the_allocator).result
    used = fresh.call(peak_use, install=gpu_training.settings(tight_budget())).result
    assert used <= tight_budget() + outside + (64 << 20)  # page-locking takes some tables


def a_tensor_is_mapped() -> bool:
    return is_mapped(gpu_training.images().data_ptr())


def test_a_tensor_lies_on_mapped_device_memory() -> None:
    assert fresh.call(a_tensor_is_mapped, install=gpu_training.settings()).result
