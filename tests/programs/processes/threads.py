"""Training in threads: not the main one, two at once, forward here and backward there."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn import functional

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, loss_of, one_step
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import device, program
from tests.programs.seen import Seen


def in_thread(work: Callable[[], None]) -> None:
    """Runs it in a thread of its own, to its end; what it raises is raised here."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(work).result()


def one_at_a_time() -> None:
    """OpenMP's threads are counted for each thread; a sum must not depend on their number."""
    torch.set_num_threads(1)


@program()
def in_a_thread() -> Seen:
    """The main thread only waits."""
    seen = Seen()

    def train() -> None:
        one_at_a_time()
        model = classifier()
        optimizer = sgd(model)
        for step in range(3):
            one_step(model, optimizer, seen, step)
        seen.state(model, optimizer)

    in_thread(train)
    return seen


@program()
def a_thread_for_each_step() -> Seen:
    """Every step runs in another thread, as in servers."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)

    def train(step: int) -> None:
        one_at_a_time()
        one_step(model, optimizer, seen, step)

    for step in range(4):
        in_thread(lambda step=step: train(step))  # type: ignore[misc]
    return seen


@program()
def backward_in_another_thread() -> Seen:
    """Forward here, backward there, the optimizer here again."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)

    def walk(loss: torch.Tensor) -> None:
        one_at_a_time()
        loss.backward()

    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        in_thread(lambda loss=loss: walk(loss))  # type: ignore[misc]
        optimizer.step()
        seen.step(model, loss)
    return seen


@program(percent=70)  # two steps at once may both be at their peaks
def two_models_at_once() -> Seen:
    """Two threads, a model each."""
    models, logs = [classifier(depth=20), classifier(depth=20)], [Seen(), Seen()]

    def train(number: int) -> None:
        one_at_a_time()
        optimizer = sgd(models[number])
        for step in range(4):
            one_step(models[number], optimizer, logs[number], 10 * number + step)

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(train, range(2)))
    return Seen({f"{n}: {key}": value for n, log in enumerate(logs) for key, value in log.items()})


@program(percent=70)
def gradients_from_several_threads() -> Seen:
    """Hogwild's shape: threads walk graphs of their own over shared weights, one after another
    into .grad, and the main thread steps."""
    model, seen, turn = classifier(), Seen(), threading.Lock()
    optimizer = sgd(model)

    def walk(step: int) -> list[torch.Tensor]:
        one_at_a_time()
        with turn:
            return list(torch.autograd.grad(loss_of(model, step), list(model.parameters())))

    for step in range(3):
        with ThreadPoolExecutor(max_workers=2) as pool:
            parts = list(pool.map(walk, [2 * step, 2 * step + 1]))
        for parameter, one, two in zip(model.parameters(), *parts, strict=True):
            parameter.grad = one + two
        optimizer.step()
        seen.gradients(model)
        del parts, one, two
    return seen


@program()
def beside_busy_threads() -> Seen:
    """One thread makes and drops tensors all the while, another runs the collector."""
    model, seen, over = classifier(), Seen(), threading.Event()
    optimizer = sgd(model)

    def allocate() -> None:
        one_at_a_time()
        while not over.is_set():
            torch.ones(64, 1024, device=device()).mul_(2).sum().item()

    def collect() -> None:
        while not over.wait(0.02):
            gc.collect(0)

    others = [threading.Thread(target=allocate), threading.Thread(target=collect)]
    for thread in others:
        thread.start()
    try:
        for step in range(4):
            one_step(model, optimizer, seen, step)
    finally:
        over.set()
        for thread in others:
            thread.join()
    return seen


class Halves(nn.Module):
    """Its two halves run in two threads, as DataParallel's replicas do."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = classifier(depth=10), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def run(part: torch.Tensor) -> torch.Tensor:
            one_at_a_time()
            with torch.enable_grad():
                return torch.as_tensor(self.body(part))

        with ThreadPoolExecutor(max_workers=2) as pool:
            parts = list(pool.map(run, x.chunk(2)))
        return torch.as_tensor(self.head(torch.cat(parts)))


@program()
def threads_inside_a_forward() -> Seen:
    model, seen = Halves().to(device()), Seen()
    optimizer = sgd(model)
    for step in range(3):
        loss = functional.cross_entropy(model(rows(2048, WIDTH, step)), labels(2048, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen
