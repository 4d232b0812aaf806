"""Workspaces of cuDNN on a GPU: what the setting `workspace` lets them have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.helpers import fresh, gpu_training

if TYPE_CHECKING:
    from tests.helpers.gpu_training import Trained

STEPS = 8
PERCENT = 60


def settings(workspace: str, budget: int = gpu_training.AMPLE) -> fresh.Settings:
    return {**gpu_training.settings(budget), "workspace": workspace}


def train_and_count() -> tuple[Trained, list[int]]:
    """The training, and how many workspaces had been refused after each step."""
    import vdnn_alloc

    gpu_training.be_deterministic()
    model, trained, refused = gpu_training.conv_net(), gpu_training.Trained(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(STEPS):
        trained.losses.append(gpu_training.one_step(model, optimizer))
        trained.digests.append(gpu_training.digest(model))
        refused.append(vdnn_alloc.stats().workspace_refusals)
    return trained, refused


def tight_budget() -> int:
    _, peak = fresh.call(
        gpu_training.train_and_peak, install=gpu_training.settings(policy="none")
    ).result
    return int(peak) * PERCENT // 100


# Rule 12: which workspaces are refused follows from the program, so its bits do too.
def test_planned_refuses_the_same_in_every_run_and_settles() -> None:
    tight = settings("planned", tight_budget())
    first = fresh.call(train_and_count, install=tight).result
    second = fresh.call(train_and_count, install=tight).result
    assert first == second
    refused = first[1]
    # cuDNN remembers the engine that ran, so what was refused is not asked for again.
    assert refused[-1] == refused[4]


def test_planned_refuses_nothing_where_nothing_has_to_leave() -> None:
    trained, refused = fresh.call(train_and_count, install=settings("planned")).result
    stock = fresh.call(gpu_training.train, STEPS).result
    assert refused == [0] * STEPS
    assert (trained.losses, trained.digests) == (stock.losses, stock.digests)


def largest_request_of_a_convolution() -> int:
    """Bytes beyond the tensors that one forward, with its engine chosen by trying, held at once."""
    torch.backends.cudnn.benchmark = True
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
    images = torch.randn(96, 64, 45, 45, device="cuda")
    with torch.no_grad():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = layer(images)
        return torch.cuda.max_memory_allocated() - before - result.nbytes


def test_none_leaves_no_room_for_a_workspace() -> None:
    assert fresh.call(largest_request_of_a_convolution, install=settings("none")).result < 1 << 20
