"""Episodes: one forward and its backward, recognised by what it saves.

An episode's signature is a rolling hash of its saves (layer, size, order). Under it we keep the
order in which its saves came back, so that the next episode of the same shape knows when each
save is used again. Nobody announces an episode: one opens when the program saves again after
having taken something back, so gradient accumulation, several losses, evaluation and functional
programs all fit. Nothing here depends on time, threads or addresses. Callers hold the GIL.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

MAX_SIGNATURES = 64
_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class Episode:
    """What is known of one episode. Its records keep it while they live."""

    signature: int = 0
    """Of the saves so far; 0 while there are none."""
    saves: int = 0
    live_records: int = 0
    """Storages saved in it whose graph is alive."""
    used: list[int] = field(default_factory=list)
    """Save indices in the order of their first unpack."""
    seen: set[int] = field(default_factory=set)
    """The same indices, to look one up."""

    def note_save(self, layer: int, size: int) -> None:
        mixed = (self.signature ^ (layer << 44) ^ size) * _PRIME + 1
        self.signature = (mixed & _MASK) or 1
        self.saves += 1

    def note_unpack(self, save_index: int) -> None:
        if save_index not in self.seen:
            self.seen.add(save_index)
            self.used.append(save_index)


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
    """The open episode, and what the finished ones taught."""

    def __init__(self, max_signatures: int = MAX_SIGNATURES) -> None:
        self.current: Episode | None = None
        self._learned: OrderedDict[int, _Learned] = OrderedDict()
        self._max_signatures = max_signatures
        self._last_signature = 0  # of the last finished episode that saved anything
        self._is_stale = False  # an unpack or an optimizer step came since the last opening

    @property
    def wants_opening(self) -> bool:
        """Whether the next pack or root forward begins another episode."""
        episode = self.current
        if episode is None or self._is_stale:
            return True
        return episode.saves > 0 and episode.live_records == 0

    def open(self) -> Opening:
        """Ends the open episode, if any, and begins the next."""
        finished = 0  # what saved nothing teaches nothing
        if self.current is not None and self.current.saves > 0:
            self._learn(self.current)
            finished = self._last_signature
        self.current = Episode()
        self._is_stale = False
        expected = self._expect(self._last_signature)
        return Opening(finished, expected, self._ranks(expected))

    def note_unpack(self, episode: Episode, save_index: int) -> None:
        episode.note_unpack(save_index)
        self._is_stale = True

    def note_step(self) -> None:
        self._is_stale = True

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
