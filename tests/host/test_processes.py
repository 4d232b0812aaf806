"""Forked children, worker processes, and scripts that know nothing of vdnn_alloc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tests.helpers import fresh
from tests.helpers.compare import digest, digests
from tests.helpers.models import WORKLOADS
from tests.helpers.run_training import Job, make_optimizer, peak_bytes

TIGHT = {"budget": "12MiB", "policy": "dyn"}
CHAIN = WORKLOADS["chain"]


class WritesIntoWhatItReads(Dataset[Tensor]):
    """A data set in one old tensor, which every worker overwrites: in its own copy only."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Tensor:
        row = self.values[index].clone()
        self.values.fill_(-1.0)  # an augmentation in place; the parent must never see it
        return row + self.values[index] + 1.0


def train_from_workers() -> list[str]:
    """Trains on what forked workers draw from an older tensor, big and small blocks alike."""
    torch.manual_seed(9)
    values = torch.randn(4096, 32)
    small = torch.randn(8, 32)
    model = CHAIN.build()
    optimizer = make_optimizer("sgd", model)
    for data in (values, small):
        loader = DataLoader(
            WritesIntoWhatItReads(data),
            batch_size=2048,
            num_workers=2,
            multiprocessing_context="fork",
        )
        for x in loader:
            optimizer.zero_grad()
            CHAIN.loss(model, (x, x.flip(0))).backward()
            optimizer.step()
    return [digest(values), digest(small), *digests(model)]


# Rule 10: a forked child is inert, and nothing that it writes reaches the parent.
def test_what_dataloader_workers_write_never_reaches_the_parent() -> None:
    intact = fresh.call(untouched_values)

    ours = fresh.same_as_stock(train_from_workers, install=TIGHT)

    assert ours.result[:2] == intact.result
    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] > 0


def untouched_values() -> list[str]:
    """The hashes of the two data sets as they were made."""
    torch.manual_seed(9)
    return [digest(torch.randn(4096, 32)), digest(torch.randn(8, 32))]


def fork_in_the_middle_of_a_step() -> tuple[int, list[str]]:
    """A child is born while feature maps are away; it computes, writes and ends by itself."""
    torch.manual_seed(4)
    model = CHAIN.build()
    batch = CHAIN.batch(torch.Generator().manual_seed(4))
    status = 0
    for _ in range(3):
        model.zero_grad()
        loss = CHAIN.loss(model, batch)
        child = os.fork()
        if child == 0:
            os._exit(0 if child_can_compute(model) else 1)
        status |= os.waitpid(child, 0)[1]
        loss.backward()
        del loss
    return status, digests(model)


def child_can_compute(model: torch.nn.Module) -> bool:
    """Overwrites every parameter, reads them back, and allocates without any budget."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
        big = torch.ones(64 << 20, dtype=torch.uint8)
        read = all(bool((parameter == 0.5).all()) for parameter in model.parameters())
    return read and int(big.sum()) == 64 << 20


def test_a_forked_child_has_torchs_allocator_and_its_own_memory() -> None:
    ours = fresh.same_as_stock(fork_in_the_middle_of_a_step, install=TIGHT)

    assert ours.result[0] == 0
    assert ours.stats is not None
    assert ours.stats["offloaded_bytes"] > 0


SCRIPT = """
import torch
from tests.helpers.compare import digests
from tests.helpers.models import WORKLOADS

torch.set_num_threads(1)
torch.manual_seed(1)
chain = WORKLOADS["chain"]
model = chain.build()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    optimizer.zero_grad()
    chain.loss(model, chain.batch(torch.Generator().manual_seed(step))).backward()
    optimizer.step()
print(*digests(model), sep="\\n")
"""


def run_script(tmp_path: Path, setting: str | None) -> subprocess.CompletedProcess[str]:
    """Runs the script, which does not mention vdnn_alloc, under VDNN_ALLOC=setting."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    places = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": places}
    environment.pop("VDNN_ALLOC", None)
    if setting is not None:
        environment["VDNN_ALLOC"] = setting
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def stock_output(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run_script(tmp_path_factory.mktemp("stock"), None)
    assert done.stderr == ""
    return done.stdout


def test_an_unchanged_script_trains_under_the_environments_budget(
    tmp_path: Path, stock_output: str
) -> None:
    budget = peak_bytes(Job("chain", "adam")) // 2

    done = run_script(tmp_path, f"budget={budget}B,policy=dyn,backend=host,dump=run.json")

    assert done.stdout == stock_output
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2, done.stderr
    assert "vdnn_alloc" in lines[0]
    dump = json.loads((tmp_path / "run.json").read_text())
    assert "Traceback" not in done.stderr
    assert (dump["format"], dump["version"]) == ("vdnn_alloc.stats", 1)
    assert dump["moved"]["offloaded_bytes"] > 0
    assert 0 < dump["peaks"]["created_bytes"]["max"] <= budget
    rows = {row["name"]: row for row in dump["layers"]}
    assert sum(row["offloaded_bytes"] for row in rows.values()) == dump["moved"]["offloaded_bytes"]
    assert rows["Sequential.1"]["saved_bytes"] > 0  # the first Tanh, by its own name


@pytest.mark.parametrize("setting", ["", "0"])
def test_an_empty_or_zero_setting_is_inert(tmp_path: Path, stock_output: str, setting: str) -> None:
    done = run_script(tmp_path, setting)

    assert (done.stdout, done.stderr) == (stock_output, "")


def test_a_budget_that_suffices_says_that_nothing_needed_to_move(
    tmp_path: Path, stock_output: str
) -> None:
    done = run_script(tmp_path, "budget=512MiB,backend=host")

    assert done.stdout == stock_output
    assert "nothing" in done.stderr.strip().splitlines()[-1]


def test_a_dump_that_cannot_be_written_is_said_and_the_run_goes_on(
    tmp_path: Path, stock_output: str
) -> None:
    path = tmp_path / "no such folder" / "run.json"

    done = run_script(tmp_path, f"budget=512MiB,backend=host,dump={path}")

    assert done.stdout == stock_output
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr
