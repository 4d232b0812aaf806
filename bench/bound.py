"""What no offloader can pass: the least time of a recorded step under shrinking budgets.

    python3 -m bench.bound PROFILE...
    python3 -m bench.bound --budget 12GiB --step-ms 507 PROFILE
    python3 -m bench.bound --scaling

A profile is a StepProfile file, gzipped or not, or a recording that bench/recorded_steps.py reads.
Each row is a budget: the bytes that must be absent at once, which is the least that any offloader
copies out; the bound over the step without limit; the same where every workspace may be refused
for nothing (the bound of who changes convolution engines at will); and how many workspaces the
first bound did without, since they cannot fit. `--scaling` prints what the bound itself costs as
layers go up.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import recorded_steps
from vdnn_alloc.errors import VdnnError
from vdnn_alloc.plan import Move, NativePolicy, Plan
from vdnn_alloc.simulate import Bound, ideal_step_time, simulate
from vdnn_alloc.step_profile import Event, EventKind, ProfiledBlock, StepProfile
from vdnn_alloc.units import format_bytes, parse_bytes

PERCENTS = (90, 80, 70, 60, 50)
LAYERS = (50, 500, 5000)
NS_PER_MS = 10**6
HEADINGS = ("budget", "bytes", "must leave", "bound", "bound, no workspaces", "refused")


def table_of(name: str, profile: StepProfile, budgets: list[tuple[str, int]]) -> Table:
    """One row a budget."""
    title = f"{name}: {profile.duration_ns / NS_PER_MS:.1f} ms without limit"
    table = Table(title=f"{title}, peak {format_bytes(profile.peak_bytes)}")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for label, budget_bytes in budgets:
        bound = ideal_step_time(profile, budget_bytes)
        free = ideal_step_time(profile, budget_bytes, refuse_all_workspaces=True)
        figures = (_ratio(bound), _ratio(free), str(bound.refused_workspaces))
        must_leave = format_bytes(bound.absent_bytes)
        table.add_row(label, format_bytes(budget_bytes), must_leave, *figures)
    return table


def _ratio(bound: Bound) -> str:
    if bound.step_time_ns is None:
        return f"infeasible: {format_bytes(bound.missing_bytes)} missing"
    return f"{bound.step_time_ns / bound.unlimited_ns:.3f} x"


def chain(layers: int) -> StepProfile:
    """A network of equal layers; a map's copy takes four times a layer's forward.

    Layer i reads map i - 1, which is cold when it ends, and writes map i. Backward takes twice as
    long as forward.
    """
    size_bytes, layer_ns = 4000, 1000
    events: list[Event] = []
    for i in range(layers):
        events.append(Event(i * layer_ns, EventKind.ALLOC, i))
        events += [Event((i + 1) * layer_ns, EventKind.COLD, i - 1)] if i else []
        events.append(Event((i + 1) * layer_ns, EventKind.SAVE, i))
    for done, i in enumerate(reversed(range(layers))):
        begin_ns = (layers + 2 * done) * layer_ns
        events.append(Event(begin_ns, EventKind.USE, i))
        events.append(Event(begin_ns + 2 * layer_ns, EventKind.FREE, i))
    blocks = (ProfiledBlock(size_bytes),) * layers
    return StepProfile(3 * layers * layer_ns, 0, 1e9, 1e9, blocks, tuple(events))


def scaling() -> Table:
    """What one bound and one simulation cost, by layers."""
    table = Table(title="cost of the bound, and of simulating a plan that moves every block")
    for heading in ("layers", "events", "bound", "simulation"):
        table.add_column(heading, justify="right")
    for layers in LAYERS:
        profile = chain(layers)
        plan = Plan(NativePolicy.PRESSURE, frozenset(), tuple(map(Move, range(layers - 1))))
        budget_bytes = profile.peak_bytes // 2
        costs = []
        for run in (
            lambda p=profile, b=budget_bytes: ideal_step_time(p, b),
            lambda p=profile, b=budget_bytes, plan=plan: simulate(p, plan, b),
        ):
            begin = time.perf_counter()
            run()
            costs.append(f"{(time.perf_counter() - begin) * 1000:.1f} ms")
        table.add_row(str(layers), str(len(profile.events)), *costs)
    return table


def main() -> int:
    """Reads, bounds, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profiles", nargs="*", type=Path, metavar="PROFILE")
    parser.add_argument("--budget", action="append", default=[], help="one more, like 12GiB")
    parser.add_argument("--step-ms", type=float, help="the true time, if recording slowed it")
    parser.add_argument("--link", help="bytes per second each way: 55GB")
    parser.add_argument("--scaling", action="store_true", help="what the bound costs, by layers")
    args = parser.parse_args()
    console = Console()
    if args.scaling:
        console.print(scaling())
    for path in args.profiles:
        try:
            profile = _load(path, args)
            budgets = [(text, parse_bytes(text, "--budget")) for text in args.budget]
        except (OSError, VdnnError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        budgets += [(f"{n} %", profile.peak_bytes * n // 100) for n in PERCENTS]
        console.print(table_of(path.name, profile, budgets))
    return 0


def _load(path: Path, args: argparse.Namespace) -> StepProfile:
    profile = recorded_steps.read(path)
    if args.link:
        rate = float(parse_bytes(args.link, "--link"))
        profile = replace(profile, out_bytes_per_second=rate, in_bytes_per_second=rate)
    if args.step_ms:
        profile = profile.stretched_to(int(args.step_ms * NS_PER_MS))
    return profile


if __name__ == "__main__":
    sys.exit(main())
