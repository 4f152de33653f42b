"""Reads all segments of a directory, oldest first: the one loop that recovery and the tools go through.

It finds the torn tail that a crash has left, and damage: a segment that is missing, a record that is not whole, an end
that has been lost since the last clean stop. It reports damage and goes on behind it; the caller decides whether that
will do. It changes nothing, and it must never know what the records are for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from beanstalk_server.storage.disk import Directory, ReadableFile
from beanstalk_server.storage.errors import StorageError
from beanstalk_server.storage.segment import FormatError, segment_name, segment_names
from beanstalk_server.storage.segment_reader import SegmentReader
from beanstalk_server.storage.stopped import STOPPED, Mark, read_mark

MISSING: Final = "the file is missing, which was the newest segment at the last clean stop"

Progress = Callable[[int], None]
"""Called now and then with the bytes of all segments that have been read."""

logger = logging.getLogger("beanstalk_server")


class Damage(NamedTuple):
    """A place where a segment is not what this server writes."""

    segment: str
    offset: int
    """Bytes from the beginning of the file."""
    what: str
    skipped: int = 0
    """Bytes from there on that are not read."""

    def __str__(self) -> str:
        skipped = f"; {self.skipped} bytes skipped" if self.skipped else ""
        return f"damaged at offset {self.offset}: {self.what}{skipped}"


class Tail(NamedTuple):
    """How the newest segment ends."""

    end: int
    """The offset at which the last whole commit ends."""
    torn: int
    """Bytes behind it that were being written when the last process ended."""


class BinlogReader:
    """Reads a directory that nobody writes to meanwhile.

    Args:
        directory: where the segments are.
        on_damage: called with each damage, in the order of the log. What it raises ends the reading.
    """

    def __init__(self, directory: Directory, on_damage: Callable[[Damage], None]) -> None:
        self.directory = directory
        self.segments = segment_names(directory)
        # These are known when everything has been read:
        self.tail: Tail | None = None  # of the newest segment, unless it is damaged
        self.next_id = 1  # the smallest id that has never been given, as the commits have it
        self.commit_number = 0  # of the last commit; 0 if that is not known
        self.damaged: set[str] = set()  # the names of segments that are damaged or missing
        self._on_damage = on_damage
        self._on_progress: Progress | None = None
        self._done = 0  # bytes, in the segments before

    @property
    def sequence(self) -> int:
        """Of the newest segment, or 0."""
        return self.segments[-1][0] if self.segments else 0

    def size(self) -> int:
        """Bytes of all segments.

        Raises:
            OSError: one of them cannot be read.
        """
        total = 0
        for _, name in self.segments:
            file = self.directory.open(name)
            total += file.size()
            file.close()
        return total

    def read(self, on_progress: Progress | None = None) -> Iterator[SegmentReader]:
        """Give a reader of each segment, oldest first, and the same one again behind each damage.

        The caller uses it until its `next` says False. Everything can be read once.

        Raises:
            StorageError: a segment is of a newer version.
            OSError: a segment cannot be read.
        """
        self._on_progress = on_progress
        mark, fault = read_mark(self.directory)
        if fault:
            logger.warning("%s/%s: %s", self.directory.path, STOPPED, fault)
        before = 0
        for sequence, name in self.segments:
            if before and sequence != before + 1:
                is_one = sequence == before + 2
                what = "the file is missing" if is_one else "this file is missing, and others after it"
                self._report(Damage(segment_name(before + 1), 0, what))
                self.commit_number = 0
            before = sequence
            file = self.directory.open(name)
            try:
                size = end = file.size()
                if sequence == self.sequence:
                    self.tail = find_tail(file, name)
                    if self.tail is not None:
                        end = self.tail.end
                        self._check_mark(mark, name, self.tail)
                yield from self._read_segment(file, name, sequence, end)
            finally:
                file.close()
            self._done += size
        self._check_last(mark)

    def _read_segment(self, file: ReadableFile, name: str, sequence: int, end: int) -> Iterator[SegmentReader]:
        before, self.commit_number = self.commit_number, 0
        try:
            reader = SegmentReader(file, name, end, self._tell_progress)
        except FormatError as error:
            if error.version:
                raise StorageError(f"{self.directory.path}/{error}") from None
            self._report(Damage(name, 0, str(error), end))
            return
        reader.commit_number = before
        if reader.sequence != sequence and not reader.fault:
            reader.fault = f"the header is that of segment {reader.sequence}"
        has_skipped = False
        while True:
            if not reader.fault:
                yield reader
            if not reader.check_end(has_skipped):
                break
            offset, what = reader.offset, reader.fault
            if not offset:  # without the salt in its header, no record can be told from other bytes
                self._report(Damage(name, 0, what, end))
                return
            self._report(Damage(name, offset, what, reader.skip()))
            has_skipped = True
        self.next_id = max(self.next_id, reader.next_id)
        self.commit_number = reader.commit_number

    def _check_mark(self, mark: Mark | None, name: str, tail: Tail) -> None:
        """Report what the newest segment has lost since the last clean stop."""
        if mark is not None and mark.sequence == self.sequence and mark.end > tail.end:
            what = f"{mark.end - tail.end} bytes are missing, which were there at the last clean stop"
            self._report(Damage(name, tail.end, what))

    def _check_last(self, mark: Mark | None) -> None:
        """Report the segment that was the newest at the last clean stop, if it is missing."""
        if mark is None:
            return
        if self.sequence < mark.sequence or (
            self.sequence == mark.sequence and not self.damaged and self.commit_number < mark.commit_number
        ):
            self._report(Damage(segment_name(mark.sequence), 0, MISSING))

    def _report(self, damage: Damage) -> None:
        self.damaged.add(damage.segment)
        self._on_damage(damage)

    def _tell_progress(self, offset: int) -> None:
        if self._on_progress is not None:
            self._on_progress(self._done + offset)


def find_tail(file: ReadableFile, name: str) -> Tail | None:
    """Find out how the newest segment ends; None if it is damaged.

    A commit that is not whole counts as torn from its beginning: nothing of it was acknowledged.
    """
    try:
        reader = SegmentReader(file, name)
    except FormatError:
        return None
    if reader.fault:
        return None
    while reader.next():
        pass
    if not reader.commits:
        return None  # no crash leaves this: a segment gets its name when its first commit is on the disk
    content_end = reader.content_end()
    if content_end <= reader.offset and not reader.fault:
        return Tail(reader.whole_end(), 0)
    if reader.is_known_durable():
        return None  # it was not torn: it is damaged
    end = reader.whole_end()
    return Tail(end, content_end - end)
