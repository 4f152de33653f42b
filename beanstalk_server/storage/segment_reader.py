"""Reads one segment, record by record, up to its end or to its first fault.

It can tell a torn tail, which a crash leaves, from damage. `binlog_reader.py` reads all segments of a directory. Must
never know who reads, or why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.job import Job
from beanstalk_server.queue.native import BytesWriter, i64, write_i64_le
from beanstalk_server.queue.replay import Replay
from beanstalk_server.storage import record
from beanstalk_server.storage.disk import ReadableFile
from beanstalk_server.storage.record_writer import own_size, write_u32, write_u64
from beanstalk_server.storage.segment import (
    HEADER_SIZE,
    FormatError,
    Segment,
    decode_header,
    seed_of,
)

CHUNK: Final = 1 << 20  # bytes read at once


class SegmentReader:
    """Reads a segment, a mebibyte at a time, and checks that it is whole.

    When `next` returns True, `scanner` is at a record, which begins at `offset`. When it returns False, either `fault`
    is "" and `offset` is the end of the records, or `fault` says what is wrong at `offset`.

    Args:
        file: the segment.
        name: of the file, for messages.
        size: how many bytes of the file to read; -1 for all.
        on_read: called after each read, with the offset up to which the file has been read.

    Raises:
        FormatError: the file is not a segment, or has a newer version than this server.
        OSError: the file cannot be read.
    """

    def __init__(
        self, file: ReadableFile, name: str, size: int = -1, on_read: Callable[[int], None] | None = None
    ) -> None:
        self.file = file
        self.name = name
        self.size = file.size() if size < 0 else size
        self.version, self.sequence, self.salt, is_whole = decode_header(file.read(0, HEADER_SIZE), name)
        self.fault = ""
        self.offset: i64 = HEADER_SIZE
        self.commit_number = 0  # of the last commit; 0 before the first
        self.commits = 0  # how many commits have been read
        self.next_id = 1  # the smallest id that was never given, according to the last commit
        self.scanner = record.Scanner(seed_of(self.salt), self.version)
        self._on_read = on_read
        self._first_end: i64 = 0  # where the first commit ends
        self._commit_start: i64 = HEADER_SIZE  # where the last commit begins
        self._commit_end: i64 = HEADER_SIZE  # where the last commit ends; -1 if that is not known
        self._base: i64 = HEADER_SIZE  # where the scanner's data begins in the file
        if not is_whole:
            self.fault = "bad checksum of the header"
            self.offset = 0

    def next(self) -> bool:
        scanner = self.scanner
        while not scanner.next():
            self.offset = self._base + scanner.end
            self.fault = scanner.fault
            if not scanner.more:
                return self._is_at_end()
            left = self.size - self._base - len(scanner.data)
            if not left:
                if scanner.data[scanner.end :].strip(b"\0"):
                    self.fault = "incomplete record"
                return self._is_at_end()
            self._read_on(min(max(scanner.more, CHUNK), left))
        self.offset = self._base + scanner.start
        if scanner.kind == record.COMMIT:
            return self._take_commit()
        if self.offset >= self._commit_end >= 0:
            self.fault = "record outside of a commit"
            return False
        return True

    def replay(self, replay: Replay, segment: Segment, threshold: int) -> None:
        """Replay all records from here on, until `next` returns False.

        Args:
            segment: the one that is read; it notes where each PUT record is.
            threshold: bytes; longer bodies are not brought into memory.
        """
        scanner = self.scanner
        place = len(segment.ids)
        ids = BytesWriter()
        offsets = BytesWriter()
        sizes = BytesWriter()
        has_short_offsets = segment.offsets.itemsize == segment.sizes.itemsize
        while self.next():
            kind = scanner.kind
            if kind in (record.PUT, record.PUT_WITH):
                job = replay.put(scanner.put(threshold))
                job.file = segment.slot
                job.place = place
                place += 1
                write_u64(ids, job.id)
                if has_short_offsets:
                    write_u32(offsets, self.offset)
                else:
                    write_i64_le(offsets, self.offset)
                write_u32(sizes, scanner.end - scanner.start)
                if kind == record.PUT_WITH and isinstance(job, Job):
                    job.own_terms().recorded = own_size(job)
            elif kind in (record.CHANGE, record.CHANGE_WITH):
                replay.change(scanner.change())
            elif kind == record.DELETE:
                replay.delete(scanner.job_id())
            elif kind == record.LEAVE:
                group_id, end, job_id = scanner.leave()
                replay.leave(group_id, end, job_id)
            elif kind == record.CLEAR:
                tube_name, reserved_ids = scanner.clear()
                replay.clear(tube_name, reserved_ids)
            elif kind == record.CLOCK:
                clock_offset, boot = scanner.clock()
                replay.clock(clock_offset, boot)
        segment.add_puts(ids.getvalue(), offsets.getvalue(), sizes.getvalue())

    def _read_on(self, size: int) -> None:
        scanner = self.scanner
        start = self._base + len(scanner.data)
        data = self.file.read(start, size)
        if len(data) < size:
            raise OSError(0, "the file became shorter while it was read", self.name)
        scanner.data = scanner.data[scanner.end :] + data
        self._base += scanner.end
        scanner.end = 0
        if self._on_read is not None:
            self._on_read(start + size)

    def _take_commit(self) -> bool:
        commit_number, _, length, next_id, _ = self.scanner.commit()
        if self.offset < self._commit_end:
            self.fault = "commit inside another commit"
        elif self.commit_number and commit_number != self.commit_number + 1:
            self.fault = f"commit {commit_number} instead of {self.commit_number + 1}"
        if self.fault:
            return False
        self.commit_number = commit_number
        self.next_id = next_id
        self._commit_start = self.offset
        self._commit_end = self._base + self.scanner.end + length
        if not self.commits:
            self._first_end = self._commit_end
        self.commits += 1
        return True

    def _is_at_end(self) -> bool:
        if not self.fault and self.offset < self._commit_end:
            self.fault = "incomplete commit"
        return False

    # The end of a segment, once `next` has said False

    def check_end(self, has_skipped: bool) -> str:
        """Return what is wrong where `next` has stopped, or "" at the end of a whole segment.

        Args:
            has_skipped: damage was skipped, so the segment need not have a commit left.
        """
        if not self.fault and self.content_end() > self.offset:
            self.fault = "data after the last record"
        if not self.fault and not self.commits and not has_skipped:
            self.fault = "no commit"  # a segment gets its name only when its first commit is on the disk
        return self.fault

    def whole_end(self) -> int:
        """Where the last whole commit ends."""
        return self._commit_start if self.offset < self._commit_end else self.offset

    def content_end(self) -> int:
        """The offset after which the file holds only zeros."""
        end = self.size
        while end > self.offset:
            start = max(end - CHUNK, self.offset)
            data = self.file.read(start, end - start)
            if data != bytes(len(data)):  # fifty times as fast as rstrip
                return start + len(data.rstrip(b"\0"))
            end = start
        return end

    def is_known_durable(self) -> bool:
        """Whether a later commit says that the place at `offset` was on the disk: then it is damaged, not torn."""
        if self.offset < self._first_end or not self.commits:
            return True  # a segment gets its name only when its first commit is on the disk
        scanner = self._rest(self.offset)
        place = scanner.find(0)
        while place >= 0:
            scanner.end = place
            scanner.next()
            if scanner.kind == record.COMMIT and scanner.commit()[1] > self.offset:
                return True
            place = scanner.find(place + 1)
        return False

    def skip(self) -> int:
        """Continue at the first record after the fault at `offset`; return how many bytes are skipped.

        Raises:
            FormatError: the header is damaged.
        """
        if self.offset < HEADER_SIZE:
            raise FormatError(f"{self.name}: no record can be read without the header")
        damaged = self.offset
        scanner = self._rest(damaged)
        place = scanner.find(1 if self.scanner.fault else 0)
        skipped = place if place >= 0 else self.content_end() - damaged
        scanner.names = self.scanner.names
        self.scanner = scanner
        scanner.end = place if place >= 0 else len(scanner.data)
        self._base = damaged
        self._commit_end = -1
        self.commit_number = 0
        self.fault = ""
        return skipped

    def _rest(self, offset: int) -> record.Scanner:
        scanner = record.Scanner(self.scanner.seed, self.version)
        scanner.data = self.file.read(offset, self.size - offset)
        return scanner
