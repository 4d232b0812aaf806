"""The bound that no offloader can pass: the least time of a recorded step under a budget.

Note [The ideal offloader]
It keeps the order of the events and inserts only waits. It knows the step, copies single bytes,
pays nothing for a call, and has a link that carries out_bytes_per_second out and
in_bytes_per_second in, both at once. A byte of a saved block
  - may be copied out from the block's SAVE on;
  - may be absent from the device, once copied, between a COLD and the next USE;
  - takes its place on the device again from the moment that it is copied in;
  - needs no second copy out to be absent again later, for what is saved does not change.
At every moment live bytes less absent bytes fit the budget. Compute may be made to wait before any
event, as long as wanted (an operator that is held up waits before the event behind it). The bound
is the least total wait, plus the step.

A refused workspace costs nothing here, for nobody knows the time of the engine that is taken then.
By default only those are refused that do not fit even with everything cold absent, as the core
does; so a smaller budget may have a smaller bound, where it refuses one workspace more. Who
refuses others too can pass that bound, but not the one with `refuse_all_workspaces`.

Note [One number is enough]
Let y be the bytes that are on the host and not back on the device, of blocks that are saved and
not in use. Whatever an offloader of the kind above does, at every moment of a segment (the time
between two events)
    need <= y <= room                                                                          (1)
where need = live bytes - budget (absent bytes are part of y, and they must cover it) and room = all
bytes of the blocks that are saved and not in use. In a time t, y rises by at most out_rate * t and
falls by at most in_rate * t (2), but for two jumps: when a block in use becomes cold *again*, up to
its size comes back into y, for its old copy serves; when it is freed unused, up to its size leaves
it. So its y, drawn over time, is a path that keeps (1) and (2) and the jumps. The least wait of any
such path is therefore never more than that of any offloader: **a valid lower bound**. That cold
bytes suffice for the need is checked apart; where they do not, no wait helps and the budget is
infeasible.

It is **exact** where blocks are nested (who is saved first is cold first and used last, and has one
absence): keep as y the bytes that were saved first. A rise copies the oldest that has not left, a
fall brings back the newest; what is cold is always a prefix of that order, so min(y, cold bytes)
are absent; and at a USE room falls to exactly the older blocks, so the block in use is back. Where
blocks cross, the path may count bytes of one block as those of another, and the bound can be low.
(In recorded steps of VGG-19, ResNet-50 and a GPT it is not: over their large blocks, a linear
program that knows whose byte is whose gives the same figures.)

Note [The valley]
The least wait that reaches the value y after an event, f(y), is convex: it is a constant c in a
valley [low, high], and grows by 1 / out_rate a byte to its right and by 1 / in_rate to its left.
This form is kept by everything that happens. A segment of t ns takes f to the least over d of
f(y - d) + max(0, d / out_rate - t, -d / in_rate - t): the valley grows by out_rate * t to the
right and in_rate * t to the left, and the slopes stay, for they are these very slopes. A jump
grows the valley too. (1) cuts f off; where it cuts off the whole valley, what is left of it is
one point, at the price of that slope. So each event costs a handful of additions: the bound is
linear in the number of events, and no search is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from vdnn_alloc.step_profile import NS_PER_SECOND, EventKind, StepProfile

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROUNDING_NS = 1e-3
"""What sums of floats may be off; a bound is rounded down."""


@dataclass(frozen=True)
class StepTime:
    """What a step takes under a budget. Times in ns."""

    unlimited_ns: int
    """The step where memory is not short."""
    stall_ns: int
    """What compute waits for memory and copies."""
    missing_bytes: int
    """What the budget lacks, whoever waits how long; 0: feasible."""
    refused_workspaces: int
    """How many it did without."""

    @property
    def is_feasible(self) -> bool:
        return self.missing_bytes == 0

    @property
    def step_time_ns(self) -> int | None:
        """None: no wait makes this budget enough."""
        return self.unlimited_ns + self.stall_ns if self.is_feasible else None


@dataclass(frozen=True)
class Bound(StepTime):
    """The least that a step can take: its wait is rounded down, and 0 where infeasible."""

    absent_bytes: int
    """The most that must be absent at once: nobody copies out less."""


def ideal_step_time(
    profile: StepProfile, budget_bytes: int, *, refuse_all_workspaces: bool = False
) -> Bound:
    """The step of an ideal offloader under `budget_bytes`; Note [The ideal offloader]."""
    memory = _Memory(profile, budget_bytes, refuse_all=refuse_all_workspaces)
    valley = _Valley(profile)
    absent_bytes = missing_bytes = 0
    for demand in memory.walk():
        absent_bytes = max(absent_bytes, demand.need_bytes)
        missing_bytes = max(missing_bytes, demand.need_bytes - demand.cold_bytes)
        valley.pass_time(demand.time_ns)
        valley.high += demand.regained_bytes
        valley.low -= demand.dropped_bytes
        valley.cut(max(0, demand.need_bytes), demand.room_bytes)
    stall_ns = int(valley.wait_ns + _ROUNDING_NS) if missing_bytes == 0 else 0
    return Bound(profile.duration_ns, stall_ns, missing_bytes, len(memory.refused), absent_bytes)


def find_refused_workspaces(profile: StepProfile, budget_bytes: int) -> frozenset[int]:
    """Blocks that do not fit even with everything cold absent; ideal_step_time's default."""
    memory = _Memory(profile, budget_bytes)
    for _ in memory.walk():
        pass
    return frozenset(memory.refused)


