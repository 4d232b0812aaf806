"""What vdnn_alloc costs a model that fits: nothing may move, and no step may take longer.

    python3 -m bench.fits

Trains every workload of bench/models.py, each in its first precision, with stock PyTorch and with
vdnn_alloc under its default budget, in alternating processes, prints a table and writes
bench/results/fits-<date>.json. Exit status 1 if a byte moved, or if the median step is more than
3 % slower than stock's.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench import processes
from bench.models import WORKLOADS

WARM_UP = 5  # steps in which vdnn_alloc learns and cuDNN chooses, left out of the median
ALLOWED_RATIO = 1.03
SIDES = ("stock", "ours")
GIB = 1 << 30


@dataclass
class Side:
    """What the processes of one side said of one workload."""

    runs: list[dict[str, Any]] = field(default_factory=list)

    def step_ms(self) -> list[float]:
        return [ms for run in self.runs for ms in run["ms"][WARM_UP:]]

    def most(self, figure: str) -> int:
        return max(run[figure] for run in self.runs)


Measured = dict[str, dict[str, Side]]  # by workload, by side


def measure(workloads: list[str], rounds: int, steps: int) -> Measured:
    """Stock and ours in turn, so that neither has the warmer machine."""
    measured = {name: {side: Side() for side in SIDES} for name in workloads}
    turns = [(name, side) for _ in range(rounds) for name in workloads for side in SIDES]
    for name, side in track(turns, "training"):
        arguments = ["--workload", name, "--steps", str(WARM_UP + steps)]
        arguments += ["--ours"] * (side == "ours")
        measured[name][side].runs.append(processes.train("bench.fits_training", arguments))
    return {_title(name): sides for name, sides in measured.items()}


def _title(name: str) -> str:
    return f"{WORKLOADS[name].title}, {WORKLOADS[name].precisions[0]}"


def summarise(sides: dict[str, Side]) -> dict[str, Any]:
    """The figures of one row of the table."""
    stock, ours = (sides[side] for side in SIDES)
    return {
        "stock_ms": median(stock.step_ms()),
        "stock_ms_quartiles": quantiles(stock.step_ms()),
        "ours_ms": median(ours.step_ms()),
        "ours_ms_quartiles": quantiles(ours.step_ms()),
        "ratio": median(ours.step_ms()) / median(stock.step_ms()),
        "moved_bytes": ours.most("moved_bytes"),
        "stock_reserved_max": stock.most("reserved_max"),
        "ours_reserved_max": ours.most("reserved_max"),
    }


def show(summary: dict[str, dict[str, Any]]) -> None:
    """The table: medians, with the quartiles beside them."""
    table = Table(title="models that fit, median step and the quartiles around it")
    table.add_column("model")
    for heading in ("stock", "vdnn_alloc", "ratio", "bytes moved", "GiB, stock", "GiB, ours"):
        table.add_column(heading, justify="right")
    for name, row in summary.items():
        table.add_row(
            name,
            *(_spread(row, side) for side in SIDES),
            f"{row['ratio']:.3f}",
            str(row["moved_bytes"]),
            *(f"{row[f'{side}_reserved_max'] / GIB:.1f}" for side in SIDES),
        )
    Console().print(table)


def _spread(row: dict[str, Any], side: str) -> str:
    low, _, high = row[f"{side}_ms_quartiles"]
    return f"{row[f'{side}_ms']:.1f} ms ({low:.1f}, {high:.1f})"


def failures(summary: dict[str, dict[str, Any]]) -> list[str]:
    """What the run must not show."""
    found = []
    for name, row in summary.items():
        if row["moved_bytes"]:
            found.append(f"{name}: {row['moved_bytes']} bytes moved, and it fits")
        if row["ratio"] > ALLOWED_RATIO:
            found.append(f"{name}: {row['ratio']:.3f} x stock's step, {ALLOWED_RATIO} allowed")
    return found


def main() -> int:
    """Runs, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="these alone")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side")
    parser.add_argument("--steps", type=int, default=10, help="timed in each, after the warm-up")
    args = parser.parse_args()
    measured = measure(args.workload or list(WORKLOADS), args.rounds, args.steps)
    summary = {name: summarise(sides) for name, sides in measured.items()}
    show(summary)
    runs = {name: {side: sides[side].runs for side in SIDES} for name, sides in measured.items()}
    known = next(iter(measured.values()))["ours"].runs[0]
    settings = {**vars(args), "warm_up": WARM_UP, "budget": "default", "policy": "default"}
    name = f"fits-{time.strftime('%Y-%m-%d')}"
    path = processes.write(name, known, settings, {"summary": summary, "runs": runs})
    print(f"written: {path.relative_to(processes.ROOT)}")
    return processes.judge(failures(summary))


if __name__ == "__main__":
    sys.exit(main())
