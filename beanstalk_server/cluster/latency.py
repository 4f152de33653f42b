"""Counts how long something takes, for percentiles, in a few hundred bytes and half a microsecond each time.

Durations are counted in classes: eight for each power of two of microseconds, so a percentile is wrong by an eighth at
most. Old ones fade: when many have been counted, all counts are halved. Must never know what is measured.
"""

from __future__ import annotations

from typing import Final

CLASSES: Final = 8 * 32
"""Up to more than an hour."""

MOST: Final = 1 << 16
"""How many durations are counted before all counts are halved."""


class Latency:
    """The latest durations, by their classes."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * CLASSES
        self._total = 0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        microseconds = int(seconds * 1e6)
        shift = max(microseconds.bit_length() - 4, 0)
        self._counts[min(8 * shift + (microseconds >> shift), CLASSES - 1)] += 1
        self._total += 1
        if self._total >= MOST:
            self._counts = [count >> 1 for count in self._counts]
            self._total = sum(self._counts)

    def percentile(self, share: float) -> int:
        """The duration, in microseconds, that this share of all durations does not exceed; 0 without any."""
        left = share * self._total
        for index, count in enumerate(self._counts):
            left -= count
            if count and left <= 0:
                return _longest(index)
        return 0


def _longest(index: int) -> int:
    """The longest duration of a class, in microseconds."""
    if index < 16:
        return index
    shift = index // 8 - 1
    return ((index - 8 * shift + 1) << shift) - 1
