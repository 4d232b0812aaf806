"""torch.jit: traced and scripted models are trained like others."""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import images, labels, rows, sgd
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.models.convolutional import Residual, block
from tests.programs.program import device, program
from tests.programs.seen import Seen


def trained(model: nn.Module, *, steps: int = 4) -> Seen:
    seen, optimizer = Seen(), sgd(model)
    for step in range(steps):
        loss = functional.cross_entropy(model(rows(2048, WIDTH, step)), labels(2048, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def traced() -> Seen:
    """trace() runs the model several times to check itself."""
    return trained(torch.jit.trace(perceptron(depth=16, outputs=10), rows(2048, WIDTH, 9)))


class Scripted(nn.Module):
    """A loop and a condition that scripting keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(16))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if float(x.sum()) > 0.0:
                x = x * 1.01
        return self.head(x)  # type: ignore[no-any-return]


@program(percent=70)
def scripted() -> Seen:
    return trained(torch.jit.script(Scripted().to(device())))


@program(gpu_percent=80)
def traced_saved_and_loaded() -> Seen:
    """What comes back from the file is trained, with in-place code inside.

    While it is traced nothing can move, so the example is small.
    """
    layers = [block(3, 8), *[Residual(8) for _ in range(8)]]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 32 * 32, 10)).to(device())
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, images(1, 32)), file)
    file.seek(0)
    loaded, seen = torch.jit.load(file), Seen()
    optimizer = sgd(loaded)
    for step in range(3):
        loss = functional.cross_entropy(loaded(images(8, 32, step)), labels(8, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(loaded, loss)
    return seen
