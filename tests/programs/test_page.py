"""The page on compatibility says what the programs declare and the records hold, and every test
that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.programs import catalogue, page, records
from tests.programs.cases import CASES
from tests.upstream import records as upstream

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = {**catalogue.on_cpu(), **catalogue.on_gpu()}


def test_the_page_is_up_to_date() -> None:
    assert page.PAGE.read_text() == page.page(), "run: python -m tests.programs.page"


@pytest.mark.parametrize("record", records.read_all(), ids=lambda record: record.path.stem)
def test_a_record_tells_of_programs_that_exist(record: records.Record) -> None:
    assert record.programs.keys() <= page.wanted(record).keys()


@pytest.mark.parametrize("name", sorted({test for case in CASES for test in case.tests}))
def test_what_a_case_names_exists(name: str) -> None:
    file, _, test = name.partition("::")
    if not test:
        assert name in PROGRAMS
    else:
        assert test in named_in(ROOT / file)


@pytest.mark.parametrize("record", upstream.read_all(), ids=lambda record: record.path.stem)
def test_what_of_pytorchs_own_fails_only_with_vdnn_alloc_is_known(record: upstream.Record) -> None:
    failed = {name for told in record.files.values() for name in told.failed_with}
    assert failed <= page.KNOWN_DIFFERENCES.keys()


def named_in(path: Path) -> set[str]:
    """The names of a file's tests, Python's or the native ones."""
    if path.suffix == ".cpp":
        return set(re.findall(r"^TEST\((\w+)\)", path.read_text(), flags=re.MULTILINE))
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
