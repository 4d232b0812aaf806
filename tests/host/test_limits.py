"""What is known to differ from stock PyTorch, as the documents say: each is an error in one
sentence or is harmless, and training goes on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.helpers import fresh
from tests.helpers.compare import digests
from tests.helpers.models import WORKLOADS

TIGHT = {"budget": "12MiB", "policy": "dyn"}
CHAIN = WORKLOADS["chain"]


def trained() -> list[str]:
    """Three steps of the chain."""
    torch.manual_seed(7)
    model = CHAIN.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(3):
        optimizer.zero_grad()
        CHAIN.loss(model, CHAIN.batch(torch.Generator().manual_seed(number))).backward()
        optimizer.step()
    return digests(model)


def hooks_on_one_saved_tensor() -> tuple[str, float, list[str]]:
    """Hooks on what one node saved, then the backward of that node, then training."""
    x = torch.ones(8, requires_grad=True)
    y: Any = x.exp()
    said = "nothing"
    try:
        y.grad_fn._raw_saved_result.register_hooks(lambda x: x * 2, lambda x: x / 2)
    except RuntimeError as error:
        said = str(error)
    y.sum().backward()
    assert x.grad is not None
    return said, float(x.grad[0]), trained()


def test_hooks_on_one_saved_tensor_are_refused() -> None:
    ours = fresh.call(hooks_on_one_saved_tensor, install=TIGHT).result
    stock = fresh.call(hooks_on_one_saved_tensor).result

    assert stock[0] == "nothing"
    assert "hooks have already been set" in ours[0]
    assert ours[1:] == stock[1:]


class ReadsAnAttribute(torch.autograd.Function):
    """Looks for what the program hung on a tensor that it saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, frozen: Tensor) -> Tensor:
        ctx.save_for_backward(x, frozen)
        return x * frozen

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        _, frozen = ctx.saved_tensors
        found.append(hasattr(frozen, "note"))
        return grad * frozen, None


found: list[bool] = []


def attribute_of_a_frozen_weight() -> tuple[bool, float, list[str]]:
    """The parameter that needs no gradient has an attribute; is it there in backward?"""
    weight = torch.nn.Parameter(torch.full((8,), 2.0), requires_grad=False)
    weight.note = "mine"  # type: ignore[attr-defined]
    x = torch.ones(8, requires_grad=True)
    ReadsAnAttribute.apply(x, weight).sum().backward()
    assert x.grad is not None
    return found.pop(), float(x.grad[0]), trained()


def test_attributes_of_a_frozen_weight_are_not_on_what_was_saved() -> None:
    ours = fresh.call(attribute_of_a_frozen_weight, install=TIGHT).result
    stock = fresh.call(attribute_of_a_frozen_weight).result

    assert (ours[0], stock[0]) == (False, True)
    assert ours[1:] == stock[1:]


def detached_and_dropped() -> tuple[str, float | None, list[str]]:
    """A saved input is taken out of its graph before the backward, and dropped."""
    leaf = torch.full((8,), 2.0, requires_grad=True)
    x = leaf.clone()
    y = x.square()
    x.detach_()
    del x
    said = "nothing"
    try:
        y.sum().backward()
    except RuntimeError as error:
        said = str(error)
    return said, None if leaf.grad is None else float(leaf.grad[0]), trained()


def test_an_input_that_was_detached_in_place_and_dropped_is_not_noticed() -> None:
    ours = fresh.call(detached_and_dropped, install=TIGHT).result
    stock = fresh.call(detached_and_dropped).result

    assert "has been detached" in stock[0]
    assert (ours[0], ours[1]) == ("nothing", 2 * 2.0)
    assert ours[2] == stock[2]
