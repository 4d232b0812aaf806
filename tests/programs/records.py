"""What became of each program on one machine, under one torch: run, written down, read again."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.programs.program import Program

FOLDER = Path(__file__).parent / "results"
TEST_FILES = {"host": "tests/programs/test_programs.py", "gpu": "tests/gpu/test_programs.py"}
AS_BEFORE = "as before"
LIBRARIES = ("transformers", "accelerate", "lightning", "peft")


@dataclass(frozen=True)
class Record:
    """The runs of one machine."""

    torch: str
    where: str
    """A key of TEST_FILES."""
    machine: str
    date: str
    libraries: dict[str, str]
    """Version of each that is installed there."""
    programs: dict[str, str] = field(default_factory=dict)
    """By name: AS_BEFORE, or why it did not run, or which of its runs were not as before."""

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return FOLDER / f"torch-{self.torch}-{self.where}.json"


def read_all() -> list[Record]:
    """Every record there is, the host's first."""
    records = [Record(**json.loads(path.read_text())) for path in FOLDER.glob("torch-*.json")]
    return sorted(records, key=lambda record: (record.where != "host", record.torch))


def make(where: str, machine: str, pytest_arguments: list[str]) -> tuple[Record, bool]:
    """Runs the tests of the programs, all or those that the arguments choose, and keeps what came
    of each; what an earlier record says of others stays. Also whether all of pytest's tests passed.
    """
    watcher = _Watcher()
    code = pytest.main([TEST_FILES[where], "-q", "-m", "", *pytest_arguments], plugins=[watcher])
    found = _new(where, machine)
    if found.path.exists():
        found.programs.update(Record(**json.loads(found.path.read_text())).programs)
    found.programs.update(watcher.results())
    FOLDER.mkdir(exist_ok=True)
    kept = asdict(found) | {"programs": dict(sorted(found.programs.items()))}
    found.path.write_text(json.dumps(kept, indent=1) + "\n")
    return found, code == pytest.ExitCode.OK


def _new(where: str, machine: str) -> Record:
    import datetime

    import torch

    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Record(torch.__version__, where, machine, today, dict(_libraries()))


def _libraries() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        if find_spec(name) is not None:
            yield name, version(name)


class _Watcher:
    """A plugin of pytest that notes how each program's tests ended."""

    def __init__(self) -> None:
        self._tests: dict[str, tuple[str, str]] = {}
        self._ended: dict[str, list[tuple[str, str]]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            assert isinstance(item, pytest.Function)
            program: Program = item.callspec.params["program"]
            check = item.callspec.params.get("check", "")
            way = item.originalname.removeprefix("test_it_runs_as_before_").replace("_", " ")
            self._tests[item.nodeid] = program.name, f"{way} {check}".strip()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        name, way = self._tests[report.nodeid]
        if report.skipped:
            assert isinstance(report.longrepr, tuple)
            self._ended[name].append(("skipped", report.longrepr[2].removeprefix("Skipped: ")))
        else:
            self._ended[name].append(("", "") if report.passed else ("failed", way))

    def results(self) -> Iterator[tuple[str, str]]:
        """What the record says of each program that was asked for."""
        for name, ended in self._ended.items():
            failed = [text for outcome, text in ended if outcome == "failed"]
            skipped = [text for outcome, text in ended if outcome == "skipped"]
            if failed:
                yield name, f"not as before {', '.join(failed)}"
            else:
                yield name, f"not run: {skipped[0]}" if skipped else AS_BEFORE
