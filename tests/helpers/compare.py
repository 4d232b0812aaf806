"""What one training leaves behind, small enough to keep and exact enough to compare bit for bit."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

Arrays = dict[str, np.ndarray]


def digest(tensor: Tensor) -> str:
    """The hash of a tensor's bytes; the copy that is hashed is not torch's memory."""
    contiguous = np.ascontiguousarray(tensor.detach().cpu().numpy())
    return hashlib.sha256(contiguous.tobytes()).hexdigest()


def digests(model: nn.Module) -> list[str]:
    """The hashes of every gradient, then of everything in the state of the model."""
    gradients = [digest(p.grad) for p in model.parameters() if p.grad is not None]
    return gradients + [digest(value) for value in model.state_dict().values()]


def arrays(tensors: dict[str, Tensor]) -> Arrays:
    """Copies that live in numpy's memory, outside the allocator under test."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


@dataclass
class Outcome:
    """Losses and gradient hashes of every step, the last gradients, the final parameters."""

    losses: list[float] = field(default_factory=list)
    gradient_digests: list[dict[str, str]] = field(default_factory=list)
    gradients: Arrays = field(default_factory=dict)
    parameters: Arrays = field(default_factory=dict)
    # After each step, where vdnn_alloc was installed: its stats, and the witness.
    stats: list[dict[str, int]] = field(default_factory=list)
    witness_bytes: list[int] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)

    def add_step(self, model: nn.Module, loss: float) -> None:
        """Keeps the numbers of a step whose backward has just run."""
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        self.losses.append(loss)
        self.gradient_digests.append({n: digest(g) for n, g in gradients.items()})
        self.gradients = arrays(gradients)

    def per_step(self, counter: str) -> list[int]:
        """How far a running counter of the stats went in each step."""
        values = [0] + [row[counter] for row in self.stats]
        return [after - before for before, after in pairwise(values)]


def differences(ours: Outcome, stock: Outcome) -> list[str]:
    """Every way in which two trainings differ, in words; empty if they are identical."""
    found = [
        f"loss of step {step}: {mine!r} against {theirs!r}"
        for step, (mine, theirs) in enumerate(zip(ours.losses, stock.losses, strict=True))
        if mine != theirs
    ]
    pairs = zip(ours.gradient_digests, stock.gradient_digests, strict=True)
    for step, (mine, theirs) in enumerate(pairs):
        names = [n for n in theirs if mine.get(n) != theirs[n]] + sorted(mine.keys() - theirs)
        found += [f"gradient of {name} in step {step}" for name in names]
    found += differing("last gradient", ours.gradients, stock.gradients)
    return found + differing("parameter", ours.parameters, stock.parameters)


def differing(what: str, ours: Arrays, stock: Arrays) -> list[str]:
    """The names whose tensors are not torch.equal, or are on one side only."""
    if ours.keys() != stock.keys():
        return [f"{what}s have other names: {sorted(ours.keys() ^ stock.keys())}"]
    return [
        f"{what} {name}"
        for name in stock
        if not torch.equal(torch.from_numpy(ours[name]), torch.from_numpy(stock[name]))
    ]


def stats_row(stats: object) -> dict[str, int]:
    """The whole-number fields of a stats record."""
    fields = dataclasses.fields(stats)  # type: ignore[arg-type]
    values = {f.name: getattr(stats, f.name) for f in fields}
    return {name: value for name, value in values.items() if isinstance(value, int)}
