"""What a kind of fault is, and what shows that it is held off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One kind of fault that programs which manage memory under PyTorch have had."""

    fault: str
    here: str
    """What holds; a limit, with its reason, if that is less than what stock PyTorch gives."""
    tests: tuple[str, ...]
    """"file::test", or the name of a program: its module and function."""
