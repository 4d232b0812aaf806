"""Kernels that do not pass torch's dispatcher: Triton's, and C++ that is given a bare address."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.cpp_extension import load_inline

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import program
from tests.programs.seen import Seen


def fit_through(function: type[torch.autograd.Function]) -> Seen:
    """Training of a model that has the function behind some of its layers."""
    model, seen = classifier(depth=16), Seen()
    optimizer = sgd(model)
    for step in range(3):
        x = rows(2048, WIDTH, step)
        for number, layer in enumerate(model):
            x = function.apply(layer(x)) if number % 8 == 3 else layer(x)
        loss = functional.cross_entropy(x, labels(2048, step))
        del x
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


class Squared(torch.autograd.Function):
    """The kernel in forward, and on what was saved in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from tests.programs.cuda.triton_kernels import squared

        ctx.save_for_backward(x)
        return squared(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        from tests.programs.cuda.triton_kernels import squared

        (x,) = ctx.saved_tensors
        return grad * torch.sqrt(squared(2 * x)) * x.sign()


@program()
def triton_kernel() -> Seen:
    return fit_through(Squared)


SOURCE = """
// Scales count floats at a bare address of the GPU; the caller keeps the memory alive.
void scale_at(int64_t address, int64_t count, double factor) {
  auto options = torch::TensorOptions().dtype(torch::kFloat).device(torch::kCUDA);
  torch::from_blob(reinterpret_cast<void*>(address), {count}, options).mul_(factor);
}
"""


@cache
def extension() -> Any:
    """Compiled once and kept in torch's folder for extensions."""
    return load_inline("vdnn_alloc_test_scale_at", SOURCE, functions=["scale_at"])


class ScaledByAddress(torch.autograd.Function):
    """Hands out addresses, in forward of a new tensor, in backward of what was saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        out = x.clone()
        extension().scale_at(out.data_ptr(), out.numel(), 0.5)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        ones, out = torch.ones_like(x), grad.clone()
        extension().scale_at(ones.data_ptr(), ones.numel(), 0.5)
        return out * ones + 0.0 * x


@program()
def extension_that_is_given_an_address() -> Seen:
    extension()
    return fit_through(ScaledByAddress)
