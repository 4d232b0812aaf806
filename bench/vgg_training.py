"""One training of bench/vgg_budget.py, in a process of its own; prints one JSON object.

For equality everything is deterministic and the bits of every step are kept; for timing nothing is
but the seed. The images are random and stay on the device: loading is not what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch

from bench import processes
from bench.device_memory import PeakUse, used_bytes
from bench.models import Training, classifier
from bench.same_numbers import EngineRoom, be_deterministic, digest

COUNTERS = (
    *("offloaded_bytes", "prefetched_bytes", "late_prefetches", "stall_ns", "mapping_misses"),
    *("driver_create", "driver_map", "driver_unmap", "driver_set_access", "driver_pin"),
    *("workspace_refusals", "created_bytes_max", "live_bytes_max", "host_bytes_max"),
)


class Rows:
    """The training, and what to read after each step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.training = Training(
            lambda precision: classifier(args.network, args.batch, precision), args.precision
        )
        self.rows: list[dict[str, object]] = []

    def timed_step(self) -> None:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = self.training.step()
        torch.cuda.synchronize()
        row: dict[str, object] = {"ms": (time.perf_counter() - begin) * 1e3, "loss": loss.item()}
        if self.args.equality:
            row["gradients"] = digest(self.training.model, gradients=True)
        if self.args.budget:
            row.update(counters())
        self.rows.append(row)


def counters() -> dict[str, int]:
    """Of vdnn_alloc, since its start."""
    import vdnn_alloc

    stats = vdnn_alloc.stats()
    return {name: getattr(stats, name) for name in COUNTERS}


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--equality", action="store_true")
    parser.add_argument("--budget", help="none given: stock PyTorch")
    parser.add_argument("--policy", default="dyn")
    parser.add_argument("--engine-room", type=int, default=0, help="bytes; see EngineRoom")
    args = parser.parse_args()
    if args.budget:
        import vdnn_alloc

        vdnn_alloc.install(args.budget, policy=args.policy, backend="cuda")
    if args.equality:
        be_deterministic()
    print(json.dumps(run(args)))


def run(args: argparse.Namespace) -> dict[str, object]:
    """All steps, and what the driver saw in use meanwhile."""
    torch.cuda.synchronize()
    # Sampling takes locks of the driver, so a timed run is looked at rarely; frames stay anyhow.
    with PeakUse(interval_s=0.002 if args.equality else 0.1) as use:
        rows = Rows(args)
        model = rows.training.model
        room = EngineRoom(model, args.engine_room) if args.engine_room else None
        for _ in range(args.steps):
            rows.timed_step()
            if room is not None:
                room.close()
    return {
        "rows": rows.rows,
        "parameters": digest(model, gradients=False),
        "used_max": use.peak_bytes,
        "outside_allocator": used_bytes() - torch.cuda.memory_reserved(),
        "allocated_max": torch.cuda.max_memory_allocated(),
        **processes.facts(),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


if __name__ == "__main__":
    main()
