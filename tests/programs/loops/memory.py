"""Loops whose use of memory is the point: many small tensors, large ones made and dropped, sizes
that change, addresses that come back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, one_step
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import device, program, scaled
from tests.programs.seen import Seen


@program(percent=75)  # the small tensors are held
def many_small_tensors() -> Seen:
    """Four thousand of a kilobyte each, every fourth of them new in each step."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    small = [torch.full((256,), float(number), device=device()) for number in range(4000)]
    for step in range(3):
        one_step(model, optimizer, seen, step)
        for number in range(step, 4000, 4):
            small[number] = small[number] + 1.0
        seen.note("sum", torch.stack(small).sum(dim=1))
    return seen


@program()
def made_and_dropped() -> Seen:
    """A large tensor, three operators on it, and gone; in the middle of every step."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        hidden = model[:14](rows(2048, WIDTH, step))
        for number in range(20):
            scratch = torch.full((scaled(1024), 2 * WIDTH), float(number), device=device())
            seen.note("scratch", scratch.mul_(2).add_(1).sqrt().sum())
            del scratch
        loss = functional.cross_entropy(model[14:](hidden), labels(2048, step))
        del hidden
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def sizes_that_change() -> Seen:
    """Every step has another batch size, as the last batch of an epoch and real texts have."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step, count in enumerate([2048, 777, 1536, 123, 2048, 1901, 64, 2048]):
        loss = functional.cross_entropy(model(rows(count, WIDTH, step)), labels(count, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def addresses_that_come_back() -> Seen:
    """What one graph saved is freed while another lives, and its size is asked for again."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        first = model[:12](rows(1024, WIDTH, 10 * step)).square().mean()
        second = model[:12](rows(1024, WIDTH, 10 * step + 1)).exp().mean()
        optimizer.zero_grad()
        first.backward()
        del first
        third = model[:12](rows(1024, WIDTH, 10 * step + 2)).tanh().mean()
        second.backward()
        del second
        third.backward()
        del third
        seen.gradients(model)
        optimizer.step()
    return seen


@program()
def no_module_at_all() -> Seen:
    """Weights in a list, products in a loop: hooks on modules see nothing here."""
    torch.manual_seed(3)
    weights = [torch.randn(WIDTH, WIDTH).div_(8).to(device()).requires_grad_() for _ in range(24)]
    seen = Seen()
    for step in range(4):
        x = rows(1024, WIDTH, step)
        for number, weight in enumerate(weights):
            if step % 2 == 0 or number % 3:
                x = torch.tanh(x @ weight)
        loss = x.square().mean()
        del x
        loss.backward()
        seen.note("loss", loss)
        for weight in weights:
            if weight.grad is not None:
                seen.note("gradient", weight.grad)
                weight.data.sub_(weight.grad, alpha=0.1)
                weight.grad = None
    return seen


@program()
def history_kept_by_mistake() -> Seen:
    """Losses are collected with their graphs, and printed at the end of the epoch."""
    model, seen = classifier(depth=6), Seen()
    optimizer = sgd(model)
    for epoch in range(2):
        losses: list[Tensor] = []
        for step in range(3):
            loss = functional.cross_entropy(
                model(rows(1024, WIDTH, 5 * epoch + step)), labels(1024, step)
            )
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
            losses.append(loss)
        seen.note("losses", [float(loss) for loss in losses])
        seen.gradients(model)
    return seen
