"""Reads all segments of a directory, oldest first, for recovery and for the tools.

It finds the torn tail that a crash leaves, and damage: a missing segment, a broken record, an end that was lost after
the last clean stop. It reports damage and continues after it; the caller decides whether to accept that. It changes
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final, NamedTuple

from beanstalk_server.events import event
from beanstalk_server.storage.disk import Directory, ReadableFile
from beanstalk_server.storage.errors import StorageError
from beanstalk_server.storage.segment import FormatError, segment_name, segment_names
from beanstalk_server.storage.segment_reader import SegmentReader
from beanstalk_server.storage.stopped import STOPPED, Mark, mark_name, read_mark

MISSING: Final = "the file is missing; it was the newest segment at the last clean stop"
FIRST_MISSING: Final = "the file is missing; it was the oldest segment at the last clean stop"

Progress = Callable[[int], None]
"""Called now and then with the number of bytes read so far, in all segments."""

logger = logging.getLogger("beanstalk_server")


class Damage(NamedTuple):
    """A place where a segment differs from what this server writes."""

    segment: str
    offset: int
    """Bytes from the beginning of the file."""
    what: str
    skipped: int = 0
    """How many bytes from there on are not read."""

    def __str__(self) -> str:
        skipped = f"; {self.skipped} bytes skipped" if self.skipped else ""
        return f"damaged at offset {self.offset}: {self.what}{skipped}"


class Tail(NamedTuple):
    """How the newest segment ends."""

    end: int
    """The offset at which the last whole commit ends."""
    torn: int
    """Bytes after it that the last process was writing when it ended."""


class BinlogReader:
    """Reads a directory that no server writes to meanwhile.

    Args:
        directory: holds the segments.
        on_damage: called with each damage, in the order of the log. An exception from it ends the reading.
    """

    def __init__(self, directory: Directory, on_damage: Callable[[Damage], None]) -> None:
        self.directory = directory
        self.segments = segment_names(directory)
        # These are valid once everything has been read:
        self.tail: Tail | None = None  # of the newest segment, unless it is damaged
        self.next_id = 1  # the smallest id that was never given, according to the commits
        self.commit_number = 0  # of the last commit; 0 if unknown
        self.damaged: set[str] = set()  # the names of segments that are damaged or missing
        self.is_clean = False  # it ends where the last clean stop has left it, and no server has run since
        self._on_damage = on_damage
        self._on_progress: Progress | None = None
        self._done = 0  # bytes of the segments before this one

    @property
    def sequence(self) -> int:
        return self.segments[-1][0] if self.segments else 0

    def size(self) -> int:
        """The size of all segments, in bytes.

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
        """Yield a reader for each segment, oldest first, and the same one again after each damage.

        The caller reads until `next` returns False. A BinlogReader can be read only once.

        Raises:
            StorageError: a segment has a newer version than this server.
            OSError: a segment cannot be read.
        """
        self._on_progress = on_progress
        mark_file = mark_name(self.directory)
        mark = self._read_mark(mark_file) if mark_file else None
        before = 0
        for sequence, name in self.segments:
            if before and sequence != before + 1:
                is_one = sequence == before + 2
                what = "the file is missing" if is_one else "this file and others after it are missing"
                self._report(Damage(segment_name(before + 1), 0, what))
                self.commit_number = 0
            before = sequence
            with closing(self.directory.open(name)) as file:
                size = end = file.size()
                if sequence == self.sequence:
                    self.tail = find_tail(file, name)
                    if self.tail is not None and self.tail.torn and not self.directory.tears_writes:
                        self.tail = None
                    if self.tail is not None:
                        end = self.tail.end
                        self._check_mark(mark, name, self.tail)
                yield from self._read_segment(file, name, sequence, end)
            self._done += size
        self._check_last(mark)
        end = self.tail.end if self.tail is not None else 0
        if mark_file == STOPPED and mark is not None and mark[:3] == (self.sequence, end, self.commit_number):
            self.is_clean = True
            if self.segments and mark.first and mark.first < self.segments[0][0]:  # no server has cleaned it away
                self._report(Damage(segment_name(mark.first), 0, FIRST_MISSING))

    def _read_mark(self, name: str) -> Mark | None:
        mark, fault = read_mark(self.directory, name)
        if fault:
            logger.warning(
                "%(path)s: %(fault)s", event("bad-stop-mark", path=f"{self.directory.path}/{name}", fault=fault)
            )
        return mark

    def _read_segment(self, file: ReadableFile, name: str, sequence: int, end: int) -> Iterator[SegmentReader]:
        before, self.commit_number = self.commit_number, 0
        try:
            reader = SegmentReader(file, name, end, self._report_progress)
        except FormatError as error:
            if error.version:
                raise StorageError(f"{self.directory.path}/{error}") from None
            self._report(Damage(name, 0, str(error), end))
            return
        reader.commit_number = before
        if reader.sequence != sequence and not reader.fault:
            reader.fault = f"the header belongs to segment {reader.sequence}"
        has_skipped = False
        while True:
            if not reader.fault:
                yield reader
            if not reader.check_end(has_skipped):
                break
            offset, what = reader.offset, reader.fault
            if not offset:  # without the salt in its header, no record can be recognized
                self._report(Damage(name, 0, what, end))
                return
            self._report(Damage(name, offset, what, reader.skip()))
            has_skipped = True
        self.next_id = max(self.next_id, reader.next_id)
        self.commit_number = reader.commit_number

    def _check_mark(self, mark: Mark | None, name: str, tail: Tail) -> None:
        """Report bytes that the newest segment has lost since the last clean stop."""
        if mark is not None and mark.sequence == self.sequence and mark.end > tail.end:
            what = f"{mark.end - tail.end} bytes are missing that were in the file at the last clean stop"
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

    def _report_progress(self, offset: int) -> None:
        if self._on_progress is not None:
            self._on_progress(self._done + offset)


def find_tail(file: ReadableFile, name: str) -> Tail | None:
    """Find out how the newest segment ends; return None if it is damaged.

    An incomplete commit is torn from its beginning, because no part of it was acknowledged.
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
        return None  # not from a crash: a segment gets its name only when its first commit is on the disk
    content_end = reader.content_end()
    if content_end <= reader.offset and not reader.fault:
        return Tail(reader.whole_end(), 0)
    if reader.is_known_durable():
        return None  # it is damaged, not torn
    end = reader.whole_end()
    return Tail(end, content_end - end)
