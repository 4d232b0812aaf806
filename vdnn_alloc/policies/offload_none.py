"""Policy "none": the budget holds, nothing moves. It is how the peak of a program is measured."""

from __future__ import annotations

from vdnn_alloc.plan import NativePolicy, Plan


class OffloadNone:
    summary = "nothing moves; beyond the budget training fails"

    def choose(self) -> Plan:
        return Plan(NativePolicy.NONE, frozenset())
