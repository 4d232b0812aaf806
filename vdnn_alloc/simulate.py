"""The time of a recorded step under a plan and a budget, without a device.

Note [How a plan runs]
Compute passes the events of the profile in their order, and waits where it must. Copies of each
direction run one at a time, whole blocks, in the order in which they were asked for; the two
directions do not slow each other. All of it is as in the core, with these simplifications:
  - a copy out is asked for when compute has passed the plan's event. It goes piece by piece, and
    the frames of a piece are free once that has ended and the block is cold, whether or not
    someone wants them;
  - a prefetch takes its frames when its copy begins. The first in the queue waits until they are
    free, and those behind it wait too. Compute that waits for frames takes them first;
  - a block whose prefetch is asked for before it has left stays, and is not copied back;
  - nothing is evicted beyond the plan: a request that finds no frames, with no copy out under way,
    ends the simulation as infeasible;
  - workspaces are refused exactly where ideal_step_time refuses them.
So every feasible result is a schedule of Note [The ideal offloader], and never beats its bound.
The cost is n log n in the number of events.
"""

from __future__ import annotations

import enum
import heapq
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vdnn_alloc.ideal_step import Bound, StepTime, find_refused_workspaces, ideal_step_time
from vdnn_alloc.step_profile import NS_PER_SECOND, Event, EventKind, ProfileError, StepProfile

if TYPE_CHECKING:
    from vdnn_alloc.plan import Move, Plan

__all__ = ["Bound", "Simulated", "ideal_step_time", "simulate"]


@dataclass(frozen=True)
class Simulated(StepTime):
    """A step under a plan. Where it is infeasible, the figures are of the part that ran."""

    peak_bytes: int
    """The most on the device at once."""
    offloaded_bytes: int
    prefetched_bytes: int


def simulate(profile: StepProfile, plan: Plan, budget_bytes: int) -> Simulated:
    """Runs the moves of a plan, and only those: what a policy does beyond them is not modelled.

    Raises:
        ProfileError: the plan moves a block twice, or one that the profile does not save.
    """
    run = _Run(profile, plan.moves, budget_bytes)
    try:
        run.all_events()
        missing_bytes = 0
    except _StuckError as stuck:
        missing_bytes = stuck.missing_bytes
    return Simulated(
        profile.duration_ns,
        run.stall_ns,
        missing_bytes,
        len(run.refused),
        run.peak_bytes,
        run.offloaded_bytes,
        run.prefetched_bytes,
    )


class _StuckError(Exception):
    """Compute waits for frames that nothing under way will free."""

    def __init__(self, missing_bytes: int) -> None:
        super().__init__(missing_bytes)
        self.missing_bytes = missing_bytes


class _Place(enum.Enum):
    """Where a block is."""

    DEVICE = enum.auto()
    LEAVING = enum.auto()
    """On the device until its copy out has ended and it is cold."""
    HOST = enum.auto()
    QUEUED = enum.auto()
    """On the host; its copy back has been asked for."""
    COMING = enum.auto()
    """On its way back; its frames are taken."""
    RETURNED = enum.auto()
    """On the device, and it does not leave again."""
    FREED = enum.auto()


