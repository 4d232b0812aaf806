"""The simulated device's own controls, which tests turn and users never see.

To be called in a process where vdnn_alloc is installed with backend="host".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import vdnn_alloc
from vdnn_alloc.native import Native, find_library

# driver.hpp's order.
PRIMITIVES = (
    "create_frame", "release_frame", "reserve", "unreserve", "map", "set_access", "unmap",
    "pin", "unpin", "copy_out", "copy_in", "record", "wait", "synchronize",
)  # fmt: skip

# The counter of the stats that grows with each call of a primitive.
COUNTERS = {
    "create_frame": "driver_create",
    "reserve": "mappings",
    "map": "driver_map",
    "set_access": "driver_set_access",
    "pin": "driver_pin",
    "copy_out": "offloads",
    "copy_in": "prefetches",
}


@cache
def native() -> Native:
    """The library that is loaded already, bound once more."""
    return Native(find_library())


def witness_bytes() -> int:
    """What the kernel says is behind the frames."""
    return int(native().witness_bytes())


def mapping_count() -> int:
    """Kernel mappings that the address ranges use."""
    return int(native().mapping_count())


def validate() -> None:
    """Walks every table of the core; raises with the equation that does not hold."""
    native().validate()


def owns(address: int) -> bool:
    """Whether the address lies in a block of ours."""
    return native().owns(0, address)


@dataclass
class Fault:
    """A fault that waits for its call."""

    reached: bool = False


@contextmanager
def fault(primitive: str, nth: int) -> Iterator[Fault]:
    """The nth call of a primitive from here on fails once; disarmed at the end."""
    counter, armed = COUNTERS[primitive], Fault()
    before = getattr(vdnn_alloc.stats(), counter)
    native().fail_at(PRIMITIVES.index(primitive), nth)
    try:
        yield armed
    finally:
        native().fail_at(PRIMITIVES.index(primitive), 0)
        calls = getattr(vdnn_alloc.stats(), counter) - before
        # What failed may not have been counted, but something must have been called.
        armed.reached = calls >= max(1, nth - 1)
