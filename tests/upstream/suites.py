"""Which of PyTorch's tests touch what vdnn_alloc touches, and what became of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent.parent
RAN_TO_ITS_END = (0, 1)  # exit codes of pytest: all passed, some failed

# By file under test/: what pytest's -k selects there; nothing: all.
HOST_SUITES = {
    "nn/test_module_hooks.py": "",
    "test_autograd.py": "sav or hook or checkpoint or inplace or retain or anomaly or version "
    "or double_backward or custom_function or no_grad or unwrapping or detach or reentrant",
    "test_utils.py": "checkpoint",
    "test_multiprocessing.py": "not cuda",
    "autograd/test_functional.py": "",
    "functorch/test_eager_transforms.py": "grad or vjp or jacrev or hessian",
}
GPU_SUITES = HOST_SUITES | {
    "test_cuda.py": "memory or stream or event or graph or out_of_memory or allocator or autocast",
    "test_cuda_multigpu.py": "memory or stream",
}
# All that may move moves, and little is too small to.
SETTINGS = {
    "host": "backend=host,policy=all,budget=96MiB,frame=4KiB",
    "gpu": "backend=cuda,policy=all",
}


@dataclass(frozen=True)
class Outcome:
    """What became of one file: how many tests passed, and the names of others."""

    passed: int
    skipped: int
    failed_anyway: list[str] = field(default_factory=list)
    """Failed without vdnn_alloc too."""
    failed_with: list[str] = field(default_factory=list)
    """Passed without it, and failed with it."""
    source: str = ""
    """What was checked out."""


def run(checkout: Path, file: str, expression: str, where: str) -> Outcome:
    """Runs a file of the checkout twice.

    Raises:
        RuntimeError: pytest did not come to its end; the text is what it wrote.
    """
    off = results(checkout, file, expression, {}, [])
    settings = {"VDNN_ALLOC": SETTINGS[where]}
    on = results(checkout, file, expression, settings, ["-p", "tests.upstream.plugin"])
    return compare(off, on)


def compare(off: dict[str, str], on: dict[str, str]) -> Outcome:
    """Two runs of the same tests, each told by name as passed, failed or skipped."""
    failed = [name for name, outcome in off.items() if outcome == "failed"]
    return Outcome(
        passed=sum(outcome == "passed" for outcome in on.values()),
        skipped=sum(outcome == "skipped" for outcome in on.values()),
        failed_anyway=sorted(failed),
        failed_with=sorted(
            name
            for name, outcome in off.items()
            if outcome != "failed" and on.get(name, "missing") != outcome
        ),
    )


def results(
    checkout: Path, file: str, expression: str, environment: dict[str, str], arguments: list[str]
) -> dict[str, str]:
    """Outcome by test: passed, failed or skipped."""
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    inherited = {key: value for key, value in os.environ.items() if key != "VDNN_ALLOC"}
    own = {"PYTHONPATH": python_path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with tempfile.TemporaryDirectory(prefix="vdnn_upstream_") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", file, "-q", "-p", "no:cacheprovider"]
        command += ["-c", os.devnull, "--rootdir", ".", f"--junitxml={report}", *arguments]
        command += ["-k", expression] if expression else []
        done = subprocess.run(
            command,
            cwd=checkout / "test",
            env={**inherited, **own, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in RAN_TO_ITS_END:
            raise RuntimeError(
                f"{file}: pytest ended with {done.returncode} and did not run the tests; it wrote:"
                f"\n{(done.stdout + done.stderr)[-3000:]}"
            )
        return dict(_told(case) for case in ElementTree.parse(report).iter("testcase"))


def _told(case: ElementTree.Element) -> tuple[str, str]:
    name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
    found = {child.tag for child in case}
    if found & {"failure", "error"}:
        return name, "failed"
    return name, "skipped" if "skipped" in found else "passed"
