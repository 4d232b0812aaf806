"""What a loop costs that never repeats itself: a GPT whose texts have another length in each step.

    python3 -m bench.lengths

Trains GPT-2 medium's shape in bf16 on one text of 512 to 8192 tokens a step, drawn at random, for
500 steps under a budget of 12 GiB; then 8 lengths alone, each in a process of its own, so that a
step has a time to be compared with: that of its length, between the two nearest of the 8. Prints
how mappings, address space and host memory grow, and the mean step over the mean of those times;
writes bench/results/lengths-<backend>-<date>.json. `--backend host` trains a small one on the
simulated device.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from statistics import mean, median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench import models, processes
from bench.server import Server
from vdnn_alloc.units import format_bytes

WARM_UP = 6  # steps of one length in which vdnn_alloc learns
TIMED = 6
LENGTHS = 8
COUNTERS = (
    *("mappings", "mapped_bytes", "mapping_misses", "host_pinned_bytes", "created_bytes"),
    *("offloaded_bytes", "prefetched_bytes", "late_prefetches", "ooms"),
)
SHOWN = ("mappings", "mapped_bytes", "mapping_misses", "host_pinned_bytes", "rss_bytes")
LIMIT_S = 600
WIDTH = 120  # of a table whose reader sends it to a file

Row = dict[str, Any]
"""A step: its length, its milliseconds, and what is held after it."""


@dataclass(frozen=True)
class Shape:
    """What is trained, and where."""

    backend: str
    budget: str
    shortest: int = 512
    longest: int = 8192
    layers: int = 24
    heads: int = 16
    width: int = 1024
    words: int = models.GPT2_WORDS

    @property
    def precision(self) -> str:
        return "bf16" if self.backend == "cuda" else "fp32"


SHAPES = {
    "cuda": Shape("cuda", "12GiB"),
    "host": Shape("host", "12MiB", 64, 512, layers=4, heads=2, width=64, words=99),
}


def train(shape: Shape, lengths: list[int]) -> tuple[list[Row], dict[str, object]]:
    """One step for each length, and the facts; in a fresh process."""
    import torch

    import vdnn_alloc

    if shape.backend == "host":
        torch.set_num_threads(1)  # threads of one operator that wait for a core spin
    vdnn_alloc.install(shape.budget, backend=shape.backend)
    remaining = iter(lengths)

    def build(precision: str) -> models.Task:
        model = models.gpt2(
            shape.longest,
            layers=shape.layers,
            heads=shape.heads,
            width=shape.width,
            words=shape.words,
        )
        text = torch.randint(shape.words, (1, shape.longest))
        return models.language_task(model, lambda: text[:, : next(remaining)], precision)

    device = "cuda" if shape.backend == "cuda" else "cpu"
    training = models.Training(build, shape.precision, device)
    return [_timed_step(training, length) for length in lengths], processes.facts()


def _timed_step(training: models.Training, length: int) -> Row:
    import vdnn_alloc

    begin = time.perf_counter()
    loss = training.step().item()  # which waits for the device
    ms = (time.perf_counter() - begin) * 1e3
    stats = vdnn_alloc.stats()
    held = {key: getattr(stats, key) for key in COUNTERS}
    return {
        "length": length,
        "ms": ms,
        "loss": loss,
        "rss_bytes": psutil.Process().memory_info().rss,
        **held,
    }


def measure(shape: Shape, steps: int) -> dict[str, Any]:
    """The rows of the loop of random lengths, and the median step of each length alone."""
    server = Server()
    draw = random.Random(models.SEED)
    drawn = [draw.randint(shape.shortest, shape.longest) for _ in range(steps)]
    rows, known = server.call(train, shape, drawn, limit_s=LIMIT_S)
    alone: dict[int, float] = {}
    for number in range(LENGTHS):
        length = shape.shortest + (shape.longest - shape.shortest) * number // (LENGTHS - 1)
        fixed, _ = server.call(train, shape, [length] * (WARM_UP + TIMED), limit_s=LIMIT_S)
        alone[length] = median(row["ms"] for row in fixed[WARM_UP:])
    expected = [time_at(alone, row["length"]) for row in rows]
    summary = {
        "mean_ms": mean(row["ms"] for row in rows),
        "mean_ms_second_half": mean(row["ms"] for row in rows[steps // 2 :]),
        "expected_ms": mean(expected),
        "expected_ms_second_half": mean(expected[steps // 2 :]),
    }
    return {"known": known, "figures": {"summary": summary, "alone_ms": alone, "rows": rows}}


def time_at(alone: dict[int, float], length: int) -> float:
    """The step of one length, on the line between the two nearest ones that were measured."""
    lengths = sorted(alone)
    right = min(max(bisect_left(lengths, length), 1), len(lengths) - 1)
    low, high = lengths[right - 1], lengths[right]
    share = (length - low) / (high - low)
    return alone[low] * (1 - share) + alone[high] * share


def table_of(figures: dict[str, Any]) -> Table:
    """What is held after a tenth, a half and all of the steps."""
    rows = figures["rows"]
    table = Table("after step", *SHOWN, title="a loop of random lengths")
    for done in sorted({max(1, len(rows) // 10), len(rows) // 2, len(rows)}):
        row = rows[done - 1]
        held = (format_bytes(row[key]) if key.endswith("bytes") else str(row[key]) for key in SHOWN)
        table.add_row(str(done), *held)
    return table


def main() -> int:
    """Trains, prints, writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--budget", help="default: 12GiB, on the host backend 12MiB")
    parser.add_argument("--steps", type=int, default=500, help="of random lengths")
    args = parser.parse_args()
    shape = SHAPES[args.backend]
    shape = replace(shape, budget=args.budget or shape.budget)
    found = measure(shape, args.steps)
    figures, summary = found["figures"], found["figures"]["summary"]
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    console.print(table_of(figures))
    for half in ("", "_second_half"):
        mean_ms, expected_ms = summary[f"mean_ms{half}"], summary[f"expected_ms{half}"]
        which = "second half" if half else "all steps"
        print(f"{which}: {mean_ms:.1f} ms, {mean_ms / expected_ms:.3f} x the lengths alone")
    name = f"lengths-{args.backend}-{time.strftime('%Y-%m-%d')}"
    path = processes.write(name, found["known"], {**asdict(shape), "steps": args.steps}, figures)
    print(f"written: {path.relative_to(processes.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
