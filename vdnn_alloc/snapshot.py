"""A snapshot of the allocator's counters: what `vdnn_alloc.stats()` returns.

Torch's own statistics know nothing of a budget or of what has left the device, and on a GPU some
of them raise under a pluggable allocator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vdnn_alloc.native import Native


@dataclass(frozen=True)
class LayerStats:
    """One layer: a module by its qualified name, or "outside" for code that runs in none."""

    layer: int
    name: str
    owned_bytes: int
    """Live bytes of blocks born while it ran."""
    owned_bytes_max: int
    saved_bytes: int
    """Bytes that autograd saved while it ran, since start."""
    offloaded_bytes: int
    """Of those, copied to the host since start."""
    prefetched_bytes: int
    """Of those, copied back since start."""
    guarded_bytes: int
    """Copied to the host while the program held them (the access guard)."""
    waited_ns: int
    """Time that its backward waited for copies."""
    workspace_refusals: int
    """Convolution workspaces that were refused to it."""


@dataclass(frozen=True)
class Stats:
    """One device. Bytes are now; `_max` is since start or the last reset_peaks()."""

    frame_bytes: int
    """Size of one frame, the unit of physical memory."""
    budget_bytes: int
    """The most that created_bytes may ever be."""
    host_budget_bytes: int
    """The most that host_pinned_bytes may ever be."""

    live_bytes: int
    """Asked for and not freed, wherever the data is. Its peak is what stock PyTorch would need."""
    live_bytes_max: int
    live_bytes_average: float
    """Over time, since start or the last reset_peaks()."""
    resident_bytes: int
    """Of the live bytes, those on the device."""
    resident_bytes_max: int
    owned_bytes: int
    """Frames that blocks and heap slabs own: the device memory really in use."""
    owned_bytes_max: int
    owned_bytes_average: float
    created_bytes: int
    """Frames that exist, in use or ready."""
    created_bytes_max: int

    live_blocks: int
    offloaded_blocks: int
    """Live blocks whose data is on the host alone."""
    heap_blocks: int
    """Live blocks in the heap, among what never moves."""
    mappings: int
    """Address ranges built so far and kept."""
    mapped_bytes: int
    """Their length in all."""

    host_bytes: int
    """Page-locked bytes that hold copies."""
    host_bytes_max: int
    host_pinned_bytes: int
    """Page-locked bytes in all."""

    offloaded_bytes: int
    """Copied from the device to the host since start."""
    prefetched_bytes: int
    """Copied from the host to the device since start."""
    offloads: int
    prefetches: int
    late_prefetches: int
    """Copies back that backward had to ask for itself."""
    dropped_prefetches: int
    """Prefetched blocks that pressure pushed out again before their use."""
    kept_offloads: int
    """Blocks copied out whose frames nobody took: they needed no copy back."""

    allocations: int
    frees: int
    mapping_misses: int
    """Requests that had to build a mapping; 0 a step once a loop repeats itself."""
    first_miss_bytes: int
    """Size of the first such request of this episode; 0 if there was none."""
    stall_ns: int
    """CPU time that our calls waited for copies."""
    guarded_blocks: int
    """Tensors that the program holds and whose data is on the host."""
    guarded_out_bytes: int
    """Of offloaded_bytes, those of tensors that the program held."""
    guarded_in_bytes: int
    """Of prefetched_bytes, those that came home because an operator was about to use them."""
    guard_restores: int
    guard_waits: int
    """Times that the CPU waited for the device, so that a held tensor could leave or come home."""
    guard_wait_ns: int
    guard_remap_ns: int
    """CPU time spent on changing what their addresses show."""
    guard_is_on: int
    """1 while operators are watched."""

    ooms: int
    """Requests that the budget could not serve."""
    workspace_refusals: int
    """Above 0: other convolution engines may have run than stock's, so bits may differ from it."""
    shrunk_bytes: int
    """Saved since the start by keeping indices of poolings as a smaller type, and of maps that only
    a rectifier and a pooling saved the signs; of all devices."""
    episodes: int
    """Forwards (with their backwards) seen so far."""

    driver_create: int
    """Driver calls since start, by kind."""
    driver_release: int
    driver_map: int
    driver_set_access: int
    driver_unmap: int
    driver_pin: int
    driver_copies: int

    layers: tuple[LayerStats, ...]


def read_stats(native: Native, device: int, shrunk_bytes: int) -> Stats:
    """What the allocator counts on `device` now, and what the hooks have counted."""
    totals: dict[str, Any] = {**native.read_stats(device), "shrunk_bytes": shrunk_bytes}
    return Stats(**totals, layers=tuple(_read_layers(native, device)))


def _read_layers(native: Native, device: int) -> list[LayerStats]:
    rows: list[dict[str, Any]] = [dict(row) for row in native.read_layer_stats(device)]
    return [LayerStats(name=native.layer_name(row["layer"]) or "outside", **row) for row in rows]
