"""The headline: a network whose feature maps do not fit, trained exactly within a byte budget.

    python bench/vgg_budget.py --network vgg19 --batch 256 --budget 12GiB

Trains with stock PyTorch and with vdnn_alloc, each in a process of its own: once to compare every
bit (deterministic algorithms), once to measure. Prints a table and writes a JSON file to
bench/results/. Exit status 1 if a bit differs, or if the device saw more than the budget and what
stock itself uses outside its allocator.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # this file is also run as a program

from bench import processes  # noqa: E402
from vdnn_alloc.units import parse_bytes  # noqa: E402

EQUALITY_STEPS = 5
WARM_UP = 4  # steps in which vdnn_alloc learns; the target of 0 driver calls begins after them
TOLERANCE_BYTES = 64 << 20  # between two readings of what a process uses outside its allocator
GIB = 1 << 30
MEMORY_CALLS = (
    *("driver_create", "driver_map", "driver_unmap", "driver_set_access", "driver_pin"),
)


@dataclass(frozen=True)
class Run:
    """What one training process printed."""

    rows: list[dict[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)

    def step_ms(self) -> list[float]:
        return [row["ms"] for row in self.rows[WARM_UP:]]

    def per_step(self, counter: str) -> list[int]:
        """How far a counter went in each step after the warm-up."""
        values = [row[counter] for row in self.rows[WARM_UP - 1 :]]
        return [after - before for before, after in pairwise(values)]

    def bits(self) -> tuple[list[Any], list[Any], Any]:
        losses = [row["loss"] for row in self.rows]
        return losses, [row["gradients"] for row in self.rows], self.facts["parameters"]


def train(args: argparse.Namespace, *, equality: bool, ours: bool) -> Run:
    """One training in a fresh process."""
    steps = EQUALITY_STEPS if equality else WARM_UP + args.steps
    arguments = ["--network", args.network, "--batch", str(args.batch)]
    arguments += ["--precision", args.precision, "--steps", str(steps)]
    arguments += ["--equality"] * equality
    arguments += ["--budget", args.budget, "--policy", args.policy] * ours
    if equality and not ours:
        arguments += ["--engine-room", str(int(budget_bytes(args.budget) * args.engine_room))]
    settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if equality else {}
    facts = processes.train("bench.vgg_training", arguments, settings)
    return Run(facts.pop("rows"), facts)


def budget_bytes(text: str) -> int:
    return parse_bytes(text, "--budget")


def summarise(runs: dict[str, Run], budget: int) -> dict[str, Any]:
    """The figures of the table."""
    stock, ours = runs["stock timing"], runs["ours timing"]
    last = ours.rows[-1]
    calls = {name: sum(ours.per_step(name)) for name in MEMORY_CALLS}
    return {
        "identical": runs["stock equality"].bits() == runs["ours equality"].bits(),
        "stock_ms": median(stock.step_ms()),
        "stock_ms_quartiles": quantiles(stock.step_ms()),
        "ours_ms": median(ours.step_ms()),
        "ours_ms_quartiles": quantiles(ours.step_ms()),
        "slowdown": median(ours.step_ms()) / median(stock.step_ms()),
        "stock_used_max": stock.facts["used_max"],
        "ours_used_max": max(ours.facts["used_max"], runs["ours equality"].facts["used_max"]),
        "allowed": budget + stock.facts["outside_allocator"] + TOLERANCE_BYTES,
        "live_max": last["live_bytes_max"],
        "created_max": last["created_bytes_max"],
        "out_per_step": median(ours.per_step("offloaded_bytes")),
        "in_per_step": median(ours.per_step("prefetched_bytes")),
        "stall_ms_per_step": median(ours.per_step("stall_ns")) / 1e6,
        "memory_calls_after_warm_up": calls,
        "workspace_refusals": last["workspace_refusals"],
    }


def show(summary: dict[str, Any], args: argparse.Namespace) -> None:
    """The table."""
    title = f"{args.network}, batch {args.batch}, {args.precision}, budget {args.budget}"
    table = Table("", "stock", "vdnn_alloc", title=title)

    def gib(key: str) -> str:
        return f"{summary[key] / GIB:.2f} GiB"

    table.add_row("step, median", f"{summary['stock_ms']:.1f} ms", f"{summary['ours_ms']:.1f} ms")
    table.add_row("", "1.00 x", f"{summary['slowdown']:.2f} x")
    table.add_row("device memory in use, peak", gib("stock_used_max"), gib("ours_used_max"))
    table.add_row("frames that existed, peak", "", gib("created_max"))
    table.add_row("tensors alive, peak", "", gib("live_max"))
    table.add_row("copied out a step", "", gib("out_per_step"))
    table.add_row("copied in a step", "", gib("in_per_step"))
    table.add_row("CPU waits a step", "", f"{summary['stall_ms_per_step']:.1f} ms")
    table.add_row(
        "memory calls from the fifth step on",
        "",
        str(sum(summary["memory_calls_after_warm_up"].values())),
    )
    table.add_row("workspaces refused", "", str(summary["workspace_refusals"]))
    table.add_row("identical", "", "yes" if summary["identical"] else "no")
    Console().print(table)


def write(summary: dict[str, Any], runs: dict[str, Run], args: argparse.Namespace) -> Path:
    """Machine, versions and settings beside the figures."""
    name = f"vgg_budget-{args.network}-{args.batch}-{args.precision}-{args.budget}"
    figures = {
        "summary": summary,
        "runs": {name: {"rows": run.rows, **run.facts} for name, run in runs.items()},
    }
    return processes.write(name, runs["ours timing"].facts, vars(args), figures)


def failures(summary: dict[str, Any]) -> list[str]:
    """What the run must not show."""
    found = []
    if not summary["identical"]:
        found.append("the bits differ from stock's")
    if summary["ours_used_max"] > summary["allowed"]:
        found.append(f"{summary['ours_used_max']} bytes in use, {summary['allowed']} allowed")
    return found


def main() -> int:
    """Runs, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="vgg19", help="a classifier of torchvision.models")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--budget", default="12GiB")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--policy", default="dyn")
    parser.add_argument("--steps", type=int, default=12, help="timed, after the warm-up")
    parser.add_argument(
        "--engine-room",
        type=float,
        default=0.8,
        help="share of the budget that stock's convolutions may take for themselves while their "
        "engines are chosen, in the equality run; so both sides run the same engines",
    )
    args = parser.parse_args()
    budget = budget_bytes(args.budget)
    runs = {
        f"{side} {kind}": train(args, equality=kind == "equality", ours=side == "ours")
        for kind in ("equality", "timing")
        for side in ("stock", "ours")
    }
    summary = summarise(runs, budget)
    show(summary, args)
    print(f"written: {write(summary, runs, args).relative_to(ROOT)}")
    return processes.judge(failures(summary))


if __name__ == "__main__":
    sys.exit(main())
