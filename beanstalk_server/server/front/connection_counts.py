"""Connection counts of all processes that accept from the same sockets, in shared memory.

The system wakes all of them for a new client, and often the same one is first. So a process that has more clients than
another one waits for a moment before it accepts.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

COUNT_BYTES: Final = 4


class ConnectionCounts:
    """The counts, as one of the processes sees them.

    Args:
        descriptor: of a file that `prepare_counts` has prepared. It is not needed any more.
        index: which of the counts is its own.
    """

    def __init__(self, descriptor: int, index: int) -> None:
        self._counts = memoryview(mmap.mmap(descriptor, 0)).cast("I")
        self._index = index
        self.note(0)  # another process may have had this place, and have ended

    def note(self, count: int) -> None:
        """Tell the others how many clients this process has."""
        self._counts[self._index] = count

    def total(self) -> int:
        """How many clients all of them have."""
        return sum(self._counts)

    def part_of(self, number: int) -> int:
        """How many of this number are for this process, if all get the same, or one more."""
        count = len(self._counts)
        return number // count + (self._index < number % count)

    def is_ahead(self) -> bool:
        """Whether another process has fewer clients."""
        return self._counts[self._index] > min(self._counts)


def prepare_counts(descriptor: int, count: int) -> None:
    """Give an empty file room for the counts of this many processes."""
    os.ftruncate(descriptor, count * COUNT_BYTES)
