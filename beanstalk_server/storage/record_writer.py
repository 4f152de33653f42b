"""Encodes changes into the records of one commit (record.py has their layout, docs/binlog-format.md specifies it).

Numbers are written natively, one after the other, into bytes that all records of the commit share. Nothing else is
written to the disk or sent to the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from beanstalk_server.queue import ring
from beanstalk_server.queue.job import BURIED, DELAYED, READY, HeldKey, Holder, Job, Terms
from beanstalk_server.queue.native import BytesWriter, i32, i64, read_i32_le, write_i32_le, write_i64_le
from beanstalk_server.queue.policy import Labels
from beanstalk_server.queue.stored_job import LAST_MOMENT, StoredJob, stored_moment
from beanstalk_server.queue.units import GREATEST_SHORT
from beanstalk_server.storage.record import (
    AFTER_WAITS,
    CHANGE,
    CHANGE_SIZE,
    CHANGE_WITH,
    CHANGE_WITH_SIZE,
    CHECKSUM,
    CLEAR,
    CLEAR_SIZE,
    CLOCK,
    CLOCK_SIZE,
    COMMIT,
    COMMIT_FIELDS,
    COMMIT_MARK,
    COMMIT_SIZE,
    DELETE,
    DELETE_SIZE,
    DURATION_SIZE,
    HAS_AFTER,
    HAS_BACKOFF,
    HAS_GROUP,
    HAS_KEY_HOLD,
    HAS_LABELS,
    HAS_LIMIT,
    HAS_LIMIT_COUNT,
    HAS_MAX_TRIES,
    HAS_ORIGIN,
    HAS_SHARE,
    HAS_TRIES,
    HAS_TTL,
    ID_SIZE,
    IS_AT,
    LEAVE,
    LEAVE_SIZE,
    LIMIT_COUNT_SIZE,
    MAX_TRIES_SIZE,
    NO_KEY,
    PUT,
    PUT_SIZE,
    PUT_WITH,
    TRIES_SIZE,
)

LARGE: Final = 1 << 12
"""Bytes. A body from this size on is not copied: it is a chunk of its own."""

SHORT: Final = 0 if ring.__file__.endswith(".py") else 32
"""Bytes. Compiled, the checksum of a record up to this size is calculated here: a call of crc32c takes as long as 60
bytes. Interpreted, the call is faster. (`ring` is compiled if this module is.)"""

_crc32c: Final[Callable[..., int]] = crc32c  # found without a dictionary
_MAX_U32: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000


def put_size(job: Holder) -> int:
    """The length of the PUT or PUT_WITH record of a job, a held key or a group."""
    if isinstance(job, Job):
        return PUT_SIZE + own_size(job) + len(job.body)
    return PUT_SIZE + 1 + len(job.tube.name) + len(job.key)


def own_size(job: Job) -> int:
    """How much of that is for the names and the terms of a job."""
    extras = job.extras
    size = len(job.tube.name) + len(extras.key)
    if isinstance(extras, Terms):
        size += 1
        if extras.tries or extras.reason:
            size += TRIES_SIZE
        if extras.origin:
            size += 1 + len(extras.origin)
        if extras.max_tries:
            size += MAX_TRIES_SIZE
        if extras.backoff:
            size += DURATION_SIZE
        if extras.ttl:
            size += DURATION_SIZE
        if extras.key_hold:
            size += DURATION_SIZE
        if extras.labels is not None:
            size += labels_size(extras.labels)
    return size


def labels_size(labels: Labels) -> int:
    size = 1
    for name in (labels.share, labels.limit, labels.group, labels.after):
        if name:
            size += 1 + len(name)
    return size + LIMIT_COUNT_SIZE if labels.limit else size


def change_size(job: Job) -> int:
    extras = job.extras
    if not isinstance(extras, Terms):
        return CHANGE_SIZE
    size = CHANGE_WITH_SIZE + len(job.tube.name)
    if extras.tries or extras.reason:
        size += TRIES_SIZE
    if extras.origin:
        size += 1 + len(extras.origin)
    if extras.labels is not None and extras.labels.limit:
        size += LIMIT_COUNT_SIZE
    return size


def hold_size(held: HeldKey) -> int:
    """The length of the CHANGE_WITH record that leaves a held key of a job."""
    return CHANGE_WITH_SIZE + len(held.tube.name)


def clear_size(tube_name: str, reserved_ids: list[int]) -> int:
    return CLEAR_SIZE + len(tube_name) + ID_SIZE * len(reserved_ids)


def encode_commit(commit_number: int, durable: int, length: int, next_id: int, written_at: int, seed: int) -> bytes:
    """Encode the record that begins a commit.

    Args:
        commit_number: one more than that of the commit before, across all segments.
        durable: the offset up to which this segment is known to be on the disk.
        length: bytes of the other records of the commit, which follow.
        next_id: the smallest id that has never been given.
        written_at: wall clock, nanoseconds; 0 if unknown.
    """
    rest = COMMIT_FIELDS.pack(COMMIT_SIZE, COMMIT, COMMIT_MARK, commit_number, durable, length, next_id, written_at)
    return CHECKSUM.pack(crc32c(rest, seed)) + rest


class RecordWriter:
    """Collects the records of one commit.

    Args:
        seed: that of the segment, which the checksums begin with.
    """

    def __init__(self, seed: int) -> None:
        self._seed: i64 = seed
        self._seed_object: object = seed  # the same, made an object once: an argument of crc32c
        self._records = BytesWriter()
        self._begun = BytesWriter()  # the record that has been begun, without its checksum
        self._chunks: list[bytes] = []  # records before those in `_records`, and large bodies

    def chunks(self) -> list[bytes]:
        """All records, in pieces of any length."""
        return [*self._chunks, self._records.getvalue()]

    def put_new(self, job: Job, size: i64, clock_offset: int) -> None:
        """Write the PUT record of a job without terms that has never been recorded.

        Args:
            size: bytes of the record.
            clock_offset: the wall clock minus the server's clock, in nanoseconds.
        """
        delay, priority, ttr, body = job.delay, job.priority, job.ttr, job.body
        created_at = job.created_at + clock_offset
        record = self._begin_job(size, PUT, job.id, priority, delay)
        write_i64_le(record, ttr)
        write_i64_le(record, created_at if created_at <= GREATEST_SHORT else min(created_at, LAST_MOMENT))
        write_i64_le(record, stored_moment(job.deadline, clock_offset) if delay else 0)
        write_i64_le(record, 0)  # the five counters
        write_i64_le(record, 0)
        write_i32_le(record, 0)
        record.append(DELAYED if delay else READY)
        tube, key = job.tube.name, job.extras.key
        record.append(len(tube))
        record.append(len(key))
        self._end_put(tube, key, body)

    def put(self, job: StoredJob, size: i64) -> None:
        """Write the PUT or PUT_WITH record of a job, a held key or a group.

        Args:
            size: bytes of the record.
        """
        record = self._begin_job(size, PUT_WITH if job.has_terms else PUT, job.id, job.priority, job.delay)
        write_i64_le(record, job.ttr)
        write_i64_le(record, job.created_at)
        _write_state(record, job)
        record.append(len(job.tube))
        record.append(len(job.key))
        if job.has_terms:
            _write_own_terms(record, job)
        self._end_put(job.tube, job.key, job.body)

    def change(self, change: StoredJob, size: i64) -> None:
        """Write the CHANGE or CHANGE_WITH record of a job.

        Args:
            size: bytes of the record.
        """
        kind = CHANGE_WITH if change.has_terms else CHANGE
        record = self._begin_job(size, kind, change.id, change.priority, change.delay)
        _write_state(record, change)
        if change.has_terms:
            record.append(len(change.tube))
            present = _present_terms(change)
            if change.limit:
                present |= HAS_LIMIT_COUNT
            if not change.keeps_key:
                present |= NO_KEY
            record.append(present)
            _write_terms(record, change)
            if change.limit:
                write_u32(record, change.limit_count)
            record.write(change.tube.encode())
        self._end()

    def delete(self, job_id: int) -> None:
        """Write that a job is gone, a held key is free, or a group is forgotten."""
        record = self._begin(DELETE_SIZE, DELETE)
        write_u64(record, job_id)
        self._end()

    def leave(self, job_id: int, group_id: int, end: int) -> None:
        """Write that a member has left a group.

        Args:
            job_id: that of the member, if it is deleted; else 0.
            end: how, one of groups.ENDS.
        """
        record = self._begin(LEAVE_SIZE, LEAVE)
        write_u64(record, job_id)
        write_u64(record, group_id)
        record.append(end)
        self._end()

    def clear(self, tube_name: str, reserved_ids: list[int]) -> None:
        """Write the end of all jobs of a tube but the reserved ones."""
        record = self._begin(clear_size(tube_name, reserved_ids), CLEAR)
        record.append(len(tube_name))
        record.write(tube_name.encode())
        for job_id in reserved_ids:
            write_u64(record, job_id)
        self._end()

    def clock(self, clock_offset: int, boot: bytes) -> None:
        """Write how the server's clock and the wall clock relate from here on.

        Args:
            clock_offset: wall clock less the server's clock, nanoseconds.
            boot: 16 bytes that identify the boot of the machine.
        """
        record = self._begin(CLOCK_SIZE, CLOCK)
        write_i64_le(record, clock_offset)
        record.write(boot)
        self._end()

    def _begin(self, size: i64, kind: int) -> BytesWriter:
        record = self._begun
        write_i32_le(record, i32(size))
        record.append(kind)
        return record

    def _begin_job(self, size: i64, kind: int, job_id: int, priority: i64, delay: i64) -> BytesWriter:
        """Begin a record that says how a job is."""
        record = self._begin(size, kind)
        write_u64(record, job_id)
        write_u32(record, priority)
        write_i64_le(record, delay)
        return record

    def _end_put(self, tube: str, key: str, body: bytes) -> None:
        record = self._begun
        record.write(tube.encode())
        if key:
            record.write(key.encode())
        if len(body) < LARGE:
            record.write(body)
            self._end()
        else:
            self._end(body)
            self._chunks.append(self._records.getvalue())
            self._chunks.append(body)
            self._records.truncate(0)

    def _end(self, body: bytes = b"") -> None:
        """Append the record that has been begun, and its checksum before it.

        Args:
            body: follows the record, and belongs to it.
        """
        rest = self._begun.getvalue()
        self._begun.truncate(0)
        if len(rest) <= SHORT:  # noqa: SIM108 as one expression, it would be an object
            checksum = short_checksum(rest, self._seed)
        else:
            checksum = _crc32c(rest, self._seed_object)
        if len(body) > 0:
            checksum = _crc32c(body, checksum)
        write_u32(self._records, checksum)
        self._records.write(rest)


def write_u32(record: BytesWriter, number: i64) -> None:
    """Write a number below 2^32, as the signed one with the same bytes: the compiler has no unsigned ones."""
    write_i32_le(record, i32(((number + _SIGN) & _MAX_U32) - _SIGN))


def write_u64(record: BytesWriter, number: int) -> None:
    """Write a number below 2^64, likewise."""
    if number > GREATEST_SHORT and number > LAST_MOMENT:
        number -= 1 << 64
    write_i64_le(record, number)


def _table() -> bytes:
    """The table of the checksum's byte-wise algorithm: four bytes for each value of a byte."""
    table = BytesWriter()
    for byte in range(256):
        write_u32(table, crc32c(bytes((byte,)), _MAX_U32) ^ _MAX_U32)  # undoes the inversions of crc32c
    return table.getvalue()


