"""The bound against arithmetic by hand, every schedule there is, and every plan; plans by hand."""

from __future__ import annotations

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
    fastest_schedule_ns,
    make_profile,
    nested_profiles,
    short_of_memory,
)
from vdnn_alloc.plan import Move, NativePolicy, Plan
from vdnn_alloc.simulate import ideal_step_time, simulate
from vdnn_alloc.step_profile import EventKind, ProfileError, StepProfile

DATA = Path(__file__).parent / "data"

# Block 0 (10 bytes) is saved at once and wanted at 10; block 1 (6 bytes) lives from 4 to 8.
ONE_MAP = make_profile(
    [10, 6],
    [
        (0, "alloc", 0),
        (0, "save", 0),
        (0, "cold", 0),
        (4, "alloc", 1),
        (8, "free", 1),
        (10, "use", 0),
        (12, "free", 0),
    ],
    12,
)
RELEASE = 4
"""The event that frees block 1."""


def plan(*moves: Move) -> Plan:
    return Plan(NativePolicy.PRESSURE, frozenset(), moves)


# --- by hand ------------------------------------------------------------------------------------


def test_the_ideal_waits_for_what_the_link_could_not_carry_in_time() -> None:
    # 16 bytes in 10: 6 must be out by 4 ns, when 4 are: 2 ns of waiting. Nothing may come back
    # before block 1 is freed, 4 ns later; then 2 of the 6 do by the use: 4 ns more.
    bound = ideal_step_time(ONE_MAP, 10)

    assert bound.is_feasible
    assert bound.stall_ns == 2 + 4
    assert bound.step_time_ns == 12 + 6
    assert bound.absent_bytes == 6


def test_each_direction_has_its_own_rate() -> None:
    # Out at 2 bytes a ns: 8 by 4 ns, no waiting. Back at 1/2: 1 of 6 by the use; 5 take 10 ns.
    profile = replace(ONE_MAP, out_bytes_per_second=2e9, in_bytes_per_second=5e8)

    assert ideal_step_time(profile, 10).stall_ns == 10


def test_one_wait_serves_all_that_is_wanted_at_once() -> None:
    # Blocks 1 and 2 come together at 4: 6 bytes must be out, 4 are; 2 ns, once. The use at 20 is
    # late enough for all 6 to come back from 8 on.
    rows = [(0, "alloc", 0), (0, "save", 0), (0, "cold", 0), (4, "alloc", 1), (4, "alloc", 2)]
    rows += [(8, "free", 1), (8, "free", 2), (20, "use", 0)]

    assert ideal_step_time(make_profile([10, 6, 6], rows, 20), 16).stall_ns == 2


def test_a_copy_may_begin_before_the_block_is_cold() -> None:
    # Saved at 0, read until 6, wanted room at 6: 6 bytes are out by then, and go at once.
    rows = [(0, "alloc", 0), (0, "save", 0), (6, "cold", 0), (6, "alloc", 1), (8, "free", 1)]
    profile = make_profile([10, 6], [*rows, (20, "use", 0)], 20)

    assert ideal_step_time(profile, 10).stall_ns == 0
    # The whole block is out at 10, 4 ns late; back from 12 to 22, and due at 24.
    assert simulate(profile, plan(Move(0, prefetch_event=4)), 10).stall_ns == 4


def test_what_was_copied_once_is_given_up_again_for_nothing() -> None:
    # 6 out by 6, back by 14; at 16 block 2 wants 6 bytes, and the old copy still serves.
    rows = [(0, "alloc", 0), (0, "save", 0), (0, "cold", 0), (6, "alloc", 1), (8, "free", 1)]
    rows += [(14, "use", 0), (16, "cold", 0), (16, "alloc", 2), (17, "free", 2), (23, "use", 0)]

    assert ideal_step_time(make_profile([10, 6, 6], rows, 23), 10).stall_ns == 0


def test_what_is_freed_without_a_use_need_not_come_back() -> None:
    # As ONE_MAP until block 1 is freed; then block 0 goes with its graph. Only the 2 ns at 4 remain
    # and, whole, the 6 ns.
    profile = replace(ONE_MAP, events=(*ONE_MAP.events[:5], ONE_MAP.events[6]))

    simulated = simulate(profile, plan(Move(0)), 10)

    assert ideal_step_time(profile, 10).stall_ns == 2
    assert simulated.stall_ns == 6
    assert simulated.prefetched_bytes == 0


def test_a_budget_that_no_wait_makes_enough_says_what_it_lacks() -> None:
    # Both blocks live, and 10 of the 16 bytes may be absent: 6 are needed.
    bound = ideal_step_time(ONE_MAP, 5)

    assert not bound.is_feasible
    assert bound.missing_bytes == 10 - 5  # block 0, when it is allocated and when it is used
    assert bound.step_time_ns is None


