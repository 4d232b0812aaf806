"""`python -m vdnn_alloc doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdnn_alloc.errors import VdnnError
from vdnn_alloc.host_memory import available_bytes, default_host_budget
from vdnn_alloc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


def run() -> int:
    """say what this machine can do, and what is missing"""
    checks: dict[str, Callable[[], str]] = {
        "torch": _torch,
        "core": _core,
        "torch glue": _glue,
        "host memory": _host_memory,
    }
    outcomes = [_print(name, check) for name, check in checks.items()]
    return 0 if all(outcomes) else 1


def _print(name: str, check: Callable[[], str]) -> bool:
    try:
        print(f"ok       {name}: {check()}")
    except (VdnnError, ImportError, OSError) as error:
        print(f"missing  {name}: {error}")
        return False
    return True


def _torch() -> str:
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(devices)]
    return f"{torch.__version__}, {', '.join(names) or 'no GPU'}"


def _core() -> str:
    from vdnn_alloc.native import Native, find_library

    return str(Native(find_library()).path)


def _glue() -> str:
    from vdnn_alloc.glue import HOST_LIBRARIES, HOST_SOURCE, build

    return str(build(HOST_SOURCE, HOST_LIBRARIES))


def _host_memory() -> str:
    left = available_bytes()
    default = default_host_budget(left)
    return f"{format_bytes(left)} left here; host budget by default {format_bytes(default)}"
