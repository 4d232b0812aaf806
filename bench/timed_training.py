"""One training of bench/sweep.py --backend host, in a process of its own; prints one JSON object.

Its operators take a set time, asleep, as a GPU's take theirs whatever the CPU does: so the step is
the same on every machine, and what a plan wins or loses is seen above the noise of two cores.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
FLOAT_BYTES = 4
FRAME_BYTES = 16 << 10
COUNTERS = (
    *("offloaded_bytes", "prefetched_bytes", "late_prefetches", "driver_map", "owned_bytes_max"),
)

# (MiB of the layer's input, ms of its forward, MiB of the workspace of its backward)
WORKLOADS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "chain": ((2, 8, 0),) * 12,
    "pyramid": (
        *((4, 8, 0), (4, 16, 2), (4, 16, 2)),
        *((2, 14, 4),) * 6,
        *((1, 6, 2),) * 8,
    ),
    "workspaces": ((2, 8, 4), (2, 8, 0)) * 6,
}


class TimedLayer(torch.autograd.Function):
    """Keeps its input for backward, which takes twice as long as forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, floats: int, forward_s: float, workspace: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.forward_s, ctx.workspace = forward_s, workspace
        time.sleep(forward_s)
        return x[:1].expand(floats) + 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        time.sleep(ctx.forward_s)
        workspace = torch.empty(ctx.workspace // FLOAT_BYTES)
        time.sleep(ctx.forward_s)
        del workspace
        return x * gradient[:1], None, None, None


class Layer(nn.Module):
    """One of them; `floats` is the size of its output."""

    def __init__(self, floats: int, forward_ms: int, workspace_mib: int) -> None:
        super().__init__()
        self._settings = (floats, forward_ms / 1000, workspace_mib * MIB)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = TimedLayer.apply(x, *self._settings)
        return output


def build(layers: Sequence[tuple[int, int, int]]) -> nn.Sequential:
    floats = [mib * MIB // FLOAT_BYTES for mib, *_ in layers]
    return nn.Sequential(
        *(
            Layer(out, forward_ms, workspace_mib)
            for out, (_, forward_ms, workspace_mib) in zip([*floats[1:], 1], layers, strict=True)
        )
    )


def train(layers: Sequence[tuple[int, int, int]], steps: int) -> list[dict[str, Any]]:
    """One row a step: its milliseconds, its result, and the counters behind it."""
    import vdnn_alloc

    model, rows = build(layers), []
    start = torch.ones(layers[0][0] * MIB // FLOAT_BYTES, requires_grad=True)
    for _ in range(steps):
        begin = time.perf_counter()
        loss = model(start * 1).sum()
        loss.backward()
        assert start.grad is not None
        value = loss.item() + start.grad[0].item()
        start.grad = None
        del loss
        ms = (time.perf_counter() - begin) * 1e3
        stats = vdnn_alloc.stats()
        rows.append({"ms": ms, "value": value, **{key: getattr(stats, key) for key in COUNTERS}})
    return rows


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--budget", type=int, required=True)
    parser.add_argument("--bandwidth", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    import vdnn_alloc
    from vdnn_alloc.installation import installation

    vdnn_alloc.install(
        args.budget, backend="host", frame=FRAME_BYTES, host_bandwidth=args.bandwidth
    )
    rows = train(WORKLOADS[args.workload], args.steps)
    profile = installation().controller.latest_profile
    print(json.dumps({"rows": rows, "profile": None if profile is None else profile.to_json()}))


if __name__ == "__main__":
    main()
