"""One change as bytes, with its checksum: docs/binlog-format.md, in code.

    bytes   field
    4       CRC-32C of all that follows, begun with the seed of the segment
    4       length of the record, these eight bytes included
    1       type
    ...     by type

All integers are little-endian. Must never know files.

The seed is the CRC-32C of a number that is drawn for each segment. So what a client sends as a body, or what another
segment has left on the disk, never looks like a record of this one.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import Final

from crc32c import crc32c

from beanstalk_server.queue.job import BURIED, DELAYED, READY, Job
from beanstalk_server.queue.stored_job import StoredChange, StoredJob

COMMIT: Final = 1
PUT: Final = 2
CHANGE: Final = 3
DELETE: Final = 4
CLEAR: Final = 5
CLOCK: Final = 6

TYPES: Final = ("", "commit", "put", "change", "delete", "clear", "clock")
"""The types by number."""

LAST_TYPES: Final = (0, DELETE, CLOCK)
"""The last type that there is, by the version of the format."""

HEAD: Final = Struct("<IIB")
HEAD_SIZE: Final = 9

# mark, number, durable, length, next id, written at
_COMMIT: Final = Struct("<IB4sQQQQq")
COMMIT_SIZE: Final = 53
COMMIT_MARK: Final = b"CMIT"

# id, priority, delay, ttr, created at, deadline, 5 counters, state, lengths of tube and key
_PUT: Final = Struct("<IBQIqqqqIIIIIBBB")
PUT_SIZE: Final = 76

# id, priority, delay, deadline, 5 counters, state
_CHANGE: Final = Struct("<IBQIqqIIIIIB")
CHANGE_SIZE: Final = 58

_DELETE: Final = Struct("<IBQ")
DELETE_SIZE: Final = 17

# length of the tube's name; the name and the ids follow
_CLEAR: Final = Struct("<IBB")
CLEAR_SIZE: Final = 10
ID_SIZE: Final = 8

# wall clock less the server's, boot
_CLOCK: Final = Struct("<IBq16s")
CLOCK_SIZE: Final = 33
NO_BOOT: Final = bytes(16)
"""No boot of any machine."""

LONGEST: Final = PUT_SIZE + 2 * 255 + (1 << 30)
"""No record is longer, in bytes: -z is a gibibyte at the most. (A clear as long as that has 130 million ids.)"""

KEPT: Final = (READY, DELAYED, BURIED)
"""The states that a job can come back in."""

_ID: Final = Struct("<Q")
_CRC: Final = Struct("<I")
_COUNT: Final = 0xFFFFFFFF  # counters wrap, as beanstalkd's do


def put_size(job: Job) -> int:
    """The length of a job's PUT record."""
    return PUT_SIZE + len(job.tube.name) + len(job.key) + len(job.body)


def clear_size(tube_name: str, reserved_ids: list[int]) -> int:
    """The length of a CLEAR record."""
    return CLEAR_SIZE + len(tube_name) + ID_SIZE * len(reserved_ids)


def encode_commit(number: int, durable: int, length: int, next_id: int, written_at: int, seed: int) -> bytes:
    """The record that opens what is written in one piece.

    Args:
        number: one more than the one before, over all segments.
        durable: up to which offset this segment is known to be on the disk.
        length: of the records that follow and belong to it, in bytes.
        next_id: the smallest id that has never been given.
        written_at: wall clock, nanoseconds.
    """
    rest = _COMMIT.pack(COMMIT_SIZE, COMMIT, COMMIT_MARK, number, durable, length, next_id, written_at)
    return _CRC.pack(crc32c(rest, seed)) + rest


def encode_put(job: StoredJob, seed: int) -> bytes:
    """A whole job."""
    tube = job.tube.encode()
    key = job.key.encode()
    body = job.body
    fixed = _PUT.pack(
        PUT_SIZE + len(tube) + len(key) + len(body),
        PUT,
        job.id,
        job.priority,
        job.delay,
        job.ttr,
        job.created_at,
        job.bury_sequence if job.state == BURIED else job.deadline,
        job.reserves & _COUNT,
        job.timeouts & _COUNT,
        job.releases & _COUNT,
        job.buries & _COUNT,
        job.kicks & _COUNT,
        job.state,
        len(tube),
        len(key),
    )
    fixed = fixed + tube + key
    return b"".join((_CRC.pack(crc32c(body, crc32c(fixed, seed))), fixed, body))


