"""What else autograd can do with saved tensors gives the same numbers while they move.

Every program is run by PyTorch alone and under a budget, and must return the same hashes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.helpers import fresh
from tests.helpers.compare import digest, digests
from tests.helpers.models import WORKLOADS

TIGHT = {"budget": "12MiB", "policy": "dyn"}
CHAIN = WORKLOADS["chain"]


def chain() -> nn.Sequential:
    """The deep chain with fixed weights."""
    torch.manual_seed(11)
    model = CHAIN.build()
    assert isinstance(model, nn.Sequential)
    return model


def rows(number: int = 0) -> Tensor:
    """A batch for the chain."""
    return CHAIN.batch(torch.Generator().manual_seed(number))[0]


def retain_graph() -> list[str]:
    """Walks one graph backward three times."""
    model, seen = chain(), []
    for number in range(3):
        loss = model(rows(number)).square().sum()
        for again in (True, True, False):
            loss.backward(retain_graph=again)
            seen += digests(model)
        del loss
    return seen


def double_backward() -> list[str]:
    """A gradient penalty: the gradient of a gradient.

    Short, for what the engine itself holds on the way (a gradient a layer) cannot move.
    """
    model, seen = chain()[:40], []
    for number in range(3):
        x = rows(number).requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        model.zero_grad()
        (slope.norm() + model(x).mean()).backward()
        seen += digests(model)
        del slope, x
    return seen


class ReadsTwice(torch.autograd.Function):
    """Asks for its saved tensors twice, and must be given the same values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        first_x, first_y = ctx.saved_tensors
        x, y = ctx.saved_tensors
        assert torch.equal(first_x, x)
        assert torch.equal(first_y, y)
        return torch.addcmul(grad, grad * y, first_y, value=-1.0) + 0.0 * first_x


def saved_tensors_read_twice() -> list[str]:
    """A chain of functions that read twice."""
    torch.manual_seed(5)
    scale = torch.rand(2048, 32).requires_grad_()
    seen = []
    for number in range(4):
        x = rows(number)
        for _ in range(60):
            x = ReadsTwice.apply(x * scale)
        scale.grad = None
        x.sum().backward()
        assert scale.grad is not None
        seen.append(digest(scale.grad))
    return seen


def checkpointed(*, use_reentrant: bool) -> list[str]:
    """Recomputes the feature maps of every segment in backward."""
    model, seen = chain(), []
    for number in range(4):
        x = rows(number).requires_grad_()
        for start in range(0, 200, 10):
            x = checkpoint(model[start : start + 10], x, use_reentrant=use_reentrant)
        y = model(x)  # and a part that is not recomputed
        model.zero_grad()
        y.square().sum().backward()
        seen += digests(model)
        del x, y
    return seen


def reentrant_checkpoint() -> list[str]:
    """The older of the two kinds."""
    return checkpointed(use_reentrant=True)


def checkpoint_without_reentry() -> list[str]:
    """The newer of the two kinds."""
    return checkpointed(use_reentrant=False)


def two_threads() -> list[str]:
    """Two models train at once, each in a thread of its own."""
    models = [chain(), chain()]

    def train(model: nn.Sequential, first: int) -> None:
        torch.set_num_threads(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(4):
            optimizer.zero_grad()
            model(rows(first + number)).square().sum().backward()
            optimizer.step()

    threads = [threading.Thread(target=train, args=(m, 10 * i)) for i, m in enumerate(models)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return digests(models[0]) + digests(models[1])


def backward_in_another_thread() -> list[str]:
    """Forward here, backward there."""
    model, seen = chain(), []
    for number in range(4):
        loss = model(rows(number)).square().sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        del loss, thread
        seen += digests(model)
    return seen


def views_of_one_storage() -> list[str]:
    """Several views of one block are saved, and all of them come back right."""
    torch.manual_seed(2)
    weight = torch.randn(32, 96).div_(6).requires_grad_()
    seen = []
    for number in range(4):
        x = rows(number)
        for _ in range(30):
            query, key, value = (x @ weight).chunk(3, dim=1)
            x = (query.sigmoid() * key + value * query).tanh()
        weight.grad = None
        x.sum().backward()
        assert weight.grad is not None
        seen.append(digest(weight.grad))
    return seen


def gradients_of_some_inputs() -> list[str]:
    """A part of the graph is never walked backward."""
    model, seen = chain(), []
    last = model[-4]
    assert isinstance(last, nn.Linear)
    for number in range(4):
        y = model(rows(number)).square().sum()
        seen += [digest(g) for g in torch.autograd.grad(y, [last.weight, last.bias])]
        model.zero_grad()
        model(rows(number)).square().sum().backward()
        seen += digests(model)
        del y
    return seen


PROGRAMS = [
    retain_graph,
    double_backward,
    saved_tensors_read_twice,
    reentrant_checkpoint,
    checkpoint_without_reentry,
    two_threads,
    backward_in_another_thread,
    views_of_one_storage,
    gradients_of_some_inputs,
]


@pytest.mark.parametrize("policy", ["dyn", "all"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_returns_the_same_bits(program: Callable[[], list[str]], policy: str) -> None:
    ours = fresh.same_as_stock(program, install={**TIGHT, "policy": policy})

    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] > 0
    assert ours.stats["created_bytes_max"] <= ours.stats["budget_bytes"]
