"""Maps that only a ReLU and the max pooling behind it saved, on a GPU: the gradients have stock's
bits, so no kernel reads what was not kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.helpers import fresh

INSTALL = {"budget": "4GiB", "backend": "cuda"}
SHAPES = {2: (64, 32, 64, 64), 3: (8, 16, 16, 64, 64)}
FORMS = {
    2: (torch.contiguous_format, torch.channels_last),
    3: (torch.contiguous_format, torch.channels_last_3d),
}
POOLS = {2: nn.MaxPool2d, 3: nn.MaxPool3d}


def gradients(dimensions: int) -> list[torch.Tensor]:
    """In both memory formats and in neither, in two types; of two backwards and a recorded one.
    Something else takes half of the budget meanwhile."""
    held, found = torch.empty(2 << 30, device="cuda", dtype=torch.uint8), []
    for form in (*FORMS[dimensions], None):
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            x = torch.randn(SHAPES[dimensions], device="cuda", dtype=dtype)
            x = x.transpose(-1, -2) if form is None else x.contiguous(memory_format=form)
            x = x.detach().requires_grad_()
            y = POOLS[dimensions](2)(nn.ReLU(inplace=True)(x * 1))
            for recorded in (False, False, True):
                loss = y.square().sum()
                (grad,) = torch.autograd.grad(loss, x, retain_graph=True, create_graph=recorded)
                found.append(grad.detach().contiguous().view(torch.int16).cpu())
    del held
    return found


@pytest.mark.parametrize("dimensions", [2, 3])
def test_gradients_have_stocks_bits(dimensions: int) -> None:
    stock = fresh.call(gradients, dimensions, timeout_s=100).result
    ours = fresh.call(gradients, dimensions, install=INSTALL, timeout_s=100)

    assert ours.stats is not None
    assert ours.stats["shrunk_bytes"] > 0
    assert all(torch.equal(a, b) for a, b in zip(stock, ours.result, strict=True))
