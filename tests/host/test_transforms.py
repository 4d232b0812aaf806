"""torch.func, torch.compile, torch.jit.trace and other people's hooks work as without us.

Every program is run by PyTorch alone and under a budget, and must return the same values.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import fresh
from tests.helpers.compare import digest, digests

WIDTH = 41 * 8


def rows(count: int = 123) -> Tensor:
    return torch.linspace(-1, 1, count * WIDTH).view(count, WIDTH)


def network(depth: int = 20) -> nn.Sequential:
    torch.manual_seed(5)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)) for _ in range(depth)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 1))


def score(weight: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(x @ weight).square().sum()


def function_transforms() -> list[str]:
    """Those that refuse to run while hooks are pushed, alone and nested."""
    weight = torch.eye(WIDTH)
    _, pull = torch.func.vjp(torch.sin, rows())
    results = [
        torch.func.grad(score)(weight, rows()),
        torch.func.vmap(torch.func.grad(score, argnums=1), (None, 0))(weight, rows()),
        torch.func.hessian(lambda v: (v**3).sum())(torch.arange(4.0)),
        torch.func.jacrev(torch.sin)(torch.arange(4.0)),
        torch.func.grad(lambda v: torch.func.grad(lambda u: (u**3).sum())(v).sum())(rows()),
        *pull(torch.ones(rows().shape)),
    ]
    return [digest(result) for result in results]


class Mixed(nn.Module):
    """Differentiates inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        slope: Tensor = torch.func.grad(lambda u: self.net(u).sum())(x)
        _, push = torch.func.jvp(torch.tanh, (x,), (torch.ones_like(x),))
        return self.net(x + slope) * push.mean()


def transforms_inside_a_forward() -> list[str]:
    """The hooks must be back, and what moves right, after each of them."""
    model = Mixed()
    for _ in range(3):
        model(rows()).sum().backward()
    return digests(model)


def hooks_disabled_by_the_user() -> list[str]:
    """A public context manager that refuses to open while hooks are pushed."""
    model = network()
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        loss = model(rows()).sum()
        try:
            torch.autograd.graph.save_on_cpu().__enter__()
        except RuntimeError as error:
            refusal = str(error)
    loss.backward()
    model(rows()).sum().backward()
    return [refusal, *digests(model)]


def hooks_of_the_user() -> list[str]:
    """The innermost pair is used; a transform inside it is refused as ever."""
    model = network()
    with torch.autograd.graph.save_on_cpu():
        model(rows()).sum().backward()
        try:
            torch.func.grad(score)(torch.eye(WIDTH), rows())
        except RuntimeError as error:
            refusal = str(error)
    model(rows()).sum().backward()
    return [refusal, *digests(model)]


def traced() -> list[str]:
    """torch.jit.trace checks its own trace."""
    model = network()
    trace = torch.jit.trace(model, rows())
    for _ in range(3):
        trace(rows()).sum().backward()
    return digests(model)


def compiled() -> list[str]:
    """Whole graphs, three shapes; the number of graphs shows recompiles."""
    from torch._dynamo.utils import counters

    model = network(depth=6)
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    for count in (123, 123, 82, 41, 123):
        fast(rows(count)).sum().backward()
    return [*digests(model), str(counters["stats"]["unique_graphs"])]


PROGRAMS = [
    function_transforms,
    transforms_inside_a_forward,
    hooks_disabled_by_the_user,
    hooks_of_the_user,
    traced,
    compiled,
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_returns_the_same_values(program: Callable[[], list[str]]) -> None:
    fresh.same_as_stock(program, install={"budget": "64MiB", "policy": "all", "check": 3})


def moved_between_transforms() -> int:
    """Bytes moved by a training step that comes after a transform."""
    import vdnn_alloc

    torch.func.grad(score)(torch.eye(WIDTH), rows())
    before = vdnn_alloc.stats().offloaded_bytes
    network()(rows()).sum().backward()
    return vdnn_alloc.stats().offloaded_bytes - before


def test_the_hooks_are_back_after_a_transform() -> None:
    ended = fresh.call(moved_between_transforms, install={"budget": "64MiB", "policy": "all"})

    assert ended.result > 0
