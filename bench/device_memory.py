"""What the CUDA driver itself says of a device's memory: a witness outside our counters."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cuda.bindings import driver

if TYPE_CHECKING:
    from types import TracebackType


def used_bytes() -> int:
    """Bytes in use on the current device, by everybody."""
    error, free, total = driver.cuMemGetInfo()
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return int(total) - int(free)


def is_mapped(address: int) -> bool:
    """True if device memory is behind the address."""
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    error, value = driver.cuPointerGetAttribute(kind, address)
    device = int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE)
    return error == driver.CUresult.CUDA_SUCCESS and int(value) == device


class PeakUse:
    """Samples used_bytes() on a thread of its own until the scope ends; needs a context."""

    def __init__(self, interval_s: float = 0.002) -> None:
        self.peak_bytes = 0
        self._interval_s = interval_s
        self._stop = threading.Event()
        _, self._context = driver.cuCtxGetCurrent()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakUse:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        driver.cuCtxSetCurrent(self._context)
        while not self._stop.wait(self._interval_s):
            self.peak_bytes = max(self.peak_bytes, used_bytes())
