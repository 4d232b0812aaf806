"""Steps that do not end as planned: dropped losses, exceptions, parts of graphs, lack of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, loss_of, one_step
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.program import device, program
from tests.programs.seen import Seen


@program()
def loss_that_is_not_finite_is_skipped() -> Seen:
    """A guard drops the loss of every other batch; its backward never comes."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        if step % 2 == 1:
            loss = loss * float("nan")
        if not torch.isfinite(loss):
            seen.note("skipped", loss)
            continue
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


class Tripwire(nn.Module):
    """Raises while it is armed."""

    armed = False

    def forward(self, x: Tensor) -> Tensor:
        if self.armed:
            raise ValueError("a bad sample")
        return x


@program()
def exception_in_forward() -> Seen:
    """Caught far outside; training goes on with the next batch."""
    model, wire, seen = classifier(), Tripwire(), Seen()
    model.insert(13, wire)
    optimizer = sgd(model)
    for step in range(6):
        wire.armed = step % 2 == 1
        with seen.catching(ValueError):
            one_step(model, optimizer, seen, step)
    seen.state(model, optimizer)
    return seen


class NoWayBack(torch.autograd.Function):
    """The identity, until backward."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, _grad: Tensor) -> Tensor:
        raise ValueError("no way back")


@program()
def exception_in_backward() -> Seen:
    """Half of the gradients are there when it happens, and are kept for the next step."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        hidden = model[:12](rows(2048, WIDTH, step))
        loss = functional.cross_entropy(model[12:](NoWayBack.apply(hidden)), labels(2048, step))
        with seen.catching(ValueError):
            loss.backward()
        del hidden, loss
        seen.gradients(model)
        one_step(model, optimizer, seen, 10 + step)
    return seen


@program()
def interrupted_by_hand() -> Seen:
    """KeyboardInterrupt out of a hook in the middle of backward."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)

    def interrupt(_grad: Tensor) -> None:
        raise KeyboardInterrupt

    for step in range(3):
        hidden = model[:14](rows(2048, WIDTH, step))
        hidden.register_hook(interrupt)
        with seen.catching(KeyboardInterrupt):
            functional.cross_entropy(model[14:](hidden), labels(2048, step)).backward()
        del hidden
        one_step(model, optimizer, seen, 10 + step)
    return seen


# --- parts of a graph ----------------------------------------------------------------------------


class TwoHeads(nn.Module):
    """A shared trunk, and two answers."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = perceptron(depth=8)
        self.one, self.two = perceptron(depth=4, outputs=10), perceptron(depth=4, outputs=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.trunk(x)
        return self.one(shared), self.two(shared)


@program()
def two_losses_over_one_trunk() -> Seen:
    """The first backward retains the graph for the second."""
    model, seen = TwoHeads(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        one, two = model(rows(2048, WIDTH, step))
        first = functional.cross_entropy(one, labels(2048, step))
        second = two.square().mean()
        first.backward(retain_graph=True)
        seen.gradients(model)
        second.backward()
        optimizer.step()
        seen.step(model, first + second)
    return seen


@program()
def backward_of_one_head_only() -> Seen:
    """The other head's answer is printed and dropped."""
    model, seen = TwoHeads(), Seen()
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        one, two = model(rows(2048, WIDTH, step))
        head = one.logsumexp(dim=1).mean() if step % 2 == 0 else two.mean()
        seen.note("printed", two.detach().mean().item())
        head.backward()
        optimizer.step()
        seen.step(model, head)
        del one, two, head
    return seen


@program()
def second_backward_is_refused() -> Seen:
    """Backward again through a graph that is freed raises as ever."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        with seen.catching(RuntimeError):
            loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def losses_of_two_steps_in_one_backward() -> Seen:
    """The graph of the last batch is held and added to the next loss."""
    model, seen, held = classifier(depth=8), Seen(), None
    optimizer = sgd(model)
    for step in range(5):
        loss = loss_of(model, step)
        if held is None:
            held = loss
            continue
        optimizer.zero_grad()
        total = held + loss
        total.backward()
        held = None
        optimizer.step()
        seen.step(model, total)
    return seen


# --- lack of memory ------------------------------------------------------------------------------


def fits(attempt: Callable[[], None]) -> bool:
    """Whether the attempt did not run out of memory."""
    try:
        attempt()
    except torch.OutOfMemoryError as error:
        text = str(error)
    else:
        return True
    assert text.startswith("CUDA out of memory. Tried to allocate"), text
    return False


@program(percent=10, runs_out=True)
def smaller_batch_after_running_out() -> Seen:
    """A batch that may not fit is tried first, as batch-size finders do; then one that does."""
    for count in (32768, 16384):
        fits(lambda count=count: classifier()(rows(count, WIDTH)).sum().backward())  # type: ignore[misc]
    torch.manual_seed(7)
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        one_step(model, optimizer, seen, step)
    seen.state(model, optimizer)
    return seen


@program(percent=10, runs_out=True)
def batch_is_split_after_running_out() -> Seen:
    """The same step is made again in many parts; gradients of the failed try are dropped."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(2):
        x, target = rows(32768, WIDTH, step), labels(32768, step)
        fits(lambda x=x, y=target: functional.cross_entropy(model(x), y).backward())  # type: ignore[misc]
        optimizer.zero_grad()
        for part, answer in zip(x.chunk(16), target.chunk(16), strict=True):
            (functional.cross_entropy(model(part), answer) / 16).backward()
        seen.gradients(model)
        optimizer.step()
    return seen


@program()
def weights_on_the_device_come_and_go() -> Seen:
    """A model is made, trained and dropped, again and again, as in a search for settings."""
    seen = Seen()
    for trial in range(4):
        torch.manual_seed(trial)
        model = classifier(depth=6 + trial).to(device())
        optimizer = sgd(model)
        for step in range(2):
            one_step(model, optimizer, seen, step)
        seen.state(model)
        del model, optimizer
    return seen
