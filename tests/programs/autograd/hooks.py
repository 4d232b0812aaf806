"""Hooks of the user: on tensors, on modules, on saved tensors, beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional

from tests.programs.data import images, labels, rows, sgd
from tests.programs.loops.between_steps import classifier, one_step
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import device, program
from tests.programs.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@program()
def on_tensors() -> Seen:
    """Gradients are looked at, scaled, retained and replaced on their way."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        one = model[:10](rows(2048, WIDTH, step))
        two = model[10:20](one)
        one.register_hook(lambda grad: grad * 0.5)
        two.register_hook(lambda grad: seen.note("passing", grad))
        two.retain_grad()
        loss = functional.cross_entropy(model[20:](two), labels(2048, step))
        optimizer.zero_grad()
        loss.backward()
        seen.note("retained", two.grad)
        del one, two
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def full_backward_hooks() -> Seen:
    """On modules, as gradient monitors and saliency maps use them."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)

    def look(_module: nn.Module, into: tuple[Any, ...], out: tuple[Any, ...]) -> None:
        seen.note("into", *[grad for grad in into if grad is not None])
        seen.note("out", *out)

    for layer in (model[4], model[10], model[16]):
        layer.register_full_backward_hook(look)
        layer.register_full_backward_pre_hook(lambda _module, out: (out[0] * 0.9,))
    for step in range(3):
        one_step(model, optimizer, seen, step)
    return seen


@program()
def forward_hooks_that_capture_activations() -> Seen:
    """Two activations are kept until the next step, and one is replaced."""
    model, seen = classifier(depth=16), Seen()
    optimizer, kept = sgd(model), {}

    def keep(module: nn.Module, _args: object, output: Tensor) -> None:
        kept[module] = output

    handles = [model[number].register_forward_hook(keep) for number in (9, 21)]
    model[13].register_forward_hook(lambda _module, _args, output: output * 1.01)
    model[15].register_forward_pre_hook(lambda _module, args: (args[0] + 0.01,))
    for step in range(4):
        one_step(model, optimizer, seen, step)
        seen.note("kept", *kept.values())
        if step == 2:
            handles[0].remove()
    return seen


@program(percent=75, gpu_percent=80)
def saliency_of_the_input() -> Seen:
    """Grad-CAM: a map inside, its gradient, and the gradient of the pixels."""
    torch.manual_seed(2)
    layers = [nn.Conv2d(3 if n == 0 else 8, 8, 3, padding=1) for n in range(24)]
    body = nn.Sequential(*[m for c in layers for m in (c, nn.ReLU(inplace=True))]).to(device())
    head, seen = nn.Linear(8, 10).to(device()), Seen()
    for step in range(3):
        pixels = images(32, 32, step).requires_grad_()
        maps = body(pixels)
        maps.retain_grad()
        best = head(maps.mean(dim=(2, 3))).max(dim=1).values.sum()
        best.backward()
        assert maps.grad is not None
        seen.note("map", functional.relu((maps.grad * maps).sum(dim=1)).detach())
        seen.note("pixels", pixels.grad)
        del maps, best
    return seen


# --- saved tensors -------------------------------------------------------------------------------


def fit_under(hooks: Callable[[], AbstractContextManager[None]], *, depth: int) -> Seen:
    """Training with a pair of the user's own in force over the first half of the model."""
    model, seen = classifier(depth=depth), Seen()
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        with hooks():
            hidden = model[: depth // 2](rows(2048, WIDTH, step))
        loss = functional.cross_entropy(model[depth // 2 :](hidden), labels(2048, step))
        del hidden
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program(percent=70)
def offloading_by_the_user() -> Seen:
    """save_on_cpu around a part of the model: there theirs is the pair in force."""
    return fit_under(save_on_cpu, depth=20)


@program()
def compression_by_the_user() -> Seen:
    """Saved tensors are kept as bfloat16: gradients differ, and as much as in stock PyTorch."""

    def pack(x: Tensor) -> Tensor:
        return x.bfloat16() if x.is_floating_point() else x

    def unpack(x: Tensor) -> Tensor:
        return x.float() if x.is_floating_point() else x

    return fit_under(lambda: saved_tensors_hooks(pack, unpack), depth=16)


@program()
def counting_by_the_user() -> Seen:
    """How often each shape is saved; hooks nested in hooks, the innermost wins."""
    model, seen = classifier(depth=24), Seen()
    optimizer = sgd(model)

    def count(x: Tensor) -> Tensor:
        seen.note("saved", list(x.shape))
        return x.detach()

    for step in range(3):
        optimizer.zero_grad()
        with saved_tensors_hooks(count, lambda x: x):
            hidden = model[:6](rows(2048, WIDTH, step))
            with saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
                hidden = model[6:12](hidden)
        loss = functional.cross_entropy(model[12:](hidden), labels(2048, step))
        del hidden
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def no_hooks_allowed_for_a_while() -> Seen:
    """disable_saved_tensors_hooks: hooks of the user are refused inside, training works."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            early = model[:8](rows(2048, WIDTH, 50 + step)).square().mean()
            with seen.catching(RuntimeError), save_on_cpu():
                model(rows(2048, WIDTH, step))
        early.backward()
        del early
        seen.gradients(model)
        one_step(model, optimizer, seen, step)
    return seen


@program()
def hooks_of_every_module() -> Seen:
    """Global forward hooks, as profilers and loggers hang in, in front of ours and behind."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    register = nn.modules.module
    names: list[str] = []
    before = register.register_module_forward_pre_hook(
        lambda module, _args: names.append(f"into {type(module).__name__}")
    )
    after = register.register_module_forward_hook(
        lambda module, _args, _output: names.append(f"out of {type(module).__name__}")
    )
    for step in range(2):
        one_step(model, optimizer, seen, step)
    before.remove()
    after.remove()
    for step in range(2, 4):
        one_step(model, optimizer, seen, step)
    seen.note("order", names)
    return seen
