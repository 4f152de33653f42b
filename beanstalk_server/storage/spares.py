"""Allocates disk space ahead: makes the spares, finds those of earlier processes, and notices a full disk.

A spare is a file of zeros that will become a segment. `upkeep.py` decides how many are needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import closing
from typing import Final

from beanstalk_server.events import event
from beanstalk_server.storage.disk import ZEROS, Directory
from beanstalk_server.storage.errors import unusable
from beanstalk_server.storage.upkeep import SEGMENT_OVERHEAD, Room, Spare

BLOCK: Final = 4096
"""Bytes. The size of a segment is a multiple of this, like the size of beanstalkd's files."""

RETRY_INTERVAL: Final = 1_000_000_000
"""Nanoseconds after which a full disk is tried again."""

_NAME: Final = re.compile(r"spare\.(\d+)")

logger = logging.getLogger("beanstalk_server")


class Allocator:
    """Makes spares, as far as the disk has room for them.

    Args:
        directory: gets the spares.
        room: is informed of each spare, and of a full disk.
        last_number: the highest number of the existing spares, or 0.
        clock: nanoseconds, monotonic.
    """

    def __init__(self, directory: Directory, room: Room, last_number: int, clock: Callable[[], int]) -> None:
        self._directory = directory
        self._room = room
        self._last_number = last_number
        self._clock = clock
        self.full_until = 0
        """When to try a full disk again, in nanoseconds of `clock`; 0 while the disk is not full."""

    def may_try(self) -> bool:
        """Whether the disk may have room: it was not found to be full within the last second."""
        return not self.full_until or self._clock() >= self.full_until

    def next_name(self) -> str:
        """A name for a new spare, which no file has yet."""
        self._last_number += 1
        return spare_name(self._last_number)

    def sizes(self, size: int) -> list[int]:
        """The sizes to try for a spare, in bytes: the wanted one, then smaller ones if cleaning depends on a spare."""
        if self._room.has_room_to_clean():
            return [size]
        smaller = [self._room.segment_size >> shift for shift in range(1, 7)]
        return [size] + [less // BLOCK * BLOCK for less in smaller if less >= BLOCK]

    def create(self, name: str, size: int, *, fill: bool) -> Spare:
        """Make a file that may become a spare. This blocks, and may run in a thread; `add` must follow.

        Args:
            fill: write the zeros and sync them, so that no commit has to wait for that; else only allocate the space.

        Raises:
            OSError: usually, the disk has no room for the file.
        """
        file = self._directory.create(name, size, fill=fill)
        try:
            if fill:
                file.sync()
        except OSError:
            self._directory.remove(name)
            raise
        finally:
            file.close()
        return Spare(name, size)

    def add(self, spare: Spare) -> None:
        if spare.size >= self._room.segment_size:
            self._note_room()
        self._room.add_spare(spare)

    def allocate(self, size: int) -> bool:
        """Make a spare of this size or a smaller one on the spot, without zeros; False when the disk is full."""
        return any(self.allocate_exactly(less) for less in self.sizes(size))

    def allocate_exactly(self, size: int) -> bool:
        """Make a spare of this size on the spot, without zeros; False when the disk is full."""
        try:
            spare = self.create(self.next_name(), size, fill=False)
        except OSError as error:
            self.note_full(error)
            return False
        self.add(spare)
        return True

    def has_room(self) -> bool:
        """Whether the disk has room for one more segment."""
        name = self.next_name()
        try:
            self._directory.create(name, self._room.segment_size, fill=False).close()
            self._directory.remove(name)
        except OSError as error:
            self.note_full(error)
            return False
        return True

    def note_full(self, error: OSError) -> None:
        """Note that the disk has refused a file."""
        if not self.full_until:
            path = self._directory.path
            logger.error(
                "%(path)s: cannot allocate a segment: %(error)s; puts that need one are refused",
                event("disk-full", path=path, error=error.strerror),
            )
        self.full_until = self._clock() + RETRY_INTERVAL
        self._room.disk_is_full = True

    def _note_room(self) -> None:
        if self.full_until:
            logger.info("%(path)s: the disk has space again", event("disk-has-room", path=self._directory.path))
        self.full_until = 0
        self._room.disk_is_full = False


def spare_name(number: int) -> str:
    return f"spare.{number}"


def find_spares(directory: Directory) -> tuple[list[Spare], int]:
    """Find the spares of earlier processes; return them, and the highest of their numbers or 0.

    All of them are filled with zeros again: the last process may have begun a segment in one of them, or may have ended
    before one was filled.

    Raises:
        StorageError: one of them cannot be used.
    """
    spares: list[Spare] = []
    last_number = 0
    try:
        for name in sorted(directory.names()):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            size = _erase(directory, name)
            if size > SEGMENT_OVERHEAD:
                spares.append(Spare(name, size))
                last_number = max(last_number, int(match[1]))
            else:
                directory.remove(name)
    except OSError as error:
        raise unusable(directory, error) from error
    return spares, last_number


def _erase(directory: Directory, name: str) -> int:
    """Fill a file with zeros, durably; return its size in bytes."""
    with closing(directory.open(name, write=True)) as file:
        size = file.size()
        is_dirty = False
        for offset in range(0, size, len(ZEROS)):
            zeros = ZEROS[: size - offset]
            if file.read(offset, len(zeros)) != zeros:
                file.erase(offset, len(zeros))
                is_dirty = True
        if is_dirty:
            file.sync()
        return size
