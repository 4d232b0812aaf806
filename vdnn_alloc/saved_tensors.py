"""The saved-tensor hooks: what autograd keeps for backward goes through here and may move.

pack keeps `x.detach()`, never x: an output kept by its own graph would never be freed. All aliases
of one storage share a StorageRecord, owned by the graph alone; when it dies the storage is freed
without any call of ours. The core counts the aliases: a storage that nobody else holds is cold.

Hooks switch off autograd's own check for in-place changes, so unpack makes it for every tensor,
moved or not. An alias shares its version counter with x and keeps it when its storage moves.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from vdnn_alloc.errors import BudgetError
from vdnn_alloc.layers import OUTSIDE_LAYER
from vdnn_alloc.native import BACKWARD, OUTSIDE, SAVE_EAGER, pointer_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdnn_alloc.episodes import Episode, Episodes
    from vdnn_alloc.layers import Layers, ThreadState
    from vdnn_alloc.native import Glue
    from vdnn_alloc.plan import Plan

_MAX_ALIASES = 4096
"""Of one record. A storage saved again and again while some graph that holds it is always alive (a
buffer in a loop whose graphs overlap) begins another record then."""

_core: Any = torch._C
_autograd: Any = _core._autograd
_engine: Any = torch.autograd.Variable._execution_engine
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class StorageRecord:
    """One storage that autograd saved: our aliases of it, under one generation of its block."""

    __slots__ = ("__weakref__", "_pointers", "aliases", "episodes", "generation", "glue", "lock")

    def __init__(self, glue: Glue, generation: int) -> None:
        self.glue = glue
        self.generation = generation
        """0 once its block is gone: then the aliases are all there is."""
        self.episodes: list[Episode] = []
        """Those that saved it: almost always one."""
        self.aliases: list[torch.Tensor] = []
        self._pointers = pointer_array(())
        self.lock = threading.Lock()
        """Held while the storage may be exchanged."""

    def join(self, episode: Episode) -> None:
        """The episode has a record alive as long as this one lives."""
        if episode not in self.episodes:
            self.episodes.append(episode)
            episode.live_records += 1

    def restore(self, save_index: int) -> None:
        """Makes the data whole under every alias. Call it with the lock held."""
        if len(self._pointers) != len(self.aliases):
            self._pointers = pointer_array([alias._cdata for alias in self.aliases])
        self.generation = self.glue.restore(self.generation, save_index, self._pointers)

    def retire(self) -> None:
        """The aliases are no longer counted as ours: while one lives, its storage stays."""
        if self.generation and self.aliases:
            self.glue.release(self.aliases[0]._cdata, self.generation)
        self.generation = 0
        self.aliases.clear()

    def __del__(self) -> None:
        for episode in self.episodes:
            episode.live_records -= 1
        self.retire()


class Saved:
    """What autograd keeps in place of one saved tensor."""

    __slots__ = ("alias", "episode", "layer", "origin", "record", "save_index", "version")

    def __init__(self, x: torch.Tensor) -> None:
        self.alias = x.detach()
        self.version = self.alias._version
        node = x.grad_fn
        self.origin = None if node is None else (node.name(), x.output_nr, x._is_view())
        """The node that x comes from, which of its outputs x is, whether a view: for an error."""
        self.record: StorageRecord | None = None
        """None: it never moves."""
        self.episode: Episode | None = None
        self.layer = 0
        self.save_index = 0


class SavedTensors:
    """pack and unpack, and the records that are alive."""

    def __init__(
        self,
        glue: Glue,
        episodes: Episodes,
        layers: Layers,
        thread: ThreadState,
        plan: Plan,
        open_episode: Callable[[], None],
    ) -> None:
        self._glue = glue
        self._thread = thread
        self._episodes = episodes
        self._kinds = layers.kinds
        self._plan = plan
        self._open_episode = open_episode
        self._records: weakref.WeakValueDictionary[int, StorageRecord] = (
            weakref.WeakValueDictionary()
        )
        self._packing = threading.RLock()
        """One storage must not get two records, nor two saves one index. Reentrant: a finalizer
        that the garbage collector runs in here may pack."""
        self.is_inert = False
        """In a forked child: tensors are kept as they are and no native call is made."""

    def pack(self, x: torch.Tensor) -> Saved:
        saved = Saved(x)
        if type(x) in _PLAIN and not self.is_inert and not _is_parameter(x):
            with self._packing:
                self._offer(saved)
        return saved

    def unpack(self, saved: Saved) -> torch.Tensor:
        if saved.alias._version != saved.version:
            raise RuntimeError(_modified_text(saved))
        if saved.record is not None:
            self._restore(saved, saved.record)
        # A fresh tensor each time: who keeps it shows in the storage's use count.
        return saved.alias.detach()

    def _offer(self, saved: Saved) -> None:
        """Lets the core move what `saved` shows, if it is one of its blocks."""
        if self._episodes.wants_opening:
            self._open_episode()
        episode = self._episodes.current
        assert episode is not None
        layer = self._thread.position[0]
        flags = SAVE_EAGER if self._plan.is_eager(self._kinds[layer]) else 0
        save_index = episode.saves
        generation = self._glue.save(saved.alias._cdata, layer, save_index, flags)
        if not generation:
            return
        record = self._record(generation)
        record.join(episode)
        record.aliases.append(saved.alias)
        saved.record, saved.episode = record, episode
        saved.layer, saved.save_index = layer, save_index
        episode.note_save(layer, saved.alias.nbytes)

    def _record(self, generation: int) -> StorageRecord:
        record = self._records.get(generation)
        if record is not None and len(record.aliases) >= _MAX_ALIASES:
            record.retire()
            record = None
        if record is None:
            record = self._records[generation] = StorageRecord(self._glue, generation)
        return record

    def _restore(self, saved: Saved, record: StorageRecord) -> None:
        if self.is_inert:
            raise RuntimeError(
                "vdnn_alloc: this graph was built before fork(); a child cannot run its backward"
            )
        assert saved.episode is not None
        self._episodes.note_unpack(saved.episode, saved.save_index)
        self._enter_backward(saved.layer)
        with record.lock:
            before = record.generation
            if before:
                _restore_or_raise(record, saved.save_index)
            if record.generation != before:
                self._rename(record, before)

    def _enter_backward(self, layer: int) -> None:
        """What is read by hand is no backward."""
        position = (layer, BACKWARD)
        if self._thread.position == position or _core._current_graph_task_id() == -1:
            return
        if self._thread.position[1] != BACKWARD:
            _engine.queue_callback(self._leave_backward)
        self._thread.position = position
        self._glue.boundary(layer, BACKWARD)

    def _leave_backward(self) -> None:
        """At the end of the backward: what the program makes next is no layer's."""
        if self._thread.position[1] == BACKWARD:
            self._thread.position = (OUTSIDE_LAYER, OUTSIDE)
            self._glue.boundary(OUTSIDE_LAYER, OUTSIDE)

    def _rename(self, record: StorageRecord, before: int) -> None:
        """The record's block has begun another life, or is gone."""
        self._records.pop(before, None)
        if record.generation:
            self._records[record.generation] = record


