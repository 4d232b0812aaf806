"""The two lines that a run prints on stderr: what is on, and at the end what moved."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from vdnn_alloc.units import format_bytes

if TYPE_CHECKING:
    from vdnn_alloc.snapshot import Stats


def say(sentence: str) -> None:
    """One line on stderr. A program without one (a daemon, pythonw) loses it."""
    if sys.stderr is not None:
        print(f"vdnn_alloc: {sentence}", file=sys.stderr, flush=True)


def start_sentence(backend: str, policy: str, budget_bytes: int, host_budget_bytes: int) -> str:
    return (
        f"on, {backend} backend, policy {policy}, budget {format_bytes(budget_bytes)}, "
        f"host budget {format_bytes(host_budget_bytes)}"
    )


def exit_sentence(stats: Stats) -> str:
    peak = (
        f"the program's peak was {format_bytes(stats.live_bytes_max)}, "
        f"{format_bytes(stats.owned_bytes_max)} of it on the device "
        f"(budget {format_bytes(stats.budget_bytes)})"
    )
    if stats.offloaded_bytes == 0 and stats.prefetched_bytes == 0:
        return f"nothing needed to move; {peak}"
    return (
        f"moved {format_bytes(stats.offloaded_bytes)} out and "
        f"{format_bytes(stats.prefetched_bytes)} back; {peak}"
    )
