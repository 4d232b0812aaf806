"""What every benchmark shares: a training in a process of its own, and the JSON file about it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
VERSIONS = ("torch", "cuda", "cudnn")


def train(module: str, arguments: list[str], settings: dict[str, str] | None = None) -> Any:
    """Runs a module of bench/ in a fresh process; returns the JSON object of its last line.

    torch does not load vdnn_alloc there by itself: the stock run must not have it.
    """
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **(settings or {})}
    environment.pop("VDNN_ALLOC", None)
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def facts() -> dict[str, object]:
    """What a training says of the machine and the libraries that it ran on."""
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if has_gpu else f"no GPU, {platform.machine()}",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def write(name: str, known: dict[str, Any], settings: dict[str, Any], figures: Any) -> Path:
    """Machine, versions and settings beside the figures; `known` is what facts() said."""
    document = {
        "machine": {"device": known["device"], "host": platform.platform(), "cpus": os.cpu_count()},
        "versions": {key: known[key] for key in VERSIONS},
        "settings": settings,
        "date": time.strftime("%Y-%m-%d"),
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def judge(failures: list[str]) -> int:
    """Says what the run must not have shown; the exit status."""
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0
