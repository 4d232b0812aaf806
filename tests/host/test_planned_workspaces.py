"""Workspaces that are refused before anything leaves: a convolution's operator as cuDNN has it.

It asks for the scratch of its fastest engine, catches torch's out-of-memory error, and asks for
less. Each engine rounds differently, so the losses tell which ones ran. The link is slow, so that
making room takes longer than any engine.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.helpers import fresh

MIB = 1 << 20
BUDGET = "256MiB"
BANDWIDTH = "250MiB"
MAP = 48 * MIB // 4  # elements of a feature map
ENGINES = (180 * MIB, 4 * MIB)  # scratch bytes, the fastest first
STEPS = 6


class Convolution(nn.Module):
    """Its engines differ in the last bits. It tries them anew each time, as cuDNN does until one
    is known to work."""

    def forward(self, x: Tensor) -> Tensor:
        from vdnn_alloc.installation import installation

        native = installation().native
        native.begin_operator(1)
        try:
            return x + 1e-3 * self._run_best()
        finally:
            native.end_operator()

    def _run_best(self) -> int:
        for engine, scratch_bytes in enumerate(ENGINES):
            try:
                scratch = torch.empty(scratch_bytes, dtype=torch.uint8)
            except torch.OutOfMemoryError:
                continue
            del scratch
            return engine
        raise AssertionError("no engine was left")


class Expand(nn.Module):
    """The caller of a model holds its input all through its forward, so that is small."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(MAP) * 1.0


class Layer(nn.Module):
    """Autograd saves its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


def train(dump: str) -> tuple[list[float], list[int]]:
    """The loss of each step, and the workspaces refused until then."""
    import vdnn_alloc

    model = nn.Sequential(Expand(), Convolution(), *(Layer() for _ in range(4)), Convolution())
    weight = torch.ones(1, requires_grad=True)
    losses, refused = [], []
    for _ in range(STEPS):
        loss = model(weight)[:1000].mean()
        loss.backward()
        losses.append(loss.item())
        del loss
        refused.append(vdnn_alloc.stats().workspace_refusals)
    vdnn_alloc.dump(dump)
    return losses, refused


@cache
def trained(workspace: str) -> tuple[list[float], list[int], dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder, "run.json")
        install = {"budget": BUDGET, "workspace": workspace, "host_bandwidth": BANDWIDTH}
        losses, refused = fresh.call(train, str(dump), install=install).result
        return losses, refused, json.loads(dump.read_text())["workspaces"]


# Rule 6: what can be served is, unless somebody asked for the contrary.
def test_by_default_every_workspace_is_served() -> None:
    losses, refused, said = trained("stock")

    assert refused == [0] * STEPS
    assert len(set(losses)) == 1
    assert said["may_differ_from_stock"] is False


# Rule 12: the same engine in each step once one was refused.
def test_planned_refuses_the_same_workspace_in_each_step_and_says_so() -> None:
    stock, _, _ = trained("stock")
    losses, refused, said = trained("planned")

    assert refused == list(range(STEPS))  # one a step, from the second on
    assert losses[0] == stock[0]
    assert set(losses[1:]) == {losses[1]}
    assert losses[1] != stock[0], "another engine ran"
    assert said == {
        "workspace_refusals": STEPS - 1,
        "refused_layers": ["Sequential.6"],
        "may_differ_from_stock": True,
    }


def room() -> int:
    from vdnn_alloc.installation import installation

    return installation().native.workspace_bytes(0)


def test_the_room_that_a_workspace_may_take_follows_the_setting() -> None:
    rooms = {
        workspace: fresh.call(room, install={"budget": BUDGET, "workspace": workspace}).result
        for workspace in ("stock", "none", "planned")
    }

    assert rooms == {"stock": 256 * MIB, "none": 0, "planned": 256 * MIB}
