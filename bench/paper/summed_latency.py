"""The paper's oracle where a network does not fit the GPU: each layer alone, its times summed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bench.same_numbers import precision_scope

if TYPE_CHECKING:
    from bench.paper.networks import Workload

REPEATS = 3  # the first chooses engines, the fastest of the rest counts


def summed_step_ms(workload: Workload, batch: int | None, precision: str) -> float:
    """Forward and backward of every layer on fresh data, in milliseconds; no update."""
    return sum(_layer_ms(module, shapes, precision) for module, shapes in _layers(workload, batch))


def _layers(workload: Workload, batch: int | None) -> list[tuple[nn.Module, list[tuple[int, ...]]]]:
    """Every layer, on the meta device, and the shapes that it reads."""
    found: list[tuple[nn.Module, list[tuple[int, ...]]]] = []
    with torch.device("meta"):
        network = workload.build()
        images = torch.empty(workload.images_shape(batch))
    handles = [
        module.register_forward_hook(
            lambda module, inputs, _: found.append((module, [tuple(x.shape) for x in inputs]))
        )
        for module in network.modules()
        if not list(module.children())
    ]
    with torch.no_grad():
        network(images)
    for handle in handles:
        handle.remove()
    return found


def _layer_ms(module: nn.Module, shapes: list[tuple[int, ...]], precision: str) -> float:
    layer = module.to_empty(device="cuda")
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.01)
    times = []
    for _ in range(REPEATS):
        leaves = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
        times.append(_once_ms(layer, leaves, precision))
        layer.zero_grad()
    layer.to_empty(device="meta")
    return min(times[1:])


def _once_ms(layer: nn.Module, leaves: list[Tensor], precision: str) -> float:
    inputs = [leaf.view_as(leaf).clone() for leaf in leaves]  # ReLU may not write to a leaf
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with precision_scope(precision):
        output: Tensor = layer(*inputs)
    torch.autograd.backward(output, torch.ones_like(output))
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3
