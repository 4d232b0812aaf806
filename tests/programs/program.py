"""What a program is, where it runs, and how it is run once and watched."""

from __future__ import annotations

import multiprocessing
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from tests.programs.seen import Seen

GPU_SCALE = 32  # a frame of a GPU is 32 times one of the simulated device
Train = TypeVar("Train", bound=Callable[[], Seen])


@dataclass(frozen=True)
class Program:
    """A training script and what is known about it."""

    train: Callable[[], Seen]
    percent: int
    """The budget that it is put under, in hundredths of its own peak."""
    stays: str
    """Why no byte may be moved under that budget; empty: some must be."""
    runs_out: bool
    """Whether it meets an out-of-memory error under that budget, and goes on."""
    gpu_percent: int
    """The same on a GPU, where cuDNN and cuBLAS have memory of their own in one operator."""
    cpu_only: str
    """Why it has nothing to do on a GPU; empty: it runs there too."""
    needs: tuple[str, ...]
    """Packages that it imports and that not every machine with a GPU has."""

    @property
    def name(self) -> str:
        """Group, module and function, as a test is called."""
        module = self.train.__module__.removeprefix("tests.programs.")
        return f"{module}.{self.train.__name__}"


REGISTRY: dict[str, Program] = {}
"""By name; filled as tests.programs.catalogue imports the modules."""


def program(
    *,
    percent: int = 60,
    stays: str = "",
    runs_out: bool = False,
    gpu_percent: int | None = None,
    cpu_only: str = "",
    needs: tuple[str, ...] = (),
) -> Callable[[Train], Train]:
    """Marks a function as a program."""

    def enter(train: Train) -> Train:
        entry = Program(train, percent, stays, runs_out, gpu_percent or percent, cpu_only, needs)
        assert entry.name not in REGISTRY, f"two programs are called {entry.name}"
        REGISTRY[entry.name] = entry
        return train

    return enter


# --- where it runs -------------------------------------------------------------------------------

_device = torch.device("cpu")


def device() -> torch.device:
    """Where the program's tensors belong."""
    return _device


def scaled(count: int) -> int:
    """A batch size (or the like), larger on a GPU, whose frames are larger."""
    return count if _device.type == "cpu" else count * GPU_SCALE


# --- one run -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one run of a program left behind."""

    seen: Seen
    warned: Counter[str]
    """Category and text of every warning, also of those that Python would show once only."""
    compiled: dict[str, dict[str, int]]
    """Dynamo's counters: graphs (one more for each recompile), graph breaks and their reasons."""
    seconds: float


def run_once(name: str, kind: str = "cpu") -> Run:
    """Runs a program in this process, on a device of this kind ("cpu" or "cuda")."""
    from tests.helpers import gpu_training
    from tests.programs import catalogue

    global _device
    _device = torch.device(kind)
    # What a script has on Linux up to Python 3.13; this process has its parent's way instead.
    multiprocessing.set_start_method("fork", force=True)
    if kind == "cuda":
        gpu_training.be_deterministic()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1234)
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = catalogue.find(name).train()
    seconds = time.perf_counter() - started
    warned = Counter(f"{w.category.__name__}: {w.message}" for w in caught)
    return Run(seen, warned, _compiled(), seconds)


def _compiled() -> dict[str, dict[str, int]]:
    from torch._dynamo.utils import counters

    kinds = ("stats", "graph_break", "unimplemented")
    return {kind: dict(counters[kind]) for kind in kinds}
