"""Steps that follow a plan: what it says is what moves, the numbers stay, and it is in time."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from bench.timed_training import FRAME_BYTES, WORKLOADS, train
from tests.helpers import fresh
from vdnn_alloc.planner import plan_step
from vdnn_alloc.step_profile import StepProfile

STEPS = 8
LEARNED = 4
SLOW_LINK = 150_000_000  # bytes per second
PERCENTS = (80, 60)

workloads = pytest.mark.parametrize("workload", WORKLOADS)
percents = pytest.mark.parametrize("percent", PERCENTS)
checks = pytest.mark.parametrize("check", [1, 3], ids=["aliased", "unmapped"])


def timed_steps(workload: str, steps: int) -> tuple[list[dict[str, Any]], str | None]:
    """The rows, and the profile of the step that was recorded last."""
    from vdnn_alloc.installation import installation

    rows = train(WORKLOADS[workload], steps)
    profile = installation().controller.latest_profile
    return rows, None if profile is None else profile.to_json()


@cache
def trained(
    workload: str, percent: int | None, check: int = 1
) -> tuple[list[dict[str, Any]], StepProfile | None]:
    """Under a share of the peak; None: with room for everything, and an unlimited link."""
    install: dict[str, Any] = {"budget": 1 << 30, "frame": FRAME_BYTES, "check": check}
    if percent is not None:
        install["budget"] = budget_of(workload, percent)
        install["host_bandwidth"] = SLOW_LINK
    rows, profile = fresh.call(timed_steps, workload, STEPS, install=install).result
    return rows, None if profile is None else StepProfile.from_json(profile)


def budget_of(workload: str, percent: int) -> int:
    rows, _ = trained(workload, None)
    return int(rows[-1]["owned_bytes_max"]) * percent // 100


# Rule 11.
@workloads
@percents
@checks
def test_a_plan_changes_no_number(workload: str, percent: int, check: int) -> None:
    ample, _ = trained(workload, None)

    rows, profile = trained(workload, percent, check)

    assert profile is not None, "a step was recorded"
    assert [row["value"] for row in rows] == [row["value"] for row in ample]


@workloads
@percents
def test_what_is_planned_is_what_moves(workload: str, percent: int) -> None:
    rows, profile = trained(workload, percent)
    assert profile is not None

    planned = plan_step(profile, budget_of(workload, percent)).simulated

    for way in ("offloaded_bytes", "prefetched_bytes"):
        moved = [after[way] - before[way] for before, after in pairwise(rows)]
        # Which of two equal sets of blocks is best may depend on the times that were recorded.
        assert max(moved[LEARNED:]) <= 1.25 * getattr(planned, way), moved
        assert min(moved[LEARNED:]) > 0


@workloads
@percents
def test_a_recorded_step_has_the_time_of_one_that_waits_for_nothing(
    workload: str, percent: int
) -> None:
    asleep_ms = sum(3 * forward_ms for _, forward_ms, _ in WORKLOADS[workload])

    _, profile = trained(workload, percent)

    assert profile is not None
    assert profile.duration_ns >= asleep_ms * 1e6
    # Waits would make it half as long again; what is left is Python, on a machine that is shared.
    copies_s = (
        plan_step(profile, budget_of(workload, percent)).simulated.offloaded_bytes / SLOW_LINK
    )
    assert profile.duration_ns < (asleep_ms * 1e6 + copies_s * 2e9) * 2


@workloads
@percents
def test_from_the_sixth_step_on_the_driver_maps_nothing(workload: str, percent: int) -> None:
    rows, _ = trained(workload, percent)

    assert [row["driver_map"] for row in rows[5:]] == [rows[4]["driver_map"]] * (STEPS - 5)


def test_nothing_is_recorded_as_short_where_everything_fits() -> None:
    rows, _ = trained("chain", None)

    assert rows[-1]["offloaded_bytes"] == 0
