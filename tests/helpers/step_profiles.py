"""Step profiles for tests: short ways to write one, random ones, and an exhaustive schedule search.

One byte takes one nanosecond on the link unless said otherwise, so that arithmetic is by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from hypothesis import strategies as st

from vdnn_alloc.simulate import ideal_step_time
from vdnn_alloc.step_profile import Event, EventKind, ProfiledBlock, StepProfile

BYTE_PER_NS = 1e9
Row = tuple[int, str, int]
"""(time_ns, kind, block), as in a profile file."""
Short = tuple[StepProfile, int]
"""And a budget in bytes."""


def make_profile(
    sizes: Sequence[int],
    rows: Iterable[Row],
    duration_ns: int,
    *,
    base_bytes: int = 0,
    out_rate: float = BYTE_PER_NS,
    in_rate: float = BYTE_PER_NS,
    workspaces: Sequence[int] = (),
) -> StepProfile:
    return StepProfile(
        duration_ns=duration_ns,
        base_bytes=base_bytes,
        out_bytes_per_second=out_rate,
        in_bytes_per_second=in_rate,
        blocks=tuple(ProfiledBlock(size, 0, n in workspaces) for n, size in enumerate(sizes)),
        events=tuple(Event(time, EventKind(kind), block) for time, kind, block in rows),
    )


# --- random ones --------------------------------------------------------------------------------

LAST_NS = 5
_KINDS = ("alloc", "save", "cold", "use", "free")
_KINDS_UNUSED = ("alloc", "save", "cold", "free")
_KINDS_TWICE = ("alloc", "save", "cold", "use", "cold", "use", "free")


def _by_time(lives: Iterable[Sequence[Row]]) -> list[Row]:
    """Each block's events keep their order."""
    return sorted(itertools.chain.from_iterable(lives), key=lambda row: row[0])


@st.composite
def nested_profiles(draw: st.DrawFn) -> StepProfile:
    """Who is saved first is cold first and used last; beside them, temporaries."""
    count = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    times = st.integers(0, LAST_NS)
    marks = sorted(draw(st.lists(times, min_size=3 * count, max_size=3 * count)))
    rows: list[Row] = []
    for i in range(count):  # born and saved; cold once the next is saved
        rows += [(marks[i], "alloc", i), (marks[i], "save", i)]
        rows += [(marks[i + 1], "cold", i - 1)] if i > 0 else []
    rows += [(marks[count], "cold", count - 1)]
    rows.sort(key=lambda row: row[0])
    for done, i in enumerate(reversed(range(count))):
        at = marks[count + 2 * done : count + 2 * done + 2]
        rows += [(at[0], "use", i), (at[-1], "free", i)]
    temporaries = draw(_temporaries(count))
    sizes += [draw(st.integers(1, 3)) for _ in temporaries]
    return make_profile(sizes, _by_time([rows, *temporaries]), LAST_NS)


@st.composite
def _temporaries(draw: st.DrawFn, first: int) -> list[list[Row]]:
    lives = []
    for number in range(draw(st.integers(1, 2))):
        begin = draw(st.integers(0, LAST_NS))
        end = draw(st.integers(begin, LAST_NS))
        lives.append([(begin, "alloc", first + number), (end, "free", first + number)])
    return lives


@st.composite
def crossing_profiles(draw: st.DrawFn) -> StepProfile:
    """Any lives at all, with one absence or two, or freed without a use."""
    lives: list[list[Row]] = []
    for number in range(draw(st.integers(1, 3))):
        kinds = draw(st.sampled_from((_KINDS, _KINDS_UNUSED, _KINDS_TWICE)))
        times = st.lists(st.integers(0, LAST_NS), min_size=len(kinds), max_size=len(kinds))
        lives.append([(t, k, number) for t, k in zip(sorted(draw(times)), kinds, strict=True)])
    lives += draw(_temporaries(len(lives)))
    sizes = [draw(st.integers(1, 3)) for _ in lives]
    return make_profile(sizes, _by_time(lives), LAST_NS)


@st.composite
def short_of_memory(draw: st.DrawFn, profiles: st.SearchStrategy[StepProfile]) -> Short:
    """A profile, and a budget below its peak but enough for an ideal offloader."""
    profile = draw(profiles)
    least = ideal_step_time(profile, 0).missing_bytes
    return profile, draw(st.integers(least, max(least, profile.peak_bytes - 1)))


# --- every schedule there is ----------------------------------------------------------------------

State = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Events passed, ns since the last, and by block: bytes copied out, bytes absent."""


def fastest_schedule_ns(profile: StepProfile, budget_bytes: int) -> int | None:
    """The least time of any schedule on a grid of one byte and one ns; None: there is none.

    Breadth first over time. In each ns at most one byte goes out and one comes in; the one that
    comes in has its place from the beginning of that ns, the one that goes out gives it at the end.
    A copied byte is given up when an allocation or another byte wants its place, not before.
    """
    if profile.base_bytes > budget_bytes:
        return None
    none = (0,) * len(profile.blocks)
    states = _pass_events(profile, budget_bytes, {(0, 0, none, none)})
    for now_ns in itertools.count():
        if any(passed > len(profile.events) for passed, *_ in states):
            return now_ns
        after = {new for state in states for new in _one_ns(profile, budget_bytes, state)}
        after = _pass_events(profile, budget_bytes, after)
        if after == states:  # doing nothing is always possible, so nothing new will come
            return None
        states = after
    raise AssertionError


def _status(profile: StepProfile, passed: int) -> tuple[int, dict[int, EventKind], set[int]]:
    """Live bytes, the last event of each block, and the blocks whose bytes are final."""
    live, last, final = profile.base_bytes, {}, set()
    for _, kind, block in profile.events[:passed]:
        last[block] = kind
        final |= {block} if kind is EventKind.SAVE else set()
        live += profile.blocks[block].size_bytes * (kind is EventKind.ALLOC)
        live -= profile.blocks[block].size_bytes * (kind is EventKind.FREE)
    return live, last, final


def _one_ns(profile: StepProfile, budget_bytes: int, state: State) -> Iterator[State]:
    passed, elapsed, copied, absent = state
    elapsed = min(elapsed, profile.duration_ns)  # longer than any gap
    live, last, final = _status(profile, min(passed, len(profile.events)))
    outs = [
        b
        for b in final
        if copied[b] < profile.blocks[b].size_bytes and last[b] is not EventKind.FREE
    ]
    lacking = max(0, live - sum(absent) + 1 - budget_bytes)
    backs = [absent]
    for after in _given_up(copied, absent, last, lacking):
        backs += [_changed(after, b, -1) for b in range(len(absent)) if absent[b]]
    for out, back in itertools.product([None, *outs], backs):
        yield passed, elapsed + 1, _changed(copied, out, 1), back


def _changed(counts: tuple[int, ...], block: int | None, by: int) -> tuple[int, ...]:
    return tuple(count + by * (b == block) for b, count in enumerate(counts))


def _pass_events(profile: StepProfile, budget_bytes: int, states: set[State]) -> set[State]:
    """What can be reached without time passing, the waiting included."""
    reached, fresh = set(), set(states)
    while fresh:
        reached |= fresh
        fresh = {new for s in fresh for new in _pass_one(profile, budget_bytes, s)} - reached
    return reached


def _pass_one(profile: StepProfile, budget_bytes: int, state: State) -> Iterator[State]:
    passed, elapsed, copied, absent = state
    times = [0, *(event.time_ns for event in profile.events), profile.duration_ns]
    if passed > len(profile.events) or elapsed < times[passed + 1] - times[passed]:
        return
    if passed == len(profile.events):
        yield passed + 1, 0, copied, absent
        return
    _, kind, block = profile.events[passed]
    live, last, _ = _status(profile, passed)
    if kind is EventKind.USE and absent[block]:
        return
    if kind is EventKind.FREE:
        absent = _changed(absent, block, -absent[block])
    wanted = profile.blocks[block].size_bytes if kind is EventKind.ALLOC else 0
    lacking = live + wanted - sum(absent) - budget_bytes if kind is EventKind.ALLOC else 0
    for after in _given_up(copied, absent, last, max(0, lacking)):
        yield passed + 1, 0, copied, after


def _given_up(
    copied: tuple[int, ...], absent: tuple[int, ...], last: dict[int, EventKind], wanted: int
) -> Iterator[tuple[int, ...]]:
    """Every way to give up so many copied bytes of cold blocks."""
    spare = [
        copied[b] - absent[b] if last.get(b) is EventKind.COLD else 0 for b in range(len(copied))
    ]
    for taken in itertools.product(*(range(min(wanted, n) + 1) for n in spare)):
        if sum(taken) == wanted:
            yield tuple(a + t for a, t in zip(absent, taken, strict=True))
