"""The record of a storage: which aliases it counts, where they are after a move, when it ends."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch

from tests.helpers import fresh

if TYPE_CHECKING:
    from vdnn_alloc.hooks import Hooks

SHAPE = (123 * 8, 256)  # just under 1 MB
TIGHT = {"budget": "12MiB", "check": 3}


def hooks() -> Hooks:
    """Those of this process."""
    from vdnn_alloc.installation import installation

    return installation().controller.hooks


def held(aliases: list[int]) -> int:
    """How many references hold the storage of a record's aliases, by torch's own count."""
    from vdnn_alloc.installation import installation

    counts = {int(installation().glue.use_count(alias)) for alias in aliases}
    assert len(counts) == 1, "they show one storage"
    return counts.pop()


def layered(count: int, *, width: int = 3) -> torch.Tensor:
    """A chain in which each map is saved `width` times, as itself and as views of it."""
    x = torch.linspace(-1, 1, SHAPE[0] * SHAPE[1]).view(SHAPE).requires_grad_() * 1
    for _ in range(count):
        y = torch.tanh(x)
        for view in [y, y.view(-1, 128), y.t()][:width]:
            x = torch.add(x, (view * view).reshape(SHAPE), alpha=0.1)
    return x.sum()


def counts_after_a_move() -> tuple[int, int, list[bool]]:
    """Whether every storage that came back is held by its record's aliases and nothing else."""
    loss = layered(10)
    before = hooks().records()
    loss.backward(retain_graph=True)
    moved = [aliases for life, aliases in hooks().records().items() if life not in before]
    exact = [held(aliases) == len(aliases) for aliases in moved]
    same = sorted(map(sorted, hooks().records().values())) == sorted(map(sorted, before.values()))
    return len(moved), max(len(aliases) for aliases in moved), [*exact, same]


def test_after_a_move_the_aliases_of_the_record_and_nothing_else_hold_the_storage() -> None:
    ended = fresh.call(counts_after_a_move, install=TIGHT)

    moved, most_aliases, exact = ended.result
    assert moved > 0
    assert most_aliases >= 3
    assert all(exact)


def input_saved_again_and_again() -> tuple[list[float], int]:
    """A tensor of the program, saved by graph after graph, must never be taken for ours alone."""
    kept = torch.full(SHAPE, 3.0)
    weight = torch.ones(SHAPE, requires_grad=True)
    seen = []
    for _ in range(6):
        (kept * weight).sum().backward()  # saves `kept`; its record dies at once
        seen.append(float(layered(10).detach()))
        gc.collect()
        seen.append(float(kept[5, 5]))
    assert weight.grad is not None
    return [*seen, float(weight.grad[5, 5])], len(hooks().records())


def test_a_tensor_that_the_program_holds_stays_though_old_records_counted_it() -> None:
    ended = fresh.call(input_saved_again_and_again, install={**TIGHT, "policy": "all"})

    values, alive = ended.result
    assert set(values[1:-1:2]) == {3.0}
    assert values[-1] == 18.0
    assert len(set(values[:-1:2])) == 1
    assert alive == 0


def storage_resized_by_its_holder() -> float:
    """As FSDP does with parameters: freed after forward, made again before backward."""
    kept = torch.full(SHAPE, 3.0)
    weight = torch.ones(SHAPE, requires_grad=True)
    loss = (kept * weight).sum()
    size = kept.untyped_storage().nbytes()
    kept.untyped_storage().resize_(0)
    kept.untyped_storage().resize_(size)
    kept.data.fill_(5.0)  # .data: no version changes
    loss.backward()
    assert weight.grad is not None
    return float(weight.grad[5, 5])


def test_a_storage_that_its_holder_resized_is_read_as_it_is_now() -> None:
    ours = fresh.same_as_stock(storage_resized_by_its_holder, install=TIGHT)

    assert ours.result == 5.0


def many_saves_of_one_storage() -> tuple[int, float]:
    """Graphs that overlap for ever, all of which save the same buffer."""
    hooks().set_max_aliases(50)
    buffer, graph = torch.full(SHAPE, 2.0), None
    weight = torch.ones(SHAPE, requires_grad=True)
    most = 0
    for _ in range(200):
        previous, graph = graph, (buffer * weight).sum()
        most = max([most, *map(len, hooks().records().values())])
        if previous is not None:
            previous.backward()
    assert weight.grad is not None
    return most, float(weight.grad[5, 5])


def test_a_record_of_a_storage_that_is_always_saved_does_not_grow_for_ever() -> None:
    ended = fresh.call(many_saves_of_one_storage, install={"budget": "64MiB", "check": 1})

    most, gradient = ended.result
    assert most == 50
    assert gradient == 199 * 2.0
