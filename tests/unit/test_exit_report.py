"""The two lines on stderr."""

from __future__ import annotations

from dataclasses import fields, replace

from vdnn_alloc.exit_report import exit_sentence, start_sentence
from vdnn_alloc.snapshot import LayerStats, Stats

IDLE = Stats(**{field.name: 0 for field in fields(Stats) if field.name != "layers"}, layers=())


def test_the_first_line_says_what_is_on() -> None:
    assert start_sentence("host", "dyn", 12 << 30, 64 << 30) == (
        "on, host backend, policy dyn, budget 12.0 GiB, host budget 64.0 GiB"
    )


def test_the_last_line_says_what_moved() -> None:
    moved = replace(IDLE, offloaded_bytes=3 << 20, prefetched_bytes=2 << 20)

    assert exit_sentence(moved).startswith("moved 3.00 MiB out and 2.00 MiB back")


def test_or_that_nothing_needed_to() -> None:
    idle = replace(IDLE, live_bytes_max=5 << 20, budget_bytes=8 << 20)

    sentence = exit_sentence(idle)

    assert sentence.startswith("nothing needed to move")
    assert "5.00 MiB" in sentence
    assert "8.00 MiB" in sentence


def test_and_where_engines_may_not_be_stocks() -> None:
    names = ("a", "b", "c", "d")
    rows = tuple(LayerStats(i, name, *[0] * 7, int(name != "b")) for i, name in enumerate(names))

    sentence = exit_sentence(replace(IDLE, workspace_refusals=3, layers=rows))

    assert "3 workspaces were refused in a, c, d, so bits may differ" in sentence
    assert "refused" not in exit_sentence(IDLE)


def test_and_that_a_model_compiled_whole_cannot_come_back_ahead_of_its_use() -> None:
    late = replace(IDLE, offloaded_bytes=1, prefetched_bytes=1, prefetches=3, late_prefetches=2)

    for short in (late, replace(IDLE, ooms=1)):
        assert "compile its layers one by one" in exit_sentence(short, is_compiled=True)
        assert "compile" not in exit_sentence(short)
    for well in (IDLE, replace(late, late_prefetches=1)):
        assert "compile" not in exit_sentence(well, is_compiled=True)