_TABLE: Final = _table()


def short_checksum(data: bytes, seed: i64) -> i64:
    """The CRC-32C of some bytes, as crc32c returns it."""
    checksum = seed ^ _MAX_U32
    size: i64 = len(data)
    for index in range(size):
        at: i64 = (checksum ^ data[index]) & 0xFF
        checksum = checksum >> 8 ^ i64(read_i32_le(_TABLE, at << 2)) & _MAX_U32
    return checksum ^ _MAX_U32


def _write_state(record: BytesWriter, job: StoredJob) -> None:
    """Write the deadline or what is in its place, the counters, which wrap around as beanstalkd's do, and the state."""
    if job.state == BURIED:
        write_i64_le(record, job.bury_sequence)
    else:
        write_i64_le(record, job.ready_since if job.state == READY else job.deadline)
    write_u32(record, job.reserves & _MAX_U32)
    write_u32(record, job.timeouts & _MAX_U32)
    write_u32(record, job.releases & _MAX_U32)
    write_u32(record, job.buries & _MAX_U32)
    write_u32(record, job.kicks & _MAX_U32)
    record.append(job.state)


def _write_own_terms(record: BytesWriter, job: StoredJob) -> None:
    """Write all terms of a job, after the byte that says which of them there are."""
    present = _present_terms(job)
    if job.max_tries:
        present |= HAS_MAX_TRIES
    if job.backoff:
        present |= HAS_BACKOFF
    if job.ttl:
        present |= HAS_TTL
    if job.key_hold:
        present |= HAS_KEY_HOLD
    if job.has_labels():
        present |= HAS_LABELS
    record.append(present)
    _write_terms(record, job)
    if job.max_tries:
        write_u32(record, job.max_tries)
    for duration in (job.backoff, job.ttl, job.key_hold):
        if duration:
            write_i64_le(record, duration)
    if job.has_labels():
        _write_labels(record, job)


