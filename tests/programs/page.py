"""The page on compatibility: made from what the programs declare and what the records say.

    python -m tests.programs.page                              writes COMPATIBILITY.md
    python -m tests.programs.page --record host --machine "..." [-- arguments of pytest]
                                                               runs the programs first

A test compares the page with what this would write.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs import catalogue, records
from tests.programs.cases import CASES
from tests.upstream import records as upstream

if TYPE_CHECKING:
    from tests.programs.cases.case import Case
    from tests.programs.program import Program

PAGE = Path(__file__).parent / "COMPATIBILITY.md"
NOTHING = "-"

OPENING = """# What works with vdnn_alloc

<!-- Written by `python -m tests.programs.page`; change what it is made from, not this file. -->

Every line of the first tables is a training script in `tests/programs/`. It is run by PyTorch
alone and with vdnn_alloc, each time in a process of its own: with room for everything; with a
policy that moves whatever may move; and under a share of its own peak (twice on the host backend:
once so that frames are reused at once, once so that a stray touch of what is away faults).
*As before* means that in all of them it saw the same bits in every loss, gradient and state, the
same exceptions in the same words, no new warning, and no new graph of Dynamo's; that its budget was
never passed; and that bytes moved under pressure, unless the table says why none may.

*Budget* is the share of its peak that the program is put under. It is above 60 % where more than
that is held by the program itself and is nothing that autograd saved; on a GPU also where one
convolution needs more at a time, with its workspace.
"""

CASES_OPENING = """## Kinds of faults that tools like this have had

Each line is a fault that people met in other programs that move or manage memory under PyTorch,
and where it is held off here.
"""


ONE_PAIR = "hooks on one saved tensor are refused, see the table above"
KNOWN_DIFFERENCES = {
    "TestAutograd.test_no_unnecessary_unwrapping": "under any hooks a saved tensor that is read by "
    "hand is another tensor with the same memory",
    "TestAutograd.test_pack_hook_with_inplace_modification_should_fail": ONE_PAIR,
    "TestAutograd.test_saved_variable_packing_unpacking_did_not_save_original_with_hooks": ONE_PAIR,
    "TestAutograd.test_saved_variable_packing_unpacking_saved_original_with_hooks": ONE_PAIR,
    "TestAutograd.test_saved_variable_saved_original_inplace_detach": "see detach_() in the table "
    "above",
}
"""Of PyTorch's tests that fail only with vdnn_alloc, why."""
UPSTREAM_OPENING = """## PyTorch's own tests

`python -m tests.upstream --checkout DIR` runs those of a checkout of PyTorch that touch saved
tensors, checkpoints, hooks and memory, without vdnn_alloc and with it, and tells which fail only
with it.
"""


def page() -> str:
    """The whole page, as it should be."""
    found = records.read_all()
    parts = [OPENING, summary(found), programs(found), CASES_OPENING, cases()]
    return "\n".join([*parts, UPSTREAM_OPENING, upstream_tests()])


def summary(found: list[records.Record]) -> str:
    """One line a record: where it was made, and how many programs ran as before."""
    rows = [("torch", "where", "programs", "as before", "not run", "not as before", "libraries")]
    for record in found:
        told = [text for name, text in record.programs.items() if name in wanted(record)]
        as_before = told.count(records.AS_BEFORE)
        not_run = sum(text.startswith("not run") for text in told)
        libraries = ", ".join(f"{name} {number}" for name, number in record.libraries.items())
        rows.append(
            (
                record.torch,
                f"{record.where}: {record.machine}, {record.date}",
                str(len(wanted(record))),
                str(as_before),
                str(not_run + len(wanted(record)) - len(told)),
                str(len(told) - as_before - not_run),
                libraries or NOTHING,
            )
        )
    return table(rows)


def wanted(record: records.Record) -> dict[str, Program]:
    """The programs that have something to do where the record was made."""
    return catalogue.on_cpu() if record.where == "host" else catalogue.on_gpu()


def programs(found: list[records.Record]) -> str:
    """A table for each module of programs."""
    every = {**catalogue.on_cpu(), **catalogue.on_gpu()}
    parts = []
    for module, members in groupby(every.values(), key=lambda p: p.name.rpartition(".")[0]):
        group = list(members)
        heads = [f"torch {record.torch}, {record.where}" for record in found]
        rows = [("program", "what it does", "budget", "limit", *heads)]
        rows += [row(program, found) for program in group]
        parts.append(f"### {module}\n\n{first_words(sys.modules[group[0].train.__module__])}\n")
        parts.append(table(rows))
    return "\n".join(parts)


def row(program: Program, found: list[records.Record]) -> tuple[str, ...]:
    """One program: what it declares, and what each record says of it."""
    name = program.train.__name__
    told = (outcome(program, record) for record in found)
    what = first_words(program.train) or name.replace("_", " ")
    budget = f"{program.percent} %"
    if program.gpu_percent != program.percent:
        budget += f", on a GPU {program.gpu_percent} %"
    return (f"`{name}`", what, budget, limit(program), *told)


def outcome(program: Program, record: records.Record) -> str:
    """What a record says of a program; nothing if it has nothing to do there."""
    if program.name not in wanted(record):
        return NOTHING
    return record.programs.get(program.name, "not run yet")


def limit(program: Program) -> str:
    """In words, what the program's declaration says."""
    words = []
    if program.stays:
        words.append(f"nothing moves: {program.stays}")
    if program.runs_out:
        words.append("meets an out-of-memory error, and goes on")
    if program.cpu_only:
        words.append(f"not on a GPU: {program.cpu_only}")
    return "; ".join(words) or NOTHING


def cases() -> str:
    """The table of kinds of faults."""
    rows = [("what went wrong", "here", "shown by")]
    rows += [(case.fault, case.here, shown_by(case)) for case in CASES]
    return table(rows)


def upstream_tests() -> str:
    """What became of PyTorch's own tests, file by file."""
    head = ("torch", "where", "file", "passed with vdnn_alloc", "skipped", "fail without it too")
    rows = [(*head, "fail only with it")]
    for record in upstream.read_all():
        for file, told in record.files.items():
            numbers = (told.passed, told.skipped, len(told.failed_anyway))
            failed = "; ".join(
                f"`{name}` ({KNOWN_DIFFERENCES.get(name, 'not explained')})"
                for name in told.failed_with
            )
            where = f"{record.where}, {record.date}"
            what = f"`{file}`, {told.source}"
            rows.append((record.torch, where, what, *map(str, numbers), failed or NOTHING))
    return table(rows)


def shown_by(case: Case) -> str:
    """The tests of a case, each as it is called where it stands."""
    return ", ".join(f"`{test}`" for test in case.tests) or NOTHING


def first_words(thing: object) -> str:
    """The first paragraph of its docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def table(rows: list[tuple[str, ...]]) -> str:
    """In Markdown; the first row is the head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the page, after a run of the programs if that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", choices=records.TEST_FILES)
    parser.add_argument("--machine", default="", help="what the record says it was made on")
    parser.add_argument("pytest_arguments", nargs="*")
    args = parser.parse_args()
    all_passed = True
    if args.record:
        if not args.machine:
            parser.error("--record needs --machine")
        _, all_passed = records.make(args.record, args.machine, args.pytest_arguments)
    PAGE.write_text(page())
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
