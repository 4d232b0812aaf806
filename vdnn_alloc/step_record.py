"""A step as the core recorded it, and plans between the two languages that speak of it.

The planner names blocks and events of a profile. The core names the save that a block was first
saved as, and places in the episode's timeline, for both mean the same in every step of a signature.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vdnn_alloc.native import NO_PREFETCH
from vdnn_alloc.plan import Move, NativePolicy, Plan
from vdnn_alloc.step_profile import (
    NS_PER_SECOND,
    Event,
    EventKind,
    ProfiledBlock,
    ProfileError,
    StepProfile,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NativeMoves = list[tuple[int, int]]
"""(save_index, prefetch_position) each; see vdnn_planned_move."""

_KINDS = (EventKind.ALLOC, EventKind.FREE, EventKind.SAVE, EventKind.COLD, EventKind.USE)
"""By vdnn_step_kind."""
_LEAST_PIECE_FRAMES = 16
"""Mover::kLeastPieceFrames."""


@dataclass(frozen=True)
class RecordedStep:
    """A profile, and what its numbers are to the core."""

    profile: StepProfile
    positions: tuple[int, ...]
    """By event: how many lines the timeline has behind it."""
    save_indices: dict[int, int]
    """By block that may leave: its first save."""
    waited_ns: int
    """What the recorded step waited for memory."""
    refusable: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Workspaces of operators that can do with less: (operator_number, frames) of each."""

    def to_native(self, plan: Plan) -> NativeMoves:
        return [
            (
                self.save_indices[move.block],
                NO_PREFETCH if move.prefetch_event is None else self.positions[move.prefetch_event],
            )
            for move in plan.moves
        ]

    def from_native(self, moves: NativeMoves) -> Plan:
        """What moves made for another recording are in this one; unknown saves are left out."""
        blocks = {save_index: block for block, save_index in self.save_indices.items()}
        cold = {
            event.block: number
            for number, event in enumerate(self.profile.events)
            if event.kind is EventKind.COLD
        }
        found = []
        for save_index, position in moves:
            block = blocks.get(save_index)
            if block is None:
                continue
            event = None
            if position != NO_PREFETCH:
                event = max(0, bisect_right(self.positions, position) - 1)
            found.append(Move(block, cold[block], event))
        return Plan(NativePolicy.PRESSURE, frozenset(), moves=tuple(found))


def read_record(
    step: Mapping[str, int | float], rows: Sequence[tuple[int, ...]], frame_bytes: int
) -> RecordedStep | None:
    """What vdnn_read_step gave; None: it is no step that a plan can be made for."""
    rates = _rates(step)
    if rates is None:
        return None
    kept = _consistent(rows)
    events = [Event(time_ns, _KINDS[kind], block) for time_ns, _, kind, block, *_ in kept]
    sizes, layers, saves = _blocks(rows)
    workspaces = find_workspaces(events)
    blocks = [
        ProfiledBlock(max(1, sizes.get(block, 0)) * frame_bytes, 0, block in workspaces)
        for block in range(len(layers))
    ]
    try:
        profile = StepProfile(
            duration_ns=int(step["duration_ns"]),
            base_bytes=int(step["begin_frames"]) * frame_bytes,
            out_bytes_per_second=rates[0],
            in_bytes_per_second=rates[1],
            blocks=tuple(blocks),
            events=tuple(events),
            least_piece_bytes=_LEAST_PIECE_FRAMES * frame_bytes,
        )
    except ProfileError:
        return None  # several threads or streams, whose order is another from call to call
    may_leave = {event.block for event in events if event.kind is EventKind.COLD}
    return RecordedStep(
        profile,
        tuple(row[4] for row in kept),
        {block: save for block, save in saves.items() if block in may_leave},
        int(step["waited_ns"]),
        {
            row[3]: (row[7], row[1])
            for row in kept
            if row[3] in workspaces and _KINDS[row[2]] is EventKind.ALLOC and row[7]
        },
    )


def find_workspaces(events: Iterable[Event]) -> set[int]:
    """Blocks that live and die with nothing but whole such lives in between."""
    found: set[int] = set()
    open_lives: list[int] = []
    for _, kind, block in events:
        if kind is EventKind.ALLOC:
            open_lives.append(block)
        elif kind is EventKind.FREE and open_lives and open_lives[-1] == block:
            found.add(open_lives.pop())
        elif kind is not EventKind.COLD:
            open_lives.clear()
    return found


def _rates(step: Mapping[str, int | float]) -> tuple[float, float] | None:
    """Bytes per second out and in, of each other's where one was not measured."""
    measured = [
        step[f"{way}_bytes"] * NS_PER_SECOND / step[f"{way}_ns"] if step[f"{way}_ns"] else 0.0
        for way in ("out", "in")
    ]
    if max(measured) <= 0:
        return None
    return measured[0] or measured[1], measured[1] or measured[0]


def _blocks(
    rows: Sequence[tuple[int, ...]],
) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """By block: its frames, its layer, and its first save."""
    frames: dict[int, int] = {}
    layers: dict[int, int] = {}
    saves: dict[int, int] = {}
    for _, count, kind, block, _, save_index, layer, _ in rows:
        layers.setdefault(block, layer)
        if count:
            frames.setdefault(block, count)
        if _KINDS[kind] is EventKind.SAVE:
            saves.setdefault(block, save_index)
    return frames, layers, saves


def _consistent(rows: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Without saves and uses of what was never cold before its use, and without later uses."""
    cold: set[int] = set()
    seen: set[tuple[int, EventKind]] = set()
    used: set[int] = set()
    for _, _, number, block, *_ in rows:
        used |= {block} if _KINDS[number] is EventKind.USE else set()
        cold |= {block} if _KINDS[number] is EventKind.COLD and block not in used else set()
    kept = []
    for row in rows:
        kind = _KINDS[row[2]]
        block = row[3]
        is_once = kind not in (EventKind.ALLOC, EventKind.FREE)
        if is_once and (block not in cold or (block, kind) in seen):
            continue
        seen.add((block, kind))
        kept.append(row)
    return kept
