"""When steps are recorded, planned, corrected, and left alone: against a core that is a script."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_step_record import FRAME, ROWS, SUMMARY
from vdnn_alloc.episodes import Opening
from vdnn_alloc.native import WAS_KEPT, WAS_LATE
from vdnn_alloc.plan_keeper import PlanKeeper, correct

LOOP = 77


class Core:
    """The calls of Native that the keeper makes. A step has ROWS."""

    def __init__(self, budget_frames: int = 10) -> None:
        self.budget_bytes = budget_frames * FRAME + 1
        self.plans: list[tuple[int, list[tuple[int, int]]]] = []
        self.recordings = 0
        self.is_through = True
        self.outcome = b""
        self.summary = dict(SUMMARY)
        self._is_wanted = False

    def used_devices(self) -> list[int]:
        return [0]

    def record_next_episode(self) -> None:
        self.recordings += 1
        self._is_wanted = True

    def read_step(self, device: int) -> Any:
        assert device == 0
        if not (self._is_wanted and self.is_through):
            return None
        self._is_wanted = False
        return self.summary, ROWS

    def read_stats(self, device: int) -> dict[str, int]:
        assert device == 0
        return {"frame_bytes": FRAME, "budget_bytes": self.budget_bytes, "owned_bytes": 0}

    def set_plan(
        self,
        device: int,
        signature: int,
        moves: list[tuple[int, int]],
        refusals: list[tuple[int, int]],
    ) -> None:
        assert device == 0
        assert refusals == []
        self.plans.append((signature, moves))

    def read_outcome(self, device: int, signature: int) -> bytes:
        assert (device, signature) == (0, LOOP)
        return self.outcome


class Clock:
    now_s = 0.0
    step_s = 1.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keeper(core: Core, clock: Clock) -> PlanKeeper:
    keeper: Any = PlanKeeper
    made: PlanKeeper = keeper(core, clock)
    made.before_episode(Opening(0, 0, []))
    return made


def run(keeper: PlanKeeper, clock: Clock, steps: int, signature: int = LOOP) -> None:
    for _ in range(steps):
        clock.now_s += clock.step_s
        keeper.before_episode(Opening(signature, signature, []))


def test_the_second_step_of_a_loop_that_is_short_of_memory_is_planned(
    core: Core, keeper: PlanKeeper, clock: Clock
) -> None:
    assert core.recordings == 1

    run(keeper, clock, 1)

    assert core.plans == [(LOOP, [(7, 3)])]


def test_a_step_that_fits_is_left_alone(clock: Clock) -> None:
    core: Any = Core(budget_frames=13)
    keeper = PlanKeeper(core, clock)
    keeper.before_episode(Opening(0, 0, []))

    run(keeper, clock, 5)

    assert core.plans == []
    assert core.recordings == 1


def test_the_third_step_is_recorded_again_and_an_equal_plan_stays(
    core: Core, keeper: PlanKeeper, clock: Clock
) -> None:
    run(keeper, clock, 8)

    assert core.recordings == 2
    assert len(core.plans) == 1


def test_steps_that_do_not_repeat_are_not_planned(
    core: Core, keeper: PlanKeeper, clock: Clock
) -> None:
    for signature in range(1, 30):
        clock.now_s += 1
        keeper.before_episode(Opening(signature, signature, []))

    assert len(core.plans) == 1, "the first, which nobody could know"
    assert core.recordings <= 3


def test_nobody_waits_for_a_device_that_is_not_through(
    core: Core, keeper: PlanKeeper, clock: Clock
) -> None:
    core.is_through = False
    run(keeper, clock, 2)
    assert core.plans == []

    core.is_through = True
    run(keeper, clock, 1)

    assert core.plans == [(LOOP, [(7, 3)])]


def test_a_copy_out_for_nothing_is_dropped_only_where_the_recorded_step_can_do_without(
    core: Core, keeper: PlanKeeper, clock: Clock
) -> None:
    core.outcome = bytes([0] * 7 + [WAS_KEPT])

    run(keeper, clock, 10)
    assert len(core.plans) == 1, "ROWS do not fit without it"


def test_a_correction_that_makes_steps_longer_is_taken_back(
    core: Core, keeper: PlanKeeper, clock: Clock
) -> None:
    run(keeper, clock, 1)
    core.budget_bytes = 13 * FRAME  # now the recorded step can do without
    core.outcome = bytes([0] * 7 + [WAS_KEPT])
    run(keeper, clock, 2)
    assert core.plans[-1] == (LOOP, [])

    clock.step_s = 1.5
    core.outcome = b""
    run(keeper, clock, 8)

    assert core.plans[-1] == (LOOP, [(7, 3)])
    assert len(core.plans) == 3, "and it is left alone from then on"


def test_corrections_keep_drop_and_move_earlier() -> None:
    moves = [(0, 80), (1, 40), (2, 16)]

    assert correct(moves, bytes([0, WAS_KEPT, WAS_LATE])) == [(0, 80), (2, 14)]
    assert correct(moves, b"") == moves
