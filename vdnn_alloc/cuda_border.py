"""The CUDA side of install(): what must be so before it, device facts, and the swap itself.

torch takes another CUDA allocator once, before CUDA has started, and never gives it back. So all
that can be wrong is looked at first, and the swap is the last thing that happens.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from vdnn_alloc.errors import InstallError
from vdnn_alloc.glue import load_glue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vdnn_alloc.native import Glue, Native

GLUE_SOURCE = "cuda_glue.cpp"
GLUE_LIBRARIES = ("c10", "c10_cuda", "torch_cuda", "torch_cpu", "torch_python")

# The first is read by torch from 2.10 on, the second by all; both hold key:value pairs.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_NO_CACHING_VARIABLE = "PYTORCH_NO_CUDA_MEMORY_CACHING"


@dataclass(frozen=True)
class CudaDevice:
    """One device that this process sees, in torch's order."""

    name: str
    free_bytes: int
    total_bytes: int


def require_fresh_torch(environment: Mapping[str, str] = os.environ) -> None:
    """Raises InstallError where torch's CUDA allocator can no longer, or must not, be replaced."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise InstallError(
            "CUDA has started in this process, and torch does not change its allocator after "
            "that; install vdnn_alloc before the first CUDA call, or set VDNN_ALLOC"
        )
    if environment.get(_NO_CACHING_VARIABLE):
        raise InstallError(
            f"{_NO_CACHING_VARIABLE} is set: it asks torch for an allocator without a cache, and "
            "vdnn_alloc is one; unset it"
        )
    for variable in _ALLOCATOR_VARIABLES:
        _require_no_other_allocator(variable, environment.get(variable, ""))


def _require_no_other_allocator(variable: str, value: str) -> None:
    pairs = (pair.partition(":") for pair in value.replace(" ", "").split(","))
    for key, _, choice in pairs:
        chooses_another = key == "backend" and choice != "native"
        if chooses_another or (key == "expandable_segments" and choice.lower() == "true"):
            raise InstallError(
                f"{variable} sets {key}:{choice}, which belongs to another allocator than "
                f"vdnn_alloc; remove it from {variable}"
            )


def find_devices() -> list[CudaDevice]:
    """The devices that this process sees; at least one. None of them is left with a context.

    Raises:
        InstallError: no bindings, no driver or no visible device.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise InstallError(
            f"cuda.bindings cannot be imported ({error}); pip install cuda-python"
        ) from error
    try:
        error_code = driver.cuInit(0)[0]
    except RuntimeError as error:
        raise InstallError(f"no NVIDIA driver on this machine ({error})") from error
    count = int(driver.cuDeviceGetCount()[1]) if error_code == 0 else 0
    if count == 0:
        raise InstallError(f"no CUDA device is visible{visible_devices_hint()}")
    return [_read_device(ordinal) for ordinal in range(count)]


def visible_devices_hint(environment: Mapping[str, str] = os.environ) -> str:
    """What an error about missing devices should end with."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return "; see nvidia-smi"
    return f": CUDA_VISIBLE_DEVICES is {value!r}; name a device in it, or unset it"


def _read_device(ordinal: int) -> CudaDevice:
    from cuda.bindings import driver

    (device,) = _checked(driver.cuDeviceGet(ordinal), ordinal)
    (name,) = _checked(driver.cuDeviceGetName(128, device), ordinal)
    # Only a context can ask. It is the one torch will use, so "free" is what is left beside it.
    (context,) = _checked(driver.cuDevicePrimaryCtxRetain(device), ordinal)
    try:
        _checked(driver.cuCtxPushCurrent(context), ordinal)
        free_bytes, total_bytes = _checked(driver.cuMemGetInfo(), ordinal)
        driver.cuCtxPopCurrent()
    finally:
        driver.cuDevicePrimaryCtxRelease(device)
    return CudaDevice(name.rstrip(b"\0").decode(), int(free_bytes), int(total_bytes))


def _checked(answer: tuple[Any, ...], ordinal: int) -> tuple[Any, ...]:
    """The values of a binding's answer, whose first is the error code."""
    code, *values = answer
    if code != 0:
        raise InstallError(f"CUDA device {ordinal} cannot be used: {code}")
    return tuple(values)


