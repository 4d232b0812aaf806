"""What a network's layers read and write, from its shapes alone: traced on the meta device.

A feature map is one storage: ReLU works in place and adds none, and a map that several layers read
(a fork) is one map with several readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from bench.paper.networks import Concat, Network, Workload

INDEX_BYTES = 8  # of one MaxPool index in PyTorch; the paper's library kept none


class Kind(Enum):
    CONV = "conv"
    POOL = "pool"
    CONCAT = "concat"
    LINEAR = "linear"


KINDS: dict[type[nn.Module], Kind] = {
    nn.Conv2d: Kind.CONV,
    nn.MaxPool2d: Kind.POOL,
    nn.AvgPool2d: Kind.POOL,
    Concat: Kind.CONCAT,
    nn.Linear: Kind.LINEAR,
}


@dataclass(frozen=True)
class Layer:
    """One layer of one forward pass; `inputs` and `output` number feature maps."""

    name: str
    kind: Kind
    inputs: tuple[int, ...]
    output: int
    weight_bytes: int
    index_bytes: int
    """Of what PyTorch's MaxPool keeps for its backward."""


@dataclass(frozen=True)
class Trace:
    """A forward pass in order."""

    layers: tuple[Layer, ...]
    map_bytes: tuple[int, ...]
    """Of each feature map, by its number; 0 is the input image."""

    @property
    def features(self) -> tuple[Layer, ...]:
        """The layers of feature extraction."""
        return tuple(layer for layer in self.layers if layer.kind is not Kind.LINEAR)

    def inputs_of(self, *kinds: Kind) -> set[int]:
        """The distinct maps that layers of these kinds read."""
        return {n for layer in self.layers if layer.kind in kinds for n in layer.inputs}

    def bytes_of(self, maps: set[int]) -> int:
        return sum(self.map_bytes[n] for n in maps)


class _Tracer:
    """Forward hooks that number storages; it holds each, so that none takes another's place."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.map_bytes: list[int] = []
        self._numbers: dict[int, int] = {}
        self._held: list[Tensor] = []

    def number(self, x: Tensor) -> int:
        storage = x.untyped_storage()
        number = self._numbers.setdefault(storage._cdata, len(self.map_bytes))
        if number == len(self.map_bytes):
            self._held.append(x)
            self.map_bytes.append(storage.nbytes())
        return number

    def hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            numbers = tuple(self.number(x) for x in inputs)
            weights = sum(p.nbytes for p in module.parameters())
            is_max = isinstance(module, nn.MaxPool2d)
            indices = output.numel() * INDEX_BYTES if is_max else 0
            kind = KINDS[type(module)]
            output_number = self.number(output)
            self.layers.append(Layer(name, kind, numbers, output_number, weights, indices))

        return note


def trace(workload: Workload, batch: int | None = None) -> Trace:
    """The layers of one training step's forward; float32, nothing is computed."""
    with torch.device("meta"):
        network = workload.build()
        images = torch.empty(workload.images_shape(batch))
    return trace_network(network, images)


def trace_network(network: Network, images: Tensor) -> Trace:
    tracer = _Tracer()
    tracer.number(images)
    for name, module in network.named_modules():
        if type(module) in KINDS:
            module.register_forward_hook(tracer.hook(name))
    with torch.no_grad():
        network(images)
    return Trace(tuple(tracer.layers), tuple(tracer.map_bytes))
