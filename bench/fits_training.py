"""One training of bench/fits.py, in a process of its own; prints one JSON object.

With --ours under vdnn_alloc and its default budget, which the model fits; else by stock PyTorch.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from bench import processes
from bench.models import WORKLOADS, Training


def timed(training: Training) -> float:
    """One step, in milliseconds."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    training.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def moved_bytes() -> int:
    """Out and in, since the start."""
    import vdnn_alloc

    stats = vdnn_alloc.stats()
    return stats.offloaded_bytes + stats.prefetched_bytes


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--ours", action="store_true")
    args = parser.parse_args()
    if args.ours:
        import vdnn_alloc

        vdnn_alloc.install(backend="cuda")
    workload = WORKLOADS[args.workload]
    training = Training(workload.build, workload.precisions[0])
    said = {
        "ms": [timed(training) for _ in range(args.steps)],
        "loss": training.step().item(),
        "moved_bytes": moved_bytes() if args.ours else 0,
        "reserved_max": torch.cuda.max_memory_reserved(),
        **processes.facts(),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
