"""Defines a segment, one file of the log: its name, its header, and its state in memory.

A segment is written once, from its beginning to its end. Its space is allocated ahead, so zeros follow the last record.

    bytes   field (docs/binlog-format.md)
    8       magic
    4       version
    8       sequence number: one more than that of the segment before
    4       salt: a random number, whose CRC-32C is the seed of the records' checksums
    4       zero
    4       CRC-32C of the 28 bytes before
"""

from __future__ import annotations

import re
import sys
from array import array
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from beanstalk_server.queue.job import Holder
from beanstalk_server.storage.disk import Directory, File

MAGIC: Final = b"BSQLOG\r\n"
VERSION: Final = 5
HEADER_SIZE: Final = 32

LARGEST_OFFSET: Final = 0xFFFFFFFF
"""The largest offset that four bytes hold."""

_HEADER: Final = Struct("<8sIQII")
_CRC: Final = Struct("<I")
_NAME: Final = re.compile(r"segment\.(\d{10,})")


class FormatError(Exception):
    """A file is not a segment (`version` is 0), or its version is newer than this server's (`version` says which)."""

    def __init__(self, message: str, version: int = 0) -> None:
        super().__init__(message)
        self.version = version


class Segment:
    """One segment, as the log knows it.

    Three arrays describe the PUT records in it, in their order: the ids of the jobs, and where the records are. A job
    knows its record by `slot` and the index in these arrays (`Job.file` and `Job.place`), so 20 bytes, or 16 if the
    segment is smaller than 4 GiB, are all that the log itself keeps of a job.

    Args:
        sequence: its number.
        size: bytes of its file.
        salt: its random number.
        version: of its format; only segments of the newest version are written to.
    """

    def __init__(self, sequence: int, size: int, salt: int, version: int = VERSION) -> None:
        self.sequence = sequence
        self.size = size
        self.salt = salt
        self.version = version
        self.seed = seed_of(salt)
        self.name = segment_name(sequence)
        self.file: File | None = None  # open while the segment is the tail
        self.is_closed = False  # no more records are appended
        self.is_cut = False  # when it is closed, its file is cut after the last record
        self.end = HEADER_SIZE  # offset at which the next record goes
        self.written = 0  # offset up to which it has been written
        self.durable = 0  # offset up to which it is known to be on the disk
        self.live = 0  # bytes of the PUT records of live jobs in it
        self.slot = (
            0  # the number by which jobs refer to it; a log gives it, and uses it again when the segment is gone
        )
        self.ids = array("Q")  # of all jobs that were ever put into it
        self.offsets = array("I" if size <= LARGEST_OFFSET else "Q")  # where their PUT records begin
        self.sizes = array("I")  # of these records, in bytes
        self.cleaned = 0  # how many of `ids` cleaning has visited
        self.reads = 0  # how many bodies are being read from it, or will be; until then its file must stay

    def add_puts(self, ids: bytes, offsets: bytes, sizes: bytes) -> None:
        """Note PUT records: the ids of their jobs, their offsets, and their sizes in bytes.

        Each argument has numbers of the size of an item of the array, little-endian.
        """
        for array_of, numbers in ((self.ids, ids), (self.offsets, offsets), (self.sizes, sizes)):
            added = array(array_of.typecode, numbers)
            if sys.byteorder == "big":
                added.byteswap()
            array_of.extend(added)

    def place_of(self, job: Holder) -> Location:
        """Where the record of a job is, which is in this segment."""
        index = job.place
        return Location(self, self.offsets[index], self.sizes[index], job.id)


class Location(NamedTuple):
    """Where the PUT record of a job is."""

    segment: Segment
    offset: int
    size: int
    """Bytes of the record."""
    job_id: int


def seed_of(salt: int) -> int:
    """The start value of the checksums in a segment."""
    return int(crc32c(_CRC.pack(salt)))


def segment_name(sequence: int) -> str:
    return f"segment.{sequence:010d}"


def segment_names(directory: Directory) -> list[tuple[int, str]]:
    """The segments of a directory, as (sequence, name), oldest first."""
    found = [(int(match[1]), match[0]) for name in directory.names() if (match := _NAME.fullmatch(name))]
    return sorted(found)


def encode_header(sequence: int, salt: int) -> bytes:
    """Encode the header, the first bytes of a segment."""
    header = _HEADER.pack(MAGIC, VERSION, sequence, salt, 0)
    return header + _CRC.pack(crc32c(header))


def decode_header(header: bytes, name: str) -> tuple[int, int, int, bool]:
    """Decode a header: version, sequence number, salt, and whether its checksum is right.

    Raises:
        FormatError: the file is not a segment, or has a newer version than this server.
    """
    if len(header) < HEADER_SIZE or header[:8] != MAGIC:
        raise FormatError("not a segment of a binlog")
    _, version, sequence, salt, _ = _HEADER.unpack_from(header)
    is_whole: bool = _CRC.unpack_from(header, HEADER_SIZE - 4)[0] == crc32c(header[: HEADER_SIZE - 4])
    if version > VERSION and is_whole:
        raise FormatError(
            f"{name}: format version {version} is newer than this server supports (up to {VERSION})", version
        )
    return version, sequence, salt, is_whole
