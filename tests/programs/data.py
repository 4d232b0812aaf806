"""Random batches, drawn on the CPU from the number of the step, and the usual loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.program import device, scaled
from tests.programs.seen import Seen

CLASSES = 10


def rows(count: int, width: int, step: int = 0) -> Tensor:
    """(count, width), scaled to the device."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(scaled(count), width, generator=generator).to(device())


def labels(count: int, step: int = 0, classes: int = CLASSES) -> Tensor:
    """(count), scaled to the device."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(classes, (scaled(count),), generator=generator).to(device())


def images(count: int, side: int, step: int = 0, channels: int = 3) -> Tensor:
    """(count, channels, side, side), scaled to the device."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(scaled(count), channels, side, side, generator=generator).to(device())


def sequences(count: int, length: int, width: int, step: int = 0) -> Tensor:
    """(count, length, width), scaled to the device."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(scaled(count), length, width, generator=generator).to(device())


def tokens(count: int, length: int, vocabulary: int, step: int = 0) -> Tensor:
    """(count, length) whole numbers, scaled to the device."""
    generator = torch.Generator().manual_seed(step)
    shape = (scaled(count), length)
    return torch.randint(vocabulary, shape, generator=generator).to(device())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def fit(
    model: nn.Module,
    batch: Callable[[int], tuple[Tensor, ...]],
    loss_of: Callable[..., Tensor] = functional.cross_entropy,
    *,
    steps: int = 3,
) -> Seen:
    """Trains on (input, target) of each step, and notes losses, gradients, final state."""
    model, seen = model.to(device()), Seen()
    optimizer = sgd(model)
    for step in range(steps):
        x, target = batch(step)
        optimizer.zero_grad()
        loss = loss_of(model(x), target)
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    seen.state(model, optimizer)
    return seen
