"""Calls a function in a process of its own, forked from one that has imported torch and the models'
libraries, for importing takes longer than most cells train. That one has no vdnn_alloc and has not
touched the GPU.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any
from unittest.mock import patch

PRELOADED = [
    *("torch", "torch._dynamo", "torchvision", "accelerate"),
    *("transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama"),
    "bench.models",
]
_ENVIRONMENT = {
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # who asks whether there is a GPU does not open it
}
_GRACE_S = 30


class EndedError(Exception):
    """The process ended without an answer; the text says how."""


class Server:
    """Runs as long as this process."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        with patch.dict(os.environ, _ENVIRONMENT):
            os.environ.pop("VDNN_ALLOC", None)
            forkserver.ensure_running()

    def call(self, function: Callable[..., Any], *args: object, limit_s: float) -> Any:
        """function(*args), which must be importable by name.

        Raises:
            EndedError: the process ended badly, or took longer, and was ended.
        """
        reader, writer = self._context.Pipe(duplex=False)
        child = self._context.Process(target=_child, args=(writer, function, args))
        child.start()
        writer.close()
        try:
            if not reader.poll(limit_s):
                child.kill()
                raise EndedError(f"it took more than {limit_s:.0f} s")
            return reader.recv()
        except EOFError:
            child.join(_GRACE_S)
            raise EndedError(f"its process ended with {child.exitcode}") from None
        finally:
            child.join(_GRACE_S)  # its memory is back once it is gone
            child.kill()
            child.join()


def _child(writer: Any, function: Callable[..., Any], args: tuple[object, ...]) -> None:
    writer.send(function(*args))
    writer.close()
