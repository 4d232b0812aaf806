"""One cell of the sweep: trains it in this process, and returns what it took.

PyTorch's allocator is limited by set_per_process_memory_fraction, ours by its budget. On the host
backend, which is for tests, stock is our policy none with a budget that holds everything, for
PyTorch counts nothing there, and nobody else is limited.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from bench import processes
from bench.device_memory import PeakUse
from bench.micro import plain_rate
from bench.models import TINY, WORKLOADS, Training
from bench.peers.cells import STOCK, Cell, Outcome
from bench.peers.tools import TOOLS, Subject, Tool, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

COUNTERS = (
    *("offloaded_bytes", "prefetched_bytes", "late_prefetches", "stall_ns", "mapping_misses"),
    "workspace_refusals",
)
AMPLE_BYTES = 1 << 30
HOST_FRAME_BYTES = 16 << 10
LINK_BYTES = 256 << 20
SAMPLE_S = 0.05
"""Between two looks at the driver's count; each takes locks of the driver."""


@dataclass(frozen=True)
class Settings:
    """How a cell is trained."""

    limit_bytes: int
    """0: no limit."""
    warm_up: int
    steps: int
    """Timed, after the warm-up."""
    wheels: Path | None = None
    """The folder of --wheels."""


class Run:
    """The cell's training, once the limit holds."""

    def __init__(self, cell: Cell, settings: Settings, *, is_ours: bool) -> None:
        self._is_cuda = cell.backend == "cuda"
        self._tool = TOOLS[cell.tool]
        self._is_ours = is_ours
        workload = {**WORKLOADS, **TINY}[cell.workload]
        device = "cuda" if self._is_cuda else "cpu"
        self._training = Training(workload.build, cell.precision, device)
        subject = Subject(self._training.model, workload, self._is_cuda, settings.wheels)
        self._scopes = self._tool.attach(subject)
        self.step_ms: list[float] = []
        self.loss = float("nan")

    def timed_step(self) -> None:
        self._synchronize()
        begin = time.perf_counter()
        loss = self._training.step(self._scopes.step, self._scopes.forward)
        self._synchronize()
        self.step_ms.append((time.perf_counter() - begin) * 1e3)
        self.loss = loss.item()

    def _synchronize(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()

    def counters(self) -> dict[str, int]:
        """Since the start: ours, or how often PyTorch's allocator had to try again."""
        if not self._is_ours:
            return (
                {"retries": torch.cuda.memory_stats()["num_alloc_retries"]} if self._is_cuda else {}
            )
        import vdnn_alloc

        stats = vdnn_alloc.stats()
        return {key: getattr(stats, key) for key in COUNTERS}

    def peaks(self) -> dict[str, int]:
        """Bytes: of what tensors asked for, and of what the allocator took for them."""
        if not self._is_ours:
            return _peaks_of_torch() if self._is_cuda else {}
        import vdnn_alloc

        stats = vdnn_alloc.stats()
        return {
            "allocated_max": stats.live_bytes_max,
            "reserved_max": stats.created_bytes_max,
            "host_max": stats.host_bytes_max,
        }

    def profile(self) -> str | None:
        """The step that was recorded last, as JSON."""
        if self._tool.ours is None:
            return None
        from vdnn_alloc.installation import installation

        recorded = installation().controller.latest_profile
        return None if recorded is None else recorded.to_json()


def _peaks_of_torch() -> dict[str, int]:
    return {
        "allocated_max": torch.cuda.max_memory_allocated(),
        "reserved_max": torch.cuda.max_memory_reserved(),
    }


def _limit(cell: Cell, tool: Tool, limit_bytes: int) -> bool:
    """Before the first tensor; True if the allocator is ours."""
    if cell.backend == "host":
        import vdnn_alloc

        torch.set_num_threads(1)  # threads of one operator that wait for a core spin
        budget, policy = (limit_bytes, "dyn") if tool.ours is not None else (AMPLE_BYTES, "none")
        settings = {**(tool.ours or {}), "policy": policy, "frame": HOST_FRAME_BYTES}
        vdnn_alloc.install(budget, backend="host", **settings)
        return True
    if tool.ours is not None:
        import vdnn_alloc

        vdnn_alloc.install(limit_bytes, backend="cuda", **tool.ours)
        return True
    if tool.allocator_settings:
        torch.cuda.memory._set_allocator_settings(tool.allocator_settings)
    if limit_bytes:
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes))
    return False


def train(cell: Cell, settings: Settings) -> Outcome:
    """All steps, and what they took."""
    is_cuda = cell.backend == "cuda"
    is_ours = _limit(cell, TOOLS[cell.tool], settings.limit_bytes)
    watch: AbstractContextManager[Any] = nullcontext()
    if is_cuda:
        torch.cuda.synchronize()  # there is a context now, and no other allocator any more
        watch = PeakUse(SAMPLE_S)
    with watch:
        run = Run(cell, settings, is_ours=is_ours)
        for _ in range(settings.warm_up):
            run.timed_step()
        before = run.counters()
        for _ in range(settings.steps):
            run.timed_step()
        after = run.counters()
    return {
        "ended": "trained",
        "step_ms": run.step_ms,
        "loss": run.loss,
        "per_step": {key: (after[key] - before[key]) / settings.steps for key in after},
        "in_all": after,
        "peaks": {**run.peaks(), **({"used_max": watch.peak_bytes} if is_cuda else {})},
        "profile": run.profile(),
        "link": _link(cell),
    }


def _link(cell: Cell) -> dict[str, float] | None:
    """Bytes per second of plain page-locked copies, out and in; stock's process measures them."""
    if cell.tool != STOCK or cell.backend != "cuda":
        return None
    out, back = plain_rate("cuda", LINK_BYTES)
    return {"out": out * 1e9, "in": back * 1e9}


def attempt(cell: Cell, settings: Settings) -> Outcome:
    """The same; whatever ends it is its outcome, with the machine and the settings beside it."""
    try:
        outcome = train(cell, settings)
    except UnavailableError as error:
        outcome = {"ended": "unavailable", "error": str(error)}
    except torch.OutOfMemoryError as error:
        outcome = {"ended": "out of memory", "error": _first_line(error)}
    except Exception as error:  # of other people's code: its error is what there is to say
        outcome = {"ended": "failed", "error": f"{type(error).__name__}: {_first_line(error)}"}
    return {
        **outcome,
        "settings": {**asdict(settings), "wheels": str(settings.wheels)},
        "machine": {**processes.facts(), "host": platform.platform(), "cpus": os.cpu_count()},
        "date": time.strftime("%Y-%m-%d"),
    }


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
