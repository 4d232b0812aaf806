"""Step time against the budget, beside the bound that no offloader can pass.

    python -m bench.sweep --backend host --quick

trains networks of timed operators (bench/timed_training.py) on the simulated device, whose link is
as slow as we like, under budgets of 80, 60 and 50 % of their peak. A row is one training, in a
process of its own: its median step once it follows a plan, what the planner expected, and the bound
of the recorded step, both times as ratios to the step without limit; then the step over the bound.
The last line says the worst of these. Exit status 1 if that is more than 1.15.

    python -m bench.sweep --backend cuda

trains real models on a GPU, under limits of 90 to 50 % of their peak, by vdnn_alloc and by what one
would use instead: bench/peers/.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import processes
from bench.peers import command as peers
from bench.timed_training import WORKLOADS
from vdnn_alloc.planner import plan_step
from vdnn_alloc.simulate import ideal_step_time
from vdnn_alloc.step_profile import StepProfile

LEARNED = 4
"""Steps until the plan is what it stays."""
STEPS = 9
AMPLE_BYTES = 1 << 30
BANDWIDTH = 60_000_000
"""Bytes per second each way."""
QUICK_PERCENTS = (80, 60)
PERCENTS = (90, 80, 70, 60, 50)
WORST = 1.15
NS_PER_MS = 1e6
HEADINGS = ("network", "budget", "no limit", "step", "planned", "bound", "step / bound")


@dataclass(frozen=True)
class Cell:
    """One training under one budget. Times in ms."""

    workload: str
    percent: int
    unlimited: float
    step: float
    planned: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.step / self.bound


def measure(workload: str, percent: int, peak_bytes: int) -> Cell:
    """Trains, and puts the bound of its recorded step beside it."""
    budget_bytes = peak_bytes * percent // 100
    found = _train(workload, budget_bytes)
    if found["profile"] is None:
        raise SystemExit(f"{workload} at {percent} %: no step was recorded, so nothing was planned")
    recorded = StepProfile.from_json(found["profile"])
    # The link's true rates, for what was measured includes what a copy waits for a processor.
    profile = replace(recorded, out_bytes_per_second=BANDWIDTH, in_bytes_per_second=BANDWIDTH)
    bound_ns = ideal_step_time(profile, budget_bytes).step_time_ns
    planned_ns = plan_step(profile, budget_bytes).simulated.step_time_ns
    if bound_ns is None or planned_ns is None:
        raise SystemExit(f"{workload} at {percent} %: no plan serves this budget; raise it")
    return Cell(
        workload,
        percent,
        profile.duration_ns / NS_PER_MS,
        median(row["ms"] for row in found["rows"][LEARNED:]),
        planned_ns / NS_PER_MS,
        bound_ns / NS_PER_MS,
    )


def _train(workload: str, budget_bytes: int) -> Any:
    arguments = ["--workload", workload, "--budget", str(budget_bytes)]
    arguments += ["--bandwidth", str(BANDWIDTH), "--steps", str(STEPS)]
    return processes.train("bench.timed_training", arguments)


def peak_bytes(workload: str) -> int:
    """What it takes where nothing need move."""
    return int(_train(workload, AMPLE_BYTES)["rows"][-1]["owned_bytes_max"])


def table_of(cells: list[Cell]) -> Table:
    """One row a cell."""
    table = Table(title=f"the simulated device, {BANDWIDTH / 1e6:.0f} MB/s each way")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for cell in cells:
        ratios = (f"{ms / cell.unlimited:.3f} x" for ms in (cell.step, cell.planned, cell.bound))
        name, budget = cell.workload, f"{cell.percent} %"
        table.add_row(name, budget, f"{cell.unlimited:.0f} ms", *ratios, f"{cell.ratio:.3f}")
    return table


def main() -> int:
    """Trains every cell, two at a time, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("host", "cuda"), required=True)
    parser.add_argument("--quick", action="store_true", help="fewer budgets: a minute or two")
    peers.add_options(parser.add_argument_group("with --backend cuda, beside other tools"))
    args = parser.parse_args()
    if args.backend == "cuda":
        return peers.run(args)
    percents = QUICK_PERCENTS if args.quick else PERCENTS
    with ThreadPoolExecutor(max_workers=2) as pool:
        peaks = dict(zip(WORKLOADS, pool.map(peak_bytes, WORKLOADS), strict=True))
        jobs = [(name, percent, peaks[name]) for name in WORKLOADS for percent in percents]
        cells = list(pool.map(lambda job: measure(*job), jobs))
    Console().print(table_of(cells))
    worst = max(cells, key=lambda cell: cell.ratio)
    print(f"worst: {worst.ratio:.3f} x the bound ({worst.workload} at {worst.percent} %)")
    return processes.judge([f"more than {WORST} x the bound"] if worst.ratio > WORST else [])


if __name__ == "__main__":
    sys.exit(main())
