"""Kinds of faults that programs which manage memory under PyTorch have had, and what holds each
off here: every one has a test, or is a limit with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs.cases.memory import ALLOCATOR, DATA, HOST
from tests.programs.cases.training import HOOKS, LIFE, LOOPS

if TYPE_CHECKING:
    from tests.programs.cases.case import Case

CASES: tuple[Case, ...] = (*DATA, *HOOKS, *ALLOCATOR, *HOST, *LIFE, *LOOPS)
