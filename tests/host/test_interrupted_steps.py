"""Real training loops do not only train: what happens between and inside steps changes no number.

Every scenario is run by PyTorch alone and under a budget, and must return the same.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import fresh
from tests.helpers.compare import digest, digests
from tests.helpers.models import WORKLOADS, Batch

TIGHT = {"budget": "12MiB", "policy": "dyn"}  # under half of the peak of the chain
CHAIN = WORKLOADS["chain"]


class Training:
    """The chain, its optimizer, and a numbered batch for every step."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = CHAIN.build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def batch(self, number: int) -> Batch:
        return CHAIN.batch(torch.Generator().manual_seed(number))

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        CHAIN.loss(self.model, self.batch(number)).backward()
        self.optimizer.step()

    def result(self) -> list[str]:
        return digests(self.model)


def evaluation_under(mode: Callable[[], torch.autograd.grad_mode.no_grad]) -> list[str]:
    """Evaluates between training steps, with the recording of gradients off."""
    training, seen = Training(), []
    for number in range(4):
        training.step(number)
        with mode():
            seen.append(digest(CHAIN.loss(training.model, training.batch(100 + number))))
    return seen + training.result()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_between_steps_changes_nothing(mode: type) -> None:
    ours = fresh.same_as_stock(evaluation_under, mode, install=TIGHT)

    assert moved(ours)


def evaluation_with_gradients() -> list[str]:
    """Forgets no_grad in the evaluation: its graph is built and dropped."""
    training, seen = Training(), []
    for number in range(4):
        training.step(number)
        seen.append(digest(CHAIN.loss(training.model, training.batch(100 + number))))
    return seen + training.result()


def test_a_loss_dropped_without_backward_changes_nothing() -> None:
    ours = fresh.same_as_stock(evaluation_with_gradients, install=TIGHT)

    assert moved(ours)


class Tripwire(nn.Module):
    """Passes its input on until it is armed, then raises."""

    armed = False

    def forward(self, x: Tensor) -> Tensor:
        if self.armed:
            raise KeyError("tripped")
        return x


def exception_in_forward() -> list[str]:
    """Every second forward dies in its middle; the caller catches it and goes on."""
    training = Training()
    wire = Tripwire()
    assert isinstance(training.model, nn.Sequential)
    training.model.insert(120, wire)
    for number in range(7):
        wire.armed = number % 2 == 1
        try:
            training.step(number)
        except KeyError:
            assert wire.armed
        else:
            assert not wire.armed
    return training.result()


def test_an_exception_in_forward_leaves_the_next_step_right() -> None:
    ours = fresh.same_as_stock(exception_in_forward, install=TIGHT)

    assert moved(ours)


class FailsBackward(torch.autograd.Function):
    """Raises on its way back."""

    @staticmethod
    def forward(_ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: object, _grad: Tensor) -> Tensor:
        raise KeyError("no way back")


def exception_in_backward() -> list[str]:
    """A backward dies in its middle, half of the blocks prefetched."""
    training = Training()
    assert isinstance(training.model, nn.Sequential)
    for number in range(3):
        hidden = training.model[:100](training.batch(number)[0])
        loss = training.model[100:](FailsBackward.apply(hidden)).sum()
        with pytest.raises(KeyError):
            loss.backward()
        del hidden, loss
        training.step(number)
    return training.result()


def test_an_exception_in_backward_leaves_the_next_step_right() -> None:
    ours = fresh.same_as_stock(exception_in_backward, install=TIGHT)

    assert moved(ours)


def out_of_memory_then_smaller() -> tuple[int, list[str]]:
    """Asks for a batch beyond the budget until it fits, as batch-size finders do."""
    training, failures = Training(), 0
    rows = 1 << 20
    while rows > 2048:
        try:
            training.optimizer.zero_grad()
            training.model(torch.ones(rows, 32)).mean().backward()
            break
        except torch.OutOfMemoryError:
            failures += 1
            rows //= 4
    for number in range(3):
        training.step(number)
    return failures, training.result()


