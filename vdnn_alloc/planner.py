"""The plan of a recorded step: which blocks leave, and when each copy starts.

Note [How a plan is found]
A plan is a set of blocks; the rest follows. Each leaves as soon as it is cold, for nothing is won
by waiting. Each is asked back at the earliest event from which on its frames are to spare until
its use, those that are used sooner first: asked back later it would be late for nothing, earlier
it would take frames that the step needs.

A set is found by a walk through the events that lets blocks leave where the budget is short,
farthest next use first, and then lets off whoever is not needed after all. That is the fewest
bytes for blocks of one size. But blocks move whole: a smaller one that leaves in the place of a
large one may save bytes, or a wait for the large one's way back. So the walk is repeated with some
blocks of a set forbidden, or one more forced out, beginning with the neighbours of the best set
yet, and `simulate` judges: the shortest step, and of equals the fewest bytes. Each walk, schedule
and simulation costs n log n in the number of events; how many there are shrinks as steps grow, so
that planning never costs more than that.

Where workspaces may be refused, that is decided before: one by one, whichever brings the bound down
most, as long as it does so clearly; and the plan that is found then must be clearly faster. What
the operator takes instead is not known, so its engine is taken to be half as fast.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import NamedTuple

from vdnn_alloc.ideal_step import find_refused_workspaces, ideal_step_time
from vdnn_alloc.plan import Move, NativePolicy, Plan
from vdnn_alloc.range_levels import RangeLevels
from vdnn_alloc.simulate import Simulated, simulate
from vdnn_alloc.step_profile import Event, EventKind, StepProfile

_EVENTS_TRIED = 60_000
"""Events times tries, about: a second of planning."""
_FEWEST_TRIES, _MOST_TRIES = 4, 80
_NEIGHBOURS = 12
"""Blocks of one set that are tried to be without, and blocks beside it that are forced out."""
_CLOSE = 1.005
"""This near the bound no further set is tried."""
_WORTH_REFUSING = 0.98
"""Of the step's bound: what refusing one more workspace must bring it down to."""
_NEVER = 1 << 62
"""As a time: of what is not feasible."""
_SAME_TIME = 1e-3
"""Of the step: a plan that saves less time than this must save bytes."""


@dataclass(frozen=True)
class Planned:
    """A plan, and what it comes to."""

    plan: Plan
    simulated: Simulated

    @property
    def is_feasible(self) -> bool:
        return self.simulated.is_feasible


def plan_step(
    profile: StepProfile, budget_bytes: int, refusable: frozenset[int] = frozenset()
) -> Planned:
    """The best plan that is found. Without moves where the budget is not short.

    `refusable` are workspaces that the plan may refuse. Where no set of blocks is enough the plan
    is infeasible: it moves what it can, and pressure must do the rest.
    """
    plain = _plan_moves(profile, budget_bytes)
    refused = choose_refused(profile, budget_bytes, refusable)
    if not refused:
        return plain
    planned = _plan_moves(_without(profile, refused), budget_bytes)
    plain_ns, planned_ns = (p.simulated.step_time_ns or _NEVER for p in (plain, planned))
    if planned_ns > _WORTH_REFUSING * plain_ns:
        return plain
    return replace(planned, plan=replace(planned.plan, refused=refused))


