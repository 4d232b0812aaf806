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
class Move:
    """One saved block's way out and back in a recorded step (vdnn_alloc.step_profile).

    Events are indices in the profile's; a copy is asked for when the device has passed one.
    """

    block: int
    """Index in the profile's blocks."""
    offload_event: int | None = None
    """After which the copy out may start, never before its SAVE. None: after its SAVE."""
    prefetch_event: int | None = None
    """After which the copy back is asked for. None: at its USE, which then waits for all of it."""


@dataclass(frozen=True)
class Plan:
    """How saved tensors leave the device."""

    native_policy: NativePolicy
    eager_kinds: frozenset[LayerKind]
    """What layers of these kinds save leaves as soon as nobody else can reach it."""
    moves: tuple[Move, ...] = ()
    """Block by block, for a step that was recorded; asked for in this order within one event."""
    refused: frozenset[int] = frozenset()
    """Workspaces of that step that are refused, though they could be served."""
    is_refined: bool = False
    """Steps are recorded, and the next ones like them planned (vdnn_alloc.plan_keeper)."""

    def is_eager(self, kind: LayerKind) -> bool:
        return kind in self.eager_kinds


class Policy(Protocol):
    """One of the paper's policies."""

    @property
    def summary(self) -> str:
        """One line for `VDNN_ALLOC=policy=?` and the reports."""

    def choose(self) -> Plan:
        """The plan to install."""
