"""The out-of-memory error names who holds the memory: after a backward that is no layer of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import fresh

WIDTH = 123 * 8
HELD = (4, WIDTH, WIDTH)  # 14.8 MiB
BUDGET = {"budget": "48MiB", "check": 1}


def model_after_a_backward() -> nn.Sequential:
    """Small layers, whose gradients are there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 8))
    model(torch.ones(256, WIDTH)).square().sum().backward()
    return model


def layers() -> dict[str, int]:
    """Bytes that each owns now."""
    import vdnn_alloc

    return {layer.name: layer.owned_bytes for layer in vdnn_alloc.stats().layers}


def held_after_a_backward() -> tuple[dict[str, int], dict[str, int], str]:
    """What each layer owns before and after the program makes a tensor of its own, and the error
    when it asks for too much."""
    model = model_after_a_backward()
    before = layers()
    held = torch.ones(HELD)
    after = layers()
    try:
        torch.ones((16, *HELD))
    except torch.OutOfMemoryError as error:
        return before, after, str(error)
    finally:
        del model, held
    return before, after, "it was served"


def test_what_is_made_after_a_backward_belongs_to_no_layer() -> None:
    before, after, text = fresh.call(held_after_a_backward, install=BUDGET).result

    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert list(grown.values()) == [4 * HELD[0] * HELD[1] * HELD[2]]
    (outside,) = grown
    assert outside.split(".")[0] != "Sequential"
    assert text.startswith("CUDA out of memory. Tried to allocate")
    assert f"On the device is what these layers made: {outside} (" in text


def read_by_hand() -> tuple[dict[str, int], dict[str, int]]:
    """The same, where a saved tensor was looked at and there was no backward."""
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh())
    out = model(torch.ones(256, WIDTH))
    node = out.grad_fn
    assert node is not None
    seen = node._saved_result  # type: ignore[attr-defined]
    before = layers()
    held = torch.ones(HELD)
    after = layers()
    del model, out, held, seen
    return before, after


def test_what_is_made_after_a_look_at_a_saved_tensor_belongs_to_no_layer() -> None:
    before, after = fresh.call(read_by_hand, install=BUDGET).result

    grown = [name for name in after if after[name] != before[name]]
    assert [name.split(".")[0] for name in grown] != ["Sequential"]


def gradients_of_a_backward() -> dict[str, int]:
    """What each layer owns once its gradients are there."""
    model = model_after_a_backward()
    owned = layers()
    del model
    return owned


def test_gradients_belong_to_the_layer_whose_backward_made_them() -> None:
    owned = fresh.call(gradients_of_a_backward, install=BUDGET).result

    assert owned["Sequential.0"] >= 4 * 64 * WIDTH


class Greedy(torch.autograd.Function):
    """The identity; its backward asks for more than there is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad + torch.ones((16, *HELD)).sum() * x


def runs_out_in_backward() -> tuple[int, list[str]]:
    """How many workspaces count as refused, and the layers that own what is made after it."""
    import vdnn_alloc

    model = nn.Linear(WIDTH, 64)
    out = Greedy.apply(model(torch.ones(256, WIDTH))).sum()
    with pytest.raises(torch.OutOfMemoryError):
        out.backward()
    del out
    before = layers()
    held = torch.ones(HELD)
    after = layers()
    model(torch.ones(256, WIDTH)).sum().backward()
    del held
    grown = [name for name in after if after[name] != before[name]]
    return vdnn_alloc.stats().workspace_refusals, grown


def test_a_lack_of_memory_that_ends_a_backward_is_no_refused_workspace() -> None:
    refusals, owners = fresh.call(runs_out_in_backward, install=BUDGET).result

    assert refusals == 0
    assert owners == ["(outside every layer)"]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


def compiled_and_short() -> list[str]:
    """The last line of a run: after a shortage, and once a model was compiled as well."""
    import vdnn_alloc
    from vdnn_alloc.exit_report import exit_sentence
    from vdnn_alloc.installation import has_compiled

    model = Perceptron()
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones((16, *HELD))
    lines = [exit_sentence(vdnn_alloc.stats(), is_compiled=has_compiled())]
    model.compile(backend="aot_eager")
    model(torch.ones(64, 64)).sum().backward()
    return [*lines, exit_sentence(vdnn_alloc.stats(), is_compiled=has_compiled())]


def test_the_last_line_says_that_what_is_compiled_whole_must_fit() -> None:
    before, after = fresh.call(compiled_and_short, install=BUDGET).result

    assert "compile" not in before
    assert after.endswith("compile its layers one by one")
