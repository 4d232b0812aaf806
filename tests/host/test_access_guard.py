"""Whatever a program does with a tensor that it holds, it finds the right bytes, wherever they are.

Each program runs by PyTorch alone and under a budget that half of its tensors fit, where the guard
lets them leave, and must return the same.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import fresh
from tests.helpers.compare import digest
from tests.helpers.models import FlatUNet, match, pictures_and_masks

TIGHT = {"budget": "6MiB", "guard": "on", "check": 3}
SHAPE = (123 * 16, 32)  # just under 256 KiB
COUNT = 36  # 9 MiB

MESSAGE = "modified by an inplace operation"


def features(count: int = COUNT, seed: int = 1) -> tuple[Tensor, list[Tensor]]:
    """A leaf, and a chain of tensors that autograd saved and the caller holds."""
    leaf = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    x, held = leaf, []
    for _ in range(count):
        x = torch.tanh(1.3 * x)
        held.append(x)
    return leaf, held


def backward(leaf: Tensor, held: list[Tensor]) -> str:
    """The gradient of all of them together."""
    leaf.grad = None
    total = held[-1].sum() + held[len(held) // 2].square().sum()
    held.clear()
    total.backward()
    assert leaf.grad is not None
    return digest(leaf.grad)


def means_after_forward() -> list[Any]:
    """What a program prints of its feature maps."""
    leaf, held = features()
    return [[feature.mean().item() for feature in held], backward(leaf, held)]


def read_in_every_way() -> list[Any]:
    """By operators of other kinds, and by what passes none: NumPy, DLPack, pickling, addresses."""
    leaf, held = features()
    seen: list[Any] = []
    for start in (0, 7):
        seen.append(digest(held[start]))
        seen.append(held[start + 1].detach().numpy()[3, :].tolist())
        seen.append(float(torch.from_dlpack(held[start + 2].detach()).sum()))
        seen.append(held[start + 3][5].tolist())
        seen.append(held[start + 4].flatten()[17].item())
        seen.append(ctypes.string_at(held[start + 5].data_ptr(), 64))
        seen.append(bytes(held[start + 6].detach().untyped_storage()[:32].tolist()))
    seen.append(torch.cat(held[:3]).sum().item())
    seen.append(sum(row.sum().item() for row in held[9].unbind()))
    seen.append(held[10].detach().clone().add_(1.0).sum().item())
    return [*seen, backward(leaf, held)]


def written_past_torch() -> list[Any]:
    """NumPy writes into tensors that operators then read; no backward asks for their values."""
    leaf, held = features()
    for feature in held[2:6]:
        feature.detach().numpy()[0, :] = 7.0
    return [feature.sum().item() for feature in held] + [digest(leaf)]


def written_by_operators() -> list[Any]:
    """In place, and as the output of an operator, where autograd allows it."""
    _, held = features()
    with torch.no_grad():
        for feature in held[:6]:
            feature.mul_(0.5)
        torch.add(held[6], 1.0, out=held[7].detach())
        held[8].copy_(held[9])
        held[10][3:5].zero_()
    return [digest(feature) for feature in held]


def averages() -> list[Any]:
    """An optimizer and an exponential moving average, beside the features of three steps."""
    torch.manual_seed(3)
    weight = torch.nn.Parameter(torch.randn(32, 32) / 6)
    average = weight.detach().clone()
    optimizer = torch.optim.Adam([weight], lr=0.01)
    running = torch.zeros(SHAPE)
    for step in range(3):
        x, held = torch.randn(SHAPE, generator=torch.Generator().manual_seed(step)), []
        for _ in range(24):
            x = torch.tanh(x @ weight)
            held.append(x)
        optimizer.zero_grad()
        x.square().mean().backward(retain_graph=True)
        optimizer.step()
        with torch.no_grad():
            average.lerp_(weight, 0.1)
            for feature in held[::5]:
                running.lerp_(feature, 0.1)
    return [digest(weight), digest(average), digest(running)]


def operators_that_raise() -> list[Any]:
    """What failed keeps nothing at home: afterwards everything can leave again."""
    leaf, held = features()
    for feature in held[:20]:
        with pytest.raises(RuntimeError):
            torch.cat([feature, feature.new_zeros(3, 5)], 1)
    more = features(20, seed=2)
    return [backward(*more), backward(leaf, held)]


class FailsHalfway(nn.Module):
    """Holds what it made when it raises."""

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for _ in range(COUNT):
            x = torch.tanh(x)
            kept.append(x)
        raise ValueError(str(kept[0].sum().item()))


def a_forward_that_raises() -> list[Any]:
    """Three times, and then a step that does not."""
    words = []
    for _ in range(3):
        with pytest.raises(ValueError, match=r"\d") as error:
            FailsHalfway()(torch.ones(SHAPE).requires_grad_())
        words.append(str(error.value))
        del error
    gc.collect()
    return [*words, backward(*features())]


def evaluation_between_steps() -> list[Any]:
    """Forwards that save nothing, while the features of an open step are held."""
    leaf, held = features(24)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.03)
    seen = []
    with torch.no_grad():
        seen += [digest(model(feature)) for feature in held[::4]]
    with torch.inference_mode():
        seen += [digest(model(feature)) for feature in held[1::4]]
    return [*seen, backward(leaf, held)]


def held_across_backward() -> list[Any]:
    """Read when their graph is gone, and nobody but the program knows of them."""
    leaf, held = features()
    held[-1].sum().backward()
    assert leaf.grad is not None
    return [digest(leaf.grad), *(feature.mean().item() for feature in held)]


def walked_twice() -> list[Any]:
    """The graph is kept, and the features are read between the walks."""
    leaf, held = features()
    total, seen = held[-1].sum(), []
    for again in (True, False):
        leaf.grad = None
        total.backward(retain_graph=again)
        assert leaf.grad is not None
        seen += [digest(leaf.grad), held[4].mean().item(), held[20].mean().item()]
    return seen


def compiled_blocks() -> list[Any]:
    """Each a graph of its own, whose inputs and outputs the program holds."""
    block = torch.compile(lambda x: torch.tanh((1.3 * x).sin()), backend="aot_eager")
    leaf = torch.linspace(-1, 1, SHAPE[0] * SHAPE[1]).view(SHAPE).requires_grad_()
    x, held = leaf, []
    for _ in range(24):
        x = block(x)
        held.append(x)
    seen = [feature.mean().item() for feature in held]
    return [*seen, backward(leaf, held)]


def threads_that_train() -> list[Any]:
    """Two threads, each with a model that holds its feature maps."""
    results: list[Any] = [None, None]

    def train(number: int) -> None:
        torch.set_num_threads(1)
        nn.Identity()(torch.ones(1))  # vdnn_alloc meets a thread at its first module
        results[number] = [backward(*features(14, seed=10 * number + i)) for i in range(4)]

    threads = [threading.Thread(target=train, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def a_child_reads() -> list[Any]:
    """A forked child sees what its parent holds, and what it writes stays its own."""
    leaf, held = features()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ends = [float(feature.sum()) for feature in held]
        with torch.no_grad():
            for feature in held:
                feature.fill_(5.0)
        os.write(writing, repr(ends).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        seen = pipe.read()
    return [seen, [digest(feature) for feature in held], backward(leaf, held)]


PROGRAMS = [
    means_after_forward,
    read_in_every_way,
    written_past_torch,
    written_by_operators,
    averages,
    operators_that_raise,
    a_forward_that_raises,
    evaluation_between_steps,
    held_across_backward,
    walked_twice,
    compiled_blocks,
    threads_that_train,
    a_child_reads,
]


# Rules 1, 2, 5 and 11.
@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_sees_the_same_bytes(program: Callable[[], list[Any]], seed: int) -> None:
    ours = fresh.same_as_stock(program, install={**TIGHT, "seed": seed})

    assert ours.stats is not None
    assert ours.stats["guarded_out_bytes"] > 0
    assert ours.stats["created_bytes_max"] <= ours.stats["budget_bytes"]


def test_a_program_without_modules_has_the_guard_in_its_first_step() -> None:
    ours = fresh.same_as_stock(means_after_forward, install={**TIGHT, "guard": "auto"})

    assert ours.stats is not None
    assert ours.stats["guarded_out_bytes"] > 0


def test_what_operators_read_came_home_first() -> None:
    ours = fresh.call(means_after_forward, install=TIGHT)

    assert ours.stats is not None
    assert ours.stats["guard_restores"] > 0
    assert ours.stats["guarded_in_bytes"] > 0


def read_lists_of_lists() -> tuple[int, int]:
    """How many are away before and after an operator that takes them as collectives take theirs."""
    import vdnn_alloc

    torch.library.define("probe::gather", "(Tensor[][] lists, Tensor own) -> Tensor")
    torch.library.impl("probe::gather", "cpu", lambda lists, own: lists[0][0].sum() + own)
    _, held = features()
    before = vdnn_alloc.stats().guarded_blocks
    with torch.no_grad():
        torch.ops.probe.gather([held[:2], held[2:4]], torch.ones(1))
    return before, vdnn_alloc.stats().guarded_blocks


def test_what_lies_in_lists_of_lists_comes_home() -> None:
    ours = fresh.call(read_lists_of_lists, install=TIGHT)

    assert ours.stats is not None
    assert ours.stats["guard_restores"] >= 4


def read_by_address() -> tuple[int, int]:
    """How many are away before and after the bytes of all are read past the operators."""
    import vdnn_alloc

    _, held = features()
    before = vdnn_alloc.stats().guarded_blocks
    read = sum(len(ctypes.string_at(feature.data_ptr(), 4096)) for feature in held)
    assert read == COUNT * 4096
    return before, vdnn_alloc.stats().guarded_blocks


def test_a_view_or_an_address_brings_nothing_home() -> None:
    before, after = fresh.call(read_by_address, install=TIGHT).result

    assert before > 0
    assert after == before


def overwritten_while_away() -> list[str]:
    """The words of autograd for each of the features that was changed before its backward."""
    leaf, held = features()
    with torch.no_grad():
        held[3].add_(1.0)
    try:
        backward(leaf, held)
    except RuntimeError as error:
        return [str(error)]
    return []


def test_overwriting_what_is_away_is_rejected_in_autograds_words() -> None:
    ours = fresh.call(overwritten_while_away, install=TIGHT)
    stock = fresh.call(overwritten_while_away)

    assert len(stock.result) == 1
    assert MESSAGE in ours.result[0]
    versions = re.compile(r"is at version \d+; expected version \d+")
    assert versions.findall(ours.result[0]) == versions.findall(stock.result[0]) != []
    assert ours.stats is not None
    assert ours.stats["guarded_out_bytes"] > 0


def hold_too_much() -> str:
    """Tensors that autograd never saved cannot leave, whatever the guard does."""
    held = [torch.ones(SHAPE) for _ in range(12)]
    try:
        held += [torch.ones(SHAPE) for _ in range(COUNT)]
    except torch.OutOfMemoryError as error:
        return str(error)
    return ""


def test_what_was_never_saved_stays() -> None:
    ours = fresh.call(hold_too_much, install=TIGHT)

    assert "CUDA out of memory" in ours.result
    assert ours.stats is not None
    assert ours.stats["guarded_out_bytes"] == 0


def unseen_operators() -> str:
    """On a thread where torch records no operators, none may lose its inputs."""
    torch._C._autograd._enable_record_function(False)
    try:
        features()
    except torch.OutOfMemoryError as error:
        return str(error)
    finally:
        torch._C._autograd._enable_record_function(True)
    return ""


def test_where_operators_are_not_recorded_nothing_held_leaves() -> None:
    ours = fresh.call(unseen_operators, install=TIGHT)

    assert "CUDA out of memory" in ours.result
    assert ours.stats is not None
    assert ours.stats["guarded_out_bytes"] == 0


def steps_of(model: FlatUNet, count: int) -> list[int]:
    """Trains, and says after each step whether the guard is on."""
    import vdnn_alloc

    batch, seen = pictures_and_masks(8)(torch.Generator().manual_seed(0)), []
    for _ in range(count):
        match(model, batch).backward()
        seen.append(vdnn_alloc.stats().guard_is_on)
    return seen


def large_steps_then_small_ones() -> tuple[list[int], list[int]]:
    """Steps that need the guard, and then others, of a kind that does not."""
    large = steps_of(FlatUNet(), 2)
    return large, steps_of(FlatUNet(width=4), 4)


def test_the_guard_comes_on_by_itself_and_goes_off_when_no_step_needs_it() -> None:
    install = {"budget": "11MiB", "guard": "auto"}

    large, small = fresh.call(large_steps_then_small_ones, install=install).result

    assert large == [1, 1]
    assert small[-1] == 0
