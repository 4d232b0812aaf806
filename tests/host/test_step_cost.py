"""A step costs what the one before it did: nothing is left of it that a later one would carry."""

from __future__ import annotations

import gc

import torch

import vdnn_alloc
from tests.helpers import fresh

EARLY, LATE = 10, 50  # a plan is corrected until the eighth step
Left = dict[str, int]


def left_by_steps(policy_needs_moves: bool) -> tuple[Left, Left, int]:
    """What is there after an early step and after a late one, and the bytes that moved."""
    from vdnn_alloc.installation import installation

    torch.manual_seed(0)
    layer = [torch.nn.Linear(128, 128), torch.nn.LayerNorm(128), torch.nn.GELU()]
    model = torch.nn.Sequential(*layer * 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(512 if policy_needs_moves else 128, 128)
    found, objects = {}, {}
    for step in range(1, LATE + 1):
        before = vdnn_alloc.stats()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step not in (EARLY, LATE):
            continue
        gc.collect()
        objects[step] = len(gc.get_objects())
        after = vdnn_alloc.stats()
        found[step] = {
            "records": len(installation().controller.hooks.records()),
            "live blocks": after.live_blocks,
            "mappings": after.mappings,
            "host bytes": after.host_bytes,
            "allocations": after.allocations - before.allocations,
            "frees": after.frees - before.frees,
            "offloaded": after.offloaded_bytes - before.offloaded_bytes,
        }
    assert objects[LATE] - objects[EARLY] < LATE - EARLY, "less than one a step"
    return found[EARLY], found[LATE], vdnn_alloc.stats().offloaded_bytes


def test_a_late_step_leaves_and_does_what_an_early_one_did_where_all_fits() -> None:
    early, late, moved = fresh.call(left_by_steps, False, install={"budget": "256MiB"}).result

    assert moved == 0
    assert late == early
    assert late["records"] == 0


def test_a_late_step_leaves_and_does_what_an_early_one_did_where_blocks_move() -> None:
    install = {"budget": "8MiB", "frame": "64KiB"}
    early, late, moved = fresh.call(left_by_steps, True, install=install).result

    assert moved > 0
    assert late == early
    assert late["records"] == 0
