"""One cell of the sweep: a workload, a precision, a tool and a limit, and its file.

A finished cell is a JSON file of its own, so a long run goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.processes import RESULTS

FOLDER = RESULTS / "sweep"
WITHOUT_LIMIT = 100
"""Percent, of stock alone."""
STOCK = "stock"

Outcome = dict[str, Any]
"""What a cell's process said: see bench.peers.training."""


@dataclass(frozen=True)
class Cell:
    """What one process trains."""

    workload: str
    precision: str
    tool: str
    percent: int
    """The limit, of the peak of stock's tensors."""
    backend: str = "cuda"

    @property
    def name(self) -> str:
        """Of its file."""
        parts = [self.workload, self.precision, self.tool, str(self.percent)]
        return "-".join([*parts, *(["host"] * (self.backend == "host"))])

    @property
    def stock(self) -> Cell:
        """The cell that this one is compared with."""
        return replace(self, tool=STOCK, percent=WITHOUT_LIMIT)


def load(cell: Cell, folder: Path) -> Outcome | None:
    """What a finished cell said; None if it is not finished."""
    path = folder / f"{cell.name}.json"
    if not path.exists():
        return None
    document: Outcome = json.loads(path.read_text())
    return document


def save(cell: Cell, outcome: Outcome, folder: Path) -> None:
    """Whole or not at all: an interrupted run leaves no half of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell.name}.json"
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"cell": asdict(cell), **outcome}, indent=1) + "\n")
    os.replace(draft, path)


def load_all(folder: Path) -> dict[Cell, Outcome]:
    """Every finished cell."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {Cell(**document["cell"]): document for document in documents}
