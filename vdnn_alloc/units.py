"""Bytes to text and back, in one place."""

from __future__ import annotations

import re

from vdnn_alloc.errors import ConfigError

_BYTES_PER_UNIT = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_UNITS_BY_LOWER_CASE = {unit.lower(): size for unit, size in _BYTES_PER_UNIT.items()}
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str, key: str) -> int:
    """The bytes that "12GiB" means.

    Args:
        text: a number and a unit.
        key: the setting it was given for; the error sentence begins with it.

    Raises:
        ConfigError: it is no quantity, has no unit, or is not above zero.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ConfigError(f"{key}={text}: not a size; write a number and a unit, like 12GiB")
    number, unit = match.groups()
    if not unit:
        raise ConfigError(f"{key}={text}: which unit? write {number}GiB or {number}MiB")
    size = _UNITS_BY_LOWER_CASE.get(unit.lower())
    if size is None:
        raise ConfigError(f"{key}={text}: no such unit; there are {', '.join(_BYTES_PER_UNIT)}")
    return require_positive(int(float(number) * size), key, text)


def require_positive(value: int, key: str, text: object) -> int:
    """`value`, or a ConfigError that quotes `text`, what the user wrote."""
    if value <= 0:
        raise ConfigError(f"{key}={text}: must be above zero")
    return value


def format_bytes(count: float) -> str:
    """Three digits and the largest binary unit that keeps them above one: "1.50 GiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        quantity = count / _BYTES_PER_UNIT[unit]
        if abs(quantity) >= 1:
            return f"{quantity:.{max(0, 3 - len(str(int(abs(quantity)))))}f} {unit}"
    return f"{count:.0f} B"
