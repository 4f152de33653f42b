"""A histogram of durations: how many have been how long, in classes that are powers of two of a microsecond.

    class     0        1           2            3          ...    k                        47
    duration  < 1 µs   1 to 2 µs   2 to 4 µs    4 to 8 µs  ...    2^(k-1) to 2^k µs        70 years and more

The class of a duration is the bit length of its whole microseconds, so to count one is two additions and no search.
Counts only grow: whoever reads them now and then knows what has come in between, and histograms of the same thing in
several places add up. A percentile of them is wrong by up to a factor of two; `cluster/latency.py` is finer, and
forgets.

Must never know what is measured, or read a clock.
"""

from __future__ import annotations

from typing import Final

CLASSES: Final = 48
"""The last one has all durations from 2^46 microseconds on."""

MICROSECOND: Final = 1_000  # nanoseconds


class Histogram:
    """Counts of durations.

    `add` makes no object that stays but the numbers that take the place of others.
    """

    __slots__ = (
        "counts",  # of the durations in each class
        "total",  # of all durations, in nanoseconds
    )

    def __init__(self) -> None:
        self.counts = [0] * CLASSES
        self.total = 0

    def add(self, nanoseconds: int) -> None:
        """Count a duration. One below 0, from clocks that disagree, counts as 0."""
        if nanoseconds < 0:
            nanoseconds = 0
        self.total += nanoseconds
        index = (nanoseconds // MICROSECOND).bit_length()
        self.counts[index if index < CLASSES else CLASSES - 1] += 1

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self.counts)

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


def shortest(index: int) -> int:
    """The shortest duration of a class, in nanoseconds. All of the classes before it are shorter than that."""
    return MICROSECOND << (index - 1) if index else 0
