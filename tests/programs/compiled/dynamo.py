"""torch.compile: whole models and blocks, several shapes, breaks in the graph, inductor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import labels, rows, sequences, sgd
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.models.attention import Block, Pooled
from tests.programs.program import device, program
from tests.programs.seen import Seen

Compiled = Callable[..., Tensor]
WHOLE = "a graph of Dynamo's holds all that it saves until its forward returns"


def trained(model: nn.Module, call: Compiled, counts: list[int]) -> Seen:
    """One step for each batch size."""
    seen, optimizer = Seen(), sgd(model)
    for step, count in enumerate(counts):
        loss = functional.cross_entropy(call(rows(count, WIDTH, step)), labels(count, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program(stays=WHOLE, percent=130)
def whole_graph() -> Seen:
    """fullgraph, with the graphs of autograd captured too."""
    model = perceptron(depth=16, outputs=10)
    call = torch.compile(model, backend="aot_eager", fullgraph=True)
    return trained(model, call, [2048] * 4)


def in_thirds(model: nn.Sequential, **settings: Any) -> nn.Sequential:
    """Three graphs one after the other."""
    third = len(model) // 3
    parts = (model[:third], model[third : 2 * third], model[2 * third :])
    return nn.Sequential(*(torch.compile(part, **settings) for part in parts))


@program(percent=80)
def three_shapes() -> Seen:
    """The first two are compiled for, then one graph for all sizes."""
    model = perceptron(depth=16, outputs=10)
    call = in_thirds(model, backend="aot_eager")
    return trained(model, call, [2048, 1536, 1024, 2048, 1792])


@program(percent=75)
def dynamo_alone() -> Seen:
    """The captured graph runs in eager mode."""
    model = perceptron(depth=16, outputs=10)
    call = torch.compile(model, backend="eager", fullgraph=True)
    return trained(model, call, [2048] * 4)


class Breaks(nn.Module):
    """Asks for a number in the middle, which ends a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = perceptron(depth=8), perceptron(depth=8, outputs=10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        if x.mean().item() > 0:
            x = x * 2
        return torch.as_tensor(self.two(x))


@program(percent=80)
def graph_breaks() -> Seen:
    model = Breaks()
    return trained(model, torch.compile(model, backend="aot_eager"), [2048] * 3)


@program(percent=75)
def block_by_block() -> Seen:
    """Every block of a transformer is compiled in place."""
    model, seen = Pooled(*[Block(dropout=0.0) for _ in range(6)]).to(device()), Seen()
    for block in model.body:
        block.compile(backend="aot_eager")
    optimizer = sgd(model)
    for step in range(3):
        said = model(sequences(64, 24, 32, step))
        loss = functional.cross_entropy(said, labels(64, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def part_of_a_model() -> Seen:
    """A compiled function between eager layers, and a compiled loss."""
    model = perceptron(depth=16, outputs=10)
    gate = torch.compile(lambda x: x * torch.sigmoid(1.7 * x), backend="aot_eager")

    def call(x: Tensor) -> Tensor:
        for number, layer in enumerate(model):
            x = layer(x) if number % 6 != 1 else gate(x)
        return x

    return trained(model, call, [2048] * 3)


@program(stays=WHOLE, percent=130)
def compiled_after_training_began() -> Seen:
    """Two eager steps, then compiled ones, then eager ones again."""
    model = perceptron(depth=16, outputs=10)
    seen = trained(model, model, [2048] * 2)
    seen.update(trained(model, torch.compile(model, backend="aot_eager"), [2048] * 2))
    torch.compiler.reset()
    seen.state(model)
    return seen


@program(percent=80)
def inductor() -> Seen:
    """Generated code."""
    model = perceptron(depth=6, outputs=10)
    return trained(model, in_thirds(model), [4096] * 3)
