"""What a policy decides: when the core moves blocks, and the saves of which layers it must move."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class NativePolicy(enum.IntEnum):
    """vdnn_policy of vdnn_alloc.h."""

    NONE = 0
    EAGER = 1
    PRESSURE = 2


class LayerKind(enum.Enum):
    """What the paper distinguishes in a layer."""

    CONVOLUTION = "convolution"
    OTHER = "other"
    OUTSIDE = "outside"
    """Code of the program that runs in no module: losses, functional networks."""


@dataclass(frozen=True)
class Plan:
    """How saved tensors leave the device."""

    native_policy: NativePolicy
    eager_kinds: frozenset[LayerKind]
    """What layers of these kinds save leaves as soon as nobody else can reach it."""

    def is_eager(self, kind: LayerKind) -> bool:
        return kind in self.eager_kinds


class Policy(Protocol):
    """One of the paper's policies."""

    @property
    def summary(self) -> str:
        """One line for `VDNN_ALLOC=policy=?` and the reports."""

    def choose(self) -> Plan:
        """The plan to install."""
