"""Policy "all", the paper's vDNN_all: every feature map leaves until its backward needs it.

The paper leaves the fully connected classifier of its CNNs alone, whose maps are a thousandth of
the rest. Here they move too: a transformer is made of nothing else.
"""

from __future__ import annotations

from vdnn_alloc.plan import LayerKind, NativePolicy, Plan


class OffloadAll:
    summary = "every saved tensor moves (vDNN_all): least memory, most traffic"

    def choose(self) -> Plan:
        return Plan(NativePolicy.EAGER, frozenset(LayerKind))
