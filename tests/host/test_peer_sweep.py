"""The GPU sweep of bench/peers, trained small on the simulated device, by the same code."""

from __future__ import annotations

import argparse
import os
import time
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.models import TINY, group_stages
from bench.peers import cells, command, report, tools
from bench.peers.cells import Cell, Outcome
from bench.server import EndedError, Server

STOCK = Cell("tiny", "fp32", "stock", 100, "host")


def arguments(results: Path, *, time_limit: float = 1e9) -> argparse.Namespace:
    known = {"wheels": None, "warm_up": 3, "steps": 2}
    return argparse.Namespace(results=results, time_limit=time_limit, **known)


def cell(tool: str, percent: int) -> Cell:
    return Cell("tiny", "fp32", tool, percent, "host")


def ended(how: str, retries: int = 0) -> Outcome:
    return {"ended": how, "per_step": {"retries": retries}}


@pytest.mark.slow
def test_every_tool_trains_the_same_and_a_finished_cell_is_not_trained_again(
    tmp_path: Path,
) -> None:
    runner = command.Runner(arguments(tmp_path))
    ours = cell("vdnn_alloc", 80)
    rivals = [cell("checkpoint", 80), cell("save_on_cpu", 80)]
    absent = cell("offload", 80)

    runner.run(iter([STOCK, ours, *rivals, absent]))

    finished = cells.load_all(tmp_path)
    losses = {finished[one]["loss"] for one in (STOCK, ours, *rivals)}
    assert runner.failures == []
    assert len(losses) == 1
    assert finished[ours]["peaks"]["reserved_max"] <= finished[ours]["settings"]["limit_bytes"]
    assert finished[ours]["per_step"]["offloaded_bytes"] > 0
    bound = finished[ours]["bound"]
    assert bound["step_ms"] >= int(report.step_ms(finished[STOCK]))
    assert 0 < bound["must_leave_bytes"] <= finished[STOCK]["peaks"]["allocated_max"]
    assert (tmp_path / f"{ours.name}.profile.gz").exists()
    assert finished[absent]["ended"] == "unavailable"
    table = next(report.tables(finished))
    assert table.row_count == len(finished)

    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    command.Runner(arguments(tmp_path)).run(iter([STOCK, ours, *rivals, cell("checkpoint", 90)]))

    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_sweep_without_time_begins_nothing(tmp_path: Path) -> None:
    command.Runner(arguments(tmp_path, time_limit=0)).run(iter([STOCK]))

    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_or_hangs_ends_its_cell_alone() -> None:
    server = Server()

    with pytest.raises(EndedError, match="its process ended with 3"):
        server.call(os._exit, 3, limit_s=60)
    with pytest.raises(EndedError, match="it took more than 2 s"):
        server.call(time.sleep, 60, limit_s=2)
    assert server.call(os.getpid, limit_s=60) != os.getpid()


@pytest.mark.parametrize(
    ("known_percent", "how", "retries", "is_known"),
    [
        (50, "trained", 0, True),
        (50, "trained", 1, False),  # it may be faster where it need not try again
        (90, "trained", 0, False),
        (90, "out of memory", 0, True),
        (50, "out of memory", 0, False),
        (50, "unavailable", 0, True),
    ],
)
def test_what_a_static_tool_does_at_one_limit_says_what_it_does_at_another(
    known_percent: int, how: str, retries: int, *, is_known: bool
) -> None:
    finished = {cell("checkpoint", known_percent): ended(how, retries)}

    assert (report.outcome_of(cell("checkpoint", 70), finished) is not None) is is_known
    assert report.outcome_of(cell("vdnn_alloc", 70), finished) is None


def test_a_peer_comes_out_of_its_wheel_or_is_said_to_be_absent(tmp_path: Path) -> None:
    subject = tools.Subject(nn.Identity(), TINY["tiny"], is_cuda=False, wheels=tmp_path)

    with pytest.raises(tools.UnavailableError, match="not installed: odd_peer"):
        tools.load_module(subject, "odd_peer", "odd_peer.inner")

    with zipfile.ZipFile(tmp_path / "odd_peer-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("odd_peer/inner.py", "import odd_needed\nanswer = odd_needed.number * 2\n")
    found = tools.load_module(subject, "odd_peer", "odd_peer.inner", {"odd_needed": {"number": 21}})

    assert found.answer == 42


def test_the_stages_of_a_vgg_compute_what_its_layers_do() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.MaxPool2d(2)]
    model = nn.Module()
    model.features = nn.Sequential(*layers)
    image = torch.randn(1, 3, 16, 16)
    plain = model.features(image)

    stage = group_stages(model)

    assert [type(module) for module in model.features] == [stage, stage]
    assert torch.equal(model.features(image), plain)
