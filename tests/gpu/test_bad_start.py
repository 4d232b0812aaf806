"""What cannot work on a GPU is said in one sentence that names the cause, and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

START = "import torch, vdnn_alloc; {before}; vdnn_alloc.install(backend='cuda', budget='1GiB')"

CASES = {
    "expandable": ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_ALLOC_CONF"),
    "backend": (
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        "PYTORCH_CUDA_ALLOC_CONF",
    ),
    "no_caching": ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    "no_device": ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES"),
}


def start(environment: dict[str, str], before: str = "pass") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START.format(before=before)],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("case", CASES)
def test_a_setting_that_conflicts_is_named(case: str) -> None:
    environment, named = CASES[case]
    ended = start(environment)
    assert ended.returncode != 0
    sentence = ended.stderr.strip().splitlines()[-1]
    assert "InstallError" in sentence
    assert named in sentence


def test_it_must_come_before_cuda() -> None:
    ended = start({}, before="torch.ones(1).cuda()")
    assert ended.returncode != 0
    assert "CUDA has started" in ended.stderr.strip().splitlines()[-1]


def test_a_budget_above_what_the_device_has_free_is_refused() -> None:
    program = "import vdnn_alloc; vdnn_alloc.install(backend='cuda', budget='100TiB')"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode != 0
    assert "free" in ended.stderr.strip().splitlines()[-1]
