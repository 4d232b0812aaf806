"""A cell of the paper's figures, trained on the simulated device by the command itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.paper import __main__ as command
from bench.paper import byte_table, cells, measured


@pytest.mark.slow
def test_a_cell_is_trained_within_its_budget_with_the_oracles_numbers(tmp_path: Path) -> None:
    arguments = ["--backend", "host", "--network", "googlenet", "--batch", "2", "--steps", "1"]
    arguments += ["--budget", "100MiB", "--results", str(tmp_path)]
    args = command.parse([*arguments, "--policy", "oracle(p)", "--policy", "all(p)"])
    runner = command.Runner(args.results, args.steps, args.time_limit)

    runner.run(command.grid(args))

    assert runner.failures == []
    oracle, ours = (cells.load(cell, tmp_path) for cell in command.grid(args))
    assert oracle is not None
    assert ours is not None
    assert ours["equality"] == oracle["equality"]
    assert oracle["per_step"]["offloaded_bytes"] == 0
    most = byte_table.of_network("googlenet", 2)
    most_bytes = most.offloaded["all"] + sum(most.pytorch_adds())
    assert 0 < ours["per_step"]["offloaded_bytes"] <= most_bytes
    assert ours["owned_bytes_max"] < oracle["owned_bytes_max"]
    assert "| yes |" in measured.markdown(cells.load_all(tmp_path))


def test_a_command_without_time_begins_nothing(tmp_path: Path) -> None:
    args = command.parse(["--time-limit", "0", "--results", str(tmp_path)])
    runner = command.Runner(args.results, args.steps, args.time_limit)

    runner.run(command.grid(args))

    assert list(tmp_path.iterdir()) == []
    assert runner.failures == []
