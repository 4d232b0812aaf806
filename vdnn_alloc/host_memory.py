"""How many more bytes this process may take from the machine.

/proc/meminfo, which psutil reads, is the machine's. A container is killed for passing the limit
of its own cgroup or of any cgroup above it, so the least of all counts (versions 1 and 2).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Files(NamedTuple):
    """Names of one cgroup version's files."""

    mount: str
    limit: str
    use: str
    inactive: str  # the row of memory.stat that counts cache which the kernel gives back


_VERSION_2 = _Files("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_VERSION_1 = _Files(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)
_UNREADABLE_SHARE = 0.5  # of what the machine has, when there is a limit that cannot be read


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that the machine and every cgroup above this process still leave."""
    machine = int(psutil.virtual_memory().available)
    rooms = [_room(folder, files, machine) for folder, files in _cgroups(root)]
    return max(0, min([machine, *rooms]))


def default_host_budget(left_bytes: int) -> int:
    """The page-locked bytes we allow ourselves of what is left: the program needs some too."""
    return left_bytes * 4 // 5


def _cgroups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """Every cgroup that this process is in, its own first, then its ancestors."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # no cgroups in this kernel
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _VERSION_1 if controllers else _VERSION_2
        inside = PurePosixPath(path.lstrip("/"))
        for folder in (inside, *inside.parents):
            yield root / files.mount / folder, files


def _room(folder: Path, files: _Files, machine: int) -> int:
    """Bytes that one cgroup leaves; `machine` if it sets no limit."""
    limit_file = folder / files.limit
    if not limit_file.exists():  # the root cgroup, or a path outside our cgroup namespace
        return machine
    try:
        limit = limit_file.read_text().strip()
        if limit == "max":
            return machine
        use = int((folder / files.use).read_text())
        return int(limit) - use + min(use, _inactive_bytes(folder, files))
    except (OSError, ValueError):
        return int(machine * _UNREADABLE_SHARE)


def _inactive_bytes(folder: Path, files: _Files) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    rows = (line.split() for line in lines)
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == files.inactive), 0)
