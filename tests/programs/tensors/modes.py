"""Training under torch's modes: those that watch every operator, that make tensors of no memory,
that allow what is forbidden, and that write programs down."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import allow_mutation_on_saved_tensors
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.nn.utils import prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, loss_of, one_step
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.program import device, program, scaled
from tests.programs.seen import Seen


class CountsOperators(TorchDispatchMode):
    """How often each operator runs, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


class CountsFunctions(TorchFunctionMode):
    """How often each of torch's functions is called."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


@program()
def operators_counted() -> Seen:
    """A mode of the user sees the program's operators, and no others but detach, of which torch
    itself makes another number under saved-tensor hooks."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        with CountsOperators() as mode:
            one_step(model, optimizer, Seen(), step)
        del mode.counts["aten.detach.default"]
        seen.note("operators", dict(sorted(mode.counts.items())))
    seen.state(model)
    return seen


@program()
def functions_counted() -> Seen:
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        with CountsFunctions() as mode:
            one_step(model, optimizer, Seen(), step)
        seen.note("functions", dict(sorted(mode.counts.items())))
    seen.state(model)
    return seen


@program()
def arithmetic_counted() -> Seen:
    """The products of forward and backward, by torch's own counter."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        with FlopCounterMode(display=False) as counter:
            one_step(model, optimizer, seen, step)
        seen.note("flops", counter.get_total_flops())
    return seen


@program()
def without_memory() -> Seen:
    """A step with fake tensors, as memory estimators make it, between real ones; a meta model."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        with FakeTensorMode():
            layer = nn.Linear(WIDTH, WIDTH)
            layer(torch.ones(1 << 20, WIDTH)).square().sum().backward()
            seen.note("fake", str(layer.weight.grad.shape))  # type: ignore[union-attr]
        with torch.device("meta"):
            big = nn.Linear(1 << 14, 1 << 14)
            big(torch.ones(4, 1 << 14)).sum().backward()
        seen.note("meta", str(big.weight.grad.device))  # type: ignore[union-attr]
        one_step(model, optimizer, seen, step)
    return seen


@program(percent=80)  # what that mode keeps is its own
def changes_of_saved_tensors_allowed() -> Seen:
    """A mode of torch's that clones what is changed in place while it is saved."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        with allow_mutation_on_saved_tensors():
            hidden = model[:8](rows(1024, WIDTH, step))
            out = hidden.sigmoid()
            hidden.mul_(2)
            out.add_(1)
            out.sum().backward()
        seen.gradients(model)
        del hidden, out
        one_step(model, optimizer, seen, step)
    return seen


@program()
def on_one_thread_of_autograd() -> Seen:
    """Backward on the calling thread, with grad mode switched by hand."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        with torch.autograd.set_multithreading_enabled(mode=False):
            one_step(model, optimizer, seen, step)
        torch.set_grad_enabled(False)
        seen.note("off", loss_of(model, 30 + step))
        torch.set_grad_enabled(True)
    return seen


@program()
def default_device_and_type() -> Seen:
    """Everything that is made inside is made there, and in double."""
    torch.set_default_dtype(torch.float64)
    seen = Seen()
    try:
        with torch.device(device()):
            model = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(64, 64), nn.Tanh())])
            optimizer = sgd(model)
            for step in range(3):
                x = torch.linspace(-1, 1 + step, 64 * scaled(1024)).view(-1, 64)
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.step(model, loss)
    finally:
        torch.set_default_dtype(torch.float32)
    return seen


# --- programs that are written down --------------------------------------------------------------


@program()
def graph_of_operators() -> Seen:
    """fx.symbolic_trace of the model, make_fx of its loss and gradients; the graphs are trained."""
    model, seen = classifier(), Seen()
    traced = fx.symbolic_trace(model)
    seen.note("code", traced.code)
    optimizer = sgd(traced)
    for step in range(2):
        one_step(traced, optimizer, seen, step)

    def slope(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
        return gradient

    x = rows(64, WIDTH).requires_grad_()
    written = make_fx(slope)(x)
    seen.note("gradient", written(x), [str(node.target) for node in written.graph.nodes])
    return seen


@program()
def exported() -> Seen:
    """torch.export of the model; the module that comes out of it is trained."""
    model, seen = classifier(depth=8), Seen()
    exported = torch.export.export(model, (rows(2048, WIDTH),))
    seen.note("operators", [str(n.target) for n in exported.graph.nodes if n.op == "call_function"])
    again = exported.module()
    optimizer = sgd(again)
    for step in range(3):
        one_step(again, optimizer, seen, step)
    return seen


@torch.library.custom_op("vdnn_alloc_programs::scaled_tanh", mutates_args=())
def scaled_tanh(x: Tensor, scale: float) -> Tensor:
    return torch.tanh(x) * scale


def _keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.scale = inputs[1]
    ctx.save_for_backward(output)


def _slope(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (output,) = ctx.saved_tensors
    return grad * (ctx.scale - output * output / ctx.scale), None


scaled_tanh.register_autograd(_slope, setup_context=_keep)


@program()
def operator_of_the_user() -> Seen:
    """torch.library's custom_op, with a backward of its own."""
    model, seen = perceptron(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        x = rows(2048, WIDTH, step)
        for number, layer in enumerate(model):
            x = scaled_tanh(layer(x), 1.5) if number % 4 == 2 else layer(x)
        loss = x.square().mean()
        del x
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


# --- modules that change -------------------------------------------------------------------------


@program()
def modules_that_change() -> Seen:
    """Lazy layers, pruning, another type and back, pickling, layers taken out and put in."""
    seen = Seen()
    model = nn.Sequential(
        nn.LazyLinear(WIDTH), *[m for _ in range(10) for m in (nn.LazyLinear(WIDTH), nn.GELU())]
    ).to(device())
    with torch.no_grad():
        model(rows(8, WIDTH))
    optimizer = sgd(model)

    def step_on(step: int) -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(rows(2048, WIDTH, step)), labels(2048, step))
        loss.backward()
        optimizer.step()
        seen.step(model, loss)

    step_on(0)
    prune.l1_unstructured(model[3], "weight", amount=0.5)
    step_on(1)
    prune.remove(model[3], "weight")
    model.double().float()
    step_on(2)
    model = pickle.loads(pickle.dumps(model))
    model.insert(4, nn.Dropout(0.1))
    del model[6]
    model.append(copy.deepcopy(model[1]))
    optimizer = sgd(model)
    for step in (3, 4):
        step_on(step)
    seen.state(model)
    return seen
