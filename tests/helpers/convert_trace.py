"""Turns a profile of a real training step on a GPU into a trace for tests/native, scaled down.

    python -m tests.helpers.convert_trace vgg19_256_fp32.json.gz tests/native/traces/big_vgg19.txt

The profile is gzipped JSON: `mem`, a list of [time, "alloc" | "free_completed", address, bytes],
and `ev`, a list of [time, "save" | "use" | "fwd_end" | "bwd_end", address, bytes, is_parameter].
The trace's words are record_trace.py's; there are no operators in it. When the program lets go of
what it saved is not in the profile: here that is when it has saved two more storages.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import deque
from pathlib import Path

SHRINK = 1024
HELD_AFTER_SAVE = 2


class Converter:
    def __init__(self, saves_in_all: dict[int, int] | None = None) -> None:
        self._saves_in_all = saves_in_all or {}  # by storage; from a first conversion
        self.saves_seen: dict[int, int] = {}
        self.prologue: list[str] = []
        self.lines: list[str] = []
        self._count = 0
        self._at: dict[int, int] = {}  # address -> storage
        self._sizes: dict[int, int] = {}
        self._saves: dict[int, list[int]] = {}  # storage -> its save indices
        self._uses: dict[int, int] = {}  # storage -> how many of them were used
        self._next_save = 0
        self._held: deque[int] = deque()  # saved, and still held by the program
        self._old: list[int] = []  # storages of the step before

    def add(self, kind: str, address: int, size: int, is_parameter: bool) -> None:
        match kind:
            case "alloc":
                self._at[address] = self._new(size, self.lines)
            case "free_completed":
                self._free(self._at.pop(address, 0) or self._from_before(size))
            case "save" if address in self._at and not is_parameter:
                self._save(self._at[address])
            case "use" if address in self._at:
                self._use(self._at[address])
            case "bwd_end":
                self.lines.append("optimizer")

    def _new(self, size: int, lines: list[str]) -> int:
        self._count += 1
        self._sizes[self._count] = max(size // SHRINK, 1)
        lines.append(f"alloc {self._count} {self._sizes[self._count]}")
        return self._count

    def _from_before(self, size: int) -> int:
        """A gradient of the step before, say."""
        storage = self._new(size, self.prologue)
        self._old.append(storage)
        return storage

    def _save(self, storage: int) -> None:
        self.saves_seen[storage] = self.saves_seen.get(storage, 0) + 1
        self._saves.setdefault(storage, []).append(self._next_save)
        self.lines.append(f"save {self._next_save} {storage}")
        self._next_save += 1
        if self.saves_seen[storage] == self._saves_in_all.get(storage):
            self._held.append(storage)
        if len(self._held) > HELD_AFTER_SAVE:
            self.lines.append(f"drop {self._held.popleft()}")

    def _use(self, storage: int) -> None:
        """Which of its saves is asked for is not in the profile: the latest first."""
        saves = self._saves.get(storage, [])
        used = self._uses.get(storage, 0)
        if used < len(saves):
            self.lines.append(f"use {saves[-1 - used]}")
            self._uses[storage] = used + 1

    def _free(self, storage: int) -> None:
        saves = self._saves.pop(storage, [])
        is_held = storage in self._held or not saves
        holds = self._uses.pop(storage, 0) + is_held
        if storage in self._held:
            self._held.remove(storage)
        self.lines += [f"unsave {index}" for index in saves]
        self.lines += [f"drop {storage}"] * holds

    def close(self) -> list[str]:
        """What stays takes the part, in the next round, of what was there before."""
        renames = []
        for storage in sorted(self._at.values()):
            like = [old for old in self._old if self._sizes[old] == self._sizes[storage]]
            if like:
                self._old.remove(like[0])
                renames.append(f"becomes {storage} {like[0]}")
            else:
                self._free(storage)
        for old in self._old:  # nothing stayed in its place: it is born and dies within the step
            self.prologue.remove(f"alloc {old} {self._sizes[old]}")
            self.lines.remove(f"drop {old}")
        return [*self.prologue, "step", *self.lines, *renames]


def convert(path: str) -> list[str]:
    with gzip.open(path) as file:
        profile = json.load(file)
    events = [(e[0], 0 if e[1] == "alloc" else 2, e[1], e[2], e[3], False) for e in profile["mem"]]
    events += [(e[0], 1, *[*e[1:], 0, 0, False][:4]) for e in profile["ev"]]
    events.sort(key=lambda event: event[:2])
    first = Converter()
    for _, _, *event in events:
        first.add(*event)
    second = Converter(first.saves_seen)
    for _, _, *event in events:
        second.add(*event)
    return second.close()


if __name__ == "__main__":
    Path(sys.argv[2]).write_text("\n".join(convert(sys.argv[1])) + "\n")
