"""Where the core meets torch: one object per backend, with what differs between them.

HostBorder makes the core torch's CPU allocator, over a simulated device; CudaBorder makes it
torch's CUDA allocator.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Protocol

import torch

from vdnn_alloc.cuda_border import CudaBorder, visible_devices_hint
from vdnn_alloc.errors import InstallError
from vdnn_alloc.glue import HOST_LIBRARIES, HOST_SOURCE, load_glue
from vdnn_alloc.host_memory import available_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdnn_alloc.native import Glue, Native


class Border(Protocol):
    """One backend."""

    backend: str
    """Its name in native.BACKENDS."""
    shares_host_memory: bool
    """Its device memory is taken from the host's."""

    def free_bytes(self) -> int:
        """Device bytes that are free now."""

    def load_glue(self, native: Native) -> Glue:
        """Builds what torch needs. Changes nothing in torch."""

    def install(self, glue: Glue) -> None:
        """Makes the started core torch's allocator; from here on there is no way back."""

    def describe(self) -> dict[str, object]:
        """The device, for reports."""


class HostBorder:
    """A simulated device under CPU tensors, on any machine with a compiler."""

    backend = "host"
    shares_host_memory = True

    def free_bytes(self) -> int:
        return available_bytes()

    def load_glue(self, native: Native) -> Glue:
        return load_glue(HOST_SOURCE, HOST_LIBRARIES, native)

    def install(self, glue: Glue) -> None:
        glue.install_cpu()

    def describe(self) -> dict[str, object]:
        return {"backend": self.backend, "name": platform.processor() or platform.machine()}


BORDERS: dict[str, Callable[[], Border]] = {"host": HostBorder, "cuda": CudaBorder}


def choose_border(backend: str) -> Border:
    """The border that `backend` ("auto", "host", "cuda") means on this machine.

    Raises:
        InstallError: there is no such device here.
    """
    if backend == "auto":
        backend = "cuda" if torch.cuda.is_available() else "host"
    if backend == "cuda" and not torch.cuda.is_available():
        raise InstallError(
            f"backend=cuda: torch {torch.__version__} sees no GPU here{visible_devices_hint()}; or "
            "use backend=host"
        )
    if backend not in BORDERS:
        raise InstallError(f"backend={backend}: not in this build; there is {', '.join(BORDERS)}")
    return BORDERS[backend]()
