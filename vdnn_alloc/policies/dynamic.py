"""Policy "dyn", the default: nothing moves while it fits, then as little as the budget demands.

The choice of victims belongs to the moment an allocation finds no frames, so the core takes it;
the controller teaches it the order of coming uses.
"""

from __future__ import annotations

from vdnn_alloc.plan import NativePolicy, Plan


class Dynamic:
    summary = "moves only what does not fit, farthest next use first (vDNN_dyn)"

    def choose(self) -> Plan:
        return Plan(NativePolicy.PRESSURE, frozenset())
