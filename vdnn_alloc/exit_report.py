"""The two lines that a run prints on stderr: what is on, and at the end what moved."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from vdnn_alloc.units import format_bytes

if TYPE_CHECKING:
    from vdnn_alloc.snapshot import Stats

_LAYERS_NAMED = 3


def say(sentence: str) -> None:
    """One line on stderr. A program without one (a daemon, pythonw) loses it."""
    if sys.stderr is not None:
        print(f"vdnn_alloc: {sentence}", file=sys.stderr, flush=True)


def start_sentence(backend: str, policy: str, budget_bytes: int, host_budget_bytes: int) -> str:
    return (
        f"on, {backend} backend, policy {policy}, budget {format_bytes(budget_bytes)}, "
        f"host budget {format_bytes(host_budget_bytes)}"
    )


def exit_sentence(stats: Stats, *, is_compiled: bool = False) -> str:
    """`is_compiled`: torch.compile made graphs of the program's code."""
    more = _engines(stats) + (_compiled(stats) if is_compiled else "")
    peak = (
        f"the program's peak was {format_bytes(stats.live_bytes_max)}, "
        f"{format_bytes(stats.owned_bytes_max)} of it on the device "
        f"(budget {format_bytes(stats.budget_bytes)})"
    )
    if stats.offloaded_bytes == 0 and stats.prefetched_bytes == 0:
        return f"nothing needed to move; {peak}{more}"
    return (
        f"moved {format_bytes(stats.offloaded_bytes)} out and "
        f"{format_bytes(stats.prefetched_bytes)} back; {peak}{more}"
    )


def _engines(stats: Stats) -> str:
    """What follows where convolutions may have run other engines than stock's."""
    if stats.workspace_refusals == 0:
        return ""
    layers = [row.name for row in stats.layers if row.workspace_refusals]
    more = ", ..." if len(layers) > _LAYERS_NAMED else ""
    return (
        f"; {stats.workspace_refusals} workspaces were refused in "
        f"{', '.join(layers[:_LAYERS_NAMED])}{more}, so bits may differ from stock's, whose "
        "convolutions may run other engines"
    )


def _compiled(stats: Stats) -> str:
    """What follows where memory ran out, or most copies back were waited for, as they are if all
    that a model has saved is asked for at once."""
    if stats.ooms == 0 and 2 * stats.late_prefetches <= stats.prefetches:
        return ""
    return (
        "; a model that torch.compile makes one graph of asks for all its feature maps at once, so "
        "none can come back ahead of its use: compile its layers one by one"
    )
