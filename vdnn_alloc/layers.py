"""What layers are called.

A layer is a module; its number is shared with the core, which keeps a row of counters for it. 0 is
what runs in no module. Forward hooks tell when one begins and ends; backward is recognised by the
layer of what it unpacks. Full backward hooks would break in-place code, so there are none.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from vdnn_alloc.plan import LayerKind

if TYPE_CHECKING:
    from collections.abc import Callable

_CONVOLUTIONS = (torch.nn.modules.conv._ConvNd,)


class Layers:
    """Numbers and names of modules. Holds no module alive.

    A number whose module has died goes to the next module of the same name: a program that builds
    the same model again finds what was learned of it, and builds it a thousand times in the same
    memory.
    """

    def __init__(self, name_layer: Callable[[int, str], None]) -> None:
        self._name_layer = name_layer
        self._known: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}
        self._numbers: dict[str, list[tuple[weakref.ref[torch.nn.Module], int]]] = {}
        self.kinds: list[LayerKind] = [LayerKind.OUTSIDE]
        """Of each layer, by number."""

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
        kind = LayerKind.CONVOLUTION if isinstance(module, _CONVOLUTIONS) else LayerKind.OTHER
        holders = self._numbers.setdefault(name, [])
        number = self._take_number(holders, kind)
        if number is None:
            number = len(self.kinds)
            self.kinds.append(kind)
            self._name_layer(number, name)
        entry = (weakref.ref(module), number)
        holders.append(entry)
        self._known[id(module)] = entry

    def _take_number(
        self, holders: list[tuple[weakref.ref[torch.nn.Module], int]], kind: LayerKind
    ) -> int | None:
        """That of a dead holder of the same name and kind, if there is one."""
        for index, (module, number) in enumerate(holders):
            if module() is None and self.kinds[number] is kind:
                return holders.pop(index)[1]
        return None
