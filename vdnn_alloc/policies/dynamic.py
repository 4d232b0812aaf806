"""Policy "dyn", the default: nothing moves while it fits, then as little as the budget demands.

A step that nobody has seen survives by pressure: the choice of victims belongs to the moment an
allocation finds no frames, so the core takes it. It is recorded, and the steps like it follow a
plan (vdnn_alloc.planner), which is corrected by what was measured (vdnn_alloc.plan_keeper).
"""

from __future__ import annotations

from vdnn_alloc.plan import NativePolicy, Plan


class Dynamic:
    summary = "moves only what does not fit, farthest next use first (vDNN_dyn)"

    def choose(self) -> Plan:
        return Plan(NativePolicy.PRESSURE, frozenset(), is_refined=True)