class CudaBorder:
    """The GPUs that this process sees, under torch's CUDA tensors.

    Raises:
        InstallError: when made, where torch's CUDA allocator cannot be replaced.
    """

    backend = "cuda"
    shares_host_memory = False

    def __init__(self) -> None:
        require_fresh_torch()
        self.devices = find_devices()
        self._native: Native | None = None

    def free_bytes(self) -> int:
        """Of the fullest device: the budget holds for each."""
        return min(device.free_bytes for device in self.devices)

    def load_glue(self, native: Native) -> Glue:
        """The glue, or where it cannot be built a stand-in, with one line on what is lost."""
        self._native = native
        try:
            flags = tuple(f"-isystem{folder}" for folder in _cuda_include_folders())
            return load_glue(GLUE_SOURCE, GLUE_LIBRARIES, native, flags=flags)
        except InstallError as error:
            print(
                f"vdnn_alloc: {error}. Going on without: the budget holds, but nothing is "
                "offloaded, torch.cuda.memory_stats and cudnn.benchmark raise, and out of memory "
                "is a RuntimeError",
                file=sys.stderr,
            )
            return cast("Glue", PlainGlue())

    def install(self, glue: Glue) -> None:
        assert self._native is not None, "load_glue() comes first"
        if isinstance(glue, PlainGlue):
            _install_plain(self._native)
        else:
            glue.install_cuda(len(self.devices))
            _answer_mem_get_info(self._native)

    def describe(self) -> dict[str, object]:
        devices = [{"name": d.name, "total_bytes": d.total_bytes} for d in self.devices]
        return {"backend": self.backend, "name": self.devices[0].name, "devices": devices}


class PlainGlue:
    """What the controller talks to where there is no glue: no block may move."""

    def make_hooks(
        self,
        callbacks: Mapping[str, Callable[..., object]],
        outside_flags: int,
        sample: torch.Tensor,
    ) -> PlainHooks:
        del outside_flags, sample
        return PlainHooks(callbacks["enter_root"])


class PlainHooks:
    """Tells where a step begins, which the core must know to settle; where a thread is matters only
    to blocks that move."""

    pack = None
    unpack = None
    has_moved = False
    shrunk_bytes = 0

    def __init__(self, enter_root: Callable[..., object]) -> None:
        self._enter_root = enter_root
        self.wants_opening = True

    def enter(self, module: object) -> bool:
        del module
        if self.wants_opening:
            self._enter_root()
        return False

    def leave(self, module: object, raised: bool) -> None:
        """Nothing is counted by layer."""

    def begin_episode(self) -> None:
        self.wants_opening = False

    def stop_shrinking(self) -> None:
        """Nothing is saved through these."""

    def end_step(self) -> bool:
        self.wants_opening = True
        return True


def _install_plain(native: Native) -> None:
    """torch's own pluggable class over the core."""
    plain = torch.cuda.memory.CUDAPluggableAllocator(
        str(native.path), "vdnn_torch_malloc", "vdnn_torch_free"
    )
    hooks: Any = plain._allocator
    hooks.set_record_stream_fn(native.address_of("vdnn_torch_record_stream"))
    hooks.set_reset_fn(native.address_of("vdnn_torch_empty_cache"))
    torch.cuda.memory.change_current_allocator(plain)


def _cuda_include_folders() -> list[Path]:
    """Where cuda_runtime_api.h is: a toolkit, or the wheels that torch brought along."""
    named = [os.environ.get(variable) for variable in ("CUDA_HOME", "CUDA_PATH")]
    wheels = Path(torch.__file__).parent.parent / "nvidia"
    folders = [
        *(Path(home) / "include" for home in named if home),
        Path("/usr/local/cuda/include"),
        *sorted(wheels.glob("cu*/include")),
        wheels / "cuda_runtime" / "include",
    ]
    found = [folder for folder in folders if (folder / "crt" / "host_defines.h").exists()]
    if not found:
        raise InstallError(
            "the CUDA headers (cuda_runtime_api.h, crt/host_defines.h) were not found, and the "
            "part that meets torch is compiled at first use; set CUDA_HOME to a toolkit, or "
            "pip install nvidia-cuda-crt"
        )
    return found[:1]


def _answer_mem_get_info(native: Native) -> None:
    """torch.cuda.mem_get_info asks the CUDA runtime, which does not know of the budget."""
    ask_runtime = torch.cuda.memory.mem_get_info

    def mem_get_info(device: torch.device | int | str | None = None) -> tuple[int, int]:
        """Free and total bytes of a device, within vdnn_alloc's budget."""
        device_free, device_total = ask_runtime(device)
        stats = native.read_stats(torch.cuda._utils._get_device_index(device, optional=True))
        idle = int(stats["created_bytes"]) - int(stats["owned_bytes"])
        in_budget = int(stats["budget_bytes"]) - int(stats["owned_bytes"])
        return min(in_budget, device_free + idle), min(int(stats["budget_bytes"]), device_total)

    for module in (torch.cuda, torch.cuda.memory):
        module.mem_get_info = mem_get_info  # type: ignore[attr-defined]
