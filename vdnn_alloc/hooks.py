"""The objects in C++ that run for every saved tensor and every module, as Python sees them.

They are made in allocator/torch_glue (hooks.cpp, saved_tensor.cpp).
"""

from __future__ import annotations

from typing import Any, Protocol


class Episode(Protocol):
    """What one forward saved, and the order in which its backward took it back."""

    @property
    def signature(self) -> int:
        """Of the saves so far: their layers, sizes and order. 0 while there are none."""

    @property
    def saves(self) -> int:
        """How many there are."""

    @property
    def used(self) -> list[int]:
        """Save indices in the order of their first unpack. It may still grow."""


class Hooks(Protocol):
    """What is hung into torch, and what the controller asks of it."""

    @property
    def wants_opening(self) -> bool:
        """Whether the next save or root module begins another episode."""

    @property
    def has_moved(self) -> bool:
        """Whether anything was away when backward asked for it, since start."""

    @property
    def shrunk_bytes(self) -> int:
        """What was saved by keeping indices as a smaller type and maps as signs, since start."""

    def pack(self, x: Any, /) -> Any: ...
    def unpack(self, saved: Any, /) -> Any: ...
    def enter(self, module: object, /) -> bool:
        """Whether the indices that the layer saves should shrink, if they can."""

    def expect_indices(self, dtype: object, /) -> None:
        """This type, or None, holds each index that the layer just entered will save."""

    def leave(self, module: object, raised: bool, /) -> None: ...
    def end_step(self) -> bool:
        """False, and nothing is done, in a forked child."""

    def begin_episode(self) -> Episode | None:
        """Opens an episode and returns the one that has ended, if there is one."""

    def stop_shrinking(self) -> None:
        """Indices stay as they are until something moves, but in layers of an eager policy."""

    def records(self) -> dict[int, list[int]]:
        """For tests: the `_cdata` of each alias, by generation of the record's block."""

    def set_max_aliases(self, count: int, /) -> None:
        """For tests: how many aliases a record may have."""
