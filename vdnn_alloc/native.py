"""The C interface in Python: finds the libraries, mirrors vdnn_alloc.h, turns status into errors.

The only file that imports ctypes. Calls of the core give the GIL up (CDLL); those of the glue keep
it (PyDLL), for they take and return Python objects.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vdnn_alloc.errors import BudgetError, ConfigError, DriverError, InstallError, VdnnError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vdnn_alloc.hooks import Hooks

ABI_VERSION = 4
LIBRARY = "libvdnn_alloc.so"
LIBRARY_VARIABLE = "VDNN_ALLOC_LIBRARY"
"""Environment variable: another build of the core, for its developers."""

OK, OUT_OF_MEMORY, INVALID, DRIVER, HOST_OUT_OF_MEMORY = range(5)
BACKENDS = {"host": 0, "cuda": 1}
GUARDS = {"auto": 0, "on": 1, "off": 2}
WORKSPACES = {"stock": 0, "none": 1, "planned": 2}
FORWARD, BACKWARD, OUTSIDE = range(3)
SAVE_EAGER = 1
NO_PREFETCH = 0xFFFFFFFF
WAS_LATE, WAS_KEPT = 1, 2
SAVES_INDICES = 1 << 31
"""For the glue: what the layer saves as int64 are indices of a pooling."""
SAVES_SIGNS = 1 << 30
"""For the glue: what the layer saves of its own is the result of a rectifier."""

_u32, _u64, _int = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
_text, _pointer, _size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t


class NativeConfig(ctypes.Structure):
    """vdnn_config."""

    _fields_ = [
        *((name, _u32) for name in ("abi_version", "backend", "policy", "check")),
        *((name, _u32) for name in ("guard", "workspace")),
        *((name, _u64) for name in ("budget_bytes", "host_budget_bytes", "frame_bytes", "seed")),
        ("host_bytes_per_second", _u64),
    ]


class Restored(ctypes.Structure):
    """vdnn_restored."""

    _fields_ = [
        *((name, _u64) for name in ("generation", "address", "size")),
        *((name, _u32) for name in ("moved", "reserved")),
    ]


class NativeStats(ctypes.Structure):
    """vdnn_stats."""

    _fields_ = [
        *((name, _u64) for name in ("frame_bytes", "budget_bytes", "host_budget_bytes")),
        *((name, _u64) for name in ("live_bytes", "live_bytes_max")),
        *((name, _u64) for name in ("resident_bytes", "resident_bytes_max")),
        *((name, _u64) for name in ("owned_bytes", "owned_bytes_max")),
        *((name, _u64) for name in ("created_bytes", "created_bytes_max")),
        *((name, ctypes.c_double) for name in ("live_bytes_average", "owned_bytes_average")),
        *((name, _u64) for name in ("live_blocks", "offloaded_blocks", "heap_blocks")),
        *((name, _u64) for name in ("mappings", "mapped_bytes")),
        *((name, _u64) for name in ("host_bytes", "host_bytes_max", "host_pinned_bytes")),
        *((name, _u64) for name in ("offloaded_bytes", "prefetched_bytes")),
        *((name, _u64) for name in ("offloads", "prefetches", "late_prefetches")),
        *((name, _u64) for name in ("dropped_prefetches", "kept_offloads")),
        *((name, _u64) for name in ("allocations", "frees", "mapping_misses")),
        *((name, _u64) for name in ("first_miss_bytes", "stall_ns")),
        ("guarded_blocks", _u64),
        *((name, _u64) for name in ("guarded_out_bytes", "guarded_in_bytes", "guard_restores")),
        *((name, _u64) for name in ("guard_waits", "guard_wait_ns", "guard_remap_ns")),
        ("guard_is_on", _u64),
        *((name, _u64) for name in ("ooms", "workspace_refusals", "episodes")),
        *((name, _u64) for name in ("driver_create", "driver_release", "driver_map")),
        *((name, _u64) for name in ("driver_set_access", "driver_unmap", "driver_pin")),
        ("driver_copies", _u64),
    ]


class StepEvent(ctypes.Structure):
    """vdnn_step_event."""

    _fields_ = [
        *((name, _u64) for name in ("time_ns", "frames")),
        *((name, _u32) for name in ("kind", "block", "position")),
        *((name, _u32) for name in ("save_index", "layer", "operator_number")),
    ]


class Step(ctypes.Structure):
    """vdnn_step."""

    _fields_ = [
        *((name, _u64) for name in ("duration_ns", "waited_ns", "begin_frames")),
        *((name, _u64) for name in ("out_bytes", "out_ns", "in_bytes", "in_ns")),
    ]


class PlannedMove(ctypes.Structure):
    """vdnn_planned_move."""

    _fields_ = [("save_index", _u32), ("prefetch_position", _u32)]


class PlannedRefusal(ctypes.Structure):
    """vdnn_planned_refusal."""

    _fields_ = [("operator_number", _u32), ("frames", _u32)]


class Pin(ctypes.Structure):
    """vdnn_pin."""

    _fields_ = [("address", _u64), ("generation", _u64)]


class GraphBlock(ctypes.Structure):
    """vdnn_graph_block."""

    _fields_ = [(name, _u64) for name in ("address", "size", "pool", "stream")]


class NativeLayerStats(ctypes.Structure):
    """vdnn_layer_stats."""

    _fields_ = [
        *((name, _u32) for name in ("layer", "reserved")),
        *((name, _u64) for name in ("owned_bytes", "owned_bytes_max", "saved_bytes")),
        *((name, _u64) for name in ("offloaded_bytes", "prefetched_bytes", "guarded_bytes")),
        *((name, _u64) for name in ("waited_ns", "workspace_refusals")),
    ]


class TraceEvent(ctypes.Structure):
    """vdnn_trace_event."""

    _fields_ = [
        *((name, _u64) for name in ("time_ns", "generation", "bytes")),
        *((name, _u32) for name in ("kind", "layer")),
    ]


def fields_of(structure: ctypes.Structure) -> dict[str, int | float]:
    """A structure as a dictionary, without its padding."""
    names = (field[0] for field in structure._fields_)
    return {name: getattr(structure, name) for name in names if name != "reserved"}


class Native:
    """The calls of vdnn_alloc.h that the controller makes. Loads the library for all to see."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # the glue finds its symbols there
        self._library = lib
        self._start = _bind(lib, "vdnn_start", _int, ctypes.POINTER(NativeConfig))
        self._minimum_budget = _bind(lib, "vdnn_minimum_budget", _u64, _u32, _u64)
        self._last_error = _bind(lib, "vdnn_last_error", _text)
        self._name_layer = _bind(lib, "vdnn_name_layer", None, _u32, _text)
        self._layer_name = _bind(lib, "vdnn_layer_name", _text, _u32)
        self._begin_episode = _bind(
            lib, "vdnn_begin_episode", None, _u64, _u64, ctypes.POINTER(_u32), _size
        )
        self._read_stats = _bind(lib, "vdnn_read_stats", _int, _int, ctypes.POINTER(NativeStats))
        self._read_layer_stats = _bind(
            lib, "vdnn_read_layer_stats", _size, _int, ctypes.POINTER(NativeLayerStats), _size
        )
        self._read_trace = _bind(
            lib, "vdnn_read_trace", _size, _int, ctypes.POINTER(TraceEvent), _size
        )
        self._trace_kind_name = _bind(lib, "vdnn_trace_kind_name", _text, _u32)
        self._validate = _bind(lib, "vdnn_validate", _int)
        self._fail_at = _bind(lib, "vdnn_host_fail_at", _int, _u32, _u64)
        self._owns = _bind(lib, "vdnn_owns", _int, _int, _pointer)
        self.begin_operator = _bind(lib, "vdnn_begin_operator", None, _int)
        self.end_operator = _bind(lib, "vdnn_end_operator", None)
        self._workspace_bytes = _bind(lib, "vdnn_workspace_bytes", _u64, _int)
        self.record_next_episode = _bind(lib, "vdnn_record_next_episode", None)
        self._used_devices = _bind(lib, "vdnn_used_devices", _u64)
        self._read_step = _bind(
            lib,
            "vdnn_read_step",
            _size,
            _int,
            ctypes.POINTER(Step),
            ctypes.POINTER(StepEvent),
            _size,
        )
        moves, refusals = ctypes.POINTER(PlannedMove), ctypes.POINTER(PlannedRefusal)
        self._set_plan = _bind(
            lib, "vdnn_set_plan", _int, _int, _u64, moves, _size, refusals, _size
        )
        self._read_outcome = _bind(
            lib, "vdnn_read_outcome", _size, _int, _u64, ctypes.POINTER(ctypes.c_uint8), _size
        )
        self.end_of_step = _bind(lib, "vdnn_end_of_step", None)
        self.empty_cache = _bind(lib, "vdnn_torch_empty_cache", None)
        self.reset_peaks = _bind(lib, "vdnn_reset_peaks", None, _int)
        self.witness_bytes = _bind(lib, "vdnn_host_witness_bytes", _u64)
        self.mapping_count = _bind(lib, "vdnn_host_mapping_count", _u64)

    def start(self, config: NativeConfig) -> None:
        config.abi_version = ABI_VERSION
        self.check(self._start(ctypes.byref(config)))

    def minimum_budget(self, backend: str, frame_bytes: int) -> int:
        return int(self._minimum_budget(BACKENDS[backend], frame_bytes))

    def check(self, status: int) -> None:
        """Raises what `status` means, with the core's sentence."""
        if status != OK:
            raise _ERRORS.get(status, VdnnError)(self.last_error())

    def last_error(self) -> str:
        return bytes(self._last_error() or b"").decode(errors="replace")

    def name_layer(self, layer: int, name: str) -> None:
        self._name_layer(layer, name.encode())

    def layer_name(self, layer: int) -> str:
        return bytes(self._layer_name(layer) or b"").decode(errors="replace")

    def begin_episode(self, finished: int, expected: int, ranks: Sequence[int]) -> None:
        self._begin_episode(finished, expected, (_u32 * len(ranks))(*ranks), len(ranks))

    def used_devices(self) -> list[int]:
        used = self._used_devices()
        return [device for device in range(64) if used >> device & 1]

    def read_step(self, device: int) -> tuple[dict[str, int | float], list[tuple[int, ...]]] | None:
        """Ends the recording; None: there is none, or the device is not through with it.

        Each event is (time_ns, frames, kind, block, position, save_index, layer).
        """
        step = Step()
        capacity = self._read_step(device, ctypes.byref(step), None, 0)
        if capacity == 0:
            return None
        events = (StepEvent * capacity)()
        self._read_step(device, ctypes.byref(step), events, capacity)
        names = [field[0] for field in StepEvent._fields_ if field[0] != "reserved"]
        return fields_of(step), [tuple(getattr(e, name) for name in names) for e in events]

    def set_plan(
        self,
        device: int,
        signature: int,
        moves: Sequence[tuple[int, int]],
        refusals: Sequence[tuple[int, int]] = (),
    ) -> None:
        """(save_index, prefetch_position) and (operator_number, frames) each; nothing: pressure
        decides alone."""
        leaving = (PlannedMove * len(moves))(*(PlannedMove(*move) for move in moves))
        refused = (PlannedRefusal * len(refusals))(*(PlannedRefusal(*one) for one in refusals))
        self.check(self._set_plan(device, signature, leaving, len(moves), refused, len(refusals)))

    def read_outcome(self, device: int, signature: int) -> bytes:
        """Of the last episode of the signature, by save index: WAS_LATE and WAS_KEPT."""
        capacity = self._read_outcome(device, signature, None, 0)
        flags = (ctypes.c_uint8 * capacity)()
        count = min(capacity, self._read_outcome(device, signature, flags, capacity))
        return bytes(flags)[:count]

    def read_stats(self, device: int) -> dict[str, int | float]:
        stats = NativeStats()
        self.check(self._read_stats(device, ctypes.byref(stats)))
        return fields_of(stats)

    def read_layer_stats(self, device: int) -> list[dict[str, int | float]]:
        capacity = self._read_layer_stats(device, None, 0)
        rows = (NativeLayerStats * capacity)()
        count = min(capacity, self._read_layer_stats(device, rows, capacity))
        return [fields_of(row) for row in rows[:count]]

    def read_trace(self, device: int, capacity: int) -> list[dict[str, int | float]]:
        events = (TraceEvent * capacity)()
        return [fields_of(event) for event in events[: self._read_trace(device, events, capacity)]]

    def trace_kind_name(self, kind: int) -> str:
        return bytes(self._trace_kind_name(kind) or b"").decode()

    def validate(self) -> None:
        """Walks every table of the core; raises with the equation that does not hold."""
        self.check(self._validate())

    def fail_at(self, primitive: int, nth: int) -> None:
        """Host backend: the n-th call from now of a primitive fails once; 0 clears it."""
        self.check(self._fail_at(primitive, nth))

    def workspace_bytes(self, device: int) -> int:
        """The largest workspace that a convolution may try now."""
        return int(self._workspace_bytes(device))

    def owns(self, device: int, address: int) -> bool:
        return bool(self._owns(device, address))

    def address_of(self, function: str) -> int:
        """Where a function of the core is, for torch's setters of plain C callbacks."""
        return int(ctypes.cast(getattr(self._library, function), _pointer).value or 0)


