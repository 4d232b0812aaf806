"""python -m bench.sweep --backend cuda: trains the cells that are not finished, and reports.

A tool that does the same whatever the limit is trains at the tightest limit first. Where it fits
there without a second try for memory, its step is that at every looser one, and where it does not
fit the loosest, it fits none: neither is trained again.
"""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench import processes
from bench.models import WORKLOADS
from bench.peers import cells, report
from bench.peers.cells import STOCK, WITHOUT_LIMIT, Cell, Outcome
from bench.peers.tools import OWN, TOOLS
from bench.peers.training import Settings, attempt
from bench.server import EndedError, Server
from vdnn_alloc.errors import ConfigError
from vdnn_alloc.simulate import ideal_step_time
from vdnn_alloc.step_profile import StepProfile

if TYPE_CHECKING:
    import argparse

NS_PER_MS = 1e6
FULL = (("vgg19", "fp32"), ("gpt", "bf16"))
"""The workloads whose whole curve is drawn, with every tool."""
FULL_PERCENTS = (90, 80, 70, 60, 50)
PERCENTS = (70, 50)
BEST_TOOLS = (STOCK, "vdnn_alloc", "checkpoint", "save_on_cpu")
CELL_LIMIT_S = 180
"""A tool that hangs ends then, and the cell says so."""


class Runner:
    """Trains cells that are not finished, and stops between two when the time is over."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._end = time.monotonic() + args.time_limit
        self._server = Server()
        self.failures: list[str] = []

    def run(self, wanted: Iterator[Cell]) -> None:
        """Every cell, until the time is over."""
        for cell in wanted:
            if self._is_known(cell):
                continue
            if time.monotonic() >= self._end:
                print("the time is over; the same command goes on from here")
                return
            self._attempt(cell)

    def _attempt(self, cell: Cell) -> None:
        """Where ours or stock ends by an error, that is said and the cell is left unfinished."""
        stock = None if cell == cell.stock else cells.load(cell.stock, self._args.results)
        if cell != cell.stock and (stock is None or stock["ended"] != "trained"):
            return  # there is no limit
        print(f"training {cell.name}", flush=True)
        begin = time.monotonic()
        outcome = self._outcome(cell, stock)
        said = outcome.get("error", "")[:90] or f"{report.step_ms(outcome):.1f} ms a step"
        print(f"  {outcome['ended']}: {said} ({time.monotonic() - begin:.0f} s)", flush=True)
        if outcome["ended"] == "failed" and cell.tool in OWN:
            self.failures.append(f"{cell.name}: {said}")
        else:
            cells.save(cell, outcome, self._args.results)

    def _is_known(self, cell: Cell) -> bool:
        return report.outcome_of(cell, cells.load_all(self._args.results)) is not None

    def _outcome(self, cell: Cell, stock: Outcome | None) -> Outcome:
        limit_bytes = stock["peaks"]["allocated_max"] * cell.percent // 100 if stock else 0
        outcome = self._train(cell, limit_bytes)
        profile = outcome.pop("profile", None)
        if profile is not None and stock is not None:
            outcome["bound"] = _bound(StepProfile.from_json(profile), limit_bytes, stock)
            path = self._args.results / f"{cell.name}.profile.gz"
            path.write_bytes(gzip.compress(profile.encode(), mtime=0))
        return outcome

    def _train(self, cell: Cell, limit_bytes: int) -> Outcome:
        args = self._args
        settings = Settings(limit_bytes, args.warm_up, args.steps, args.wheels)
        try:
            outcome: Outcome = self._server.call(attempt, cell, settings, limit_s=CELL_LIMIT_S)
        except EndedError as error:
            return {"ended": "failed", "error": str(error)}
        return outcome


def _bound(profile: StepProfile, limit_bytes: int, stock: Outcome) -> dict[str, float | int | None]:
    """Of the recorded step, at the pace of stock's steps and the measured rates of the link."""
    link = stock["link"] or {}
    rates = {f"{way}_bytes_per_second": rate for way, rate in link.items()}
    paced = replace(profile, **rates).stretched_to(int(report.step_ms(stock) * NS_PER_MS))
    found = ideal_step_time(paced, limit_bytes)
    step_ns = found.step_time_ns
    return {
        "step_ms": None if step_ns is None else step_ns / NS_PER_MS,
        "must_leave_bytes": found.absent_bytes,
        "missing_bytes": found.missing_bytes,
        "refused_workspaces": found.refused_workspaces,
        "recorded_ms": profile.duration_ns / NS_PER_MS,
    }


def grid(args: argparse.Namespace) -> Iterator[Cell]:
    """What was asked for, stock of each workload and precision before its other tools."""
    for name in args.workload or WORKLOADS:
        for precision in WORKLOADS[name].precisions:
            if not args.precision or precision in args.precision:
                yield from _curve(args, name, precision)


def _curve(args: argparse.Namespace, name: str, precision: str) -> Iterator[Cell]:
    is_full = (name, precision) in FULL
    tools = args.tool or (TOOLS if is_full else BEST_TOOLS)
    percents = sorted(args.percent or (FULL_PERCENTS if is_full else PERCENTS))
    yield Cell(name, precision, STOCK, WITHOUT_LIMIT)
    for tool, percent in product(tools, [percents[0], *reversed(percents[1:])]):
        if tool != STOCK:
            yield Cell(name, precision, tool, percent)


def add_options(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="these alone")
    parser.add_argument("--precision", action="append", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--tool", action="append", choices=TOOLS, help="these alone, and stock")
    parser.add_argument("--percent", action="append", type=int, help="of stock's peak")
    parser.add_argument("--steps", type=int, default=10, help="timed, after the warm-up")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of what is not installed")
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="begin no more"
    )
    parser.add_argument("--report", action="store_true", help="train nothing, only table and plots")
    parser.add_argument("--results", type=Path, default=cells.FOLDER)


def run(args: argparse.Namespace) -> int:
    """Trains what is not finished, prints, draws."""
    failures = []
    if not args.report:
        runner = Runner(args)
        runner.run(grid(args))
        failures = runner.failures
    finished = cells.load_all(args.results)
    console = Console() if sys.stdout.isatty() else Console(width=150)
    for table in report.tables(finished):
        console.print(table)
    try:
        for path in report.draw(finished, args.results):
            print(f"written: {path}")
    except ConfigError as error:
        print(error)
    return processes.judge(failures)
