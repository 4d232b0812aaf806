"""The programs of tests/programs on a GPU, and those that only a GPU can run: a program that ran
before runs with vdnn_alloc on, with the same numbers, the same errors and no new warning.

By hand: python -m tests.programs.runs --cuda NAME
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.programs import catalogue
from tests.programs.runs import TIMEOUT_S, ample, eager, ended, start, stock, tight, what_differs

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

    from tests.programs.program import Program, Run

CHECK = 1
# vdnn_alloc starts CUDA in install(), stock torch at the first tensor on a GPU: from then on Python
# warns of every fork.
FORKS_AFTER_CUDA = "is multi-threaded, use of fork() may lead to deadlocks"
pytestmark = pytest.mark.timeout(4 * TIMEOUT_S)


def absent(program: Program) -> list[str]:
    """The packages that it needs and that are not installed here."""
    return [package for package in program.needs if find_spec(package) is None]


def parameter(program: Program) -> ParameterSet:
    """The program; its tests are skipped where a package that it needs is not installed."""
    mark = pytest.mark.skipif(bool(absent(program)), reason=f"needs {', '.join(program.needs)}")
    return pytest.param(program, id=program.name, marks=mark)


@pytest.fixture(scope="module", autouse=True)
def _begun(request: pytest.FixtureRequest) -> None:
    """Begins what the chosen tests will ask for: most of a run is the start of CUDA."""
    ours = (item for item in request.session.items if item.path == request.path)
    chosen: list[Program] = [item.callspec.params["program"] for item in ours]
    for program in chosen:
        if not absent(program):
            start(*(job(program.name, "cuda") for job in (stock, ample, eager)))


programs = pytest.mark.parametrize("program", [parameter(p) for p in catalogue.on_gpu().values()])


def differences(ours: Run, theirs: Run) -> list[str]:
    """But for the warning of a fork."""
    return [text for text in what_differs(ours, theirs) if FORKS_AFTER_CUDA not in text]


@programs
def test_it_runs_as_before_where_everything_fits(program: Program) -> None:
    ours, theirs = ended(ample(program.name, "cuda")), ended(stock(program.name, "cuda"))

    assert differences(ours.result, theirs.result) == []
    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] == 0
    assert ours.stats["ooms"] == 0

    start(tight(program.name, CHECK, kind="cuda"))


@programs
def test_it_runs_as_before_where_all_that_may_move_moves(program: Program) -> None:
    ours, theirs = ended(eager(program.name, "cuda")), ended(stock(program.name, "cuda"))

    assert differences(ours.result, theirs.result) == []
    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] > 0 or program.stays


@programs
def test_it_runs_as_before_under_a_tight_budget(program: Program) -> None:
    ours = ended(tight(program.name, CHECK, kind="cuda"))
    theirs = ended(stock(program.name, "cuda"))

    assert ours.stats is not None
    # Else other engines, and so other bits. Outside every layer nobody can tell if cuDNN caught
    # the error, or the program.
    assert ours.stats["workspace_refusals"] == 0 or program.runs_out
    assert differences(ours.result, theirs.result) == []
    assert (ours.stats["offloaded_bytes"] > 0) == (not program.stays), program.stays
    assert (ours.stats["ooms"] > 0) == program.runs_out
    assert ours.stats["created_bytes_max"] <= ours.stats["budget_bytes"]
