"""A row of levels that can be raised over a range, in time logarithmic in its length.

The planner's picture of memory over the events of a step. It is a tree over the row: each node
knows how far its whole range was raised, and the highest level below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOTHING = -(1 << 62)
"""Below every level: padding, and the highest of an empty range."""


class RangeLevels:
    """Levels by position. Ranges are [begin, end)."""

    def __init__(self, levels: Sequence[int]) -> None:
        self._count = max(1, len(levels))
        self._width = 1 << (self._count - 1).bit_length()
        padding = [_NOTHING] * (self._width - len(levels))
        self._raised = [0] * (2 * self._width)
        self._highest = [_NOTHING] * self._width + list(levels) + padding
        for node in range(self._width - 1, 0, -1):
            self._highest[node] = max(self._highest[2 * node], self._highest[2 * node + 1])

    def add(self, begin: int, end: int, amount: int) -> None:
        """Raises every level of the range."""
        left, right = begin + self._width, end + self._width
        touched = (left, right - 1)
        if begin >= end:
            return
        while left < right:
            if left & 1:
                self._raise(left, amount)
                left += 1
            if right & 1:
                right -= 1
                self._raise(right, amount)
            left >>= 1
            right >>= 1
        for node in touched:
            self._settle_above(node)

    def highest(self, begin: int, end: int) -> int:
        """The highest level of the range; far below every level if it is empty."""
        return self._highest_in(1, 0, self._width, begin, end)

    def last_above(self, end: int, limit: int) -> int:
        """The last position before `end` whose level is above `limit`; -1: there is none."""
        return self._last_above(1, 0, self._width, end, limit)

    def _raise(self, node: int, amount: int) -> None:
        self._raised[node] += amount
        self._highest[node] += amount

    def _settle_above(self, node: int) -> None:
        while node > 1:
            node >>= 1
            highest = max(self._highest[2 * node], self._highest[2 * node + 1])
            self._highest[node] = highest + self._raised[node]

    def _highest_in(self, node: int, first: int, last: int, begin: int, end: int) -> int:
        if begin >= last or end <= first:
            return _NOTHING
        if begin <= first and last <= end:
            return self._highest[node]
        middle = (first + last) // 2
        left = self._highest_in(2 * node, first, middle, begin, end)
        right = self._highest_in(2 * node + 1, middle, last, begin, end)
        return max(left, right) + self._raised[node]

    def _last_above(self, node: int, first: int, last: int, end: int, limit: int) -> int:
        if first >= end or self._highest[node] <= limit:
            return -1
        if last - first == 1:
            return first
        middle = (first + last) // 2
        below = limit - self._raised[node]
        right = self._last_above(2 * node + 1, middle, last, end, below)
        return right if right >= 0 else self._last_above(2 * node, first, middle, end, below)
