"""What two trainings need so that their numbers can be compared bit for bit, and the comparison."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def be_deterministic() -> None:
    """What stock PyTorch needs to repeat itself to the bit."""
    torch.use_deterministic_algorithms(True)
    setting: Any = torch.utils.deterministic  # torch gives its attribute no types
    setting.fill_uninitialized_memory = False


def precision_scope(precision: str) -> AbstractContextManager[object]:
    """fp32 has TF32 off; bf16 is autocast."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else nullcontext()


def digest(model: nn.Module, *, gradients: bool) -> str:
    """One hash over all parameters, or all gradients."""
    hashed = hashlib.sha256()
    for parameter in model.parameters():
        tensor = parameter.grad if gradients else parameter
        assert tensor is not None
        hashed.update(tensor.detach().cpu().numpy().tobytes())
    return hashed.hexdigest()


class EngineRoom:
    """Makes stock PyTorch choose the convolution engines that a budget leaves it.

    cuDNN chooses an engine for each convolution in the first step, and keeps it. An engine whose
    workspace the budget cannot hold is refused there, and another engine has other bits. So that
    the two sides differ in nothing but where their bytes are, stock's first step runs under a
    memory fraction that leaves each convolution `room_bytes` beyond what is allocated when it
    begins, forward and backward.
    """

    def __init__(self, model: nn.Module, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._total_bytes = torch.cuda.get_device_properties(0).total_memory
        convolutions = (m for m in model.modules() if isinstance(m, nn.Conv2d))
        self._handles = [
            handle
            for module in convolutions
            for handle in (
                module.register_forward_pre_hook(lambda *_: self._leave_room()),
                module.register_forward_hook(self._before_backward),
            )
        ]

    def _leave_room(self) -> None:
        torch.cuda.empty_cache()
        allowed = torch.cuda.memory_allocated() + self._room_bytes
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / self._total_bytes))

    def _before_backward(self, module: nn.Module, args: object, output: Tensor) -> None:
        del module, args
        torch.cuda.set_per_process_memory_fraction(1.0)
        if output.grad_fn is not None:
            output.grad_fn.register_prehook(lambda _: self._leave_room())

    def close(self) -> None:
        """The engines are chosen."""
        for handle in self._handles:
            handle.remove()
        torch.cuda.set_per_process_memory_fraction(1.0)
