"""Recordings of a plain recorder become profiles, and the command prints their bounds."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from bench import bound, recorded_steps
from vdnn_alloc.step_profile import EventKind, ProfileError, StepProfile

A, B, W, C, OLD = 0x1000, 0x2000, 0x3000, 0x4000, 0x5000
RECORDING = {
    "t0": 100,
    "t1": 130,
    "base": 50,
    "peak": 92,
    "mem": [
        [101, "free_completed", OLD, 8],
        [102, "alloc", A, 20],
        [105, "alloc", B, 10],
        [105, "alloc", W, 20],
        [107, "free_completed", W, 20],
        [111, "alloc", C, 5],
        [122, "free_completed", C, 5],
        [123, "free_completed", B, 10],
        [126, "free_completed", A, 20],
    ],
    "ev": [
        [103, "save", A, 20, False],
        [104, "save", A, 20, False],
        [104, "save", 0x9000, 7, True],
        [108, "save", B, 10, False],
        [110, "fwd_end"],
        [120, "use", B, 10, False],
        [124, "use", A, 20, False],
        [125, "use", A, 20, False],
        [129, "bwd_end"],
    ],
}


def test_a_recording_becomes_a_profile() -> None:
    profile = recorded_steps.convert(RECORDING, 1e9)

    assert profile.duration_ns == 30_000
    assert profile.peak_bytes == 92
    old, a, b, workspace, c = range(5)
    assert [(e.time_ns, e.kind.value, e.block) for e in profile.events] == [
        (1000, "free", old),
        (2000, "alloc", a),
        (3000, "save", a),
        (5000, "alloc", b),
        (5000, "alloc", workspace),
        (7000, "free", workspace),
        (8000, "cold", a),  # b is younger than a's last save: what reads a has ended
        (8000, "save", b),
        (10000, "cold", b),  # nothing younger is saved: the forward has ended
        (11000, "alloc", c),
        (20000, "use", b),
        (22000, "free", c),
        (23000, "free", b),
        (24000, "use", a),
        (26000, "free", a),
    ]
    assert [block.is_workspace for block in profile.blocks] == [False] * 3 + [True, False]


def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    recording, own = tmp_path / "recording.json.gz", tmp_path / "own.json"
    recording.write_bytes(gzip.compress(json.dumps(RECORDING).encode()))
    profile = recorded_steps.read(recording, 1e9)
    own.write_text(profile.to_json())

    assert recorded_steps.read(own) == profile == recorded_steps.convert(RECORDING, 1e9)
    assert isinstance(profile, StepProfile)
    assert EventKind.COLD in {event.kind for event in profile.events}


def test_a_file_that_is_neither_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("[1]")

    with pytest.raises(ProfileError):
        recorded_steps.read(tmp_path / "other")


def test_the_command_prints_a_row_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.json"
    path.write_text(json.dumps(RECORDING))
    monkeypatch.setattr(sys, "argv", ["bound", str(path), "--budget", "92B", "--link", "1KB"])
    monkeypatch.setenv("COLUMNS", "120")

    assert bound.main() == 0

    printed = capsys.readouterr().out
    assert [f"{percent} %" in printed for percent in bound.PERCENTS] == [True] * 5
    assert "1.000 x" in printed
    assert "missing" in printed