def _restore_or_raise(record: StorageRecord, save_index: int) -> None:
    try:
        record.restore(save_index)
    except BudgetError as error:
        raise torch.OutOfMemoryError(str(error)) from None


def _is_parameter(x: torch.Tensor) -> bool:
    """W, and W.t() which a linear layer saves: held by their module for ever."""
    return isinstance(x, torch.nn.Parameter) or (
        x._is_view() and isinstance(x._base, torch.nn.Parameter)
    )


def _modified_text(saved: Saved) -> str:
    """torch's own sentence."""
    tensor, torchs = saved.alias, _torchs_text()
    hint = torchs.partition(" instead.")[2]
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{tensor.type()} {list(tensor.shape)}]{_origin_text(saved, torchs)} is at "
        f"version {tensor._version}; expected version {saved.version} instead.{hint}"
    )


def _origin_text(saved: Saved, torchs: str) -> str:
    """Nothing for a leaf. A view whose base was modified has got another node by now."""
    if saved.origin is None:
        return ""
    node, output, is_view = saved.origin
    if is_view:
        node, output = "AsStridedBackward0", 0
    if "ExpBackward0" not in torchs:  # some versions leave the ending out
        node = re.sub(r"Backward\d*$", "", node)
    return f", which is output {output} of {node},"


def _torchs_text() -> str:
    """What torch, in its version and mode, says of an exponential that was modified."""
    hooks: list[Any] = []
    while (pair := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(pair)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        with torch.enable_grad():
            modified: Any = torch.zeros((), device="cpu", requires_grad=True).exp()
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)
    modified.detach().add_(1)
    try:
        return str(modified.grad_fn._saved_result)
    except RuntimeError as error:
        return str(error)