def choose_refused(
    profile: StepProfile, budget_bytes: int, refusable: frozenset[int]
) -> frozenset[int]:
    """The workspaces without which the step is clearly faster."""

    def bound_ns(refused: frozenset[int]) -> float:
        return ideal_step_time(_without(profile, refused), budget_bytes).step_time_ns or _NEVER

    largest = sorted(refusable, key=lambda b: (-profile.blocks[b].size_bytes, b))
    tries = max(_FEWEST_TRIES, min(_MOST_TRIES, _EVENTS_TRIED // max(1, len(profile.events))))
    refused: frozenset[int] = frozenset()
    now_ns = bound_ns(refused) if refusable else 0
    while now_ns > profile.duration_ns and tries > 0:
        one_more = [refused | {block} for block in largest[:tries] if block not in refused]
        tries -= len(one_more)
        best_ns, best = min(((bound_ns(s), sorted(s)) for s in one_more), default=(now_ns, []))
        if best_ns > _WORTH_REFUSING * now_ns:
            break
        refused, now_ns = frozenset(best), best_ns
    return refused


def _without(profile: StepProfile, refused: frozenset[int]) -> StepProfile:
    """The same step where these workspaces take no room (but a byte, for every block has one), and
    their operators twice the time."""
    if not refused:
        return profile
    begun: dict[int, int] = {}
    events, late_ns = [], 0
    for time_ns, kind, block in profile.events:
        if block in refused and kind is EventKind.ALLOC:
            begun[block] = time_ns
        elif block in begun and kind is EventKind.FREE:
            late_ns += time_ns - begun[block]
        events.append(Event(time_ns + late_ns, kind, block))
    blocks = [
        replace(block, size_bytes=1) if number in refused else block
        for number, block in enumerate(profile.blocks)
    ]
    duration_ns = profile.duration_ns + late_ns
    return replace(profile, duration_ns=duration_ns, blocks=tuple(blocks), events=tuple(events))


def _plan_moves(profile: StepProfile, budget_bytes: int) -> Planned:
    search = _Search(profile, budget_bytes)
    best = search.try_with(frozenset(), frozenset())
    bound_ns = ideal_step_time(profile, budget_bytes).step_time_ns or 0
    tries = max(_FEWEST_TRIES, min(_MOST_TRIES, _EVENTS_TRIED // max(1, len(profile.events))))
    open_sets, seen = [best], {best.chosen}
    while open_sets and tries > 0 and best.score[0] > _CLOSE * bound_ns:
        neighbours = search.neighbours(heapq.heappop(open_sets))[:tries]
        tries -= len(neighbours)
        for found in (search.try_with(*one) for one in neighbours):
            if found.chosen not in seen:
                seen.add(found.chosen)
                heapq.heappush(open_sets, found)
                best = min(best, found)
    return Planned(best.plan, best.simulated)


class _Absence(NamedTuple):
    """When a block may be away: from the event `cold` on, until just before `use`."""

    cold: int
    use: int
    comes_back: bool
    """False: it is freed without a use."""


def absences_of(profile: StepProfile) -> dict[int, _Absence]:
    """Of each block, the first time that it may leave."""
    cold: dict[int, int] = {}
    saved: set[int] = set()
    found: dict[int, _Absence] = {}
    for number, (_, kind, block) in enumerate(profile.events):
        if kind is EventKind.SAVE:
            saved.add(block)
        elif kind is EventKind.COLD and block in saved:
            cold.setdefault(block, number)
        elif kind in (EventKind.USE, EventKind.FREE) and block in cold and block not in found:
            found[block] = _Absence(cold[block], number, kind is EventKind.USE)
    for block, number in cold.items():
        found.setdefault(block, _Absence(number, len(profile.events), False))
    return found


@dataclass(frozen=True)
class _Tried:
    """One set of blocks and what it comes to."""

    score: tuple[int, int]
    """Less is better."""
    plan: Plan
    simulated: Simulated
    chosen: tuple[int, ...]
    forbidden: frozenset[int]
    forced: frozenset[int]

    def __lt__(self, other: _Tried) -> bool:
        return self.score < other.score


class _Search:
    """What all sets of one profile and budget share."""

    def __init__(self, profile: StepProfile, budget_bytes: int) -> None:
        self._profile = profile
        self._budget_bytes = budget_bytes
        self._absences = absences_of(profile)
        self._live = _live_bytes(profile, budget_bytes)
        self._at_cold: dict[int, list[int]] = defaultdict(list)
        self._at_use: dict[int, list[int]] = defaultdict(list)
        for block, absence in self._absences.items():
            self._at_cold[absence.cold].append(block)
            self._at_use[absence.use].append(block)

    def _size(self, block: int) -> int:
        return self._profile.blocks[block].size_bytes

    def try_with(self, forbidden: frozenset[int], forced: frozenset[int]) -> _Tried:
        """The set that needs none of `forbidden` and has all of `forced`."""
        chosen = self._drop_needless(self._choose(forbidden, forced), forced)
        plan = Plan(NativePolicy.PRESSURE, frozenset(), self._schedule(chosen))
        simulated = simulate(self._profile, plan, self._budget_bytes)
        grain_ns = max(1, int(self._profile.duration_ns * _SAME_TIME))
        time_ns = simulated.step_time_ns
        # An infeasible one is worse than any that is feasible, and the less so the less it lacks.
        steps = 1 << 62 if time_ns is None else -(-time_ns // grain_ns) * grain_ns
        bytes_ = simulated.missing_bytes or simulated.offloaded_bytes
        return _Tried((steps, bytes_), plan, simulated, tuple(chosen), forbidden, forced)

    def neighbours(self, tried: _Tried) -> list[tuple[frozenset[int], frozenset[int]]]:
        """The largest that leave are kept, one by one; the largest that stay leave."""
        leaving = sorted(set(tried.chosen) - tried.forced, key=self._size, reverse=True)
        staying = sorted(
            set(self._absences) - set(tried.chosen) - tried.forbidden,
            key=self._size,
            reverse=True,
        )
        sizes = sorted({self._size(block) for block in leaving}, reverse=True)
        smaller = [
            (tried.forbidden | {b for b in self._absences if self._size(b) >= size}, tried.forced)
            for size in sizes[:_NEIGHBOURS]
        ]
        kept = [(tried.forbidden | {block}, tried.forced) for block in leaving[:_NEIGHBOURS]]
        sent = [(tried.forbidden, tried.forced | {block}) for block in staying[:_NEIGHBOURS]]
        return smaller + kept + sent

    def _choose(self, forbidden: frozenset[int], forced: frozenset[int]) -> list[int]:
        """Walks through the events; whoever must leave, in the order of leaving."""
        absent_bytes = 0
        absent: set[int] = set()
        cold: list[tuple[int, int]] = []  # (-use, block): the farthest use first
        chosen: list[int] = []
        for number, live_bytes in enumerate(self._live):
            absent_bytes -= sum(self._size(b) for b in self._at_use[number] if b in absent)
            for block in self._at_cold[number]:
                if block in forced:
                    absent.add(block)
                    absent_bytes += self._size(block)
                    chosen.append(block)
                elif block not in forbidden:
                    heapq.heappush(cold, (-self._absences[block].use, block))
            lacking_bytes = live_bytes - absent_bytes - self._budget_bytes
            if lacking_bytes > 0:
                leaving = self._take(cold, number, lacking_bytes)
                absent.update(leaving)
                absent_bytes += sum(map(self._size, leaving))
                chosen += leaving
        return chosen

    def _take(self, cold: list[tuple[int, int]], number: int, lacking_bytes: int) -> list[int]:
        """Out of the heap of cold blocks; whoever was taken in excess goes back to it."""
        taken: list[int] = []
        while cold and lacking_bytes > 0:
            minus_use, block = heapq.heappop(cold)
            if -minus_use <= number:
                continue
            taken.append(block)
            lacking_bytes -= self._size(block)
        for block in reversed(taken):
            if lacking_bytes + self._size(block) <= 0:
                lacking_bytes += self._size(block)
                taken.remove(block)
                heapq.heappush(cold, (-self._absences[block].use, block))
        return taken

    def _levels(self, chosen: list[int]) -> RangeLevels:
        """Bytes on the device after each event, with these away as long as they may be."""
        levels = RangeLevels(self._live)
        for block in chosen:
            absence = self._absences[block]
            levels.add(absence.cold, absence.use, -self._size(block))
        return levels

    def _drop_needless(self, chosen: list[int], forced: frozenset[int]) -> list[int]:
        """Without those that later ones made needless, the largest first."""
        levels = self._levels(chosen)
        needed = set(chosen)
        for block in sorted(needed - forced, key=lambda b: (-self._size(b), b)):
            absence = self._absences[block]
            most_bytes = levels.highest(absence.cold, absence.use)
            if most_bytes + self._size(block) <= self._budget_bytes:
                needed.discard(block)
                levels.add(absence.cold, absence.use, self._size(block))
        return [block for block in chosen if block in needed]

    def _schedule(self, chosen: list[int]) -> tuple[Move, ...]:
        levels = self._levels(chosen)
        moves = []
        for block in sorted(chosen, key=lambda b: self._absences[b].use):
            absence, size_bytes = self._absences[block], self._size(block)
            if not absence.comes_back:
                moves.append(Move(block, absence.cold))
                continue
            limit = self._budget_bytes - size_bytes
            begin = max(levels.last_above(absence.use, limit), absence.cold) + 1
            levels.add(begin, absence.use, size_bytes)
            prefetch = begin if begin < absence.use else None
            moves.append(Move(block, absence.cold, prefetch))
        # Prefetches are asked for in order of use; copies out start in the order of their events.
        return tuple(moves)


def _live_bytes(profile: StepProfile, budget_bytes: int) -> list[int]:
    """After each event, without the workspaces that cannot fit."""
    refused = find_refused_workspaces(profile, budget_bytes)
    live, levels = profile.base_bytes, []
    for _, kind, block in profile.events:
        if block not in refused:
            size_bytes = profile.blocks[block].size_bytes
            live += size_bytes * ((kind is EventKind.ALLOC) - (kind is EventKind.FREE))
        levels.append(live)
    return levels
