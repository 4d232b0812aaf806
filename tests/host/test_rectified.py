"""Maps that only a ReLU and the max pooling behind it saved wait as signs: same gradients, fewer
bytes, and whoever wants the values after all is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import fresh
from tests.helpers.compare import digest

AMPLE = {"budget": "64MiB", "frame": "64KiB", "check": 3}
SHORT = {**AMPLE, "budget": "5MiB"}
EAGER = {**AMPLE, "policy": "all"}
MAP = (8, 16, 64, 64)  # 2 MiB
MAP_BYTES = 8 * 16 * 64 * 64 * 4
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, -1e-45)


def awkward(shape: tuple[int, ...]) -> Tensor:
    """With every kind of number in it."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    x.view(-1)[: len(SPECIAL) * 64] = torch.tensor(SPECIAL).repeat(64)
    return x


def in_a_row(*, inplace: bool, form: torch.memory_format, dtype: torch.dtype) -> list[Any]:
    """Two backwards through ReLU and pooling."""
    x = awkward(MAP).to(dtype, memory_format=form).requires_grad_()
    y = nn.MaxPool2d(2)(nn.ReLU(inplace)(x * 1))
    torch.nan_to_num(y).sum().backward(retain_graph=True)
    y.pow(2).nansum().backward()
    assert x.grad is not None
    return [x.grad.dtype, x.grad.stride(), digest(x.grad.contiguous().view(torch.uint8))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_have_the_same_bits(
    inplace: bool, form: torch.memory_format, dtype: torch.dtype
) -> None:
    kind = {"inplace": inplace, "form": form, "dtype": dtype}
    ours = fresh.same_as_stock(where_it_is_short, in_a_row, kind, install=AMPLE)

    assert shrunk(ours) >= MAP_BYTES // 4


def where_it_is_short(function: Callable[..., Any], kind: dict[str, Any] | None = None) -> Any:
    """Calls it while something else takes half of the budget."""
    held = torch.zeros(33 << 20, dtype=torch.uint8)
    result = function(**(kind or {}))
    del held
    return result


def _plainly(function: Callable[..., Any]) -> Any:
    return function()


def shrunk(ended: fresh.Ended) -> int:
    assert ended.stats is not None
    return ended.stats["shrunk_bytes"]


def in_3d() -> list[float]:
    x = awkward((4, 8, 16, 32, 32)).requires_grad_()
    y = nn.MaxPool3d(2)(nn.ReLU()(x * 1))
    torch.nan_to_num(y).sum().backward()
    assert x.grad is not None
    return x.grad.flatten().tolist()[::41]


def in_an_unusual_order() -> list[float]:
    """A dense map that is in neither memory format, so the pooling's backward copies its input."""
    x = awkward(MAP).requires_grad_()
    y = nn.MaxPool2d(2)(nn.ReLU()((x * 1).permute(0, 2, 3, 1).transpose(1, 2)))
    torch.nan_to_num(y).sum().backward()
    assert x.grad is not None
    return x.grad.flatten().tolist()[::41]


def twice_differentiated() -> list[float]:
    """The gradient of a gradient's norm."""
    torch.manual_seed(0)
    x = torch.randn(MAP, requires_grad=True)
    y = nn.MaxPool2d(2)(nn.ReLU()(x.pow(3)))
    (first,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    first.pow(2).sum().backward()
    assert x.grad is not None
    return [*first.flatten().tolist()[::41], *x.grad.flatten().tolist()[::41]]


class Branches(nn.Module):
    """Somebody else saves the map as well: before the pooling, or after it."""

    def __init__(self, *, pooling_first: bool) -> None:
        super().__init__()
        self.pooling_first = pooling_first
        self.rectify, self.pool = nn.ReLU(), nn.MaxPool2d(2)
        self.other = nn.Conv2d(16, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.rectify(x * 1)
        if self.pooling_first:
            pooled = self.pool(h)
            return self.other(h).square().sum() + pooled.square().sum()
        other = self.other(h).square().sum()
        return other + torch.as_tensor(self.pool(h)).square().sum()


def two_readers(*, pooling_first: bool) -> list[float]:
    torch.manual_seed(0)
    model = Branches(pooling_first=pooling_first)
    x = torch.randn(MAP, requires_grad=True)
    model(x).backward()
    assert x.grad is not None
    assert model.other.weight.grad is not None
    return [*x.grad.flatten().tolist()[::41], *model.other.weight.grad.flatten().tolist()]


def another_tensor_of_a_hook() -> list[float]:
    """A hook of the program puts something else in the place of the rectifier's result."""
    torch.manual_seed(0)
    x = torch.randn(MAP, requires_grad=True)
    rectify = nn.ReLU()
    rectify.register_forward_hook(lambda _m, _a, out: out.sigmoid())
    nn.MaxPool2d(2)(rectify(x * 1)).square().sum().backward()
    assert x.grad is not None
    return x.grad.flatten().tolist()[::41]


def square_of_a_hook() -> list[float]:
    """A hook of the program saves the rectifier's result in the rectifier's own layer."""
    torch.manual_seed(0)
    x = torch.randn(MAP, requires_grad=True)
    kept = []
    rectify = nn.ReLU()
    rectify.register_forward_hook(lambda _m, _a, out: kept.append(out.square().sum()))
    (nn.MaxPool2d(2)(rectify(x * 1)).square().sum() + kept[0]).backward()
    assert x.grad is not None
    return x.grad.flatten().tolist()[::41]


@pytest.mark.parametrize("around", [where_it_is_short, _plainly], ids=["short", "ample"])
@pytest.mark.parametrize(
    "program",
    [
        in_3d,
        in_an_unusual_order,
        twice_differentiated,
        another_tensor_of_a_hook,
        square_of_a_hook,
    ],
)
def test_other_uses_have_the_same_numbers(
    program: Callable[[], list[float]], around: Callable[..., Any]
) -> None:
    fresh.same_as_stock(around, program, install=AMPLE)


@pytest.mark.parametrize("pooling_first", [False, True])
def test_who_reads_the_values_too_has_them(pooling_first: bool) -> None:
    fresh.same_as_stock(
        where_it_is_short, two_readers, {"pooling_first": pooling_first}, install=AMPLE
    )


def trained() -> list[float]:
    """A network that does not fit as it is, and does with signs."""
    torch.manual_seed(0)
    blocks = [(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(1)) for _ in range(4)]
    model = nn.Sequential(*(layer for block in blocks for layer in block))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(2, 16, 64, 64, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_that_is_short_of_memory_has_the_same_numbers() -> None:
    ours = fresh.same_as_stock(trained, install=SHORT)

    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] > 0
    assert shrunk(ours) > 0


def live_bytes() -> int:
    """What the two layers leave alive besides their output."""
    import vdnn_alloc

    x = torch.randn(MAP, requires_grad=True) * 1
    before = vdnn_alloc.stats().live_bytes
    y = nn.MaxPool2d(2)(nn.ReLU()(x))
    return vdnn_alloc.stats().live_bytes - before - y.nbytes


def test_the_map_is_gone_when_the_pooling_returns() -> None:
    indices = MAP_BYTES // 16 * 2  # int16 for each of a quarter of the places
    short = fresh.call(where_it_is_short, live_bytes, install=AMPLE)
    eager = fresh.call(where_it_is_short, live_bytes, install=EAGER)
    assert short.result == MAP_BYTES // 4 + indices
    assert eager.result == MAP_BYTES + indices


def bytes_of_a_pooling_backward() -> int:
    """What the backward of a pooling needs besides what is there before it."""
    import vdnn_alloc

    h = nn.ReLU()(torch.randn(MAP, requires_grad=True) * 1)
    y = nn.MaxPool2d(2)(h)
    grad = torch.ones_like(y)
    vdnn_alloc.reset_peaks()
    before = vdnn_alloc.stats().live_bytes
    torch.autograd.grad(y, h, grad)
    return vdnn_alloc.stats().live_bytes_max - before


def test_the_poolings_backward_needs_no_map_for_its_input() -> None:
    widened = MAP_BYTES // 4 * 2  # the indices as int64
    needed = fresh.call(where_it_is_short, bytes_of_a_pooling_backward, install=AMPLE).result
    assert MAP_BYTES + widened <= needed < MAP_BYTES + widened + MAP_BYTES // 4


def watched() -> list[float]:
    """A backward whose operators somebody looks at, and reads."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reader(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            for x in args:
                if isinstance(x, Tensor):
                    x.untyped_storage().nbytes()
                    x.flatten()[:1].tolist()
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    x = torch.randn(MAP, requires_grad=True)
    y = nn.MaxPool2d(2)(nn.ReLU()(x * 1))
    with Reader():
        y.square().sum().backward()
    assert x.grad is not None
    return x.grad.flatten().tolist()[::41]


def test_who_reads_the_inputs_of_operators_meets_no_fault() -> None:
    fresh.same_as_stock(where_it_is_short, watched, install=AMPLE)


def read_by_hand() -> list[str]:
    """The errors of asking either node for its map, inside and outside a backward."""
    y = nn.MaxPool2d(2)(nn.ReLU()(torch.randn(MAP, requires_grad=True) * 1))
    pooling: Any = y.grad_fn
    rectifier = pooling.next_functions[0][0]
    said = []

    def ask(_: Tensor) -> None:
        for read in (lambda: pooling._saved_self, lambda: rectifier._saved_result):
            with pytest.raises(RuntimeError, match="policy=all") as raised:
                read()
            said.append(str(raised.value))

    ask(y)
    z = y * 1
    z.register_hook(ask)
    z.sum().backward()
    return said


def test_whoever_asks_for_the_values_is_told_that_they_are_gone() -> None:
    said = fresh.call(where_it_is_short, read_by_hand, install=AMPLE).result
    assert len(set(said)) == 1


def values_by_hand() -> list[float]:
    torch.manual_seed(0)
    y = nn.MaxPool2d(2)(nn.ReLU()(torch.randn(MAP, requires_grad=True) * 1))
    pooling: Any = y.grad_fn
    values = [pooling._saved_self, pooling.next_functions[0][0]._saved_result]
    return torch.stack(values).flatten().tolist()[::41]


def test_a_program_that_is_not_short_has_every_value() -> None:
    fresh.same_as_stock(_plainly, values_by_hand, install=AMPLE)


def changed_in_place(*, before_the_pooling: bool) -> str:
    """Overwrites the rectifier's result after it was saved."""
    h = nn.ReLU()(torch.randn(MAP, requires_grad=True) * 1)
    if before_the_pooling:
        h.mul_(2)
    y = nn.MaxPool2d(2)(h)
    if not before_the_pooling:
        with torch.no_grad():
            h.mul_(2)
    with pytest.raises(RuntimeError) as raised:
        y.sum().backward()
    return str(raised.value)


@pytest.mark.parametrize("before_the_pooling", [False, True])
def test_a_change_in_place_is_refused_in_autograds_words(before_the_pooling: bool) -> None:
    kind = {"before_the_pooling": before_the_pooling}
    fresh.same_as_stock(where_it_is_short, changed_in_place, kind, install=AMPLE)
