"""Each bad setting ends in one clear sentence, with nothing half installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.helpers import fresh
from tests.helpers.models import WORKLOADS

# VDNN_ALLOC's value -> words that its one sentence must hold.
BAD_SETTINGS = {
    "bugdet=12GiB,backend=host": ["bugdet", "budget"],
    "budget=12,backend=host": ["budget=12", "unit"],
    "budget=-1GiB,backend=host": ["budget=-1GiB", "above zero"],
    "budget=0GiB,backend=host": ["budget=0GiB", "above zero"],
    "budget=1000TiB,backend=host": ["budget", "TiB"],
    "budget=70KiB,backend=host": ["budget", "70"],
    "policy=magic,backend=host": ["magic", "dyn"],
    "backend=tpu": ["tpu", "host"],
    "budget=64MiB,host_budget=1000TiB,backend=host": ["host_budget", "TiB"],
}


def python(setting: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Imports torch under VDNN_ALLOC=setting."""
    program = "import torch; print(torch.ones(3).sum().item())"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "VDNN_ALLOC": setting, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[str, subprocess.CompletedProcess[str]]]:
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield dict(zip(BAD_SETTINGS, pool.map(python, BAD_SETTINGS), strict=True))


def assert_one_sentence(done: subprocess.CompletedProcess[str], words: list[str]) -> None:
    """The program has ended at once, and has said why in one line."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("vdnn_alloc: ")
    assert [word for word in words if word not in lines[0]] == [], lines[0]


@pytest.mark.parametrize(("setting", "words"), BAD_SETTINGS.items())
def test_a_bad_environment_ends_the_program_with_its_sentence(
    setting: str, words: list[str], processes: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    assert_one_sentence(processes[setting], words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_cuda_backend_without_a_gpu_says_so() -> None:
    assert_one_sentence(python("backend=cuda"), ["GPU"])


def test_a_check_level_that_does_not_exist_is_refused() -> None:
    assert_one_sentence(python("budget=64MiB,backend=host", VDNN_CHECK="9"), ["VDNN_CHECK=9"])


def test_the_host_backend_without_a_compiler_says_so(tmp_path: Path) -> None:
    done = python(
        "budget=64MiB,backend=host",
        CXX="no-such-g++",
        VDNN_ALLOC_CACHE=str(tmp_path),
    )

    assert_one_sentence(done, ["compiler", "no-such-g++"])


# Arguments of install() and words that its sentence must hold.
BAD_ARGUMENTS = [
    ({"budget": "12"}, ["budget=12", "unit"]),
    ({"budget": "lots"}, ["budget=lots"]),
    ({"budget": "12XiB"}, ["12XiB", "GiB"]),
    ({"budget": -1}, ["budget=-1"]),
    ({"budget": 0}, ["budget=0"]),
    ({"budget": "1000TiB"}, ["budget", "TiB"]),
    ({"budget": 70_000}, ["budget"]),
    ({"budget": "64MiB", "policy": "magic"}, ["magic"]),
    ({"budget": "64MiB", "host_budget": "1000TiB"}, ["host_budget"]),
    ({"budget": "64MiB", "frame": 12345}, ["frame"]),
]


def refused_then_right(arguments: dict[str, object]) -> tuple[str, int, int]:
    """A bad install, which must change nothing; then a good one, which must work."""
    import vdnn_alloc
    from tests.helpers import simulation

    before = torch.ones(1 << 16)
    try:
        vdnn_alloc.install(**{"backend": "host", **arguments})
    except ValueError as error:
        sentence = str(error)
    else:
        raise AssertionError(f"{arguments} were taken")
    between = torch.ones(1 << 16)
    vdnn_alloc.install(backend="host", budget="16MiB")
    after = torch.ones(1 << 16)
    chain = WORKLOADS["chain"]
    chain.loss(chain.build(), chain.batch(torch.Generator())).backward()
    served = [simulation.owns(tensor.data_ptr()) for tensor in (before, between, after)]
    return sentence, served.count(True), vdnn_alloc.stats().offloaded_bytes


@pytest.mark.parametrize(("arguments", "words"), BAD_ARGUMENTS)
def test_a_bad_argument_raises_its_sentence_and_a_good_one_may_follow(
    arguments: dict[str, object], words: list[str]
) -> None:
    ended = fresh.call(refused_then_right, arguments)

    sentence, served, offloaded_bytes = ended.result
    assert [word for word in words if word not in sentence] == [], sentence
    assert "\n" not in sentence
    assert served == 1  # only the tensor that was made after the good install
    assert offloaded_bytes > 0


def install_twice() -> tuple[bool, str]:
    """The same again is nothing; another budget is refused; the first stays."""
    import vdnn_alloc

    vdnn_alloc.install(backend="host", budget="16MiB", policy="dyn")
    vdnn_alloc.install(backend="host", budget="16MiB", policy="dyn")
    try:
        vdnn_alloc.install(backend="host", budget="32MiB", policy="dyn")
    except RuntimeError as error:
        return vdnn_alloc.stats().budget_bytes == 16 << 20, str(error)
    raise AssertionError("a second budget was taken")


def test_installing_twice_is_nothing_if_the_same_and_an_error_if_not() -> None:
    ended = fresh.call(install_twice)

    kept, sentence = ended.result
    assert kept
    assert "16" in sentence
    assert "32" in sentence


def below_the_first_layer() -> str:
    """A budget that install takes, but no layer of the model fits."""
    chain = WORKLOADS["chain"]
    try:
        chain.loss(chain.build(), (torch.ones(1 << 16, 32), torch.ones(1 << 16, 32))).backward()
    except torch.OutOfMemoryError as error:
        return str(error)
    raise AssertionError("8 MiB blocks fitted into a budget of 4 MiB")


def test_a_budget_below_what_the_first_layer_needs_is_torchs_out_of_memory() -> None:
    ended = fresh.call(below_the_first_layer, install={"budget": "4MiB"})

    assert "8.00 MiB" in ended.result or "8 MiB" in ended.result
    assert "4.00 MiB" in ended.result or "4 MiB" in ended.result
    assert "budget" in ended.result
