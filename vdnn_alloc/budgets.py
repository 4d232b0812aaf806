"""The two budgets that install() starts with: what was asked for, or what the machine leaves."""

from __future__ import annotations

from dataclasses import dataclass

from vdnn_alloc.errors import ConfigError
from vdnn_alloc.host_memory import default_host_budget
from vdnn_alloc.units import format_bytes


@dataclass(frozen=True)
class Room:
    """What there is to take from, in bytes."""

    device_free: int
    host_left: int
    minimum_budget: int
    """The least that the core can work with."""
    shares_host_memory: bool
    """Device memory is host memory (host backend): both budgets come out of host_left."""


@dataclass(frozen=True)
class Budgets:
    device: int
    host: int


def decide(device: int | None, host: int | None, room: Room) -> Budgets:
    """The budgets asked for, or the defaults: the device's free bytes less 5 %, and 80 % of what
    the host then leaves.

    Raises:
        ConfigError: more than there is, or less than the core can work with.
    """
    device_bytes = _default_device(host, room) if device is None else device
    if device_bytes > room.device_free:
        raise ConfigError(
            f"budget={format_bytes(device_bytes)}: the device has "
            f"{format_bytes(room.device_free)} free; ask for less"
        )
    if device_bytes < room.minimum_budget:
        raise ConfigError(
            f"budget={format_bytes(device_bytes)}: too small to work with; the least is "
            f"{format_bytes(room.minimum_budget)}"
        )
    left = room.host_left - (device_bytes if room.shares_host_memory else 0)
    host_bytes = default_host_budget(left) if host is None else host
    if host_bytes > left:
        raise ConfigError(
            f"host_budget={format_bytes(host_bytes)}: this machine and its cgroup leave "
            f"{format_bytes(left)}; ask for less"
        )
    return Budgets(device_bytes, host_bytes)


def _default_device(host: int | None, room: Room) -> int:
    taken = host if host is not None and room.shares_host_memory else 0
    return room.device_free * 95 // 100 - taken
