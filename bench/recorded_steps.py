"""Step profiles from recordings of another kind: gzipped JSON made on a GPU by a plain recorder.

The recording has `base` and `peak` bytes, `t0` and `t1` microseconds, `mem` (a list of [time,
"alloc" | "free_completed", address, bytes]) and `ev` (a list of [time, "save" | "use" | "fwd_end" |
"bwd_end", address, bytes, is_parameter]); its launches were blocking, so that times on the host
are times on the device.

What it lacks is taken from what it has. A block is cold at the first save, after its own last one,
of a block that is younger than that: then the operator that reads it has ended. A workspace lives
and dies with nothing but whole such lives in between. A block that is saved or used again in
backward has one absence.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

from vdnn_alloc.step_profile import Event, EventKind, ProfiledBlock, StepProfile

H200_BYTES_PER_SECOND = 55.2e9  # pinned copies, one direction at a time
GPU_PIECE_BYTES = 32 << 20  # kLeastPieceFrames of allocator/mover.cpp, in frames of 2 MiB
NS_PER_US = 1000


def read(path: Path, bytes_per_second: float = H200_BYTES_PER_SECOND) -> StepProfile:
    """The profile in a file: our own format, gzipped or not, or a recording as above.

    Raises:
        ProfileError: it is neither.
        OSError: it cannot be read.
    """
    raw = path.read_bytes()
    text = gzip.decompress(raw).decode() if raw[:2] == b"\x1f\x8b" else raw.decode()
    if not _is_recording(text):
        return StepProfile.from_json(text)
    return convert(json.loads(text), bytes_per_second)


def _is_recording(text: str) -> bool:
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return isinstance(document, dict) and "mem" in document


class _Row(NamedTuple):
    time_ns: int
    kind: str
    block: int


def convert(recording: dict[str, Any], bytes_per_second: float) -> StepProfile:
    """The profile of one recording; both directions of the link run at `bytes_per_second`."""
    sizes, rows = _number_blocks(recording)
    workspaces = _workspaces(rows)
    blocks = [ProfiledBlock(size, 0, number in workspaces) for number, size in enumerate(sizes)]
    return StepProfile(
        duration_ns=(recording["t1"] - recording["t0"]) * NS_PER_US,
        base_bytes=recording["base"],
        out_bytes_per_second=bytes_per_second,
        in_bytes_per_second=bytes_per_second,
        least_piece_bytes=GPU_PIECE_BYTES,
        blocks=tuple(blocks),
        events=tuple(_events(rows)),
    )


def _number_blocks(recording: dict[str, Any]) -> tuple[list[int], list[_Row]]:
    """Sizes by number, and the rows of blocks; a block from before is numbered when it is freed."""
    merged = [(row[0], 2 * (row[1] != "alloc"), *row[1:4], False) for row in recording["mem"]]
    merged += [(row[0], 1, *[*row[1:], 0, 0, False][:4]) for row in recording["ev"]]
    merged.sort(key=lambda row: row[:2])
    sizes: list[int] = []
    rows: list[_Row] = []
    at: dict[int, int] = {}
    for time_us, _, kind, address, size, is_parameter in merged:
        time_ns = (time_us - recording["t0"]) * NS_PER_US
        if kind == "alloc" or (kind == "free_completed" and address not in at):
            at[address] = len(sizes)
            sizes.append(size)
        if kind.endswith("_end"):
            rows.append(_Row(time_ns, kind, -1))
        elif address in at and not is_parameter:
            number = at.pop(address) if kind == "free_completed" else at[address]
            rows.append(_Row(time_ns, kind.removesuffix("_completed"), number))
    return sizes, rows


def _workspaces(rows: list[_Row]) -> set[int]:
    found: set[int] = set()
    open_lives: list[int] = []
    for _, kind, block in rows:
        if kind == "alloc":
            open_lives.append(block)
        elif kind == "free" and open_lives and open_lives[-1] == block:
            found.add(open_lives.pop())
        else:
            open_lives.clear()
    return found


def _events(rows: list[_Row]) -> list[Event]:
    cold_before = _cold_before(rows)
    saved: set[int] = set()
    used: set[int] = set()
    events = []
    for number, (time_ns, kind, block) in enumerate(rows):
        events += [Event(time_ns, EventKind.COLD, cold) for cold in cold_before.get(number, [])]
        if kind.endswith("_end") or (kind == "save" and block in saved):
            continue
        if kind == "use" and (block not in saved or block in used):
            continue
        saved |= {block} if kind == "save" else set()
        used |= {block} if kind == "use" else set()
        events.append(Event(time_ns, EventKind(kind), block))
    return events


def _cold_before(rows: list[_Row]) -> dict[int, list[int]]:
    """By row: the blocks that are cold when it comes."""
    last_save = {row.block: number for number, row in enumerate(rows) if row.kind == "save"}
    born = {row.block: number for number, row in enumerate(rows) if row.kind == "alloc"}
    first_use: dict[int, int] = {}
    for number, row in enumerate(rows):
        if row.kind in ("use", "free"):
            first_use.setdefault(row.block, number)
    waiting: list[int] = []  # by their last save
    cold: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        if row.kind == "save" or row.kind == "fwd_end":
            youngest = born.get(row.block, -1) if row.kind == "save" else number
            ready = [b for b in waiting if last_save[b] < youngest and first_use[b] > number]
            waiting = [b for b in waiting if last_save[b] >= youngest]
            cold.setdefault(number, []).extend(ready)
        if row.kind == "save" and last_save[row.block] == number and row.block in first_use:
            waiting.append(row.block)
    return cold
