"""The paper's tables and figures beside ours, by one command.

    python -m bench.paper --quick    # shapes and bytes, no GPU, seconds
    python3 -m bench.paper           # on a GPU: every cell that is not finished yet

Each cell (a network, a policy, a precision) is trained in a process of its own and leaves a JSON
file; finished ones are not run again. Then the table and the plots are written beside them. Exit
status 1 if a cell ended by an error that is no lack of memory, or its numbers are not the oracle's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from bench import processes
from bench.paper import byte_table, cells, measured, plots, procedure
from bench.paper.cells import Cell, Outcome
from bench.paper.networks import WORKLOADS
from vdnn_alloc.errors import VdnnError
from vdnn_alloc.units import parse_bytes

WIDTH = 120  # of a table whose reader sends it to a file
FIRST = ("vgg16-256", "vgg416")  # the paper's headlines, before the rest
MODULE = "bench.paper.training"


class Runner:
    """Trains cells that are not finished, and stops between two when the time is over."""

    def __init__(self, folder: Path, steps: int, limit_s: float) -> None:
        self._folder = folder
        self._steps = steps
        self._end = time.monotonic() + limit_s
        self.failures: list[str] = []

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def outcome(self, cell: Cell) -> Outcome:
        """Of a finished cell, or of a training now."""
        known = cells.load(cell, self._folder)
        if known is not None:
            return known
        if cell.policy == "paper-dyn":
            outcome = procedure.choose(cell, self.outcome)
        else:
            if self.is_over:
                raise TimeoutError
            print(f"training {cell.name}", flush=True)
            outcome = self._train(cell)
        cells.save(cell, outcome, self._folder)
        return outcome

    def _train(self, cell: Cell) -> Outcome:
        arguments = [json.dumps(asdict(cell)), "--steps", str(self._steps)]
        environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        outcome: Outcome = processes.train(MODULE, arguments, environment)
        return outcome

    def run(self, wanted: Iterator[Cell]) -> None:
        """Every cell, until the time is over."""
        try:
            for cell in wanted:
                self._attempt(cell)
        except TimeoutError:
            print("the time is over; the same command goes on from here")

    def _attempt(self, cell: Cell) -> None:
        """One that ends by an error is said and left unfinished, and the rest go on."""
        try:
            self.outcome(cell)
        except subprocess.CalledProcessError as error:
            self.failures.append(f"{cell.name}: its process ended with {error.returncode}")


def grid(args: argparse.Namespace) -> Iterator[Cell]:
    """What was asked for, oracles first; VGG-416 also in the paper's own bytes."""
    budget_bytes = parse_bytes(args.budget, "--budget")
    ordered = [*FIRST, *(name for name in WORKLOADS if name not in FIRST)]
    for precision in args.precision or cells.PRECISIONS[: 1 if args.backend == "host" else None]:
        for network in args.network or ordered:
            common = Cell(
                network,
                cells.ORACLES[0],
                precision,
                budget_bytes,
                args.batch,
                args.update,
                args.backend,
                args.side,
            )
            for policy in args.policy or cells.POLICIES:
                yield replace(common, policy=policy)
            if network == "vgg416" and args.backend == "cuda" and not args.policy:
                tight = replace(common, budget_bytes=cells.TIGHT_BUDGET, update="inside")
                yield tight
                yield replace(tight, policy="dyn")


def quick(console: Console) -> None:
    """Bytes alone."""
    rows = {name: byte_table.of_network(name) for name in WORKLOADS}
    for table in byte_table.tables(rows):
        console.print(table)


def report(console: Console, folder: Path) -> list[str]:
    """Writes the table and the plots of every finished cell; returns what is wrong in them."""
    finished = cells.load_all(folder)
    text = measured.markdown(finished)
    (folder / "table.md").write_text(text)
    console.print(Markdown(text))
    for path in plots.draw(finished, folder):
        print(f"written: {path}")
    return [
        f"{row.cell.name}: the numbers differ from the oracle's"
        for row in measured.rows(finished)
        if row.is_identical is False
    ]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.paper", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shapes and bytes only; needs no GPU")
    parser.add_argument("--report", action="store_true", help="train nothing, only table and plots")
    parser.add_argument("--network", action="append", help="these alone; may be repeated")
    parser.add_argument("--policy", action="append", help="these alone; may be repeated")
    parser.add_argument("--precision", action="append", help="these alone; may be repeated")
    parser.add_argument("--budget", default="12288MiB", help="device memory of every cell")
    parser.add_argument("--batch", type=int, default=0, help="images; default: the paper's")
    parser.add_argument("--side", type=int, default=0, help="of VGG's images; default: 224")
    parser.add_argument("--update", choices=cells.UPDATES, default="after")
    parser.add_argument("--backend", choices=cells.BACKENDS, default="cuda")
    parser.add_argument("--steps", type=int, default=6, help="timed, after the warm-up")
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="begin no more"
    )
    parser.add_argument("--results", type=Path, default=cells.FOLDER)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Trains what is not finished, writes, judges."""
    args = parse(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    if args.quick:
        quick(console)
        return 0
    try:
        runner = Runner(args.results, args.steps, args.time_limit)
        wanted = list(grid(args))  # all of it is checked before anything is trained
        if not args.report:
            runner.run(iter(wanted))
        return processes.judge(runner.failures + report(console, args.results))
    except VdnnError as error:
        print(f"bench.paper: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
