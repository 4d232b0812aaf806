"""Episodes: one forward and its backward, recognised by what it saves.

An episode's signature is a rolling hash of its saves (layer, size, order). Under it we keep the
order in which its saves came back, so that the next episode of the same shape knows when each
save is used again. Nobody announces an episode: one opens when the program saves again after
having taken something back, so gradient accumulation, several losses, evaluation and functional
programs all fit. That is decided, and its saves are counted, where they pass
(allocator/torch_glue/hooks.cpp); here is what the finished ones taught. Nothing here depends on
time, threads or addresses. Callers hold the GIL.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vdnn_alloc.hooks import Episode

MAX_SIGNATURES = 64


@dataclass(frozen=True, slots=True)
class Opening:
    """What the core is told when an episode opens; see vdnn_begin_episode."""

    finished: int
    expected: int
    ranks: list[int]


@dataclass(slots=True)
class _Learned:
    """What one signature taught: the order of use, and what came after it."""

    order: Episode
    successor: int = 0


class Episodes:
    """What the finished ones taught."""

    def __init__(self, max_signatures: int = MAX_SIGNATURES) -> None:
        self._learned: OrderedDict[int, _Learned] = OrderedDict()
        self._max_signatures = max_signatures
        self._last_signature = 0  # of the last finished episode that saved anything

    def open(self, ended: Episode | None) -> Opening:
        """One has ended, if any was open, and the next begins."""
        finished = 0  # what saved nothing teaches nothing
        if ended is not None and ended.saves > 0:
            self._learn(ended)
            finished = self._last_signature
        expected = self._expect(self._last_signature)
        return Opening(finished, expected, self._ranks(expected))

    def _learn(self, episode: Episode) -> None:
        """Keeps the episode itself: its last unpacks may still come."""
        signature = episode.signature
        previous = self._learned.get(self._last_signature)
        if previous is not None:
            previous.successor = signature
        learned = self._learned.setdefault(signature, _Learned(episode))
        if episode.used or not learned.order.used:
            learned.order = episode
        self._learned.move_to_end(signature)
        self._last_signature = signature
        while len(self._learned) > self._max_signatures:
            self._learned.popitem(last=False)

    def _expect(self, finished: int) -> int:
        learned = self._learned.get(finished)
        return 0 if learned is None else (learned.successor or finished)

    def _ranks(self, signature: int) -> list[int]:
        """ranks[i] is the place of save i among the uses; what was never used comes last."""
        learned = self._learned.get(signature)
        if learned is None or not learned.order.used:
            return []
        used = learned.order.used
        ranks = [len(used)] * learned.order.saves
        for rank, save_index in enumerate(used):
            ranks[save_index] = rank
        return ranks
