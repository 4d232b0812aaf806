"""What torch and its users ask of an allocator on a GPU is answered, and truly; what cannot be
right is refused in one sentence."""

from __future__ import annotations

import multiprocessing.reduction
from collections.abc import Callable

import pytest
import torch

from tests.helpers import fresh, gpu_training

ODD = 123 * 8 * 1024 * 1024


def odd_tensor() -> torch.Tensor:
    return torch.empty(ODD, dtype=torch.uint8, device="cuda")


def statistics() -> dict[str, int]:
    before = torch.cuda.memory_allocated()
    tensor = odd_tensor()
    during = torch.cuda.memory_allocated()
    del tensor
    after = torch.cuda.memory_allocated()
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return {
        "held": during - before,
        "left": after - before,
        "peak": peak - before,
        "peak_after_reset": torch.cuda.max_memory_allocated() - before,
        "reserved": torch.cuda.memory_reserved(),
        "ooms": torch.cuda.memory_stats()["num_ooms"],
        "accelerator": torch.accelerator.memory_allocated(),
        "allocated": after,
    }


def test_statistics_follow_one_tensor() -> None:
    seen = fresh.call(statistics, install=gpu_training.settings()).result
    assert seen["held"] == ODD
    assert seen["left"] == 0
    assert seen["peak"] == ODD
    assert seen["peak_after_reset"] == 0
    assert ODD <= seen["reserved"] <= gpu_training.AMPLE
    assert seen["ooms"] == 0
    assert seen["accelerator"] == seen["allocated"]


def summary() -> str:
    tensor = odd_tensor()
    torch.cuda.reset_accumulated_memory_stats()
    segments = torch.cuda.memory_snapshot()
    assert [s["address"] for s in segments if s["total_size"] == ODD] == [tensor.data_ptr()]
    assert torch.cuda.memory.get_allocator_backend() == "vdnn_alloc"
    return torch.cuda.memory_summary()


def test_summary_and_snapshot_list_what_is_alive() -> None:
    assert "984 MiB" in fresh.call(summary, install=gpu_training.settings()).result


def room() -> dict[str, int]:
    tensor = odd_tensor()
    free, total = torch.cuda.mem_get_info()
    del tensor
    torch.cuda.empty_cache()
    return {"free": free, "total": total, "reserved": torch.cuda.memory_reserved()}


def test_memory_info_is_within_the_budget_and_empty_cache_gives_everything_back() -> None:
    seen = fresh.call(room, install=gpu_training.settings()).result
    assert seen["total"] == gpu_training.AMPLE
    assert seen["free"] <= gpu_training.AMPLE - ODD
    assert seen["reserved"] < ODD


def fraction() -> float:
    torch.cuda.set_per_process_memory_fraction(1.0)
    return torch.cuda.get_per_process_memory_fraction()


def test_a_wide_memory_fraction_is_the_budgets() -> None:
    assert 0 < fresh.call(fraction, install=gpu_training.settings()).result < 1


def lower_and_raise_the_fraction() -> dict[str, int]:
    """Lowers it to 1.5 times the odd tensor, and raises it again."""
    per_byte = torch.cuda.get_per_process_memory_fraction() / gpu_training.AMPLE
    torch.cuda.set_per_process_memory_fraction(1.5 * ODD * per_byte)
    seen = {"lowered": torch.cuda.mem_get_info()[1]}
    tensor = odd_tensor()
    seen["reserved"] = torch.cuda.memory_reserved()
    try:
        odd_tensor()
    except torch.OutOfMemoryError:
        seen["refused"] = 1
    torch.cuda.set_per_process_memory_fraction(1.0)
    seen["both"] = tensor.nbytes + odd_tensor().nbytes
    seen["raised"] = torch.cuda.mem_get_info()[1]
    return seen


def test_a_smaller_memory_fraction_is_a_smaller_budget_until_it_is_raised() -> None:
    seen = fresh.call(lower_and_raise_the_fraction, install=gpu_training.settings()).result
    assert abs(seen["lowered"] - 1.5 * ODD) <= 1
    assert ODD <= seen["reserved"] <= seen["lowered"]
    assert seen["refused"] == 1
    assert seen["both"] == 2 * ODD
    assert seen["raised"] == gpu_training.AMPLE


def narrow_the_fraction_below_what_is_held() -> None:
    tensor = odd_tensor()
    torch.cuda.set_per_process_memory_fraction(0.001)
    del tensor


def narrow_the_fraction_to_nothing() -> None:
    torch.cuda.set_per_process_memory_fraction(0.0)


def share_with_another_process() -> None:
    multiprocessing.reduction.ForkingPickler.dumps(odd_tensor())


def make_a_pool() -> None:
    torch.cuda.MemPool()


def record_history() -> None:
    torch.cuda.memory._record_memory_history()


REFUSED = {
    narrow_the_fraction_below_what_is_held: "is in use",
    narrow_the_fraction_to_nothing: "the least that can serve a model",
    share_with_another_process: "cannot be shared",
    make_a_pool: "MemPool",
    record_history: "vdnn_alloc.dump",
}


def sentence_of(action: Callable[[], None]) -> str:
    odd_tensor()
    try:
        action()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "it was not refused"


@pytest.mark.parametrize("action", REFUSED, ids=lambda action: action.__name__)
def test_what_cannot_be_right_is_refused(action: Callable[[], None]) -> None:
    sentence = fresh.call(sentence_of, action, install=gpu_training.settings()).result
    assert REFUSED[action] in sentence


def train_with_benchmark() -> float:
    torch.manual_seed(5)
    model = gpu_training.conv_net()
    torch.backends.cudnn.benchmark = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return [gpu_training.one_step(model, optimizer) for _ in range(2)][-1]


def test_cudnn_may_search_for_engines() -> None:
    loss = fresh.call(train_with_benchmark, install=gpu_training.settings()).result
    assert loss == pytest.approx(fresh.call(train_with_benchmark).result, rel=1e-3)
