"""Runs a function in a process of its own, for an allocator can be installed once per process.

The processes are forked from a server that has imported torch and nothing of vdnn_alloc, so a
fresh one costs milliseconds. The function must be importable by name; what it returns is pickled.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

TIMEOUT_S = 60
# torch._dynamo because every first optimizer imports it, which takes a second.
PRELOADED = ["torch", "torch._dynamo", "pytest", "tests.helpers.models", "tests.helpers.compare"]

# start() also reads the exit codes of other children, and each can be read once only.
_bookkeeping = threading.Lock()

Settings = dict[str, Any]  # the arguments of vdnn_alloc.install


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), its words, what it returned."""

    exit_code: int | None
    text: str
    result: Any = None
    stats: dict[str, int] | None = None
    witness_bytes: int = 0
    has_vdnn_alloc: bool = False  # whether it was imported

    def check(self) -> Ended:
        """Itself if the process ended well; else an AssertionError with all that it wrote."""
        assert self.exit_code == 0, f"exit code {self.exit_code}; it wrote:\n{self.text}"
        return self


@cache
def context() -> multiprocessing.context.ForkServerContext:
    """The server that forks; it has not let torch load vdnn_alloc, whatever is installed here."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    with patch.dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0"):
        os.environ.pop("VDNN_ALLOC", None)
        forkserver.ensure_running()
    return server


def run(
    function: Callable[..., object],
    *args: object,
    install: Settings | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Ended:
    """Calls function(*args) in a fresh process, after vdnn_alloc.install(**install) if given."""
    with tempfile.TemporaryDirectory(prefix="vdnn_test_") as folder:
        written, text = Path(folder, "result"), Path(folder, "text")
        child = context().Process(target=_child, args=(written, text, function, args, install))
        with _bookkeeping:
            child.start()
        if not wait([child.sentinel], timeout_s):
            child.kill()
            wait([child.sentinel])
        with _bookkeeping:
            child.join()
        said = text.read_text(errors="replace") if text.exists() else ""
        if not written.exists():
            return Ended(child.exitcode, said)
        return Ended(child.exitcode, said, *pickle.loads(written.read_bytes()))


def call(
    function: Callable[..., object],
    *args: object,
    install: Settings | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Ended:
    """The same, and the process must end well."""
    return run(function, *args, install=install, timeout_s=timeout_s).check()


def same_as_stock(function: Callable[..., object], *args: object, install: Settings) -> Ended:
    """Calls it with and without vdnn_alloc: what it returns must be equal. Returns the former."""
    stock = call(function, *args)
    assert not stock.has_vdnn_alloc
    ours = call(function, *args, install=install)
    assert ours.result == stock.result
    return ours


def _child(
    written: Path,
    text: Path,
    function: Callable[..., object],
    args: tuple[object, ...],
    install: Settings | None,
) -> None:
    """The body of the fresh process."""
    with text.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import torch

    torch.set_num_threads(1)
    if install is None:
        written.write_bytes(pickle.dumps((function(*args), None, 0, "vdnn_alloc" in sys.modules)))
        return
    import vdnn_alloc
    from tests.helpers import simulation
    from tests.helpers.compare import stats_row

    vdnn_alloc.install(**{"backend": "host", **install})
    result = function(*args)
    row = stats_row(vdnn_alloc.stats())
    written.write_bytes(pickle.dumps((result, row, simulation.witness_bytes(), True)))