def test_what_was_there_before_the_step_counts() -> None:
    profile = replace(ONE_MAP, base_bytes=100)

    assert ideal_step_time(profile, 110).stall_ns == ideal_step_time(ONE_MAP, 10).stall_ns
    assert ideal_step_time(profile, 90).missing_bytes == 20


def test_only_a_workspace_that_cannot_fit_is_refused() -> None:
    profile = replace(
        ONE_MAP, blocks=tuple(replace(b, is_workspace=n == 1) for n, b in enumerate(ONE_MAP.blocks))
    )
    too_large = replace(
        profile, blocks=(profile.blocks[0], replace(profile.blocks[1], size_bytes=11))
    )

    assert ideal_step_time(profile, 10).stall_ns == 6
    assert ideal_step_time(profile, 10).refused_workspaces == 0
    assert ideal_step_time(too_large, 10).stall_ns == 0
    assert ideal_step_time(too_large, 10).refused_workspaces == 1
    assert ideal_step_time(profile, 10, refuse_all_workspaces=True).stall_ns == 0


# --- against every schedule ---------------------------------------------------------------------

NESTED = short_of_memory(nested_profiles())
ANY = short_of_memory(crossing_profiles()) | NESTED


@settings(max_examples=150, deadline=None)
@given(NESTED)
def test_the_bound_of_nested_blocks_is_the_fastest_schedule(short: Short) -> None:
    profile, budget = short

    assert ideal_step_time(profile, budget).step_time_ns == fastest_schedule_ns(profile, budget)


@settings(max_examples=100, deadline=None)
@given(ANY)
def test_no_schedule_beats_the_bound(short: Short) -> None:
    bound, fastest = ideal_step_time(*short).step_time_ns, fastest_schedule_ns(*short)

    assert bound is not None
    assert fastest is not None
    assert bound <= fastest


@settings(max_examples=25, deadline=None)
@given(crossing_profiles())
def test_one_byte_less_than_what_is_missing_admits_no_schedule(profile: StepProfile) -> None:
    least = ideal_step_time(profile, 0).missing_bytes

    assert ideal_step_time(profile, least).is_feasible
    assert ideal_step_time(profile, least - 1).missing_bytes == 1
    assert fastest_schedule_ns(profile, least - 1) is None


# --- against every plan -------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn, profile: StepProfile) -> Plan:
    events = st.none() | st.integers(0, len(profile.events) - 1)
    saved = sorted({e.block for e in profile.events if e.kind is EventKind.SAVE})
    blocks = draw(st.lists(st.sampled_from(saved), unique=True))
    return plan(*(Move(block, draw(events), draw(events)) for block in blocks))


RATES = st.sampled_from((3e8, 1e9, 2.5e9))


@settings(max_examples=500, deadline=None)
@given(st.data(), ANY, RATES, RATES)
def test_no_plan_beats_the_bound_or_passes_the_budget(
    data: st.DataObject, short: Short, out_rate: float, in_rate: float
) -> None:
    rates = {"out_bytes_per_second": out_rate, "in_bytes_per_second": in_rate}
    profile = replace(short[0], **rates, least_piece_bytes=data.draw(st.sampled_from((0, 1, 2))))
    budget = short[1]
    bound = ideal_step_time(profile, budget)

    simulated = simulate(profile, data.draw(plans(profile)), budget)

    assert simulated.peak_bytes <= budget
    assert simulated.prefetched_bytes <= simulated.offloaded_bytes
    assert not simulated.is_feasible or simulated.offloaded_bytes >= bound.absent_bytes
    if simulated.step_time_ns is not None:
        assert bound.step_time_ns is not None
        assert bound.step_time_ns <= simulated.step_time_ns


@given(crossing_profiles(), st.integers(0, 3))
def test_with_the_peak_as_budget_nothing_waits(profile: StepProfile, spare: int) -> None:
    budget = profile.peak_bytes + spare

    assert ideal_step_time(profile, budget).step_time_ns == profile.duration_ns
    assert simulate(profile, plan(), budget).step_time_ns == profile.duration_ns


@given(ANY)
def test_more_budget_or_a_faster_link_is_never_slower(short: Short) -> None:
    profile, budget = short
    stall_ns = ideal_step_time(profile, budget).stall_ns

    assert ideal_step_time(profile, budget + 1).stall_ns <= stall_ns
    for rate in ("out_bytes_per_second", "in_bytes_per_second"):
        assert ideal_step_time(replace(profile, **{rate: 1.5e9}), budget).stall_ns <= stall_ns


# --- plans by hand ------------------------------------------------------------------------------