class Tensor(Protocol):
    """A torch.Tensor, for who must not import torch."""

    _cdata: int


class Glue:
    """The library built against the installed torch; see allocator/torch_glue/.

    A tensor is named by the number in its `_cdata`.
    """

    def __init__(self, path: Path, native: Native) -> None:
        self._native = native
        brief = ctypes.PyDLL(str(path))
        self.torch_version = _bind(brief, "vdnn_glue_torch_version", _u32)
        self._library = brief
        self._make_hooks = _bind(
            brief,
            "vdnn_glue_make_hooks",
            ctypes.py_object,
            ctypes.py_object,
            _u32,
            ctypes.py_object,
            _pointer,
        )
        self.use_count = _bind(brief, "vdnn_glue_use_count", _u64, _pointer)

    def install_cpu(self) -> None:
        """Of host_glue.cpp."""
        self._native.check(_bind(self._library, "vdnn_glue_install_cpu", _int)())

    def install_cuda(self, device_count: int) -> None:
        """Of cuda_glue.cpp."""
        install = _bind(self._library, "vdnn_glue_install_cuda", _int, _int)
        if install(device_count) != OK:
            raise InstallError("CUDA has started in this process; install vdnn_alloc before that")

    def make_hooks(
        self, callbacks: Mapping[str, Callable[..., object]], outside_flags: int, sample: Tensor
    ) -> Hooks:
        """The hooks of this process, which call back for what is seldom; see hooks.hpp.

        `outside_flags` are those of what is saved outside every module, `sample` is any tensor.

        Raises:
            ImportError: the tensors of this torch are not those that the glue knows.
        """
        hooks: Hooks = self._make_hooks(dict(callbacks), outside_flags, sample, sample._cdata)
        return hooks


def find_library() -> Path:
    """The core: $VDNN_ALLOC_LIBRARY, else the one installed with this package."""
    override = os.environ.get(LIBRARY_VARIABLE)
    if override:
        return Path(override)
    import vdnn_alloc

    places = [Path(folder) / LIBRARY for folder in vdnn_alloc.__path__]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise InstallError(
            f"{LIBRARY} is not in {places[0].parent}; build it with `pip install .`, or name a "
            f"build in {LIBRARY_VARIABLE}"
        )
    return found


def _bind(
    library: ctypes.CDLL, name: str, result: type | None, *arguments: type
) -> ctypes._NamedFuncPointer:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments
    bound: ctypes._NamedFuncPointer = function
    return bound


_ERRORS: dict[int, type[VdnnError]] = {
    OUT_OF_MEMORY: BudgetError,
    INVALID: ConfigError,
    DRIVER: DriverError,
    HOST_OUT_OF_MEMORY: BudgetError,
}
