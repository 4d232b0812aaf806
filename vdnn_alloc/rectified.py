"""What a rectifier and the pooling behind it save: a map whose values neither of them reads again.

The backward of ReLU asks of its result where it is above zero, and that of max pooling asks of its
input how large it is, for the indices say where the maxima were (derivatives.yaml of PyTorch:
threshold_backward, max_pool2d_with_indices_backward). Where those two are all that save a map, its
signs are kept in its place, a byte each, until backward: the gradients are the same, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch

_C: Any = torch._C
_RECTIFIER = "ReluBackward0"
_POOLINGS = ("MaxPool2DWithIndicesBackward0", "MaxPool3DWithIndicesBackward0")


def saves_signs(module: torch.nn.Module) -> bool:
    """Whether the layer is a rectifier."""
    return type(module) is torch.nn.ReLU and "forward" not in vars(module)


def signs(x: torch.Tensor) -> torch.Tensor:
    """Where gradients pass the rectifier: where x is above zero, or NaN."""
    with _C.DisableTorchFunction(), torch.no_grad():
        return torch.le(x, 0).logical_not_()


def revive(signs: torch.Tensor | None, form: torch.Tensor) -> torch.Tensor:
    """What the node that saved the map takes for it in its backward.

    `form` has the map's sizes, and no values behind them. A backward that is itself recorded gets
    the signs in the map's own type, as autograd expects of what it differentiates; else they serve
    as they are, and no map is made.

    Raises:
        RuntimeError: somebody else asks, who may want the values.
    """
    node = _C._current_autograd_node()
    name = None if node is None else node.name()
    if name not in (_POOLINGS if signs is None else (_RECTIFIER,)):
        raise RuntimeError(
            "vdnn_alloc: the values of a map that only a ReLU and the max pooling behind it have "
            "saved were not kept, for their backward does not read them; keep the tensor itself "
            "in your program, or set policy=all, to read them"
        )
    with _C.DisableTorchFunction():
        if signs is None and form.data_ptr() == 0:
            return torch.empty_strided(
                form.size(), form.stride(), dtype=form.dtype, device=form.device
            )
        if signs is None:
            return form
        return signs.to(form.dtype) if torch.is_grad_enabled() else signs
