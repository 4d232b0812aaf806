"""Parts that are computed again in backward: both kinds, nested, selective, with dropout inside."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import device, program
from tests.programs.seen import Seen


class Part(nn.Module):
    """Linear, GELU, dropout, linear, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.dropout(functional.gelu(self.one(x)), 0.1, self.training)
        return x + torch.as_tensor(self.two(hidden))


class Checkpointed(nn.Module):
    """Every other part is computed again."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(8))
        self.head = nn.Linear(WIDTH, 10)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        for number, part in enumerate(self.parts):
            again = number % 2 == 0
            x = checkpoint(part, x, use_reentrant=self.use_reentrant) if again else part(x)
        return torch.as_tensor(self.head(x))


def trained(model: nn.Module, *, steps: int = 3) -> Seen:
    model, seen = model.to(device()), Seen()
    optimizer = sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        x = rows(2048, WIDTH, step).requires_grad_()
        loss = functional.cross_entropy(model(x), labels(2048, step))
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
        seen.note("x", x.grad)
    seen.state(model)
    return seen


@program()
def with_reentry() -> Seen:
    return trained(Checkpointed(use_reentrant=True))


@program()
def without_reentry() -> Seen:
    return trained(Checkpointed(use_reentrant=False))


class Nested(nn.Module):
    """A checkpoint within a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(8))
        self.head = nn.Linear(WIDTH, 10)

    def pair(self, number: int, x: Tensor) -> Tensor:
        x = checkpoint(self.parts[number], x, use_reentrant=False)
        return checkpoint(self.parts[number + 1], x, use_reentrant=False)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        for number in (0, 2):
            x = checkpoint(self.pair, number, x, use_reentrant=False)
        for part in self.parts[4:]:
            x = part(x)
        return torch.as_tensor(self.head(x))


@program()
def nested() -> Seen:
    return trained(Nested())


class Selective(Nested):
    """Products are kept, all else is computed again."""

    def forward(self, x: Tensor) -> Tensor:
        def policy(_context: object, operator: object, *_args: object, **_kwargs: object) -> object:
            keep = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        contexts = partial(create_selective_checkpoint_contexts, policy)
        for part in self.parts[:3]:
            x = checkpoint(part, x, use_reentrant=False, context_fn=contexts)
        for part in self.parts[3:]:
            x = part(x)
        return torch.as_tensor(self.head(x))


@program(percent=75)  # what a selective checkpoint keeps is its own, and stays
def selective() -> Seen:
    return trained(Selective())


class InSegments(Nested):
    """checkpoint_sequential, with a head behind it."""

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint_sequential(nn.Sequential(*self.parts[:6]), 3, x, use_reentrant=False)
        for part in self.parts[6:]:
            x = part(x)
        return torch.as_tensor(self.head(x))


@program(percent=70)
def in_segments() -> Seen:
    return trained(InSegments())


class FailsWhileRecomputed(Nested):
    """Its second run raises, in the middle of backward."""

    runs = 0

    def unreliable(self, x: Tensor) -> Tensor:
        self.runs += 1
        if self.runs == 2:
            raise ValueError("not twice")
        return torch.as_tensor(self.parts[0](x))

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.unreliable, x, use_reentrant=False)
        for part in self.parts[1:]:
            x = part(x)
        return torch.as_tensor(self.head(x))


@program()
def exception_in_the_second_run() -> Seen:
    model, seen = FailsWhileRecomputed().to(device()), Seen()
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(rows(2048, WIDTH, step)), labels(2048, step))
        with seen.catching(ValueError):
            loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def different_in_the_second_run() -> Seen:
    """torch notices that another number of tensors was saved, and says so."""
    model, seen, calls = Nested().to(device()), Seen(), []

    def fickle(x: Tensor) -> Tensor:
        calls.append(x.shape)
        return x.exp().tanh().sin() if len(calls) % 2 == 1 else x.exp()

    for step in range(2):
        loss = model(
            checkpoint(fickle, rows(2048, WIDTH, step).requires_grad_(), use_reentrant=False)
        )
        with seen.catching(RuntimeError):
            loss.sum().backward()
        seen.gradients(model)
        model.zero_grad()
        del loss
    return seen
