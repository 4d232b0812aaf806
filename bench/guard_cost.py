"""What the access guard costs an operator: off, on with nothing away, and on with tensors away.

python3 -m bench.guard_cost

The operators do next to nothing (an in-place product, a sum of ten tensors, a view), so that their
time is torch's own way to a kernel and what the guard adds to it. Each row is measured in a process
of its own; the figure is the median over the rounds, in nanoseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

ROUNDS, CALLS = 30, 5000
BUDGET = "64MiB"
CASES = {
    "off": ("off", False),
    "on, nothing away": ("on", False),
    "on, tensors away": ("on", True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto", choices=("auto", "host", "cuda"))
    parser.add_argument("--case", choices=CASES, help="measure this one here, and print JSON")
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(measure(args.backend, *CASES[args.case])))
        return 0
    rows = {case: in_a_process(args.backend, case) for case in CASES}
    print(f"{'':20}" + "".join(f"{name:>22}" for name in rows["off"]))
    for case, row in rows.items():
        print(f"{case:20}" + "".join(f"{row[name]:19.0f} ns" for name in row))
    return 0


def in_a_process(backend: str, case: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.guard_cost", "--backend", backend, "--case", case]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(backend: str, guard: str, has_away: bool) -> dict[str, float]:
    """The median time of each operator under this setting."""
    import torch

    import vdnn_alloc

    torch.set_num_threads(1)
    vdnn_alloc.install(BUDGET, backend=backend, guard=guard)
    device = "cuda" if vdnn_alloc.installation.installation().border.backend == "cuda" else "cpu"
    small = torch.ones(8, device=device)
    ten = [torch.ones(8, device=device) for _ in range(10)]
    held = hold(torch.ones(1 << 20, device=device)) if has_away else []
    torch.nn.Identity()(small)  # where the guard comes on
    assert (vdnn_alloc.stats().guarded_blocks > 0) == has_away, len(held)
    with torch.no_grad():
        return {
            "mul_ of one": median_ns(lambda: small.mul_(1.0)),
            "stack of ten": median_ns(lambda: torch.stack(ten)),
            "view": median_ns(lambda: small.view(2, 4)),
        }


def hold(x):  # type: ignore[no-untyped-def]
    """More tensors than fit, saved by autograd and held."""
    held = [x.requires_grad_()]
    for _ in range(24):
        held.append(held[-1].tanh())
    return held


def median_ns(operate: Callable[[], object]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            operate()
        rounds.append((time.perf_counter_ns() - start) / CALLS)
    return statistics.median(rounds)


if __name__ == "__main__":
    sys.exit(main())
