"""Returns the memory of deleted jobs to the system, in slices, without a cost for commands.

glibc returns only the end of its heap: one block in use there keeps all free memory before it. `malloc_trim` returns
the rest, but holds the heap's lock until all of it is done. Instead, free memory is taken from `malloc` in blocks, and
the system takes back the pages of each block (MADV_DONTNEED). Then the blocks are freed. Free memory without pages gets
new ones when it is used again.

glibc sorts what was freed at the next allocation of more than a kilobyte, here or in a command. That took 40 ms in a
heap of 360,000 separate pieces, and no slice bounds it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

INTERVAL: Final = 5.0
"""Seconds between two looks at the memory of the process."""

LEAST: Final = 16 << 20
"""Bytes of free memory that are returned at once, or more. It must be free at two looks: a backlog that comes and goes
within seconds would need its pages again."""

BLOCK: Final = 256 << 10
"""Bytes of a block. Free memory in shorter pieces stays."""

SLICE: Final = 200_000
PAUSE: Final = 0.001
"""Nanoseconds for which the event loop is held, and seconds between two slices."""

STATM: Final = "/proc/self/statm"


class MemoryReturn:
    """Looks for free memory and returns it, from `start` to `stop`. Does nothing without glibc.

    Args:
        used: returns the bytes that all jobs take now.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, used: Callable[[], int]) -> None:
        self._used = used
        self._library: Any = None
        self._floor = 0  # the least that the process took beside its jobs, in bytes, since memory was returned last
        self._last = 0  # what it took beside its jobs at the last look
        self._most = 0  # how many blocks to take at most
        self._heap_end = 0  # blocks behind it are new memory: there are no free ones left
        self._blocks: list[int] = []  # their addresses
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if has_glibc():
            self._loop = loop
            self._floor = self._last = self._beside_jobs()
            self._timer = loop.call_later(INTERVAL, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._blocks:
            self._library.free(self._blocks.pop())

    def _beside_jobs(self) -> int:
        """Bytes of resident memory that the jobs do not account for."""
        with open(STATM) as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE - self._used()

    def _look(self) -> None:
        now = self._beside_jobs()
        free = min(now, self._last) - self._floor
        self._last = now
        self._floor = min(self._floor, now)
        if free >= LEAST:
            self._begin(now)
        else:
            self._timer = self._loop.call_later(INTERVAL, self._look)

    def _begin(self, now: int) -> None:
        if self._library is None:
            self._library = load_library()
        self._most = now // BLOCK
        self._heap_end = self._library.sbrk(0) or 0
        self._take()

    def _take(self) -> None:
        """Take free blocks, and return their pages."""
        library = self._library
        end = perf_counter_ns() + SLICE
        while len(self._blocks) < self._most:
            address = library.malloc(BLOCK)
            if address is None:
                break
            self._blocks.append(address)
            if address >= self._heap_end:
                break
            start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
            library.madvise(start, (address + BLOCK) // mmap.PAGESIZE * mmap.PAGESIZE - start, mmap.MADV_DONTNEED)
            if perf_counter_ns() >= end:
                self._timer = self._loop.call_later(PAUSE, self._take)
                return
        self._give_back()

    def _give_back(self) -> None:
        """Free the blocks."""
        end = perf_counter_ns() + SLICE
        while self._blocks:
            self._library.free(self._blocks.pop())
            if perf_counter_ns() >= end:
                self._timer = self._loop.call_later(PAUSE, self._give_back)
                return
        self._floor = self._last = self._beside_jobs()
        self._timer = self._loop.call_later(INTERVAL, self._look)


def has_glibc() -> bool:
    """Whether this process has the allocator that keeps free memory, and the system says how much it takes."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") is not None and os.path.exists(STATM)
    except (ValueError, OSError):
        return False


def load_library() -> Any:
    """The functions of the C library. They keep the interpreter's lock: none of them takes long."""
    import ctypes  # takes two milliseconds, and most servers never have so much to return

    library = ctypes.PyDLL(None)
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.sbrk.argtypes = [ctypes.c_ssize_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
