"""Indices of max pooling wait as a smaller type: same gradients, and fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import fresh

EAGER = {"budget": "64MiB", "policy": "all", "check": 3}
CALM = {"budget": "64MiB"}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.MaxPool1d(3, 2), (4, 123, 984)),
    "1d, no batch": (lambda: nn.MaxPool1d(2), (123, 984)),
    "2d, few places": (lambda: nn.MaxPool2d(2), (8, 64, 16, 16)),
    "2d, 257 places": (lambda: nn.MaxPool2d((1, 2)), (64, 41, 1, 257)),
    "2d, many places": (lambda: nn.MaxPool2d(2), (2, 3, 246, 260)),
    "2d, more places": (lambda: nn.MaxPool2d(2), (1, 3, 410, 410)),
    "2d, padded": (lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), (8, 41, 30, 41)),
    "2d, dilated": (lambda: nn.MaxPool2d(2, 2, dilation=3, ceil_mode=True), (8, 41, 30, 41)),
    "2d, no batch": (lambda: nn.MaxPool2d(2), (41, 64, 64)),
    "3d": (lambda: nn.MaxPool3d(2, ceil_mode=True), (2, 3, 9, 41, 21)),
}
Outcome = tuple[list[torch.Tensor], list[list[int]]]


def gradients(name: str) -> list[list[float]]:
    """Of a first and a second backward through a pooling, once more channels last."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    found = []
    for form in (torch.contiguous_format, torch.channels_last)[: 1 + (len(shape) == 4)]:
        x = torch.randn(shape).contiguous(memory_format=form).requires_grad_()
        y = make()(x * 1)
        weights = torch.randn_like(y)
        for _ in range(2):
            (y * weights).sum().backward(retain_graph=True)
            assert x.grad is not None
            found.append(x.grad.flatten().tolist())
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_the_same_at_a_first_and_a_second_backward(name: str) -> None:
    ours = fresh.same_as_stock(gradients, name, install=EAGER)

    assert ours.stats is not None
    assert ours.stats["shrunk_bytes"] > 0


def calm_then_short() -> list[int]:
    """Bytes saved by the same loop while it fits, and then where it does not."""
    import vdnn_alloc

    def step(width: int) -> None:
        x = torch.randn(width, 64, 32, 32, requires_grad=True)
        for _ in range(6):
            x = nn.MaxPool2d(3, 1, padding=1)(torch.tanh(x))
        x.sum().backward()

    found = []
    for width in (2, 2, 2, 16, 2):
        step(width)
        found.append(vdnn_alloc.stats().shrunk_bytes)
    return found


def test_nothing_shrinks_once_a_step_has_fitted_and_all_does_once_something_had_to_move() -> None:
    first, second, third, short, last = fresh.call(calm_then_short, install=CALM).result

    assert first == second == third
    assert last - short == 6 * 2 * 64 * 32 * 32 * (8 - 2)


def live_bytes() -> int:
    """What a pooling leaves alive besides its output, when it has returned."""
    import vdnn_alloc

    x = torch.randn(8, 64, 64, 64, requires_grad=True)
    nn.MaxPool2d(2)(x).sum().backward()
    before = vdnn_alloc.stats().live_bytes
    y = nn.MaxPool2d(2)(x)
    return vdnn_alloc.stats().live_bytes - before - y.nbytes


def test_the_int64_is_gone_when_the_layer_returns() -> None:
    places = 8 * 64 * 32 * 32

    assert fresh.call(live_bytes, install=CALM).result == places * 8
    assert fresh.call(live_bytes, install=EAGER).result == places * 2


def held_by_the_user() -> list[Any]:
    """Indices that the program is given stay as they are, and serve unpooling."""
    torch.manual_seed(0)
    x = torch.randn(8, 64, 32, 32, requires_grad=True)
    y, indices = nn.MaxPool2d(2, return_indices=True)(x)
    nn.MaxUnpool2d(2)(y, indices).pow(2).sum().backward()
    assert x.grad is not None
    return [indices.dtype, indices.sum().item(), x.grad.flatten().tolist()]


def test_indices_that_the_program_holds_stay_as_they_are() -> None:
    ours = fresh.same_as_stock(held_by_the_user, install=EAGER)

    assert ours.stats is not None
    assert ours.stats["shrunk_bytes"] == 0


def foreign_index_in_a_hook() -> list[float]:
    """A hook of the program saves an int64 of the pooled shape, which tells more places apart."""
    table = torch.randn(4096, 16, requires_grad=True)
    pool = nn.MaxPool2d(2)
    index = torch.arange(4096).flip(0)[:1024].view(4, 16, 16)

    def add_rows(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (args[0] + table[index].sum(),)

    pool.register_forward_pre_hook(add_rows)
    pool(torch.randn(4, 16, 16, 16)).sum().backward()
    assert table.grad is not None
    return table.grad.sum(1).tolist()


def test_an_int64_that_a_hook_of_the_program_saves_is_not_taken_for_indices() -> None:
    fresh.same_as_stock(foreign_index_in_a_hook, install=EAGER)


def changed_through_the_node() -> str:
    """A program that looks up the saved indices and changes them is told so."""
    y = nn.MaxPool2d(2)(torch.randn(8, 64, 32, 32, requires_grad=True) * 1)
    indices = y.grad_fn._saved_result1  # type: ignore[union-attr]
    assert indices.dtype == torch.int64
    indices.add_(1)
    with pytest.raises(RuntimeError) as raised:
        y.sum().backward()
    return str(raised.value)


def test_indices_that_the_program_changes_are_refused_in_autograds_words() -> None:
    fresh.same_as_stock(changed_through_the_node, install=EAGER)