class _Run:
    """The state of the simulated device."""

    def __init__(self, profile: StepProfile, moves: tuple[Move, ...], budget_bytes: int) -> None:
        self.stall_ns = 0
        self.peak_bytes = profile.base_bytes
        self.offloaded_bytes = self.prefetched_bytes = 0
        self.refused = find_refused_workspaces(profile, budget_bytes)
        self._profile = profile
        self._budget_bytes = budget_bytes
        self._offloads, self._prefetches = _by_event(profile, moves)
        self._now_ns = 0
        self._device_bytes = profile.base_bytes
        self._places = [_Place.DEVICE] * len(profile.blocks)
        self._cold: set[int] = set()
        self._copied: dict[int, int] = defaultdict(int)
        """Bytes whose copy out has ended, and whose frames are not free yet."""
        self._given_up: dict[int, int] = defaultdict(int)
        """Bytes of a block that is leaving whose frames are free."""
        self._queue: deque[int] = deque()
        self._out_free_ns = self._in_free_ns = 0
        self._copies: list[tuple[int, int, int]] = []
        """(end, block, bytes) of each piece under way or waiting for its stream; a heap."""

    # --- compute ------------------------------------------------------------------------------

    def all_events(self) -> None:
        self._require(0)
        for number, event in enumerate(self._profile.events):
            self._pass_time(event.time_ns + self.stall_ns)
            self._apply(event)
            self.stall_ns = self._now_ns - event.time_ns
            for block in self._offloads[number]:
                self._offload(block)
            for block in self._prefetches[number]:
                self._ask_back(block)
            self._begin_prefetches()

    def _apply(self, event: Event) -> None:
        block = event.block
        if block in self.refused:
            return
        if event.kind is EventKind.ALLOC:
            self._wait_for_frames(self._profile.blocks[block].size_bytes)
            self._take(block)
        elif event.kind is EventKind.FREE:
            self._free(block)
        elif event.kind is EventKind.USE:
            self._cold.discard(block)
            self._ask_back(block)
            self._wait_for(block)
        elif event.kind is EventKind.COLD:
            self._cold.add(block)
            self._release(block)

    def _wait_for_frames(self, size_bytes: int) -> None:
        while self._device_bytes + size_bytes > self._budget_bytes:
            if not self._copies:
                self._require(size_bytes)
            self._end_copy()  # and no prefetch begins: compute comes first

    def _wait_for(self, block: int) -> None:
        self._begin_prefetches()
        while self._places[block] in (_Place.QUEUED, _Place.COMING):
            if not self._copies:
                self._require(self._profile.blocks[self._queue[0]].size_bytes)
            self._end_copy()
            self._begin_prefetches()

    def _require(self, size_bytes: int) -> None:
        missing_bytes = self._device_bytes + size_bytes - self._budget_bytes
        if missing_bytes > 0:
            raise _StuckError(missing_bytes)

    # --- frames -------------------------------------------------------------------------------

    def _take(self, block: int) -> None:
        self._device_bytes += self._profile.blocks[block].size_bytes
        self.peak_bytes = max(self.peak_bytes, self._device_bytes)

    def _release(self, block: int) -> None:
        is_free = self._places[block] is _Place.LEAVING and block in self._cold
        if not is_free and self._places[block] is not _Place.QUEUED:
            return
        copied_bytes = self._copied.pop(block, 0)
        self._device_bytes -= copied_bytes
        self._given_up[block] += copied_bytes
        if is_free and self._is_out(block):
            self._places[block] = _Place.HOST

    def _is_out(self, block: int) -> bool:
        return self._given_up[block] == self._profile.blocks[block].size_bytes

    def _free(self, block: int) -> None:
        self._device_bytes -= self._profile.blocks[block].size_bytes - self._given_up[block]
        if self._places[block] is _Place.QUEUED:
            self._queue.remove(block)
        self._places[block] = _Place.FREED

    # --- copies -------------------------------------------------------------------------------

    def _offload(self, block: int) -> None:
        if self._places[block] is not _Place.DEVICE:
            return
        self._places[block] = _Place.LEAVING
        size_bytes = self._profile.blocks[block].size_bytes
        begin_ns = max(self._now_ns, self._out_free_ns)
        piece_bytes, done_bytes = self._profile.piece_of(size_bytes), 0
        while done_bytes < size_bytes:
            next_bytes = min(piece_bytes, size_bytes - done_bytes)
            done_bytes += next_bytes
            end_ns = begin_ns + _ns(done_bytes, self._profile.out_bytes_per_second)
            heapq.heappush(self._copies, (end_ns, block, next_bytes))
        self._out_free_ns = end_ns
        self.offloaded_bytes += size_bytes

    def _ask_back(self, block: int) -> None:
        is_leaving = self._places[block] is _Place.LEAVING
        if self._places[block] is _Place.HOST or (is_leaving and self._given_up[block]):
            self._places[block] = _Place.QUEUED
            self._queue.append(block)
        elif is_leaving or self._places[block] is _Place.DEVICE:
            self._places[block] = _Place.RETURNED

    def _begin_prefetches(self) -> None:
        while self._queue and self._in_free_ns <= self._now_ns:
            size_bytes = self._profile.blocks[self._queue[0]].size_bytes
            fits = self._device_bytes + size_bytes <= self._budget_bytes
            if not fits or not self._is_out(self._queue[0]):
                return
            block = self._queue.popleft()
            self._take(block)
            self._given_up[block] = 0
            self._places[block] = _Place.COMING
            self.prefetched_bytes += size_bytes
            self._in_free_ns = self._now_ns + _ns(size_bytes, self._profile.in_bytes_per_second)
            heapq.heappush(self._copies, (self._in_free_ns, block, size_bytes))

    def _pass_time(self, until_ns: int) -> None:
        while self._copies and self._copies[0][0] <= until_ns:
            self._end_copy()
            self._begin_prefetches()
        self._now_ns = max(self._now_ns, until_ns)

    def _end_copy(self) -> None:
        """Time passes to the end of the piece that ends first."""
        end_ns, block, size_bytes = heapq.heappop(self._copies)
        self._now_ns = max(self._now_ns, end_ns)
        if self._places[block] is _Place.COMING:
            self._places[block] = _Place.RETURNED
        else:
            self._copied[block] += size_bytes
            self._release(block)


def _ns(size_bytes: int, bytes_per_second: float) -> int:
    return -int(-size_bytes * NS_PER_SECOND // bytes_per_second)  # rounded up


_BlocksByEvent = dict[int, list[int]]


def _by_event(
    profile: StepProfile, moves: tuple[Move, ...]
) -> tuple[_BlocksByEvent, _BlocksByEvent]:
    """What is to be copied out, and asked back, behind which event."""
    saved: dict[int, int] = {}
    for number, event in enumerate(profile.events):
        if event.kind is EventKind.SAVE:
            saved.setdefault(event.block, number)
    offloads, prefetches = defaultdict(list), defaultdict(list)
    moved: set[int] = set()
    for move in moves:
        if move.block not in saved or move.block in moved:
            how = "twice" if move.block in moved else "which the profile does not save"
            raise ProfileError(f"the plan moves block {move.block}, {how}; plan this step anew")
        moved.add(move.block)
        offloads[max(saved[move.block], move.offload_event or 0)].append(move.block)
        if move.prefetch_event is not None:
            prefetches[move.prefetch_event].append(move.block)
    return offloads, prefetches
