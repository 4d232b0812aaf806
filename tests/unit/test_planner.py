"""Plans by hand, against every set of blocks that could leave, and against the bound."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import recorded_steps
from bench.bound import chain
from tests.helpers.step_profiles import (
    Short,
    crossing_profiles,
    make_profile,
    nested_profiles,
    short_of_memory,
)
from vdnn_alloc.plan import Move, NativePolicy, Plan
from vdnn_alloc.planner import absences_of, choose_refused, plan_step
from vdnn_alloc.range_levels import RangeLevels
from vdnn_alloc.simulate import ideal_step_time, simulate
from vdnn_alloc.step_profile import EventKind, StepProfile

DATA = Path(__file__).parent / "data"


# --- by hand ------------------------------------------------------------------------------------

# Block 0 (10 bytes) is cold at 0 and wanted at 30; block 1 (6 bytes) lives from 12 to 16.
ONE_MAP = make_profile(
    [10, 6],
    [
        (0, "alloc", 0),
        (0, "save", 0),
        (0, "cold", 0),
        (12, "alloc", 1),
        (16, "free", 1),
        (30, "use", 0),
        (32, "free", 0),
    ],
    32,
)


def test_a_block_leaves_once_it_is_cold_and_comes_back_once_there_is_room_for_it() -> None:
    planned = plan_step(ONE_MAP, 10)

    assert planned.plan.moves == (Move(0, offload_event=2, prefetch_event=4),)
    assert planned.simulated.stall_ns == 0


def test_nothing_moves_where_the_budget_is_not_short() -> None:
    assert plan_step(ONE_MAP, 16).plan.moves == ()


def test_what_is_freed_without_a_use_is_not_asked_back() -> None:
    profile = replace(ONE_MAP, events=(*ONE_MAP.events[:5], ONE_MAP.events[6]))

    assert plan_step(profile, 10).plan.moves == (Move(0, offload_event=2),)


def two_maps(large: int, small: int) -> StepProfile:
    """Both cold at 0; 20 bytes are wanted from 40 to 42, the small map at 60, then the large."""
    rows = [(0, kind, block) for block in (0, 1) for kind in ("alloc", "save", "cold")]
    rows += [(40, "alloc", 2), (42, "free", 2), (60, "use", 1), (62, "use", 0)]
    return make_profile([large, small, 20], rows, 70)


def test_the_smaller_block_leaves_where_it_is_enough() -> None:
    # 5 bytes are lacking. The farthest use is the large one's, with 30 bytes to move for them.
    planned = plan_step(two_maps(30, 8), 53)

    assert [move.block for move in planned.plan.moves] == [1]
    assert planned.simulated.offloaded_bytes == 8


def test_a_block_that_a_later_choice_makes_needless_stays() -> None:
    # At 10 the small map would do, at 40 only the large one, which was cold by then.
    rows = [(0, kind, block) for block in (0, 1) for kind in ("alloc", "save", "cold")]
    rows += [(40, "alloc", 2), (42, "free", 2), (50, "alloc", 3), (52, "free", 3)]
    profile = make_profile([30, 8, 5, 20], [*rows, (90, "use", 0), (95, "use", 1)], 95)

    planned = plan_step(profile, 38)

    assert [move.block for move in planned.plan.moves] == [0]
    assert planned.simulated.stall_ns == 0


def test_what_no_plan_can_serve_says_what_is_missing() -> None:
    planned = plan_step(ONE_MAP, 5)

    assert not planned.is_feasible
    assert planned.simulated.missing_bytes > 0


# Two maps, and an operator of 4 ns whose workspace (block 2) leaves room for neither of them.
SCRATCH = make_profile(
    [10, 10, 16],
    [
        (0, "alloc", 0),
        (0, "save", 0),
        (1, "cold", 0),
        (1, "alloc", 1),
        (1, "save", 1),
        (2, "cold", 1),
        (20, "alloc", 2),
        (24, "free", 2),
        (25, "use", 1),
        (26, "free", 1),
        (27, "use", 0),
        (28, "free", 0),
    ],
    30,
)
BOTH_MAPS = 21
"""And a byte, which a refused workspace counts as."""


def test_a_workspace_is_refused_where_its_copies_take_longer_than_a_slower_engine() -> None:
    served = plan_step(SCRATCH, BOTH_MAPS)
    planned = plan_step(SCRATCH, BOTH_MAPS, frozenset({2}))

    assert (served.plan.refused, len(served.plan.moves)) == (frozenset(), 2)
    assert (planned.plan.refused, planned.plan.moves) == (frozenset({2}), ())
    assert planned.simulated.step_time_ns == 34, "its operator is taken to be half as fast"
    assert (served.simulated.step_time_ns or 0) > 34


def test_a_workspace_is_served_where_refusing_it_gains_nothing() -> None:
    fast = replace(SCRATCH, in_bytes_per_second=1e15, out_bytes_per_second=1e15)

    assert plan_step(fast, BOTH_MAPS, frozenset({2})).plan.refused == frozenset()
    assert choose_refused(SCRATCH, SCRATCH.peak_bytes, frozenset({2})) == frozenset()


def test_what_may_not_be_refused_is_served() -> None:
    assert choose_refused(SCRATCH, BOTH_MAPS, frozenset()) == frozenset()


def test_a_workspace_that_cannot_fit_is_planned_without() -> None:
    profile = replace(
        ONE_MAP, blocks=(ONE_MAP.blocks[0], replace(ONE_MAP.blocks[1], is_workspace=True))
    )

    planned = plan_step(replace(profile, blocks=(profile.blocks[0], profile.blocks[1])), 10)

    assert planned.plan.moves == (Move(0, offload_event=2, prefetch_event=4),)
    too_large = replace(profile.blocks[1], size_bytes=11)
    assert plan_step(replace(profile, blocks=(profile.blocks[0], too_large)), 10).plan.moves == ()


# --- against every set of blocks ------------------------------------------------------------------

ANY = short_of_memory(crossing_profiles()) | short_of_memory(nested_profiles())
RATES = st.sampled_from((3e8, 1e9, 2.5e9))


@settings(max_examples=300, deadline=None)
@given(ANY, RATES, RATES)
def test_a_plan_keeps_the_budget_and_never_passes_the_bound(
    short: Short, out_rate: float, in_rate: float
) -> None:
    profile = replace(short[0], out_bytes_per_second=out_rate, in_bytes_per_second=in_rate)
    bound = ideal_step_time(profile, short[1])

    planned = plan_step(profile, short[1])

    assert planned.simulated == simulate(profile, planned.plan, short[1])
    assert planned.simulated.peak_bytes <= short[1]
    if planned.simulated.step_time_ns is not None:
        assert bound.step_time_ns is not None
        assert planned.simulated.step_time_ns >= bound.step_time_ns


@settings(max_examples=200, deadline=None)
@given(ANY)
def test_no_other_set_of_blocks_is_faster(short: Short) -> None:
    profile, budget = short
    absences = absences_of(profile)

    planned = plan_step(profile, budget)

    for count in range(len(absences) + 1):
        for blocks in itertools.combinations(absences, count):
            # Asked back when they are used: what any set can do without looking ahead.
            moves = tuple(Move(block, absences[block].cold) for block in blocks)
            other = simulate(profile, Plan(NativePolicy.PRESSURE, frozenset(), moves), budget)
            if other.step_time_ns is not None:
                assert planned.simulated.step_time_ns is not None
                assert planned.simulated.step_time_ns <= other.step_time_ns


@given(crossing_profiles(), st.integers(0, 20))
def test_each_move_leaves_after_it_is_cold_and_is_asked_back_before_its_use(
    profile: StepProfile, budget: int
) -> None:
    for move in plan_step(profile, budget).plan.moves:
        assert move.offload_event is not None
        assert profile.events[move.offload_event][1:] == (EventKind.COLD, move.block)
        use = absences_of(profile)[move.block].use
        assert move.prefetch_event is None or move.offload_event < move.prefetch_event < use


# --- against the bound ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percent", "ratio"), [(90, 1.005), (80, 1.04), (70, 1.01), (60, 1.02), (50, 1.07)]
)
def test_the_plan_of_a_recorded_step_is_near_the_bound(percent: int, ratio: float) -> None:
    profile = recorded_steps.read(DATA / "vgg19_256_fp32.step.json.gz")
    profile = replace(profile, least_piece_bytes=recorded_steps.GPU_PIECE_BYTES)
    budget = profile.peak_bytes * percent // 100
    bound = ideal_step_time(profile, budget)

    planned = plan_step(profile, budget)

    assert (planned.simulated.step_time_ns or 0) <= ratio * (bound.step_time_ns or 0)
    assert planned.simulated.step_time_ns is not None
    assert planned.simulated.offloaded_bytes <= 1.13 * bound.absent_bytes + (3 << 30)


def test_planning_thousands_of_layers_takes_seconds() -> None:
    profile = chain(5000)

    begin = time.process_time()
    planned = plan_step(profile, profile.peak_bytes // 2)

    assert planned.is_feasible
    assert time.process_time() - begin < 10


# --- levels ---------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(-9, 9), max_size=9),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(-5, 5)), max_size=6),
    st.integers(-9, 9),
)
def test_levels_are_those_of_a_plain_list(
    row: list[int], raised: list[tuple[int, int, int]], limit: int
) -> None:
    levels, plain = RangeLevels(row), list(row)
    for begin, end, amount in raised:
        begin, end = min(begin, len(row)), min(end, len(row))
        levels.add(begin, end, amount)
        plain[begin:end] = [level + amount for level in plain[begin:end]]

    for end in range(len(row) + 1):
        above = [n for n in range(end) if plain[n] > limit]
        assert levels.last_above(end, limit) == (above[-1] if above else -1)
        for begin in range(end):
            assert levels.highest(begin, end) == max(plain[begin:end])
