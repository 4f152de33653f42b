"""One file of records: its name, its header, and how it is read.

A segment is written once, from its beginning to its end. Its space is taken from the disk ahead, so zeros follow the
last record. Must never know what the records mean to a queue.

    bytes   field (docs/binlog-format.md)
    8       magic
    4       version
    8       sequence: this segment's number, one more than the one before
    4       salt: a random number; its CRC-32C is where the checksums of the records begin
    4       zero
    4       CRC-32C of all that stands before
"""

from __future__ import annotations

import re
from array import array
from struct import Struct
from typing import Final

from crc32c import crc32c

from beanstalk_server.storage.disk import Directory, File, ReadableFile
from beanstalk_server.storage.record import COMMIT, Scanner

MAGIC: Final = b"BSQLOG\r\n"
VERSION: Final = 2
HEADER_SIZE: Final = 32
CHUNK: Final = 1 << 20  # bytes read at once

_HEADER: Final = Struct("<8sIQII")
_CRC: Final = Struct("<I")
_NAME: Final = re.compile(r"segment\.(\d{10,})")
_SPARE: Final = re.compile(r"spare\.\d+")


class FormatError(Exception):
    """This is no segment, or one of a newer version: one line that says which. `version` is 0, or that version."""

    def __init__(self, message: str, version: int = 0) -> None:
        super().__init__(message)
        self.version = version


class Segment:
    """One segment, as the log sees it.

    Args:
        sequence: its number.
        size: bytes of disk that it takes.
        salt: its random number.
        version: of its format; only what has the newest may be written to.
    """

    __slots__ = (
        "cleaned",
        "durable",
        "end",
        "file",
        "ids",
        "is_closed",
        "is_cut",
        "live",
        "name",
        "salt",
        "seed",
        "sequence",
        "size",
        "version",
        "written",
    )

    def __init__(self, sequence: int, size: int, salt: int, version: int = VERSION) -> None:
        self.sequence = sequence
        self.size = size
        self.salt = salt
        self.version = version
        self.seed = seed_of(salt)
        self.name = segment_name(sequence)
        self.file: File | None = None  # open, while it is written
        self.is_closed = False  # nothing is written into it any more
        self.is_cut = False  # when it is closed, its file is cut to what is in it
        self.end = HEADER_SIZE  # where the next record goes
        self.written = 0  # up to where it has been written
        self.durable = 0  # up to where it is known to be on the disk
        self.live = 0  # bytes of the records of the jobs that it has
        self.ids = array("Q")  # of all jobs that were put into it
        self.cleaned = 0  # how many of those the cleaning has looked at


def seed_of(salt: int) -> int:
    """Where the checksums of a segment's records begin."""
    return int(crc32c(_CRC.pack(salt)))


def segment_name(sequence: int) -> str:
    """The file name of the segment with this number."""
    return f"segment.{sequence:010d}"


def spare_name(number: int) -> str:
    """The file name of a spare: zeros that will be a segment."""
    return f"spare.{number}"


def is_spare(name: str) -> bool:
    """Whether a file is a spare by its name."""
    return _SPARE.fullmatch(name) is not None


def segment_names(directory: Directory) -> list[tuple[int, str]]:
    """The segments that are there, as (sequence, name), oldest first."""
    found = [(int(match[1]), match[0]) for name in directory.names() if (match := _NAME.fullmatch(name))]
    return sorted(found)


def encode_header(sequence: int, salt: int) -> bytes:
    """The first bytes of a segment."""
    header = _HEADER.pack(MAGIC, VERSION, sequence, salt, 0)
    return header + _CRC.pack(crc32c(header))


class Reader:
    """Reads a segment, a mebibyte at a time, and checks that it is whole.

    After `next` has said True, `scanner` has the record and `offset` is where it begins. After it has said False,
    `fault` is "" and `offset` the end of the records; or `fault` says what is wrong at `offset`.

    Raises:
        FormatError: this is no segment, or one of another version.
        OSError: it cannot be read.
    """

    def __init__(self, file: ReadableFile, name: str) -> None:
        self.file = file
        self.size = file.size()
        self.name = name
        header = file.read(0, HEADER_SIZE)
        if len(header) < HEADER_SIZE or header[:8] != MAGIC:
            raise FormatError("this is no segment of a binlog")
        _, self.version, self.sequence, self.salt, _ = _HEADER.unpack_from(header)
        is_whole = _CRC.unpack_from(header, HEADER_SIZE - 4)[0] == crc32c(header[: HEADER_SIZE - 4])
        if self.version > VERSION and is_whole:
            raise FormatError(
                f"{name} has format version {self.version}, and this server knows none above {VERSION}", self.version
            )
        self.fault = ""
        self.offset = HEADER_SIZE
        self.commit_number = 0  # of the last commit, 0 before the first
        self.commits = 0  # how many there have been
        self.next_id = 1  # as the last commit has it
        self.first_end = 0  # where the first commit's records end
        self.commit_start = HEADER_SIZE  # where the last commit begins
        self.scanner = Scanner(seed_of(self.salt), self.version)
        self._base = HEADER_SIZE  # where the scanner's data begins
        self._commit_end = HEADER_SIZE  # where the records of the last commit end; -1 when that is not known
        if not is_whole:
            self.fault = "a header whose checksum is wrong"
            self.offset = 0

    def next(self) -> bool:
        """Go to the next record."""
        scanner = self.scanner
        while not scanner.next():
            self.offset = self._base + scanner.end
            self.fault = scanner.fault
            if not scanner.more:
                return self._is_at_end()
            left = self.size - self._base - len(scanner.data)
            if not left:
                if scanner.data[scanner.end :].strip(b"\0"):
                    self.fault = "the beginning of a record"
                return self._is_at_end()
            self._read_on(min(max(scanner.more, CHUNK), left))
        self.offset = self._base + scanner.start
        if scanner.kind == COMMIT:
            return self._take_commit()
        if self.offset >= self._commit_end >= 0:
            self.fault = "a record that belongs to no commit"
            return False
        return True

    def _read_on(self, size: int) -> None:
        scanner = self.scanner
        data = self.file.read(self._base + len(scanner.data), size)
        if len(data) < size:
            raise OSError(0, "the file became shorter while it was read", self.name)
        scanner.data = scanner.data[scanner.end :] + data
        self._base += scanner.end
        scanner.end = 0

    def _take_commit(self) -> bool:
        commit_number, _, length, next_id, _ = self.scanner.commit()
        if self.offset < self._commit_end:
            self.fault = "a commit within another"
        elif self.commit_number and commit_number != self.commit_number + 1:
            self.fault = f"commit {commit_number}, where {self.commit_number + 1} should be"
        if self.fault:
            return False
        self.commit_number = commit_number
        self.next_id = next_id
        self.commit_start = self.offset
        self._commit_end = self._base + self.scanner.end + length
        if not self.commits:
            self.first_end = self._commit_end
        self.commits += 1
        return True

    def _is_at_end(self) -> bool:
        if not self.fault and self.offset < self._commit_end:
            self.fault = "the end of a commit is missing"
        return False

    def whole_end(self) -> int:
        """Where the last whole commit ends, after `next` has said False."""
        return self.commit_start if self.offset < self._commit_end else self.offset

    def is_known_durable(self, offset: int) -> bool:
        """Whether a later commit says that what stands at `offset` had reached the disk: then it was not torn."""
        if offset < self.first_end or not self.commits:
            return True  # a segment gets its name when its first commit is on the disk
        scanner = self._rest(offset)
        place = scanner.find(0)
        while place >= 0:
            scanner.end = place
            scanner.next()
            if scanner.kind == COMMIT and scanner.commit()[1] > offset:
                return True
            place = scanner.find(place + 1)
        return False

    def skip(self) -> int:
        """Go on behind what is wrong at `offset`; return how many bytes are skipped.

        Raises:
            FormatError: it is the header.
        """
        if self.offset < HEADER_SIZE:
            raise FormatError(f"{self.name}: without its header, its records cannot be told from other bytes")
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

    def _rest(self, offset: int) -> Scanner:
        scanner = Scanner(self.scanner.seed, self.version)
        scanner.data = self.file.read(offset, self.size - offset)
        return scanner

    def content_end(self) -> int:
        """Where the zeros begin that the file ends with."""
        end = self.size
        while end > self.offset:
            start = max(end - CHUNK, self.offset)
            data = self.file.read(start, end - start).rstrip(b"\0")
            if data:
                return start + len(data)
            end = start
        return end
