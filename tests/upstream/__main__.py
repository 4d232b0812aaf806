"""Runs PyTorch's own tests off and on, and says which failed only with vdnn_alloc.

    python -m tests.upstream --checkout DIR [--only FILE ...] [-k EXPRESSION] [--record SOURCE]

DIR is a checkout of PyTorch's sources of about the version that is installed; pytest and what its
tests import (expecttest, and others) must be installed too. --record keeps the result for the page
on compatibility; SOURCE says what was checked out.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from tests.upstream.records import Record, write
from tests.upstream.suites import GPU_SUITES, HOST_SUITES, Outcome, run


def main() -> int:
    """Returns 1 if a test failed only with vdnn_alloc."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--only", nargs="+", metavar="FILE", help="under test/ of the checkout")
    parser.add_argument("-k", dest="expression", help="in place of what is chosen for each file")
    parser.add_argument("--record", metavar="SOURCE")
    args = parser.parse_args()
    import torch

    where = "gpu" if torch.cuda.is_available() else "host"
    suites = GPU_SUITES if where == "gpu" else HOST_SUITES
    found: dict[str, Outcome] = {}
    for file in args.only or suites:
        if not (args.checkout / "test" / file).exists():
            print(f"{file}: not in {args.checkout}")
            continue
        expression = suites.get(file, "") if args.expression is None else args.expression
        outcome = run(args.checkout, file, expression, where)
        found[file] = replace(outcome, source=args.record or "")
        say(file, found[file])
    if not found:
        parser.error(f"none of these files is in {args.checkout}/test: {', '.join(suites)}")
    if args.record:
        write(Record.made_now(where, found))
    return int(any(outcome.failed_with for outcome in found.values()))


def say(file: str, outcome: Outcome) -> None:
    """A line on each file, and one on each test that failed only with vdnn_alloc."""
    print(
        f"{file}: {outcome.passed} passed, {outcome.skipped} skipped, "
        f"{len(outcome.failed_anyway)} fail without vdnn_alloc too, "
        f"{len(outcome.failed_with)} only with it"
    )
    for name in outcome.failed_with:
        print(f"  only with vdnn_alloc: {name}")


if __name__ == "__main__":
    sys.exit(main())
