"""From the core's rows to a profile, and plans there and back."""

from __future__ import annotations

from vdnn_alloc.native import NO_PREFETCH
from vdnn_alloc.plan import Move
from vdnn_alloc.planner import plan_step
from vdnn_alloc.step_profile import Event, EventKind
from vdnn_alloc.step_record import RecordedStep, find_workspaces, read_record

ALLOC, FREE, SAVE, COLD, USE = range(5)
FRAME = 4096
SUMMARY = {
    **{"duration_ns": 900, "waited_ns": 50, "begin_frames": 3},
    **{"out_bytes": 4000, "out_ns": 2000, "in_bytes": 0, "in_ns": 0},
}
# (time_ns, frames, kind, block, position, save_index, layer, operator_number)
ROWS = [
    (0, 4, ALLOC, 0, 1, 0, 2, 0),
    (10, 4, SAVE, 0, 1, 7, 2, 0),
    (20, 0, COLD, 0, 1, 0, 0, 0),
    (30, 6, ALLOC, 1, 2, 0, 3, 0),
    (40, 6, FREE, 1, 3, 0, 0, 0),
    (500, 0, USE, 0, 4, 0, 0, 0),
    (510, 4, FREE, 0, 5, 0, 0, 0),
]


def recorded(rows: list[tuple[int, ...]] = ROWS) -> RecordedStep:
    found = read_record(SUMMARY, rows, FRAME)
    assert found is not None
    return found


def test_rows_become_a_profile_of_whole_frames() -> None:
    record = recorded()

    assert [block.size_bytes for block in record.profile.blocks] == [4 * FRAME, 6 * FRAME]
    assert [block.is_workspace for block in record.profile.blocks] == [False, True]
    assert record.profile.base_bytes == 3 * FRAME
    assert record.profile.peak_bytes == 13 * FRAME
    assert record.profile.out_bytes_per_second == 2e9
    assert record.profile.in_bytes_per_second == 2e9, "the one that was measured"
    assert record.waited_ns == 50


def test_a_plan_goes_to_the_core_and_back() -> None:
    record = recorded()
    plan = plan_step(record.profile, 10 * FRAME).plan

    moves = record.to_native(plan)

    assert moves == [(7, 3)], "save 7, once the workspace is freed"
    assert record.from_native(moves) == plan
    assert record.from_native([(7, NO_PREFETCH)]).moves == (Move(0, 2, None),)
    assert record.from_native([(8, 3)]).moves == ()


def test_workspaces_of_operators_that_can_do_with_less_may_be_refused() -> None:
    rows = [(*row[:7], 5 if row[2] == ALLOC else 0) for row in ROWS]

    assert recorded().refusable == {}
    assert recorded(rows).refusable == {1: (5, 6)}, "block 0 is a result: it is saved"


def test_what_was_held_until_its_use_may_not_leave() -> None:
    held = [row for row in ROWS if row[2] != COLD]

    record = recorded(held)

    kinds = {event.kind for event in record.profile.events}
    assert kinds == {EventKind.ALLOC, EventKind.FREE}
    assert record.save_indices == {}


def test_only_the_first_absence_counts() -> None:
    again = [*ROWS[:6], (505, 0, COLD, 0, 4, 0, 0, 0), (507, 0, USE, 0, 5, 0, 0, 0), ROWS[6]]

    assert recorded(again).profile == recorded().profile


def test_a_step_that_copied_nothing_has_no_rates_to_plan_with() -> None:
    assert read_record({**SUMMARY, "out_bytes": 0, "out_ns": 0}, ROWS, FRAME) is None


def test_rows_that_contradict_each_other_are_no_record() -> None:
    assert read_record(SUMMARY, [*ROWS, ROWS[6]], FRAME) is None


def test_workspaces_are_whole_lives_with_nothing_but_such_in_between() -> None:
    def events(text: str) -> list[Event]:
        kinds = {"+": EventKind.ALLOC, "-": EventKind.FREE, "c": EventKind.COLD}
        kinds["s"] = EventKind.SAVE
        return [Event(0, kinds[word[0]], int(word[1:])) for word in text.split()]

    assert find_workspaces(events("+0 +1 -1 -0")) == {0, 1}
    assert find_workspaces(events("+0 +1 s0 -1 -0")) == set()
    assert find_workspaces(events("+0 +1 c5 -1 +2 -0")) == {1}