def test_a_planned_block_moves_whole() -> None:
    # Out from 0 to 10, so block 1 comes 6 ns late and goes at 14; back from 14 to 24, and the use,
    # due at 16 by then, is 8 ns late.
    simulated = simulate(ONE_MAP, plan(Move(0, prefetch_event=RELEASE)), 10)

    assert simulated.step_time_ns == 12 + 6 + 8
    assert simulated.peak_bytes == 10
    assert (simulated.offloaded_bytes, simulated.prefetched_bytes) == (10, 10)


def test_frames_that_were_copied_go_before_the_whole_block_is_out() -> None:
    # In pieces of 2, 6 bytes are out at 6: block 1 comes 2 ns late. All are out at 10, when block 1
    # goes; back from 10 to 20, and the use, due at 12 by then, is 8 ns late.
    profile = replace(ONE_MAP, least_piece_bytes=2)

    simulated = simulate(profile, plan(Move(0, prefetch_event=RELEASE)), 10)

    assert simulated.stall_ns == 2 + 8
    assert simulated.peak_bytes == 10


def test_a_block_that_is_asked_back_in_the_midst_of_leaving_goes_out_first() -> None:
    # 4 of 10 bytes are out at 4, when it is asked back: the rest follows until 10, then it returns.
    rows = [(0, "alloc", 0), (0, "save", 0), (0, "cold", 0), (4, "alloc", 1), (5, "free", 1)]
    profile = replace(make_profile([10, 4], [*rows, (6, "use", 0)], 6), least_piece_bytes=2)

    simulated = simulate(profile, plan(Move(0, prefetch_event=4)), 10)

    assert simulated.stall_ns == 20 - 6
    assert (simulated.offloaded_bytes, simulated.prefetched_bytes) == (10, 10)


def test_without_a_prefetch_the_use_waits_for_the_whole_copy() -> None:
    assert simulate(ONE_MAP, plan(Move(0)), 10).stall_ns == 6 + 10


def test_a_block_that_is_asked_back_before_it_left_stays() -> None:
    simulated = simulate(ONE_MAP, plan(Move(0, 0, prefetch_event=2)), 16)

    assert simulated.stall_ns == 0
    assert (simulated.offloaded_bytes, simulated.prefetched_bytes) == (10, 0)


def test_a_plan_that_frees_too_little_says_what_is_missing() -> None:
    simulated = simulate(ONE_MAP, plan(), 10)

    assert simulated.step_time_ns is None
    assert simulated.missing_bytes == 6


def test_copies_of_one_direction_wait_for_each_other() -> None:
    # Two maps of 10 go out, from 0 to 10 and 10 to 20, so block 2 (20 bytes, due at 12) comes 8 ns
    # late and goes at 24. Then both are asked back; block 1 is due at 26, block 0 at 48 or later.
    rows = [(0, "alloc", 0), (0, "save", 0), (0, "cold", 0)]
    rows += [(0, "alloc", 1), (0, "save", 1), (0, "cold", 1)]
    rows += [(12, "alloc", 2), (16, "free", 2), (18, "use", 1), (40, "use", 0)]
    profile = make_profile([10, 10, 20], rows, 40)
    zero, one = Move(0, prefetch_event=7), Move(1, prefetch_event=7)

    assert simulate(profile, plan(zero, one), 20).stall_ns == 8 + 18  # block 1 back at 44
    rows[0:3], rows[3:6] = rows[3:6], rows[0:3]
    reverse = make_profile([10, 10, 20], rows, 40)
    assert simulate(reverse, plan(one, zero), 20).stall_ns == 8 + 8  # block 1 back at 34


def test_moves_of_blocks_that_are_not_saved_are_refused() -> None:
    with pytest.raises(ProfileError, match="moves block 1, which the profile does not save"):
        simulate(ONE_MAP, plan(Move(1)), 10)
    with pytest.raises(ProfileError, match="moves block 0, twice"):
        simulate(ONE_MAP, plan(Move(0), Move(0)), 10)


# --- recorded steps -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "percent", "ratio"),
    [
        # By a linear program over every block and every segment, which knows whose byte is whose.
        ("vgg19_256_fp32", 80, 1.0186),
        ("vgg19_256_fp32", 50, 1.1821),
    ],
)
def test_the_bound_of_a_recorded_step_is_the_linear_programs(
    name: str, percent: int, ratio: float
) -> None:
    profile = recorded_steps.read(DATA / f"{name}.step.json.gz")

    bound = ideal_step_time(profile, profile.peak_bytes * percent // 100)

    assert (bound.step_time_ns or 0) / profile.duration_ns == pytest.approx(ratio, abs=2e-4)


def test_the_bound_of_thousands_of_layers_takes_less_than_a_second() -> None:
    profile = chain(5000)

    begin = time.process_time()
    bound = ideal_step_time(profile, profile.peak_bytes // 2)

    assert bound.is_feasible
    assert bound.stall_ns > 0
    assert time.process_time() - begin < 1
