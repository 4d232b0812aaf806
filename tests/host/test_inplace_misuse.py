"""What autograd rejects as "modified by an inplace operation" is still rejected, moved or not.

Saved-tensor hooks switch autograd's own check off, so vdnn_alloc repeats it (invariant 11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import fresh

MESSAGE = "modified by an inplace operation"
SMALL, LARGE = (4, 8), (2048, 32)  # a large one may move, a small one never does


def scratch(shape: tuple[int, int]) -> Tensor:
    """A leaf that wants a gradient."""
    return torch.linspace(-1.0, 1.0, shape[0] * shape[1]).view(shape).requires_grad_()


def output_overwritten(shape: tuple[int, int]) -> None:
    """The sigmoid saved its output."""
    y = scratch(shape).sigmoid()
    y.add_(1.0)
    y.sum().backward()


def overwritten_through_a_view(shape: tuple[int, int]) -> None:
    """A slice shares the version of what it is a slice of."""
    y = scratch(shape).exp()
    y[0].zero_()
    y.sum().backward()


def input_overwritten(shape: tuple[int, int]) -> None:
    """The product saved an input that needs no gradient itself."""
    factor = torch.ones(shape)
    y = scratch(shape) * factor
    factor.fill_(2.0)
    y.sum().backward()


def parameter_overwritten(shape: tuple[int, int]) -> None:
    """A weight is changed between forward and backward."""
    model = nn.Sequential(nn.Linear(shape[1], shape[1]), nn.Linear(shape[1], shape[1]))
    loss = model(scratch(shape)).sum()
    second = model[1]
    assert isinstance(second, nn.Linear)
    with torch.no_grad():
        second.weight.add_(1.0)
    loss.backward()


def optimizer_step_too_early(shape: tuple[int, int]) -> None:
    """The optimizer steps between two walks of one graph."""
    model = nn.Sequential(nn.Linear(shape[1], shape[1]), nn.Linear(shape[1], shape[1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(scratch(shape)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()


class SpoilsWhatItSaved(torch.autograd.Function):
    """Writes into its saved tensor in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        hidden = x * 2.0
        ctx.save_for_backward(hidden)
        return hidden.sum(dim=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (hidden,) = ctx.saved_tensors
        return hidden.mul_(grad[:, None])


def saved_tensor_spoilt_by_the_first_walk(shape: tuple[int, int]) -> None:
    """What was handed out, perhaps at a new address, is written; the second walk must notice."""
    loss = SpoilsWhatItSaved.apply(scratch(shape)).sum()
    loss.backward(retain_graph=True)
    loss.backward()


MISUSES = [
    output_overwritten,
    overwritten_through_a_view,
    input_overwritten,
    parameter_overwritten,
    optimizer_step_too_early,
    saved_tensor_spoilt_by_the_first_walk,
]


def rejected(misuse: Callable[[tuple[int, int]], None], shape: tuple[int, int]) -> bool:
    """Whether autograd, or what stands for it, raised in the words that users know."""
    try:
        misuse(shape)
    except RuntimeError as error:
        return MESSAGE in str(error)
    return False


def all_rejected() -> dict[str, bool]:
    """Each misuse with a tensor too small to move and with a large one, in two rounds."""
    return {
        f"{misuse.__name__} {shape} round {turn}": rejected(misuse, shape)
        for turn in (1, 2)
        for shape in (SMALL, LARGE)
        for misuse in MISUSES
    }


def test_autograd_itself_rejects_every_misuse() -> None:
    stock = fresh.call(all_rejected)

    assert [name for name, raised in stock.result.items() if not raised] == []


@pytest.mark.parametrize("policy", ["none", "all", "dyn"])
def test_every_misuse_is_rejected_while_vdnn_alloc_serves(policy: str) -> None:
    ours = fresh.call(all_rejected, install={"budget": "24MiB", "policy": policy})

    assert [name for name, raised in ours.result.items() if not raised] == []


def test_a_misuse_is_rejected_of_a_tensor_that_had_moved() -> None:
    ours = fresh.call(all_rejected, install={"budget": "24MiB", "policy": "all"})

    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] >= LARGE[0] * LARGE[1] * 4


def test_overwriting_that_autograd_allows_is_not_rejected() -> None:
    install = {"budget": "24MiB", "policy": "all"}

    fresh.same_as_stock(harmless_overwriting, install=install)


def harmless_overwriting() -> float:
    """Writes over a linear layer's output, which no backward needs."""
    x = scratch(LARGE)
    y = nn.functional.linear(x, torch.eye(LARGE[1]))
    y.mul_(3.0)
    y.sum().backward()
    assert x.grad is not None
    return float(x.grad.sum())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = 2 * x
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad * y / y * 2


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def detached_in_place(shape: tuple[int, int]) -> dict[str, str | float]:
    """What comes of detach_() between forward and backward: of an input, an output, both at once,
    an input of the node's own kind, and in Functions of the user's."""
    leaf = torch.full(shape, 0.5, requires_grad=True)
    found: dict[str, str | float] = {}

    cases: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]] = {
        "input": (lambda: leaf * 2, torch.sin),
        "output": (lambda: leaf.exp(), torch.sum),
        "both": (lambda: leaf.exp(), torch.square),
        "of its own kind": (lambda: leaf * 2, lambda h: h * h),
        "in its own kind, as an output": (lambda: leaf.exp(), torch.exp),
        "of a Function": (lambda: Doubled.apply(leaf), torch.sum),
        "of a Function, as an input": (lambda: Doubled.apply(leaf), torch.sin),
        "in a Function, as an input": (lambda: leaf * 2, Squared.apply),
        "between two Functions": (lambda: Doubled.apply(leaf), Squared.apply),
    }
    for name, (inner, outer) in cases.items():
        leaf.grad = None
        h = inner()
        y = outer(h).sum()
        h.detach_()
        try:
            y.backward()
        except RuntimeError as error:
            found[name] = str(error)
        else:
            assert leaf.grad is not None
            found[name] = float(leaf.grad.sum())
    return found


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_what_was_detached_in_place_is_used_or_rejected_as_stock_does(
    shape: tuple[int, int],
) -> None:
    install = {"budget": "24MiB", "policy": "dyn"}
    ours = fresh.same_as_stock(detached_in_place, shape, install=install)

    assert len({type(value) for value in ours.result.values()}) == 2
