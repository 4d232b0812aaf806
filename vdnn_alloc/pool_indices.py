"""The indices that max pooling saves: how few bytes hold each of them.

A pooling layer saves where in its input's plane each maximum was, as int64. The plane has few
places, and its size is known before the layer runs; so while the indices wait for backward they
are kept as the smallest type that counts that far, without a look at a single value.
"""

from __future__ import annotations

from typing import Any

import torch

_modules: Any = torch.nn.modules.module
_DIMENSIONS: dict[type, int] = {
    torch.nn.MaxPool1d: 1,
    torch.nn.MaxPool2d: 2,
    torch.nn.MaxPool3d: 3,
}
"""Of the plane. The adaptive layers are left out: where they run, outputs are small."""
_TYPES = (
    (1 << 8, torch.uint8),
    (1 << 15, torch.int16),
    (1 << 16, torch.uint16),
    (1 << 31, torch.int32),
)
"""How many places each type can tell apart, and which it is."""


def may_shrink(module: torch.nn.Module) -> bool:
    """Whether what this layer saves as int64 is its indices, and nobody else's.

    Not if the program is given them (return_indices), or code of the program runs inside the call.
    Nor where a dilated window may lie in the padding alone: its index points outside the plane.
    """
    if type(module) not in _DIMENSIONS or "forward" in vars(module):
        return False
    pool: Any = module
    is_dilated = any(size != 1 for size in _sizes(pool.dilation))
    is_padded = any(size != 0 for size in _sizes(pool.padding))
    return not (pool.return_indices or (is_dilated and is_padded))


def smallest_type(module: torch.nn.Module, args: tuple[Any, ...]) -> torch.dtype | None:
    """What holds the indices of this call of such a layer; None: they stay as they are."""
    runs_no_other_code = not module._forward_pre_hooks and (
        len(_modules._global_forward_pre_hooks) == 1  # ours
    )
    if not runs_no_other_code or not may_shrink(module) or len(args) != 1:
        return None
    plane = args[0].shape[-_DIMENSIONS[type(module)] :]
    return next((dtype for places, dtype in _TYPES if plane.numel() <= places), None)


def narrow(indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy as `dtype`, which holds them all; unseen by the program's function modes."""
    with torch._C.DisableTorchFunction():
        return indices.to(dtype)


def widen(narrowed: torch.Tensor) -> torch.Tensor:
    """The indices as they were."""
    with torch._C.DisableTorchFunction():
        return narrowed.to(torch.int64)


def _sizes(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)
