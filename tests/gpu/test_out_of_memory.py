"""A request that the budget cannot serve raises torch's typed error, and training goes on."""

from __future__ import annotations

import torch

from tests.helpers import fresh, gpu_training
from tests.helpers.gpu_training import FEATURE_MAP_BYTES

BUDGET = 1 << 30


def ask_for_too_much() -> str:
    seen: list[tuple[int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(
        lambda device, size, *_room: seen.append((device, size))
    )
    try:
        torch.empty(2 * BUDGET, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert seen == [(0, 2 * BUDGET)]
        return str(error)
    return "it was served"


def test_the_error_is_typed_and_names_the_sizes() -> None:
    text = fresh.call(ask_for_too_much, install=gpu_training.settings(BUDGET)).result
    assert text.startswith("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert "1.00 GiB" in text


def too_large_then_smaller() -> tuple[list[float], int, int]:
    gpu_training.be_deterministic()
    model = gpu_training.conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    refused = 0
    try:
        gpu_training.one_step(model, optimizer, batch=64 * gpu_training.BATCH)
    except torch.OutOfMemoryError:
        refused = 1
    torch.manual_seed(6)
    losses = [gpu_training.one_step(model, optimizer) for _ in range(3)]
    torch.cuda.synchronize()
    return losses, refused, torch.cuda.memory_stats()["num_ooms"]


def just_smaller() -> list[float]:
    gpu_training.be_deterministic()
    model = gpu_training.conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(6)
    return [gpu_training.one_step(model, optimizer) for _ in range(3)]


def test_a_smaller_batch_trains_after_the_error_with_stocks_numbers() -> None:
    budget = 20 * FEATURE_MAP_BYTES
    ended = fresh.call(too_large_then_smaller, install=gpu_training.settings(budget))
    losses, refused, ooms = ended.result
    assert refused == 1
    assert ooms >= 1
    assert losses == fresh.call(just_smaller).result
