"""A program that ran before runs with vdnn_alloc on: same numbers, same errors, no new warning.

Each program is run by PyTorch alone, under a budget that never binds, under one where everything
moves that may, and under a share of its own peak; each time in a process of its own.
By hand: python -m tests.programs.runs NAME
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.programs import catalogue
from tests.programs.runs import TIMEOUT_S, ample, eager, ended, start, stock, tight, what_differs

if TYPE_CHECKING:
    from tests.programs.program import Program

ALIASED, UNMAPPED = 1, 3  # check levels: frames are reused at once; what is away is unmapped
PROGRAMS = catalogue.on_cpu()

pytestmark = pytest.mark.timeout(3 * TIMEOUT_S)
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@programs
def test_it_runs_as_before_where_everything_fits(program: Program) -> None:
    start(stock(program.name), ample(program.name), eager(program.name))

    ours, theirs = ended(ample(program.name)), ended(stock(program.name))

    assert ours.has_vdnn_alloc
    assert not theirs.has_vdnn_alloc
    assert what_differs(ours.result, theirs.result) == []
    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] == 0
    assert ours.stats["ooms"] == 0


@programs
def test_it_runs_as_before_where_all_that_may_move_moves(program: Program) -> None:
    ours, theirs = ended(eager(program.name)), ended(stock(program.name))

    assert what_differs(ours.result, theirs.result) == []
    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] > 0 or program.stays


@programs
@pytest.mark.parametrize("check", [ALIASED, UNMAPPED], ids=["aliased", "unmapped"])
def test_it_runs_as_before_under_a_tight_budget(program: Program, check: int) -> None:
    start(*(tight(program.name, level) for level in (ALIASED, UNMAPPED)))

    ours, theirs = ended(tight(program.name, check)), ended(stock(program.name))

    assert what_differs(ours.result, theirs.result) == []
    assert ours.stats is not None
    assert (ours.stats["offloaded_bytes"] > 0) == (not program.stays), program.stays
    assert (ours.stats["ooms"] > 0) == program.runs_out
    assert 0 < ours.stats["created_bytes_max"] <= ours.stats["budget_bytes"]
    assert 0 < ours.witness_bytes <= ours.stats["budget_bytes"]
