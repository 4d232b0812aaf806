"""CUDA graphs in training: a whole step, a part of a model, and eager training beside replays."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, one_step
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.program import program
from tests.programs.seen import Seen

SMALL = 64  # rows of a captured batch: a graph's memory stays where it is


class CapturedStep:
    """Forward, backward and update of a small model in one graph."""

    def __init__(self) -> None:
        self.model = perceptron(depth=4, outputs=10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x, self.target = rows(SMALL, WIDTH), labels(SMALL)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.step()

    def step(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.model(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss

    def replay(self, step: int, seen: Seen) -> None:
        self.x.copy_(rows(SMALL, WIDTH, step))
        self.target.copy_(labels(SMALL, step))
        self.graph.replay()
        seen.step(self.model, self.loss)


@program()
def captured_step_beside_eager_training() -> Seen:
    """A step of the large model after each replay of the small one's graph."""
    captured, model, seen = CapturedStep(), classifier(), Seen()
    optimizer = sgd(model)
    for step in range(4):
        captured.replay(step, seen)
        one_step(model, optimizer, seen, step)
    seen.state(captured.model, model)
    return seen


@program()
def graphed_part_of_a_model() -> Seen:
    """make_graphed_callables on the head, whose backward is a graph too."""
    body, head, seen = perceptron(depth=16), perceptron(depth=2, outputs=10), Seen()
    sample = torch.zeros_like(rows(SMALL, WIDTH)).requires_grad_()
    graphed = torch.cuda.make_graphed_callables(head, (sample,))
    model = nn.Sequential(body, head)
    optimizer = sgd(model)
    for step in range(3):
        hidden = body(rows(2048, WIDTH, step))
        said = graphed(hidden.view(-1, len(sample), WIDTH).mean(dim=0))
        loss = functional.cross_entropy(said, labels(SMALL, step))
        del hidden, said
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen
