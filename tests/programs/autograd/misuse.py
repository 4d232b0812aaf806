"""Programs that autograd rejects: each must be rejected in the same words, and training goes on.

What a step saved is changed in place before its backward, in every way that there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import rows, sgd
from tests.programs.loops.between_steps import classifier, one_step
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import device, program
from tests.programs.seen import Seen


def weight(seed: int = 0) -> Tensor:
    """A leaf (WIDTH, WIDTH)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(WIDTH, WIDTH, generator=generator).to(device()).requires_grad_()


def rejected(make_and_spoil: Callable[[int], Tensor]) -> Seen:
    """Each round: a loss whose graph is spoilt, its backward refused, then a step of training."""
    model, seen = classifier(depth=8), Seen()
    optimizer = sgd(model)
    for step in range(3):
        loss = make_and_spoil(step)
        with seen.catching(RuntimeError):
            loss.backward()
        del loss
        one_step(model, optimizer, seen, step)
    return seen


def deep(x: Tensor, depth: int = 8) -> Tensor:
    """Feature maps enough to need room."""
    for _ in range(depth):
        x = torch.tanh(x * 1.01)
    return x


@program()
def activation_changed() -> Seen:
    def spoil(step: int) -> Tensor:
        hidden = deep(rows(2048, WIDTH, step) @ weight())
        loss = deep(hidden).sum()
        hidden.add_(1)
        return loss

    return rejected(spoil)


@program()
def activation_changed_under_no_grad() -> Seen:
    def spoil(step: int) -> Tensor:
        hidden = deep(rows(2048, WIDTH, step) @ weight())
        loss = hidden.square().sum() + deep(hidden).sum()
        with torch.no_grad():
            hidden.mul_(2)
        return loss

    return rejected(spoil)


@program()
def view_of_an_activation_changed() -> Seen:
    def spoil(step: int) -> Tensor:
        hidden = deep(rows(2048, WIDTH, step) @ weight())
        loss = deep(hidden).sum()
        hidden[:, 0] = 0.0
        return loss

    return rejected(spoil)


@program()
def detached_alias_changed() -> Seen:
    def spoil(step: int) -> Tensor:
        hidden = deep(rows(2048, WIDTH, step) @ weight())
        loss = deep(hidden).sum()
        hidden.detach().zero_()
        return loss

    return rejected(spoil)


@program()
def activation_in_place_twice() -> Seen:
    """What the second in-place operator overwrites is what the first one saved."""

    def spoil(step: int) -> Tensor:
        hidden = deep(rows(2048, WIDTH, step) @ weight())
        return hidden.sigmoid_().mul_(2).sum()

    return rejected(spoil)


@program()
def relu_output_changed() -> Seen:
    def spoil(step: int) -> Tensor:
        hidden = functional.relu(deep(rows(2048, WIDTH, step) @ weight()), inplace=True)
        hidden += 1
        return deep(hidden).sum()

    return rejected(spoil)


@program()
def input_changed() -> Seen:
    """The batch is normalised in place, too late."""

    def spoil(step: int) -> Tensor:
        batch, matrix = rows(2048, WIDTH, step), weight()
        loss = deep(batch @ matrix).sum()
        batch.sub_(batch.mean(dim=1, keepdim=True))
        return loss

    return rejected(spoil)


@program()
def parameter_stepped_too_early() -> Seen:
    """optimizer.step() between the forward and the backward of one graph."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        early = model(rows(2048, WIDTH, step)).square().sum()
        one_step(model, optimizer, seen, step)
        with seen.catching(RuntimeError):
            early.backward()
        del early
    return seen


@program()
def parameter_changed_by_hand() -> Seen:
    def spoil(step: int) -> Tensor:
        matrix = weight()
        loss = deep(deep(rows(2048, WIDTH, step)) @ matrix @ matrix).sum()
        with torch.no_grad():
            matrix.copy_(weight(9))
        return loss

    return rejected(spoil)


@program()
def buffer_changed() -> Seen:
    """A running statistic that the graph has saved is updated by a second forward."""

    def spoil(step: int) -> Tensor:
        scale = torch.ones(WIDTH, device=device())
        hidden = deep(rows(2048, WIDTH, step) @ weight()) * scale
        scale.mul_(0.9).add_(0.1)
        return deep(hidden).sum()

    return rejected(spoil)


@program()
def index_changed() -> Seen:
    """Whole numbers that a gather and an embedding saved."""

    def spoil(step: int) -> Tensor:
        index = torch.arange(2048 * len(rows(1, 1)), device=device())
        hidden = deep(functional.embedding(index, rows(2048, WIDTH, step).requires_grad_()))
        index.fill_(0)
        return hidden.sum()

    return rejected(spoil)


@program()
def one_of_several_views_changed() -> Seen:
    """Query, key and value are views of one product; changing one spoils all."""

    def spoil(step: int) -> Tensor:
        product = rows(2048, WIDTH, step) @ weight().repeat(1, 3)
        query, key, value = (product[:, n * WIDTH : (n + 1) * WIDTH] for n in range(3))
        loss = deep(query * key + value * query).sum()
        with torch.no_grad():
            product[:, -1] += 1
        return loss

    return rejected(spoil)


class Saving(torch.autograd.Function):
    """Saves its input and its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        _, y = ctx.saved_tensors
        return grad * y


@program()
def tensors_of_a_user_function_changed() -> Seen:
    def spoil(step: int) -> Tensor:
        hidden = deep(rows(2048, WIDTH, step) @ weight())
        out = Saving.apply(hidden)
        with torch.no_grad():
            (out if step % 2 == 0 else hidden).mul_(2)
        return out.sum()

    return rejected(spoil)


@program()
def leaf_changed_in_place() -> Seen:
    """Refused at once, and not in backward."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(2):
        with seen.catching(RuntimeError):
            model[0].weight.add_(1)
        with seen.catching(RuntimeError):
            torch.relu_(weight())
        with seen.catching(RuntimeError):
            weight().expand(4, WIDTH, WIDTH).add_(1)
        one_step(model, optimizer, seen, step)
    return seen


@program()
def changed_where_nobody_saved_it() -> Seen:
    """All of these are allowed: nothing that backward needs is changed, or not by a version."""
    model, seen = classifier(depth=8), Seen()
    optimizer = sgd(model)
    for step in range(3):
        hidden = deep(rows(2048, WIDTH, step) @ weight())
        total = hidden.sum(dim=1) + 1.0
        total.mul_(2).add_(1).neg_()
        loss = total.sum()
        hidden.data.add_(1)  # through .data autograd does not see it, and uses the new values
        loss.backward()
        seen.note("loss", loss)
        del hidden, loss, total
        one_step(model, optimizer, seen, step)
    return seen


@program()
def wrong_in_other_ways() -> Seen:
    """Backward of what has no graph, of no scalar, of shapes and types that do not fit."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(2):
        x = rows(2048, WIDTH, step)
        with seen.catching(RuntimeError):
            x.sum().backward()
        with seen.catching(RuntimeError):
            model(x).backward()
        with seen.catching(RuntimeError):
            model(x).backward(torch.ones(3, device=device()))
        with seen.catching(RuntimeError):
            model(x[:, :-1])
        with seen.catching(RuntimeError):
            model(x.double())
        with seen.catching(RuntimeError):
            model(x).view(-1, 7)
        with seen.catching(ValueError):
            functional.cross_entropy(model(x), torch.zeros(3, device=device()).long())
        with seen.catching(TypeError):
            nn.Linear(3, 3)("text")
        one_step(model, optimizer, seen, step)
    return seen
