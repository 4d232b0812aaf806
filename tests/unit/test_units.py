"""Sizes as text: what is understood, what is refused, and how they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdnn_alloc.errors import ConfigError
from vdnn_alloc.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12GiB", 12 << 30),
        (" 1.5 MiB ", 3 << 19),
        ("984B", 984),
        ("7kib", 7 << 10),
        ("2GB", 2 * 10**9),
        (".5TiB", 1 << 39),
    ],
)
def test_a_number_with_a_unit_is_a_size(text: str, size: int) -> None:
    assert parse_bytes(text, "budget") == size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("12", "which unit? write 12GiB"),
        ("-1GiB", "above zero"),
        ("0MiB", "above zero"),
        ("0.1B", "above zero"),
        ("12GiBs", "no such unit"),
        ("lots", "not a size"),
        ("", "not a size"),
        ("1e3GiB", "not a size"),
    ],
)
def test_anything_else_is_refused_in_a_sentence_that_names_the_setting(
    text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=r"^host_budget=") as caught:
        parse_bytes(text, "host_budget")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (984, "984 B"),
        (1024, "1.00 KiB"),
        (12 << 20, "12.0 MiB"),
        (123 << 30, "123 GiB"),
        (3 << 39, "1.50 TiB"),
    ],
)
def test_sizes_are_shown_in_three_digits(size: int, text: str) -> None:
    assert format_bytes(size) == text


@settings(deadline=None)
@given(st.integers(min_value=1, max_value=1 << 50))
def test_what_is_shown_can_be_read_back_within_a_hundredth(size: int) -> None:
    assert parse_bytes(format_bytes(size), "budget") == pytest.approx(size, rel=0.01, abs=1)
