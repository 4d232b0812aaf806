"""What is on the device: the counters of either side, and after every layer of one step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bench.paper.layers import KINDS

if TYPE_CHECKING:
    from types import TracebackType

COUNTED = (
    *("offloaded_bytes", "prefetched_bytes", "late_prefetches", "stall_ns", "workspace_refusals"),
    *("owned_bytes", "owned_bytes_max", "owned_bytes_average", "created_bytes_max"),
    *("live_bytes_max", "host_bytes_max"),
)


def counters() -> dict[str, Any]:
    """Of vdnn_alloc since its start; maxima and averages since the last call."""
    if "vdnn_alloc.installation" not in sys.modules:
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return {"live_bytes_max": peak, "owned_bytes_max": peak}
    import vdnn_alloc

    stats = vdnn_alloc.stats()
    vdnn_alloc.reset_peaks()
    return {name: getattr(stats, name) for name in COUNTED}


def device_bytes(counted: dict[str, Any]) -> dict[str, Any]:
    """Of counters(), the bytes that a figure shows."""
    return {key: value for key, value in counted.items() if key.endswith(("_max", "_average"))}


def _owned_bytes() -> int:
    if "vdnn_alloc.installation" not in sys.modules:
        return torch.cuda.memory_allocated()
    from vdnn_alloc.installation import installation

    totals: dict[str, Any] = dict(installation().native.read_stats(0))
    return int(totals["owned_bytes"])


class MemoryTrace:
    """Reads the bytes in use after every layer of forward and of backward."""

    def __init__(self, network: nn.Module) -> None:
        self.rows: list[tuple[str, str, int]] = []
        """Layer, phase, bytes."""
        self._handles = [
            module.register_forward_hook(self._hook(name))
            for name, module in network.named_modules()
            if type(module) in KINDS
        ]

    def _hook(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def note(module: nn.Module, inputs: object, output: Tensor) -> None:
            del module, inputs
            self.rows.append((name, "forward", _owned_bytes()))
            assert output.grad_fn is not None
            output.grad_fn.register_hook(lambda *_: self._after_backward(name))

        return note

    def _after_backward(self, name: str) -> None:
        self.rows.append((name, "backward", _owned_bytes()))

    def __enter__(self) -> MemoryTrace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
