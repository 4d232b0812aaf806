"""When the user has let go of everything, nothing is left; and repetition grows nothing."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers import fresh
from tests.helpers.compare import stats_row
from tests.helpers.models import WORKLOADS
from tests.helpers.run_training import make_optimizer

# Everything that must be zero once all tensors are gone.
LEFT = ("live_bytes", "live_blocks", "resident_bytes", "owned_bytes", "offloaded_blocks",
        "heap_blocks", "host_bytes")  # fmt: skip


def train_and_let_go(name: str, steps: int) -> None:
    """Trains a model, and drops it with its optimizer and data."""
    workload = WORKLOADS[name]
    model = workload.build()
    optimizer = make_optimizer("adam", model)
    for number in range(steps):
        batch = workload.batch(torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        workload.loss(model, batch).backward()
        optimizer.step()


def abandon_a_forward(name: str) -> None:
    """Drops a graph whose feature maps are away."""
    workload = WORKLOADS[name]
    workload.loss(workload.build(), workload.batch(torch.Generator()))


def counters() -> dict[str, int]:
    """What is held now, the garbage collected first."""
    import vdnn_alloc
    from tests.helpers import simulation

    gc.collect()
    simulation.validate()
    row = stats_row(vdnn_alloc.stats())
    return {**row, "kernel_mappings": simulation.mapping_count(), "private_bytes": private_bytes()}


def private_bytes() -> int:
    """Memory of this process that is not shared: the frames, which are, do not count."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def hold_nothing(name: str, *, abandon: bool) -> dict[str, int]:
    """Counters once everything that was made has been deleted."""
    before = counters()
    train_and_let_go(name, 4)
    if abandon:
        abandon_a_forward(name)
    after = counters()
    return {counter: after[counter] - before[counter] for counter in LEFT} | {
        "offloaded_bytes": after["offloaded_bytes"]
    }


def trained_only(name: str) -> dict[str, int]:
    """Every graph was walked backward."""
    return hold_nothing(name, abandon=False)


def trained_and_abandoned(name: str) -> dict[str, int]:
    """The last graph was not."""
    return hold_nothing(name, abandon=True)


@pytest.mark.parametrize("policy", ["dyn", "all"])
@pytest.mark.parametrize("program", [trained_only, trained_and_abandoned])
@pytest.mark.parametrize("name", ["chain", "unet"])
def test_nothing_is_left_once_everything_is_deleted(
    name: str, program: Callable[[str], dict[str, int]], policy: str
) -> None:
    ours = fresh.call(program, name, install={"budget": "14MiB", "policy": policy})

    assert ours.result.pop("offloaded_bytes") > 0
    assert ours.result == dict.fromkeys(LEFT, 0)


def fifty_repetitions() -> list[dict[str, int]]:
    """The counters after each time that a model was made, trained and dropped."""
    seen = []
    for number in range(50):
        train_and_let_go("chain", 2)
        if number % 5 == 0:
            abandon_a_forward("chain")
        seen.append(counters())
    return seen


def test_fifty_repetitions_grow_nothing() -> None:
    ours = fresh.call(fifty_repetitions, install={"budget": "12MiB", "check": 1})

    early, late = ours.result[15], ours.result[45]  # both just after an abandoned forward
    grown = (*LEFT, "created_bytes_max", "mappings", "mapped_bytes", "kernel_mappings")
    assert {name: late[name] - early[name] for name in grown} == dict.fromkeys(grown, 0)
    assert late["host_pinned_bytes"] <= early["host_pinned_bytes"]
    assert late["private_bytes"] - early["private_bytes"] < 2 << 20
    assert late["offloaded_bytes"] > early["offloaded_bytes"]