def three_steps() -> list[str]:
    """What the program above does once its batch is small enough."""
    training = Training()
    for number in range(3):
        training.step(number)
    return training.result()


def test_out_of_memory_has_torchs_type_and_a_smaller_batch_then_trains() -> None:
    stock = fresh.call(three_steps)

    ours = fresh.call(out_of_memory_then_smaller, install=TIGHT)

    failures, numbers = ours.result
    assert failures > 1
    assert ours.stats is not None
    assert ours.stats["ooms"] >= failures
    assert numbers == stock.result


def checkpointing_to_disk() -> tuple[list[str], list[str]]:
    """Saves after two steps and in the middle of a step, then goes on from what was saved."""
    training, file = Training(), io.BytesIO()
    training.step(0)
    training.step(1)
    loss = CHAIN.loss(training.model, training.batch(2))  # feature maps are away now
    torch.save([training.model.state_dict(), training.optimizer.state_dict()], file)
    loss.backward()
    file.seek(0)

    resumed = Training()
    model_state, optimizer_state = torch.load(file)
    resumed.model.load_state_dict(model_state)
    resumed.optimizer.load_state_dict(optimizer_state)
    for number in range(2, 4):
        resumed.step(number)
    return training.result(), resumed.result()


def test_torch_save_in_the_middle_of_a_step_saves_the_right_numbers() -> None:
    ours = fresh.same_as_stock(checkpointing_to_disk, install=TIGHT)

    assert moved(ours)


def changing_batch_sizes() -> list[str]:
    """Every step has another shape, as real data has."""
    training = Training()
    for number, rows in enumerate([2048, 1111, 1777, 123, 2048, 1904]):
        x, y = (tensor[:rows].clone() for tensor in training.batch(number))
        training.optimizer.zero_grad()
        CHAIN.loss(training.model, (x, y)).backward()
        training.optimizer.step()
    return training.result()


def gradient_accumulation() -> list[str]:
    """Three backward passes for every step of the optimizer."""
    training = Training()
    for number in range(6):
        CHAIN.loss(training.model, training.batch(number)).backward()
        if number % 3 == 2:
            training.optimizer.step()
            training.optimizer.zero_grad()
    CHAIN.loss(training.model, training.batch(9)).backward()
    return training.result()


def two_graphs_at_once() -> list[str]:
    """Two forward passes, then their backward passes in the order of the forward."""
    training = Training()
    for number in range(3):
        losses = [CHAIN.loss(training.model, training.batch(2 * number + i)) for i in (0, 1)]
        for loss in losses:
            loss.backward()
        del loss, losses
        training.optimizer.step()
        training.optimizer.zero_grad()
    training.step(50)
    return training.result()


def functional_program() -> list[str]:
    """No module at all: hooks on modules see nothing here."""
    torch.manual_seed(3)
    weights = [torch.randn(32, 32).div_(6).requires_grad_() for _ in range(90)]
    for _ in range(4):
        x = torch.ones(2048, 32)
        for weight in weights:
            x = (x @ weight).tanh()
        for weight in weights:
            weight.grad = None
        x.sum().backward()
        del x
        with torch.no_grad():
            for weight in weights:
                weight -= 0.01 * weight.grad
    return [digest(weight) for weight in weights]


@pytest.mark.parametrize(
    "program",
    [changing_batch_sizes, gradient_accumulation, two_graphs_at_once, functional_program],
)
def test_other_shapes_of_loops_are_right_too(program: Callable[[], list[str]]) -> None:
    ours = fresh.same_as_stock(program, install=TIGHT)

    assert moved(ours)


def moved(ended: fresh.Ended) -> bool:
    """Whether feature maps left and came back, and the budget was kept."""
    assert ended.stats is not None
    assert ended.stats["created_bytes_max"] <= ended.stats["budget_bytes"]
    assert 0 < ended.witness_bytes <= ended.stats["budget_bytes"]
    return ended.stats["offloaded_bytes"] > 0 and ended.stats["prefetched_bytes"] > 0
