"""Which layer runs on this thread, and what layers are called.

A layer is a module; its number is shared with the core, which keeps a row of counters for it.
Forward hooks tell us when one begins and ends; backward is recognised by the layer of what it
unpacks. Full backward hooks would break in-place code, so there are none.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import torch

from vdnn_alloc.native import OUTSIDE
from vdnn_alloc.plan import LayerKind

if TYPE_CHECKING:
    from collections.abc import Callable

OUTSIDE_LAYER = 0
_CONVOLUTIONS = (torch.nn.modules.conv._ConvNd,)


class ThreadState(threading.local):
    """Where one thread is. Every attribute is per thread; the values here are its start."""

    def __init__(self) -> None:
        self.stack: list[int] = []
        """Layers whose forward runs, innermost last."""
        self.position = (OUTSIDE_LAYER, OUTSIDE)
        """The (layer, phase) that the core was told last."""


class Layers:
    """Numbers and names of modules. Holds no module alive."""

    def __init__(self, name_layer: Callable[[int, str], None]) -> None:
        self._name_layer = name_layer
        self._known: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}
        self.kinds: list[LayerKind] = [LayerKind.OUTSIDE]
        """Of each layer, by number."""
        name_layer(OUTSIDE_LAYER, "outside")

    def number(self, module: torch.nn.Module) -> int:
        """The layer's number; a module met for the first time brings in its whole tree."""
        known = self._known.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        self._add_tree(module)
        return self._known[id(module)][1]

    def _add_tree(self, root: torch.nn.Module) -> None:
        family = type(root).__name__
        for name, module in root.named_modules():
            known = self._known.get(id(module))
            if known is None or known[0]() is not module:
                self._add(module, f"{family}.{name}" if name else family)

    def _add(self, module: torch.nn.Module, name: str) -> None:
        number = len(self.kinds)
        is_convolution = isinstance(module, _CONVOLUTIONS)
        self.kinds.append(LayerKind.CONVOLUTION if is_convolution else LayerKind.OTHER)
        self._known[id(module)] = (weakref.ref(module), number)
        self._name_layer(number, name)
