"""Graphs that are walked in unusual ways, or looked into by hand."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType

from tests.programs.data import rows, sgd
from tests.programs.loops.between_steps import classifier, loss_of, one_step
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.program import device, program
from tests.programs.seen import Seen


@program()
def walked_three_times() -> Seen:
    """retain_graph twice; gradients add up."""
    model, seen = classifier(), Seen()
    for step in range(3):
        model.zero_grad()
        loss = loss_of(model, step)
        for again in (True, True, False):
            loss.backward(retain_graph=again)
            seen.step(model, loss)
        del loss
    return seen


@program()
def gradients_of_some_inputs() -> Seen:
    """autograd.grad for the last layer, then the first, then an input; some are not used."""
    model, seen = perceptron(), Seen()
    for step in range(3):
        x = rows(2048, WIDTH, step).requires_grad_()
        unused = torch.zeros(3, device=device(), requires_grad=True)
        y = model(x).square().mean()
        last, first = model[-1].weight, model[0].weight
        seen.note("last", *torch.autograd.grad(y, [last], retain_graph=True))
        seen.note("first", *torch.autograd.grad(y, [first], retain_graph=True))
        seen.note("x", *torch.autograd.grad(y, [x, unused], allow_unused=True))
        with seen.catching(RuntimeError):
            torch.autograd.grad(model(x).sum(), [unused])
        y = model(x).square().mean()
        y.backward(inputs=[first])
        seen.gradients(model)
        model.zero_grad()
        del y
    return seen


@program(percent=80)  # gradients of the input, three at once
def gradients_for_several_outputs() -> Seen:
    """A vector-Jacobian product of two outputs at once, then a batch of such products."""
    model, seen = perceptron(depth=8), Seen()
    for step in range(3):
        x = rows(1024, WIDTH, step).requires_grad_()
        y = model(x)
        z = y.sin()
        torch.autograd.backward([y, z], [torch.ones_like(y), y.detach()])
        seen.note("x", x.grad)
        seen.gradients(model)
        del y, z
        y = model(x[:128])[:4, :4]
        basis = torch.eye(16, device=device()).view(16, 4, 4)[:3]
        seen.note("rows", *torch.autograd.grad(y, [x], basis, is_grads_batched=True))
    return seen


@program(percent=75)
def hessian_vector_product() -> Seen:
    """Pearlmutter's trick, and the quadratic form after it."""
    model, seen = perceptron(depth=8, outputs=1), Seen()
    parameters = list(model.parameters())
    direction = [torch.ones_like(p) for p in parameters]
    for step in range(3):
        loss = model(rows(2048, WIDTH, step)).square().mean()
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        along = sum((s * d).sum() for s, d in zip(slopes, direction, strict=True))
        assert isinstance(along, Tensor)
        products = torch.autograd.grad(along, parameters, materialize_grads=True)
        seen.note("product", *products)
        del loss, slopes, along, products
    return seen


@program()
def saved_tensors_read_by_hand() -> Seen:
    """grad_fn._saved_self and its like, as libraries that count or quantise do."""
    model, seen = classifier(), Seen()
    for step in range(3):
        model.zero_grad()
        loss = loss_of(model, step)
        node, found = loss.grad_fn, 0
        while node is not None and found < 8:
            for name in sorted(n for n in dir(node) if n.startswith("_saved_")):
                value = getattr(node, name)
                if isinstance(value, Tensor):
                    seen.note(f"{node.name()}{name}", value)
                    found += 1
            node = next((f for f, _ in reversed(node.next_functions) if f is not None), None)
        loss.backward()
        seen.step(model, loss)
    return seen


@program()
def anomaly_mode() -> Seen:
    """With it on, a NaN in backward is reported with the operator that made it."""
    model, seen = classifier(depth=8), Seen()
    optimizer = sgd(model)
    with torch.autograd.detect_anomaly():
        for step in range(3):
            one_step(model, optimizer, seen, step)
            x = torch.zeros(4, device=device(), requires_grad=True)
            with (
                warnings.catch_warnings(record=True) as caught,
                seen.catching(RuntimeError),
            ):
                (x.sqrt() * 0).sum().backward()
            # The rest of the text is the stack, up to who runs this program.
            seen.note("warned", [str(warning.message).partition(".")[0] for warning in caught])
    return seen


@program()
def profiled() -> Seen:
    """Training under the profiler, memory included."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
        for step in range(3):
            with torch.profiler.record_function("step"):
                one_step(model, optimizer, seen, step)
    # A GPU's timeline shows each step once more for every stream, and ours are among them.
    averages = [row for row in profile.key_averages() if row.device_type == DeviceType.CPU]
    counts = {row.key: row.count for row in averages}
    seen.note("steps", counts["step"])
    seen.note("operators", counts["aten::addmm"], counts["aten::softplus"])
    return seen


@program()
def dropped_tensors_are_gone() -> Seen:
    """Weak references die with the graph, after its backward or without, with no collection."""
    model, seen = classifier(), Seen()
    gc.disable()
    for step in range(4):
        x = rows(2048, WIDTH, step)
        hidden = model[:10](x)
        loss = model[10:](hidden).sum()
        watched = [weakref.ref(x), weakref.ref(hidden), weakref.ref(loss)]
        seen.note("held", [reference() is not None for reference in watched])
        if step % 2 == 0:
            loss.backward()
        del x, hidden, loss
        seen.note("gone", [reference() is None for reference in watched])
        seen.gradients(model)
    gc.enable()
    return seen


class HeldByCtx(torch.autograd.Function):
    """Puts one tensor on ctx, saves the other, reads what it saved twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (one,), (two,) = ctx.saved_tensors, ctx.saved_tensors
        assert torch.equal(one, two)
        return grad * (1 - one * two) + 0.0 * ctx.x


@program(percent=75)  # what sits on ctx is not autograd's, and stays
def functions_of_the_user() -> Seen:
    model, seen = perceptron(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        x = rows(2048, WIDTH, step)
        for number, layer in enumerate(model):
            x = layer(x)
            if number % 4 == 3:
                x = HeldByCtx.apply(x)
        optimizer.zero_grad()
        loss = x.square().mean()
        del x
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


class FusedGradient(torch.autograd.Function):
    """A product whose backward adds to a buffer that hangs on the weight, as large trainers do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, weight = ctx.saved_tensors
        weight.main_grad.addmm_(grad.T, x)
        return grad @ weight, None


@program()
def attributes_of_saved_parameters() -> Seen:
    """What was saved is the parameter itself, with all that the program hung on it."""
    torch.manual_seed(4)
    weights = [torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 8) for _ in range(10)]
    weights = [torch.nn.Parameter(weight.detach().to(device())) for weight in weights]
    seen = Seen()
    for weight in weights:
        weight.main_grad = torch.zeros_like(weight)  # type: ignore[attr-defined]
    for step in range(3):
        x = rows(2048, WIDTH, step).requires_grad_()
        for weight in weights:
            x = torch.tanh(FusedGradient.apply(x, weight))
        x.square().mean().backward()
        del x
        for weight in weights:
            seen.note("gradient", weight.main_grad)  # type: ignore[attr-defined]
            with torch.no_grad():
                weight -= 0.01 * weight.main_grad  # type: ignore[attr-defined]
    return seen
