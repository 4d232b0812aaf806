"""Policy "conv", the paper's vDNN_conv: only what convolutions save, for they run long enough to
hide the copy."""

from __future__ import annotations

from vdnn_alloc.plan import LayerKind, NativePolicy, Plan


class OffloadConv:
    summary = "what convolution layers save moves (vDNN_conv)"

    def choose(self) -> Plan:
        return Plan(NativePolicy.EAGER, frozenset({LayerKind.CONVOLUTION}))