def _present_terms(change: StoredJob) -> int:
    """Which of the terms that can change there are."""
    present = IS_AT if change.at else 0
    if change.tries or change.reason:
        present |= HAS_TRIES
    if change.origin:
        present |= HAS_ORIGIN
    return present


def _write_terms(record: BytesWriter, change: StoredJob) -> None:
    """Write the terms that can change."""
    if change.tries or change.reason:
        write_u32(record, change.tries & _MAX_U32)
        record.append(change.reason)
    if change.origin:
        _write_name(record, change.origin)


def _write_labels(record: BytesWriter, job: StoredJob) -> None:
    """Write the labels of a job that has some, after the byte that says which of them there are."""
    present = AFTER_WAITS if job.after_waits else 0
    if job.share:
        present |= HAS_SHARE
    if job.limit:
        present |= HAS_LIMIT
    if job.group:
        present |= HAS_GROUP
    if job.after:
        present |= HAS_AFTER
    record.append(present)
    if job.share:
        _write_name(record, job.share)
    if job.limit:
        _write_name(record, job.limit)
        write_u32(record, job.limit_count)
    if job.group:
        _write_name(record, job.group)
    if job.after:
        _write_name(record, job.after)


def _write_name(record: BytesWriter, name: str) -> None:
    """Write the length of a name, and the name."""
    record.append(len(name))
    record.write(name.encode())
