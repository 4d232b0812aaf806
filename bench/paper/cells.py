"""One cell of the paper's figures: a network, a policy, a precision and a budget, and its file.

A finished cell is a JSON file of its own, so a long run goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.paper.networks import WORKLOADS
from bench.processes import RESULTS
from vdnn_alloc.errors import ConfigError

MIB = 1 << 20
PAPER_BUDGET = 12288 * MIB
TIGHT_BUDGET = 4300 * MIB  # 4.2 GiB: what the paper's dyn needs for VGG-416
FOLDER = RESULTS / "paper"
ORACLES = ("oracle(p)", "oracle(m)")
POLICIES = (
    *ORACLES,
    *("none(m)", "none(p)", "all(m)", "all(p)", "conv(m)", "conv(p)", "dyn", "paper-dyn"),
)
PRECISIONS = ("fp32", "tf32", "bf16")
UPDATES = ("after", "inside")
BACKENDS = ("cuda", "host")

Outcome = dict[str, Any]
"""What a cell's process said: see bench.paper.training."""


@dataclass(frozen=True)
class Cell:
    """What one process trains."""

    network: str
    policy: str
    precision: str = "fp32"
    budget_bytes: int = PAPER_BUDGET
    batch: int = 0
    """0: the paper's."""
    update: str = "after"
    """Weights are updated after backward, as by every optimizer; or inside it, a parameter at a
    time, so that weight gradients, which the paper does not charge, need hardly any memory."""
    backend: str = "cuda"
    side: int = 0
    """Of the images; 0: the paper's. VGG alone takes another one."""

    def __post_init__(self) -> None:
        for key, value, known in (
            ("network", self.network, tuple(WORKLOADS)),
            ("policy", self.policy, POLICIES),
            ("precision", self.precision, PRECISIONS),
            ("update", self.update, UPDATES),
            ("backend", self.backend, BACKENDS),
        ):
            if value not in known:
                raise ConfigError(f"{key}={value}: not known; there are {', '.join(known)}")
        if self.batch < 0:
            raise ConfigError(f"batch={self.batch}: must be above zero")
        if self.backend == "host" and self.precision != "fp32":
            raise ConfigError(f"precision={self.precision}: backend=host has fp32 alone")
        if self.side and (self.side % 32 or not self.network.startswith("vgg")):
            raise ConfigError(f"side={self.side}: for VGG alone, and a multiple of 32")

    @property
    def name(self) -> str:
        """Of its file."""
        batch = self.batch or WORKLOADS[self.network].batch
        policy = self.policy.replace("(", "-").replace(")", "")
        parts = [self.network, f"b{batch}", policy, self.precision]
        parts.append(f"{self.budget_bytes // MIB}MiB")
        parts += [f"s{self.side}"] * bool(self.side) + ["inside"] * (self.update == "inside")
        return "-".join([*parts, *(["host"] * (self.backend == "host"))])

    @property
    def is_oracle(self) -> bool:
        return self.policy in ORACLES

    @property
    def moves(self) -> str:
        """The policy of vdnn_alloc."""
        return "none" if self.is_oracle else self.policy.partition("(")[0]

    @property
    def without_workspace(self) -> bool:
        """The paper's (m)."""
        return self.policy.endswith("(m)")


def load(cell: Cell, folder: Path = FOLDER) -> Outcome | None:
    """What a finished cell said; None if it is not finished."""
    path = folder / f"{cell.name}.json"
    if not path.exists():
        return None
    document: Outcome = json.loads(path.read_text())
    return document


def save(cell: Cell, outcome: Outcome, folder: Path = FOLDER) -> Path:
    """Whole or not at all: an interrupted run leaves no half of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell.name}.json"
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"cell": asdict(cell), **outcome}, indent=1) + "\n")
    os.replace(draft, path)
    return path


def load_all(folder: Path = FOLDER) -> dict[Cell, Outcome]:
    """Every finished cell."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {Cell(**document["cell"]): document for document in documents}
