"""The statistics as one JSON file, with a version that changes whenever a reader would break.

Fields keep the names and meanings of vdnn_alloc.snapshot.Stats; here they are sorted into groups.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vdnn_alloc.snapshot import Stats

FORMAT = "vdnn_alloc.stats"
VERSION = 1

_PEAKS = ("live_bytes", "resident_bytes", "owned_bytes", "created_bytes", "host_bytes")
_GROUPS: dict[str, tuple[str, ...]] = {
    "totals": (
        *("allocations", "frees", "live_blocks", "offloaded_blocks", "heap_blocks", "mappings"),
        *("mapped_bytes", "mapping_misses", "first_miss_bytes", "host_pinned_bytes", "frame_bytes"),
        *("budget_bytes", "host_budget_bytes", "episodes", "ooms"),
    ),
    "moved": (
        *("offloaded_bytes", "prefetched_bytes", "offloads", "prefetches", "late_prefetches"),
        *("dropped_prefetches", "kept_offloads", "shrunk_bytes"),
    ),
    "stalls": ("stall_ns",),
    "guard": (
        *("guarded_blocks", "guarded_out_bytes", "guarded_in_bytes", "guard_restores"),
        *("guard_waits", "guard_wait_ns", "guard_remap_ns", "guard_is_on"),
    ),
}


def build(stats: Stats, configuration: Mapping[str, object], device: Mapping[str, object]) -> str:
    """The file's text."""
    values = asdict(stats)
    document: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "configuration": dict(configuration),
        "device": dict(device),
        "peaks": {name: _peak(values, name) for name in _PEAKS},
        **{group: {name: values[name] for name in names} for group, names in _GROUPS.items()},
        "workspaces": {
            "workspace_refusals": stats.workspace_refusals,
            "refused_layers": [row.name for row in stats.layers if row.workspace_refusals],
            "may_differ_from_stock": stats.workspace_refusals > 0,
        },
        "driver_calls": {
            name.removeprefix("driver_"): values[name]
            for name in values
            if name.startswith("driver_")
        },
        "layers": values["layers"],
    }
    return json.dumps(document, indent=2) + "\n"


def write(path: str | os.PathLike[str], text: str) -> None:
    """Replaces the file in one step, so that a reader never sees half of it.

    Raises:
        OSError: the path cannot be written.
    """
    target = Path(path)
    if target.exists() and not target.is_file():  # /dev/stdout and the like
        target.write_text(text)
        return
    handle, unfinished = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(unfinished).chmod(0o666 & ~_umask())
        Path(unfinished).replace(target)
    except OSError:
        Path(unfinished).unlink(missing_ok=True)
        raise


def _peak(values: Mapping[str, object], name: str) -> dict[str, object]:
    kinds = {"now": name, "max": f"{name}_max", "average": f"{name}_average"}
    return {kind: values[key] for kind, key in kinds.items() if key in values}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
