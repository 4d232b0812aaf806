"""One recorded training step: what was asked of the allocator, and when the device got there.

A profile is what a planner and `simulate` work on. Who records it must give:

- times on the device's clock, in nanoseconds since the step began, of a step in which nothing
  moved and nothing waited for memory (else its waits count as compute). What happens between two
  events, the operators' own time, is the difference of theirs;
- every request of the step, and every free, in the order in which the device reaches them. A block
  without an ALLOC was there before the step, and its bytes are in `base_bytes`; a block without a
  FREE outlives the step;
- for each block that autograd saved: SAVE, once its bytes are final (the first pack); COLD, once
  nothing but our own records can reach it, behind the last operator that reads it; USE, before the
  first operator that needs it again (unpack). COLD may come again after a USE, with another USE;
- only what may leave: no SAVE for parameters, or for what the program holds until its use.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vdnn_alloc.errors import VdnnError
from vdnn_alloc.plan import LayerKind

FORMAT = "vdnn_alloc.step_profile"
VERSION = 1
NS_PER_SECOND = 10**9
PIECES = 32
"""At most, of one copy out; see `Mover` in allocator/mover.hpp."""


class ProfileError(VdnnError, ValueError):
    """A profile that contradicts itself, or a file that is none."""


class EventKind(enum.Enum):
    """What happens to a block."""

    ALLOC = "alloc"
    FREE = "free"
    SAVE = "save"
    """Its bytes are final: a copy out may begin."""
    COLD = "cold"
    """Nothing but our records can reach it: its frames may go."""
    USE = "use"
    """It must be whole on the device, until it is cold again or freed."""


class Event(NamedTuple):
    """What the device reaches at a time. A tuple, for a step has thousands."""

    time_ns: int
    """Since the step began, without any waiting for memory."""
    kind: EventKind
    block: int
    """Index in StepProfile.blocks."""


@dataclass(frozen=True)
class ProfiledBlock:
    """One request of the step, or a block that was there before and is freed in it."""

    size_bytes: int
    layer: int = 0
    """Index in StepProfile.layers of the layer that asked for it."""
    is_workspace: bool = False
    """Transient inside one operator, which has a smaller engine where it is refused."""


@dataclass(frozen=True)
class LayerTime:
    """Device time of one layer in the step."""

    name: str
    kind: LayerKind
    forward_ns: int
    backward_ns: int


OUTSIDE = LayerTime("outside", LayerKind.OUTSIDE, 0, 0)


@dataclass(frozen=True)
class StepProfile:
    """One step, checked when it is made.

    Raises:
        ProfileError: the events contradict themselves; the sentence names the first.
    """

    duration_ns: int
    """The whole step, as long as it takes where memory is not short."""
    base_bytes: int
    """Live when the step begins, the blocks without ALLOC among them."""
    out_bytes_per_second: float
    """Copies to the host, alone on the link."""
    in_bytes_per_second: float
    """Copies from the host, alone on the link."""
    blocks: tuple[ProfiledBlock, ...]
    events: tuple[Event, ...]
    """In the order in which the device reaches them."""
    layers: tuple[LayerTime, ...] = field(default=(OUTSIDE,))
    """Layer 0 is code outside every module."""
    least_piece_bytes: int = 0
    """A block that leaves gives up its frames piece by piece, a 32nd of it or this much at a time.
    0: all at once, at the end of its copy."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_events(self)

    def piece_of(self, size_bytes: int) -> int:
        """In which a block of this size gives up its frames."""
        if self.least_piece_bytes == 0:
            return size_bytes
        return max(self.least_piece_bytes, -(-size_bytes // PIECES))

    @property
    def peak_bytes(self) -> int:
        """The most that is live at once: with so much budget nothing need move."""
        live = peak = self.base_bytes
        for event in self.events:
            if event.kind is EventKind.ALLOC:
                live += self.blocks[event.block].size_bytes
                peak = max(peak, live)
            elif event.kind is EventKind.FREE:
                live -= self.blocks[event.block].size_bytes
        return peak

    def stretched_to(self, duration_ns: int) -> StepProfile:
        """The same step with every time in proportion.

        For a recording that slowed the step down, where its true duration is known.
        """
        ratio = duration_ns / self.duration_ns
        times = {
            "duration_ns": duration_ns,
            "events": tuple(e._replace(time_ns=int(e.time_ns * ratio)) for e in self.events),
            "layers": tuple(
                LayerTime(a.name, a.kind, int(a.forward_ns * ratio), int(a.backward_ns * ratio))
                for a in self.layers
            ),
        }
        return StepProfile(**{**vars(self), **times})

    def to_json(self) -> str:
        """The text of a profile file. Rows are lists, for there are thousands."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "duration_ns": self.duration_ns,
            "base_bytes": self.base_bytes,
            "out_bytes_per_second": self.out_bytes_per_second,
            "in_bytes_per_second": self.in_bytes_per_second,
            "least_piece_bytes": self.least_piece_bytes,
            "layers": [[a.name, a.kind.value, a.forward_ns, a.backward_ns] for a in self.layers],
            "blocks": [[b.size_bytes, b.layer, b.is_workspace] for b in self.blocks],
            "events": [[time_ns, kind.value, block] for time_ns, kind, block in self.events],
        }
        return json.dumps(document, separators=(",", ":")) + "\n"

    @staticmethod
    def from_json(text: str) -> StepProfile:
        """The profile in such a text.

        Raises:
            ProfileError: it is not JSON, no profile, of another version, or contradicts itself.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ProfileError(f"a step profile is JSON, and this is not: {error}") from error
        _check_header(document)
        try:
            return _read(document)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ProfileError):
                raise
            raise ProfileError(
                f"the step profile lacks a part or has a wrong one: {error!r}; record it again"
            ) from error


def _check_header(document: object) -> None:
    found = document if isinstance(document, dict) else {}
    if found.get("format") != FORMAT or found.get("version") != VERSION:
        raise ProfileError(
            f"expected {FORMAT} version {VERSION}, found {found.get('format')} version "
            f"{found.get('version')}; record the step again with this vdnn_alloc"
        )


def _read(document: dict[str, Any]) -> StepProfile:
    kinds = {kind.value: kind for kind in EventKind}
    return StepProfile(
        duration_ns=int(document["duration_ns"]),
        base_bytes=int(document["base_bytes"]),
        out_bytes_per_second=float(document["out_bytes_per_second"]),
        in_bytes_per_second=float(document["in_bytes_per_second"]),
        least_piece_bytes=int(document.get("least_piece_bytes", 0)),
        blocks=tuple(ProfiledBlock(*row) for row in document["blocks"]),
        events=tuple(Event(at, kinds[kind], block) for at, kind, block in document["events"]),
        layers=tuple(LayerTime(a, LayerKind(kind), f, b) for a, kind, f, b in document["layers"]),
    )


def _check_numbers(profile: StepProfile) -> None:
    if min(profile.out_bytes_per_second, profile.in_bytes_per_second) <= 0:
        raise ProfileError("a step profile needs copy rates above zero; measure the link")
    if profile.duration_ns <= 0 or profile.base_bytes < 0:
        raise ProfileError(
            f"a step of {profile.duration_ns} ns over {profile.base_bytes} bytes is none; "
            "record it again"
        )
    for number, block in enumerate(profile.blocks):
        if block.size_bytes <= 0 or not 0 <= block.layer < len(profile.layers):
            raise ProfileError(
                f"block {number} has {block.size_bytes} bytes and layer {block.layer}, of "
                f"{len(profile.layers)} layers; sizes are above zero"
            )


class _Life(enum.Enum):
    """Where a block stands between events."""

    UNBORN = enum.auto()
    LIVE = enum.auto()
    SAVED = enum.auto()
    COLD = enum.auto()
    IN_USE = enum.auto()
    FREED = enum.auto()


_BORN_BEFORE = (_Life.UNBORN, _Life.LIVE)
_NEXT: dict[EventKind, tuple[tuple[_Life, ...], _Life]] = {
    EventKind.ALLOC: ((_Life.UNBORN,), _Life.LIVE),
    EventKind.SAVE: ((*_BORN_BEFORE, _Life.SAVED), _Life.SAVED),
    EventKind.COLD: ((_Life.SAVED, _Life.IN_USE), _Life.COLD),
    EventKind.USE: ((_Life.SAVED, _Life.COLD, _Life.IN_USE), _Life.IN_USE),
    EventKind.FREE: (tuple(life for life in _Life if life is not _Life.FREED), _Life.FREED),
}
"""What may happen to a block in which state, and the state that follows."""


def _check_events(profile: StepProfile) -> None:
    lives = [_Life.UNBORN] * len(profile.blocks)
    before_ns = 0
    for number, (time_ns, kind, block) in enumerate(profile.events):
        if not before_ns <= time_ns <= profile.duration_ns:
            raise ProfileError(
                f"event {number} is at {time_ns} ns, and must be between "
                f"{before_ns} and {profile.duration_ns}"
            )
        if not 0 <= block < len(lives):
            raise ProfileError(f"event {number} is of block {block}, of {len(lives)}")
        allowed, after = _NEXT[kind]
        if lives[block] not in allowed:
            raise ProfileError(
                f"event {number} is a {kind.value} of block {block}, which is "
                f"{lives[block].name.lower().replace('_', ' ')} then"
            )
        before_ns, lives[block] = time_ns, after
    _check_base(profile)


def _check_base(profile: StepProfile) -> None:
    """Blocks that were there before are part of what was there before."""
    born = {event.block for event in profile.events if event.kind is EventKind.ALLOC}
    known = {event.block for event in profile.events} - born
    held_bytes = sum(profile.blocks[block].size_bytes for block in known)
    if held_bytes > profile.base_bytes:
        raise ProfileError(
            f"blocks of {held_bytes} bytes were there before the step, which began "
            f"with {profile.base_bytes} bytes"
        )