def encode_change(change: StoredChange, seed: int) -> bytes:
    """What is new of a job."""
    rest = _CHANGE.pack(
        CHANGE_SIZE,
        CHANGE,
        change.id,
        change.priority,
        change.delay,
        change.bury_sequence if change.state == BURIED else change.deadline,
        change.reserves & _COUNT,
        change.timeouts & _COUNT,
        change.releases & _COUNT,
        change.buries & _COUNT,
        change.kicks & _COUNT,
        change.state,
    )
    return _CRC.pack(crc32c(rest, seed)) + rest


def encode_delete(job_id: int, seed: int) -> bytes:
    """The end of a job."""
    rest = _DELETE.pack(DELETE_SIZE, DELETE, job_id)
    return _CRC.pack(crc32c(rest, seed)) + rest


def encode_clear(tube_name: str, reserved_ids: list[int], seed: int) -> bytes:
    """The end of all jobs of a tube but these."""
    ids = array("Q", reserved_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    tube = tube_name.encode()
    fixed = _CLEAR.pack(clear_size(tube_name, reserved_ids), CLEAR, len(tube))
    rest = b"".join((fixed, tube, ids.tobytes()))
    return _CRC.pack(crc32c(rest, seed)) + rest


def encode_clock(clock_offset: int, boot: bytes, seed: int) -> bytes:
    """The clocks that the records from here on go by.

    Args:
        clock_offset: wall clock less the server's clock, nanoseconds.
        boot: 16 bytes that no other boot of a machine has.
    """
    rest = _CLOCK.pack(CLOCK_SIZE, CLOCK, clock_offset, boot)
    return _CRC.pack(crc32c(rest, seed)) + rest


class Scanner:
    """Goes through bytes record by record, and checks each.

    After `next` has said True, `kind`, `start` and `end` say which record it is and where in `data` it stands. After it
    has said False, `fault` says what is wrong with the one at `end`, or is "" where the data ends or only zeros
    follow, and `more` is how many bytes more are needed to tell.

    Args:
        seed: where the checksums begin.
        version: of the format.
    """

    __slots__ = ("_change", "_job", "data", "end", "fault", "kind", "last_type", "more", "names", "seed", "start")

    def __init__(self, seed: int, version: int) -> None:
        self.seed = seed
        self.last_type: int = LAST_TYPES[version] if 0 < version < len(LAST_TYPES) else CLOCK
        self.data = b""
        self.start = 0
        self.end = 0
        self.kind = 0
        self.fault = ""
        self.more = 0
        self.names: dict[bytes, str] = {}  # of tubes, decoded
        self._job = StoredJob()
        self._change = StoredChange()

    def next(self) -> bool:
        """Go to the next record."""
        data = self.data
        start = self.end
        self.fault = ""
        self.more = 0
        if start + HEAD_SIZE > len(data):
            self.more = HEAD_SIZE
            return False
        crc, length, kind = HEAD.unpack_from(data, start)
        if not length and not crc and not kind:
            return False
        self.fault = self._fault(length, kind)
        if self.fault:
            return False
        end: int = start + length
        if end > len(data):
            self.more = length
            return False
        if crc32c(data[start + 4 : end], self.seed) != crc:
            self.fault = "a record whose checksum is wrong"
            return False
        if kind == PUT and PUT_SIZE + data[start + 74] + data[start + 75] > length:
            self.fault = "a put record that is shorter than its names"
            return False
        if kind == CLEAR and (
            length - CLEAR_SIZE < data[start + 9] or (length - CLEAR_SIZE - data[start + 9]) % ID_SIZE
        ):
            self.fault = "a clear record whose length cannot be"
            return False
        if (kind == PUT and data[start + 73] not in KEPT) or (kind == CHANGE and data[start + 57] not in KEPT):
            self.fault = "a record with a state that cannot be"
            return False
        self.start = start
        self.end = end
        self.kind = kind
        return True

    def commit(self) -> tuple[int, int, int, int, int]:
        """Of a COMMIT record: number, durable, length, next id, written at."""
        _, _, _, number, durable, length, next_id, written_at = _COMMIT.unpack_from(self.data, self.start + 4)
        return number, durable, length, next_id, written_at

    def put(self) -> StoredJob:
        """The job of a PUT record. The same object is filled again for the next one."""
        data = self.data
        job = self._job
        (
            _,
            _,
            job.id,
            job.priority,
            job.delay,
            job.ttr,
            job.created_at,
            deadline,
            job.reserves,
            job.timeouts,
            job.releases,
            job.buries,
            job.kicks,
            job.state,
            tube_size,
            key_size,
        ) = _PUT.unpack_from(data, self.start + 4)
        _set_deadline(job, deadline)
        names = self.start + PUT_SIZE
        body = names + tube_size + key_size
        raw = data[names : names + tube_size]
        tube = self.names.get(raw)
        if tube is None:
            tube = self.names[raw] = raw.decode("latin-1")
        job.tube = tube
        job.key = data[names + tube_size : body].decode("latin-1") if key_size else ""
        job.body = data[body : self.end]
        return job

    def change(self) -> StoredChange:
        """What a CHANGE record tells. The same object is filled again for the next one."""
        change = self._change
        (
            _,
            _,
            change.id,
            change.priority,
            change.delay,
            deadline,
            change.reserves,
            change.timeouts,
            change.releases,
            change.buries,
            change.kicks,
            change.state,
        ) = _CHANGE.unpack_from(self.data, self.start + 4)
        _set_deadline(change, deadline)
        return change

    def clear(self) -> tuple[str, list[int]]:
        """Of a CLEAR record: the tube's name, and the ids of the jobs that were reserved."""
        names = self.start + CLEAR_SIZE
        tube_end = names + self.data[names - 1]
        ids = array("Q", self.data[tube_end : self.end])
        if sys.byteorder == "big":
            ids.byteswap()
        return self.data[names:tube_end].decode("latin-1"), ids.tolist()

    def clock(self) -> tuple[int, bytes]:
        """Of a CLOCK record: wall clock less the server's clock, and the boot."""
        _, _, clock_offset, boot = _CLOCK.unpack_from(self.data, self.start + 4)
        return clock_offset, boot

    def job_id(self) -> int:
        """The job that a PUT, CHANGE or DELETE record is about."""
        job_id: int = _ID.unpack_from(self.data, self.start + HEAD_SIZE)[0]
        return job_id

    def find(self, start: int) -> int:
        """Where the next valid record begins, at `start` or behind it; -1 when there is none in the data."""
        data = self.data
        for place in range(start, len(data) - HEAD_SIZE + 1):
            if not COMMIT <= data[place + 8] <= self.last_type:
                continue
            crc, length, kind = HEAD.unpack_from(data, place)
            if place + length > len(data) or self._fault(length, kind):
                continue
            if crc32c(data[place + 4 : place + length], self.seed) == crc:
                return place
        return -1

    def _fault(self, length: int, kind: int) -> str:
        """What is wrong with the head of a record, or ""."""
        if kind == PUT:
            return "" if PUT_SIZE <= length <= LONGEST else "a put record whose length cannot be"
        if kind == COMMIT:
            right = length == COMMIT_SIZE
        elif kind == CHANGE:
            right = length == CHANGE_SIZE
        elif kind == DELETE:
            right = length == DELETE_SIZE
        elif kind == CLEAR <= self.last_type:
            right = CLEAR_SIZE <= length <= LONGEST
        elif kind == CLOCK <= self.last_type:
            right = length == CLOCK_SIZE
        else:
            return "a record of a type that there is not"
        return "" if right else f"a {TYPES[kind]} record whose length cannot be"


def _set_deadline(change: StoredChange, deadline: int) -> None:
    """One field of a record is the deadline of a delayed job, or the bury sequence of a buried one."""
    state = change.state
    change.deadline = deadline if state == DELAYED else 0
    change.bury_sequence = deadline if state == BURIED else 0
