"""The benchmark of random lengths, small, on the simulated device."""

from __future__ import annotations

import pytest

from bench import lengths
from vdnn_alloc.units import parse_bytes


@pytest.mark.slow
def test_a_loop_of_random_lengths_is_measured_beside_its_lengths_alone() -> None:
    shape = lengths.SHAPES["host"]

    found = lengths.measure(shape, steps=12)

    figures = found["figures"]
    assert len(figures["rows"]) == 12
    assert len({row["length"] for row in figures["rows"]}) > 6
    assert [min(figures["alone_ms"]), max(figures["alone_ms"])] == [64, 512]
    assert all(row["created_bytes"] <= parse_bytes(shape.budget, "") for row in figures["rows"])
    assert figures["rows"][-1]["offloaded_bytes"] > 0
    assert lengths.table_of(figures).row_count == 3


@pytest.mark.parametrize(("length", "ms"), [(10, 1.0), (15, 2.0), (20, 3.0), (25, 4.5), (30, 6.0)])
def test_a_length_between_two_that_were_measured_takes_a_time_between(
    length: int, ms: float
) -> None:
    assert lengths.time_at({10: 1.0, 20: 3.0, 30: 6.0}, length) == pytest.approx(ms)
