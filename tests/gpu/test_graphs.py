"""CUDA graphs: what is captured replays as eager execution runs, its memory is the budget's, and
training that moves feature maps around it changes nothing in either."""

from __future__ import annotations

import gc
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import fresh, gpu_training
from tests.helpers.gpu_training import BATCH, SIDE, Trained, read_counters

BUDGET = 2 << 30
SMALL_BATCH = 8
PERCENT = 60
GRAPH_BYTES = 128 << 20  # of the small graph: cuBLAS's workspaces on three streams, above all

Numbers = tuple[float, str]  # a loss, and the hash of all gradients and parameters


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).square().mean()


def eager(model: nn.Module, inputs: Tensor) -> Numbers:
    """Forward and backward, with gradients of their own."""
    model.zero_grad()
    loss = loss_of(model, inputs)
    loss.backward()
    return loss.item(), gpu_training.digest(model)


class Captured:
    """A forward and backward as a graph, run with whatever is copied into `inputs`."""

    def __init__(self, model: nn.Module, inputs: Tensor) -> None:
        self.model, self.inputs = model, inputs.clone()
        self.warm_up()
        model.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = loss_of(model, self.inputs)
            self.loss.backward()

    def warm_up(self) -> None:
        """On a side stream, as torch asks: libraries choose and allocate in their first calls."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.model.zero_grad()
                loss_of(self.model, self.inputs).backward()
        torch.cuda.current_stream().wait_stream(side)

    def replay(self, inputs: Tensor) -> Numbers:
        self.inputs.copy_(inputs)
        self.graph.replay()
        return self.loss.item(), gpu_training.digest(self.model)


# --- replay -------------------------------------------------------------------------------------


def replay_and_run_eagerly() -> tuple[list[Numbers], list[Numbers]]:
    gpu_training.be_deterministic()
    model = gpu_training.conv_net()
    captured = Captured(model, gpu_training.images(SMALL_BATCH))
    batches = [gpu_training.images(SMALL_BATCH) for _ in range(3)]
    replayed = [captured.replay(batch) for batch in batches]
    return replayed, [eager(model, batch) for batch in batches]


# Rule 9: in a capture nothing moves and nothing waits for work outside.
def test_a_replay_with_other_inputs_is_eager_execution() -> None:
    ended = fresh.same_as_stock(replay_and_run_eagerly, install=gpu_training.settings(BUDGET))
    replayed, run_eagerly = ended.result
    assert len({loss for loss, _ in replayed}) == 3
    assert replayed == run_eagerly
    assert ended.stats is not None
    assert ended.stats["created_bytes_max"] <= BUDGET


def hold_a_graph_and_drop_it() -> dict[str, int]:
    gpu_training.be_deterministic()
    model, inputs = gpu_training.conv_net(), gpu_training.images(SMALL_BATCH)
    eager(model, inputs)  # what the libraries keep is there before and after
    model.zero_grad()
    before = torch.cuda.memory_allocated()
    captured = Captured(model, inputs)
    seen = {"held": torch.cuda.memory_allocated() - before}
    seen["reserved"] = torch.cuda.memory_reserved()
    model.zero_grad()
    del captured
    gc.collect()
    torch.cuda.empty_cache()
    seen["left"] = torch.cuda.memory_allocated() - before
    seen["reserved_after"] = torch.cuda.memory_reserved()
    return seen


def test_the_memory_of_a_graph_is_the_budgets_until_the_graph_goes() -> None:
    seen = fresh.call(hold_a_graph_and_drop_it, install=gpu_training.settings(BUDGET)).result
    assert 0 < seen["held"] <= seen["reserved"] <= BUDGET
    # A stream that the warm-up was first to use has a cuBLAS workspace from then on.
    assert seen["left"] <= GRAPH_BYTES
    assert seen["reserved_after"] < seen["reserved"]


def call_graphed_and_eagerly() -> tuple[list[Numbers], list[Numbers]]:
    gpu_training.be_deterministic()
    model = gpu_training.conv_net()
    batches = [gpu_training.images(SMALL_BATCH) for _ in range(3)]
    run_eagerly = [eager(model, batch) for batch in batches]
    graphed = torch.cuda.make_graphed_callables(model, (torch.zeros_like(batches[0]),))
    return [eager(graphed, batch) for batch in batches], run_eagerly


def test_graphed_callables_are_eager_execution() -> None:
    ended = fresh.same_as_stock(call_graphed_and_eagerly, install=gpu_training.settings(BUDGET))
    graphed, run_eagerly = ended.result
    assert graphed == run_eagerly


# --- beside training under pressure -------------------------------------------------------------


@cache
def tight_budget() -> int:
    """A share of the training's peak, and the small graph's memory."""
    ended = fresh.call(
        gpu_training.train_and_peak, install=gpu_training.settings(policy="none")
    ).result
    assert isinstance(ended, tuple)
    return int(ended[1]) * PERCENT // 100 + GRAPH_BYTES


def small_net() -> nn.Module:
    """A few MiB with all that belongs to it."""
    torch.manual_seed(7)
    linears = [nn.Linear(256, 256) for _ in range(4)]
    return nn.Sequential(*(layer for linear in linears for layer in (linear, nn.Tanh()))).cuda()


def train_between_replays() -> tuple[list[Numbers], list[float], str]:
    """Losses and hashes of both trainings, a step of the one after a replay of the other."""
    gpu_training.be_deterministic()
    captured = Captured(small_net(), torch.randn(64, 256, device="cuda"))
    model = gpu_training.conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    replayed, losses = [], []
    for _ in range(4):
        replayed.append(captured.replay(torch.randn(64, 256, device="cuda")))
        losses.append(gpu_training.one_step(model, optimizer))
    return replayed, losses, gpu_training.digest(model)


def test_replays_and_training_under_pressure_leave_each_other_alone() -> None:
    settings = gpu_training.settings(tight_budget())
    ended = fresh.same_as_stock(train_between_replays, install=settings)
    assert ended.stats is not None
    assert ended.stats["offloaded_bytes"] > 0
    assert ended.stats["workspace_refusals"] == 0
    assert ended.stats["created_bytes_max"] <= tight_budget()


class GivingUpError(Exception):
    """What the program raises in the middle of a capture."""


def capture_half(*, by_an_illegal_call: bool) -> bool:
    """Begins to capture a step and fails after the forward; true if the failure was seen."""
    model, inputs = small_net(), torch.ones(64, 256, device="cuda")
    loss_of(model, inputs).backward()
    model.zero_grad()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            loss = loss_of(model, inputs)
            if by_an_illegal_call:
                loss.item()  # waits for the device, which ends the capture
            raise GivingUpError
    except (GivingUpError, RuntimeError):
        return True
    return False


def train_after_half_a_capture(how: str | None) -> Trained:
    """A training, after a capture that failed so; None: after none. Its images are drawn on the
    CPU, for a capture that CUDA breaks off may leave torch's CUDA generator in the middle of it."""
    gpu_training.be_deterministic()
    model, trained = gpu_training.conv_net(), Trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if how is not None:
        assert capture_half(by_an_illegal_call=how == "illegal_call")
        gc.collect()
        torch.cuda.synchronize()
    for step in range(5):
        drawn = torch.randn(BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(step))
        loss, digest = eager(model, drawn.cuda())
        optimizer.step()
        trained.losses.append(loss)
        trained.digests.append(digest)
        read_counters(trained)
    return trained


@cache
def trained_by_stock() -> Trained:
    """Without any capture."""
    trained = fresh.call(train_after_half_a_capture, None).result
    assert isinstance(trained, Trained)
    return trained


@pytest.mark.parametrize("how", ["exception", "illegal_call"])
def test_training_under_pressure_is_right_after_a_capture_that_failed(how: str) -> None:
    settings = gpu_training.settings(tight_budget())
    ours = fresh.call(train_after_half_a_capture, how, install=settings).result
    assert (ours.losses, ours.digests) == (trained_by_stock().losses, trained_by_stock().digests)
    assert ours.offloaded[-1] > 0
    assert max(ours.created) <= tight_budget()
