"""Loaders with workers, and children that compute: forked or spawned, in the middle of training."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, loss_of, one_step
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import device, program, scaled
from tests.programs.seen import Seen

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


NO_BACKWARD = "autograd refuses a backward in a child whose parent has walked back on a GPU"


class Rows(Dataset[tuple[Tensor, int]]):
    """Rows of one tensor, with the noise and the arithmetic that augmentation has."""

    def __init__(self, count: int) -> None:
        self.values = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        row = self.values[index] + 0.1 * torch.randn(WIDTH, generator=generator)
        return row * torch.linspace(0.9, 1.1, WIDTH), index % 10


class Stream(IterableDataset[Tensor]):
    """Whole batches, made by a small network in the worker, gradients included."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        layer = nn.Linear(WIDTH, WIDTH)
        for parameter in layer.parameters():
            nn.init.constant_(parameter, 0.01)
        for step in range(2):
            x = torch.full((1024, WIDTH), float(step + 1), requires_grad=True)
            layer(x).square().sum().backward()
            yield x.grad


def train_on(loader: DataLoader[tuple[Tensor, Tensor]], *, epochs: int = 1) -> Seen:
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for _ in range(epochs):
        for x, target in loader:
            # More rows for a GPU, of those that were loaded.
            x, target = x.to(device()).repeat(scaled(1), 1), target.to(device()).repeat(scaled(1))
            loss = functional.cross_entropy(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.step(model, loss)
    return seen


@program()
def loader_with_workers() -> Seen:
    """Two forked workers, made anew in each epoch."""
    return train_on(DataLoader(Rows(4096), batch_size=2048, num_workers=2), epochs=2)


@program()
def loader_with_workers_that_stay() -> Seen:
    order = torch.Generator().manual_seed(4)
    loader = DataLoader(
        Rows(2048),
        batch_size=1024,
        num_workers=1,
        shuffle=True,
        generator=order,
        persistent_workers=True,
        pin_memory=device().type == "cuda",
    )
    return train_on(loader, epochs=2)


@program(cpu_only=NO_BACKWARD)
def autograd_inside_the_workers() -> Seen:
    model, seen = classifier(depth=20), Seen()
    optimizer = sgd(model)
    for epoch in range(2):
        for x in DataLoader(Stream(), batch_size=None, num_workers=1):
            loss = functional.cross_entropy(
                model(x.to(device())), torch.zeros(1024).long().to(device())
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.step(model, loss)
        seen.note("epoch", epoch)
    return seen


def compute(answers: Connection, weight: Tensor | None) -> None:
    """The body of a child: a few steps on the CPU."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = nn.Linear(8, 8) if weight is None else nn.Linear(8, 8, bias=False)
    if weight is not None:
        model.weight.data.copy_(weight)
    for _ in range(3):
        loss = model(torch.ones(4, 8)).square().sum()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
    answers.send(model.weight.detach().tolist())
    answers.close()


def from_child(kind: str, weight: Tensor | None = None) -> object:
    """What a child started so computes, and how it ended."""
    context = multiprocessing.get_context(kind)
    mine, theirs = context.Pipe(duplex=False)
    child = context.Process(target=compute, args=(theirs, weight))
    child.start()
    theirs.close()
    answer = mine.recv()
    child.join()
    return answer, child.exitcode


@program(cpu_only=NO_BACKWARD)
def forked_child_in_mid_training() -> Seen:
    """It reads a tensor of its parent's while the parent's maps are away."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    weight = torch.linspace(-1, 1, 64).view(8, 8)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        seen.note("child", from_child("fork", weight))
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def spawned_child() -> Seen:
    """A child that starts from nothing."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    one_step(model, optimizer, seen, 0)
    seen.note("child", from_child("spawn"))
    one_step(model, optimizer, seen, 1)
    return seen


@program()
def os_fork() -> Seen:
    """A bare fork, whose child leaves at once."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        loss = loss_of(model, step)
        child = os.fork()
        if child == 0:
            os._exit(7 if float(torch.ones(1000).sum()) == 1000.0 else 1)
        seen.note("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program(cpu_only="memory shared between processes this way is host memory")
def weights_in_shared_memory() -> Seen:
    """share_memory_() moves the weights to memory that processes share; training goes on."""
    model, seen = classifier(), Seen()
    one_step(model, sgd(model), seen, 0)
    model.share_memory()
    optimizer = sgd(model)
    for step in range(1, 3):
        one_step(model, optimizer, seen, step)
        seen.note("shared", [parameter.is_shared() for parameter in model.parameters()])
    seen.note("batch", rows(scaled(4), WIDTH), labels(4))
    return seen