class _Valley:
    """Note [The valley]."""

    def __init__(self, profile: StepProfile) -> None:
        self.low = self.high = 0.0
        self.wait_ns = 0.0
        self._out_per_ns = profile.out_bytes_per_second / NS_PER_SECOND
        self._in_per_ns = profile.in_bytes_per_second / NS_PER_SECOND
        self._need = self._room = 0.0
        self._time_ns = 0

    def pass_time(self, until_ns: int) -> None:
        elapsed_ns = until_ns - self._time_ns
        self._time_ns = until_ns
        self.high = min(self.high + self._out_per_ns * elapsed_ns, self._room)
        self.low = max(self.low - self._in_per_ns * elapsed_ns, self._need)

    def cut(self, need: float, room: float) -> None:
        """Keeps what lies between; waits until something does."""
        self._need, self._room = need, room
        if self.high < need:
            self.wait_ns += (need - self.high) / self._out_per_ns
            self.low = self.high = need
        elif self.low > room:
            self.wait_ns += (self.low - room) / self._in_per_ns
            self.low = self.high = room
        self.low, self.high = max(self.low, need), min(self.high, room)


class _Demand(NamedTuple):
    """What (1) asks after an event, and the jumps at it."""

    time_ns: int
    need_bytes: int
    room_bytes: int
    cold_bytes: int
    regained_bytes: int
    dropped_bytes: int


class _Memory:
    """Walks through the events and counts bytes."""

    def __init__(
        self, profile: StepProfile, budget_bytes: int, *, refuse_all: bool = False
    ) -> None:
        self.refused: set[int] = set()
        """Workspaces that were done without; complete after walk()."""
        self._refuse_all = refuse_all
        self._profile = profile
        self._budget_bytes = budget_bytes
        self._live = profile.base_bytes
        self._room = self._cold = 0
        self._state: dict[int, EventKind] = {}
        """The last event of each block that was saved."""

    def walk(self) -> Iterator[_Demand]:
        """One row an event, the step's beginning first."""
        yield self._demand(0)
        for time_ns, kind, block in self._profile.events:
            jumps = self._apply(kind, block)
            yield self._demand(time_ns, *jumps)

    def _demand(self, time_ns: int, regained: int = 0, dropped: int = 0) -> _Demand:
        need = self._live - self._budget_bytes
        return _Demand(time_ns, need, self._room, self._cold, regained, dropped)

    def _apply(self, kind: EventKind, block: int) -> tuple[int, int]:
        size = self._profile.blocks[block].size_bytes
        if kind is EventKind.ALLOC:
            return self._allocate(block, size)
        if kind is EventKind.FREE:
            return self._free(block, size)
        return self._move_to(kind, block, size)

    def _allocate(self, block: int, size: int) -> tuple[int, int]:
        is_too_large = self._live + size - self._cold > self._budget_bytes
        if (is_too_large or self._refuse_all) and self._profile.blocks[block].is_workspace:
            self.refused.add(block)
        else:
            self._live += size
        return 0, 0

    def _free(self, block: int, size: int) -> tuple[int, int]:
        if block in self.refused:
            return 0, 0
        _, dropped = self._leave(block, size)
        self._live -= size
        return 0, dropped

    def _move_to(self, kind: EventKind, block: int, size: int) -> tuple[int, int]:
        was = self._leave(block, size)[0]
        self._state[block] = kind
        self._room += size * (kind is not EventKind.USE)
        self._cold += size * (kind is EventKind.COLD)
        return size * (kind is EventKind.COLD and was is EventKind.USE), 0

    def _leave(self, block: int, size: int) -> tuple[EventKind | None, int]:
        """Takes the block out of the sums; what it was, and the bytes that were in room."""
        was = self._state.pop(block, None)
        counted = size * (was in (EventKind.SAVE, EventKind.COLD))
        self._room -= counted
        self._cold -= size * (was is EventKind.COLD)
        return was, counted
