"""A histogram of durations: how many have been how long, in 16 classes for each power of two of a microsecond.

    class     0 ... 31            32 ... 47              48 ... 63              ...   688
    duration  one microsecond     2 µs each, from 32 µs  4 µs each, from 64 µs  ...   70 years and more

To count a duration takes two shifts and two additions, and no search. Counts only grow, unless they fade: two readings
tell what has come in between, and histograms of the same thing in several places add up. A percentile is at most a
sixteenth too long, and one of `percentiles` is a thirtieth too long or too short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

STEP_BITS: Final = 4
STEPS: Final = 1 << STEP_BITS
"""Classes for each power of two."""

LAST_POWER: Final = 46
"""The last class has all durations from 2^46 microseconds on."""

CLASSES: Final = STEPS * (LAST_POWER - STEP_BITS + 1) + 1

PERCENTILES: Final = (0.5, 0.95, 0.99)
"""Those of a tube that statistics and metrics show."""

MICROSECOND: Final = 1_000  # nanoseconds


class Histogram:
    """Counts of durations.

    `add` makes no object that stays but the numbers that take the place of others.
    """

    def __init__(self) -> None:
        self.counts = [0] * CLASSES  # of the durations in each class
        self.total = 0  # of all durations, in nanoseconds

    def add(self, nanoseconds: int) -> None:
        """Count a duration. One below 0, from clocks that disagree, counts as 0."""
        if nanoseconds < 0:
            nanoseconds = 0
        self.total += nanoseconds
        microseconds = nanoseconds // MICROSECOND
        shift = microseconds.bit_length() - STEP_BITS - 1
        index = microseconds if shift <= 0 else STEPS * shift + (microseconds >> shift)
        self.counts[index if index < CLASSES else CLASSES - 1] += 1

    @property
    def count(self) -> int:
        return sum(self.counts)

    def below(self, power: int) -> int:
        """How many durations are shorter than 2^power microseconds; the power is from 4 to 46."""
        return sum(self.counts[: STEPS * (power - STEP_BITS + 1)])

    def percentile(self, share: float) -> int:
        """The duration, in nanoseconds, that this share of all durations does not exceed; 0 without any."""
        left = share * self.count
        for index, count in enumerate(self.counts):
            left -= count
            if count and left <= 0:
                return shortest(index + 1) - 1
        return 0

    def percentiles(self, shares: Sequence[float]) -> list[int]:
        """The durations, in nanoseconds, that these shares of all durations do not exceed, in ascending order: each is
        the middle of its class. 0 without any."""
        found: list[int] = []
        left = [share * self.count for share in shares]
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            while count and len(found) < len(left) and seen >= left[len(found)]:
                found.append((shortest(index) + shortest(index + 1)) // 2)
        return found + [0] * (len(left) - len(found))

    def include(self, other: Histogram) -> None:
        """Count all that another one has counted: this is that of both places then."""
        self.total += other.total
        for index, count in enumerate(other.counts):
            self.counts[index] += count

    def check(self) -> None:
        """Verify that the total is one that durations of these classes can have.

        Raises:
            AssertionError: it is not.
        """
        assert len(self.counts) == CLASSES and min(self.counts) >= 0, "a histogram has lost a class"
        least = sum([count * shortest(index) for index, count in enumerate(self.counts)])
        most = sum([count * (shortest(index + 1) - 1) for index, count in enumerate(self.counts)])
        assert least <= self.total, "the total of a histogram is less than its counts say"
        assert self.total <= most or self.counts[-1], "the total of a histogram is more than its counts say"


class RecentHistogram(Histogram):
    """The latest durations: whenever MOST have been counted, all counts are halved."""

    MOST: Final = 1 << 16

    def __init__(self) -> None:
        super().__init__()
        self._left = self.MOST

    def add(self, nanoseconds: int) -> None:
        super().add(nanoseconds)
        self._left -= 1
        if not self._left:
            self._left = self.MOST // 2
            self.counts = [count >> 1 for count in self.counts]
            self.total >>= 1


def shortest(index: int) -> int:
    """The shortest duration of a class, in nanoseconds. All of the classes before it are shorter than that."""
    if index < 2 * STEPS:
        return index * MICROSECOND
    shift = index // STEPS - 1
    return (index - STEPS * shift << shift) * MICROSECOND
