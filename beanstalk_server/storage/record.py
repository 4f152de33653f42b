"""Decodes the records of the binlog: one change each, as bytes with a checksum (docs/binlog-format.md).

    bytes   field
    4       CRC-32C of the rest of the record, begun with the seed of the segment
    4       length of the record, including these eight bytes
    1       type
    ...     depends on the type

Jobs with terms, held keys and groups have their own types of records, PUT_WITH and CHANGE_WITH: those of other jobs
stay as short as they are. LEAVE is the DELETE of a job that is a member of a group.

All integers are little-endian. Each segment has its own seed, the CRC-32C of a random number. So neither a body from a
client nor the remains of another segment on the disk can pass for a record of this segment.

record_writer.py encodes the records.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import Final

from crc32c import crc32c

from beanstalk_server.queue.groups import ENDS
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    GROUP,
    HELD,
    NO_REASON,
    NOT_IN_MEMORY,
    READY,
    REASONS,
)
from beanstalk_server.queue.native import i64, read_i32_le, read_i64_le
from beanstalk_server.queue.stored_job import StoredJob

COMMIT: Final = 1
PUT: Final = 2
CHANGE: Final = 3
DELETE: Final = 4
CLEAR: Final = 5
CLOCK: Final = 6
PUT_WITH: Final = 7
CHANGE_WITH: Final = 8
LEAVE: Final = 9

TYPES: Final = ("", "commit", "put", "change", "delete", "clear", "clock", "put-with", "change-with", "leave")
"""The names of the types, by number."""

LAST_TYPES: Final = (0, DELETE, CLOCK, CHANGE_WITH, LEAVE, LEAVE)
"""The highest type in each version of the format."""

# Checksum, length, type. Offsets (_AT) count from the beginning of the record.
HEAD_SIZE: Final = 9
_LENGTH_AT: Final = 4
_TYPE_AT: Final = 8

# COMMIT and CLOCK, of which there are few, are structures: they begin after the checksum, with the length and the type.
# mark, commit number, durable, length, next id, written at
COMMIT_FIELDS: Final = Struct("<IB4sQQQQq")
COMMIT_SIZE: Final = 53
COMMIT_MARK: Final = b"CMIT"

_ID_AT: Final = HEAD_SIZE  # in every record that concerns one job
_PRIORITY_AT: Final = 17
_DELAY_AT: Final = 21

# id, priority, delay, ttr, created at, deadline or bury sequence, 5 counters, state, lengths of tube and key
PUT_SIZE: Final = 76
_TTR_AT: Final = 29
_CREATED_AT: Final = 37
_MOMENT_AT: Final = 45
_PUT_STATE_AT: Final = 73
_TUBE_SIZE_AT: Final = 74
_KEY_SIZE_AT: Final = 75

# id, priority, delay, deadline or bury sequence, 5 counters, state
CHANGE_SIZE: Final = 58
_CHANGED_MOMENT_AT: Final = 29
_CHANGE_STATE_AT: Final = 57

# A PUT_WITH is as a PUT, and a CHANGE_WITH as a CHANGE with the length of the tube's name; then come the terms: a byte
# that says which of them follow, and these, in the order of its bits. Then come the names.
HAS_TRIES: Final = 1 << 0  # tries, reason
HAS_ORIGIN: Final = 1 << 1  # length of the origin, origin
HAS_MAX_TRIES: Final = 1 << 2
HAS_BACKOFF: Final = 1 << 3
HAS_TTL: Final = 1 << 4
HAS_KEY_HOLD: Final = 1 << 5
IS_AT: Final = 1 << 6  # the deadline is one of the wall clock
NO_KEY: Final = 1 << 7  # in a CHANGE_WITH: the job has none, any more
HAS_LABELS: Final = 1 << 7  # in a PUT_WITH since version 4: labels follow the terms
HAS_LIMIT_COUNT: Final = HAS_MAX_TRIES  # in a CHANGE_WITH since version 5: how many jobs with its limit may be reserved
_IN_CHANGE: Final = HAS_TRIES | HAS_ORIGIN | IS_AT | NO_KEY
TRIES_SIZE: Final = 5
MAX_TRIES_SIZE: Final = 4
DURATION_SIZE: Final = 8

# The labels: a byte that says which of them follow, and these, in the order of its bits: each the length of a name, and
# the name; after that of the limit, its count.
HAS_SHARE: Final = 1 << 0
HAS_LIMIT: Final = 1 << 1
HAS_GROUP: Final = 1 << 2
HAS_AFTER: Final = 1 << 3
AFTER_WAITS: Final = 1 << 4
_LABELS: Final = HAS_SHARE | HAS_LIMIT | HAS_GROUP | HAS_AFTER | AFTER_WAITS
LIMIT_COUNT_SIZE: Final = 4
FIRST_WITH_LABELS: Final = 4
"""The first version of the format that has labels, and groups."""

FIRST_WITH_LIMIT_COUNT: Final = 5
"""The first version of the format whose changes have the number of the job's limit."""

_MOVED_SIZE_AT: Final = CHANGE_SIZE
CHANGE_WITH_SIZE: Final = CHANGE_SIZE + 2
LONGEST_CHANGE: Final = CHANGE_WITH_SIZE + TRIES_SIZE + 1 + 2 * 255 + LIMIT_COUNT_SIZE
"""Bytes of the longest record of a change."""

DELETE_SIZE: Final = 17

# id, or 0 if the job is not deleted; id of the group, how the job has left it
LEAVE_SIZE: Final = 26
_GROUP_ID_AT: Final = 17
_END_AT: Final = 25

# length of the tube's name; then come the name and the ids
CLEAR_SIZE: Final = 10
_CLEARED_SIZE_AT: Final = 9
ID_SIZE: Final = 8

# wall clock less the server's clock, boot
_CLOCK: Final = Struct("<IBq16s")
CLOCK_SIZE: Final = 33
NO_BOOT: Final = bytes(16)
"""A boot that no machine ever had."""

_LONGEST_TERMS: Final = 1 + TRIES_SIZE + MAX_TRIES_SIZE + 3 * DURATION_SIZE + 1 + 255
_LONGEST_LABELS: Final = 1 + 4 * (1 + 255) + LIMIT_COUNT_SIZE
LONGEST: Final = PUT_SIZE + _LONGEST_TERMS + _LONGEST_LABELS + 2 * 255 + (1 << 30)
"""Bytes of the longest record: -z is at most a gibibyte. (A clear of this length has 130 million ids.)"""

CHECKSUM: Final = Struct("<I")


class Scanner:
    """Reads records from bytes, one after the other, and checks each of them.

    When `next` returns True, `kind` is the type of the record, which lies between `start` and `end` in `data`. When it
    returns False, no whole record begins at `end`: `fault` says what is wrong there, or `more` is the number of bytes
    needed to decide. If neither is set, zeros follow, which end a segment.

    Args:
        seed: the start value of the checksums.
        version: of the format.
    """

    def __init__(self, seed: int, version: int) -> None:
        self.seed = seed
        self.last_type: i64 = LAST_TYPES[version] if 0 < version < len(LAST_TYPES) else CLOCK
        self.has_labels = version >= FIRST_WITH_LABELS
        self._in_change: i64 = _IN_CHANGE | HAS_LIMIT_COUNT if version >= FIRST_WITH_LIMIT_COUNT else _IN_CHANGE
        self.data = b""
        self.start: i64 = 0
        self.end: i64 = 0
        self.kind: i64 = 0
        self.fault = ""
        self.more: i64 = 0
        self.names: dict[bytes, str] = {}  # decoded names of tubes
        self._raw_name = b""  # the last of them, and what it is decoded: the next job's is often the same
        self._last_name = ""
        self._job = StoredJob()
        self._change = StoredJob()

    def next(self) -> bool:
        """Go to the next record."""
        data = self.data
        start = self.end
        self.fault = ""
        self.more = 0
        size: i64 = len(data)
        if start + HEAD_SIZE > size:
            self.more = HEAD_SIZE
            return False
        crc = _read_u32(data, start)
        length = _read_u32(data, start + _LENGTH_AT)
        kind: i64 = data[start + _TYPE_AT]
        if not length and not crc and not kind:
            return False
        self.fault = self._head_fault(length, kind)
        if self.fault:
            return False
        end = start + length
        if end > size:
            self.more = length
            return False
        if crc32c(data[start + _LENGTH_AT : end], self.seed) != crc:
            self.fault = "bad checksum"
            return False
        self.fault = self._content_fault(start, length, kind)
        if self.fault:
            return False
        self.start = start
        self.end = end
        self.kind = kind
        return True

    def commit(self) -> tuple[int, int, int, int, int]:
        """The fields of a COMMIT record: commit number, durable, length, next id, written at."""
        _, _, _, commit_number, durable, length, next_id, written_at = COMMIT_FIELDS.unpack_from(
            self.data, self.start + _LENGTH_AT
        )
        return commit_number, durable, length, next_id, written_at

    def put(self, threshold: int = LONGEST) -> StoredJob:
        """The job in a PUT or PUT_WITH record. The next call reuses the object.

        Args:
            threshold: bytes; a longer body is left where it is, and the job gets NOT_IN_MEMORY in its place.
        """
        data = self.data
        start = self.start
        job = self._job
        job.ttr = read_i64_le(data, start + _TTR_AT)
        job.created_at = read_i64_le(data, start + _CREATED_AT)
        moment = self._take_state(job, start + _MOMENT_AT)
        names = start + PUT_SIZE
        if self.kind == PUT_WITH:
            names = self._take_terms(job, names, moment)
        elif job.has_terms:
            job.forget_terms()
        key = names + data[start + _TUBE_SIZE_AT]
        body = key + data[start + _KEY_SIZE_AT]
        end = self.end
        job.tube = self._name(names, key)
        job.key = data[key:body].decode("latin-1") if body > key else ""
        job.body = data[body:end] if end - body <= threshold else NOT_IN_MEMORY
        return job

    def _take_state(self, job: StoredJob, at: i64) -> i64:
        """Take what a put and a change both have: id, priority, delay, and from this offset on the deadline or the
        bury sequence, the counters and the state. Return the first of these, as it was written."""
        data = self.data
        start = self.start
        job.id = self.job_id()
        job.priority = _read_u32(data, start + _PRIORITY_AT)
        job.delay = read_i64_le(data, start + _DELAY_AT)
        moment = read_i64_le(data, at)
        job.reserves = _read_u32(data, at + 8)
        job.timeouts = _read_u32(data, at + 12)
        job.releases = _read_u32(data, at + 16)
        job.buries = _read_u32(data, at + 20)
        job.kicks = _read_u32(data, at + 24)
        state = job.state = data[at + 28]
        job.deadline = moment if state == DELAYED else 0
        job.bury_sequence = moment if state == BURIED else 0
        return moment

    def _name(self, start: i64, end: i64) -> str:
        """The name of a tube: always the same object for the same name."""
        data = self.data
        last = self._raw_name
        size: i64 = len(last)
        if end - start == size:  # compare without a slice, which would be an object
            index: i64 = 0
            while index < size and data[start + index] == last[index]:
                index += 1
            if index == size:
                return self._last_name
        raw = data[start:end]
        name = self.names.get(raw)
        if name is None:
            name = self.names[raw] = raw.decode("latin-1")
        self._raw_name = raw
        self._last_name = name
        return name

    def _take_terms(self, change: StoredJob, at: i64, moment: i64) -> i64:
        """Set what a job with terms has from the record's terms, at an offset; return the offset of their end."""
        data = self.data
        if change.has_terms:
            change.forget_terms()
        change.has_terms = True
        present = data[at]
        at += 1
        if present & HAS_TRIES:
            change.tries = _read_u32(data, at)
            change.reason = data[at + 4]
            at += TRIES_SIZE
        if present & HAS_ORIGIN:
            end: i64 = at + 1 + data[at]
            change.origin = self._name(at + 1, end)
            at = end
        if present & HAS_MAX_TRIES:
            number = _read_u32(data, at)
            at += MAX_TRIES_SIZE
            if self.kind == PUT_WITH:
                change.max_tries = number
            else:
                change.limit_count = number
        if present & HAS_BACKOFF:
            change.backoff = _read_u64(data, at)
            at += DURATION_SIZE
        if present & HAS_TTL:
            change.ttl = _read_u64(data, at)
            at += DURATION_SIZE
        if present & HAS_KEY_HOLD:
            change.key_hold = _read_u64(data, at)
            at += DURATION_SIZE
        if self.kind == PUT_WITH:
            change.keeps_key = True
            if present & HAS_LABELS:
                at = self._take_labels(change, at)
        else:
            change.keeps_key = not present & NO_KEY
        state = change.state
        change.at = moment if present & IS_AT else 0
        change.ready_since = moment if state == READY else 0
        if state == HELD:
            change.deadline = moment
        return at

    def _take_labels(self, job: StoredJob, at: i64) -> i64:
        """Set what a job has from the record's labels, at an offset; return the offset of their end."""
        data = self.data
        present = data[at]
        at += 1
        if present & HAS_SHARE:
            end: i64 = at + 1 + data[at]
            job.share = self._name(at + 1, end)
            at = end
        if present & HAS_LIMIT:
            end = at + 1 + data[at]
            job.limit = self._name(at + 1, end)
            job.limit_count = _read_u32(data, end)
            at = end + LIMIT_COUNT_SIZE
        if present & HAS_GROUP:
            end = at + 1 + data[at]
            job.group = self._name(at + 1, end)
            at = end
        if present & HAS_AFTER:
            end = at + 1 + data[at]
            job.after = self._name(at + 1, end)
            job.after_waits = present & AFTER_WAITS != 0
            at = end
        return at

    def change(self) -> StoredJob:
        """The change in a CHANGE or CHANGE_WITH record. The next call reuses the object."""
        change = self._change
        start = self.start
        moment = self._take_state(change, start + _CHANGED_MOMENT_AT)
        if self.kind == CHANGE_WITH:
            tube = self._take_terms(change, start + CHANGE_SIZE + 1, moment)
            change.tube = self._name(tube, self.end)
        elif change.has_terms:
            change.forget_terms()
        return change

    def leave(self) -> tuple[int, int, int]:
        """The fields of a LEAVE record: the id of the group, how a member has left it, and its id if it is deleted."""
        data = self.data
        start = self.start
        return _read_u64(data, start + _GROUP_ID_AT), data[start + _END_AT], self.job_id()

    def clear(self) -> tuple[str, list[int]]:
        """The fields of a CLEAR record: the tube's name, and the ids of the jobs that were reserved."""
        names = self.start + CLEAR_SIZE
        tube_end = names + self.data[names - 1]
        ids = array("Q", self.data[tube_end : self.end])
        if sys.byteorder == "big":
            ids.byteswap()
        return self.data[names:tube_end].decode("latin-1"), ids.tolist()

    def clock(self) -> tuple[int, bytes]:
        """The fields of a CLOCK record: wall clock less the server's clock, and the boot."""
        _, _, clock_offset, boot = _CLOCK.unpack_from(self.data, self.start + _LENGTH_AT)
        return clock_offset, boot

    def job_id(self) -> int:
        """The id of the job in a record that concerns one job."""
        return _read_u64(self.data, self.start + _ID_AT)

    def find(self, start: i64) -> i64:
        """The offset of the first valid record at or after `start`; -1 if none follows."""
        data = self.data
        size: i64 = len(data)
        for at in range(start, size - HEAD_SIZE + 1):
            kind: i64 = data[at + _TYPE_AT]
            if not COMMIT <= kind <= self.last_type:
                continue
            length = _read_u32(data, at + _LENGTH_AT)
            if at + length > size or self._head_fault(length, kind):
                continue
            if crc32c(data[at + _LENGTH_AT : at + length], self.seed) == _read_u32(data, at):
                return at
        return -1

    def _head_fault(self, length: i64, kind: i64) -> str:
        """What is wrong with the head of a record, or ""."""
        if kind == PUT:
            return "" if PUT_SIZE <= length <= LONGEST else "bad length of a put record"
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
        elif kind == PUT_WITH <= self.last_type:
            right = PUT_SIZE < length <= LONGEST
        elif kind == CHANGE_WITH <= self.last_type:
            right = CHANGE_WITH_SIZE <= length <= LONGEST_CHANGE
        elif kind == LEAVE <= self.last_type:
            right = length == LEAVE_SIZE
        else:
            return "unknown record type"
        return "" if right else f"bad length of a {TYPES[kind]} record"

    def _content_fault(self, start: i64, length: i64, kind: i64) -> str:
        """What is wrong with a record whose checksum is right, or ""."""
        data = self.data
        if kind == PUT:
            if PUT_SIZE + data[start + _TUBE_SIZE_AT] + data[start + _KEY_SIZE_AT] > length:
                return "put record is too short for its names"
            state = data[start + _PUT_STATE_AT]
        elif kind == CHANGE:
            state = data[start + _CHANGE_STATE_AT]
        elif kind == CLEAR:
            ids_size = length - CLEAR_SIZE - data[start + _CLEARED_SIZE_AT]
            return "" if ids_size >= 0 and ids_size % ID_SIZE == 0 else "bad length of a clear record"
        elif kind == LEAVE:
            return "" if data[start + _END_AT] < len(ENDS) else "bad end of a leave record"
        elif kind >= PUT_WITH:
            return self._terms_fault(start, length, kind)
        else:
            return ""
        return "" if state in (READY, DELAYED, BURIED) else "bad job state"

    def _terms_fault(self, start: i64, length: i64, kind: i64) -> str:
        """What is wrong with a record of a job with terms, or ""."""
        data = self.data
        end = start + length
        if kind == PUT_WITH:
            at = start + PUT_SIZE
            named = data[start + _TUBE_SIZE_AT] + data[start + _KEY_SIZE_AT]
            state = data[start + _PUT_STATE_AT]
        else:
            at = start + _MOVED_SIZE_AT + 1
            named = data[at - 1]
            state = data[start + _CHANGE_STATE_AT]
        present = data[at]
        at += 1
        has_labels = kind == PUT_WITH and present & HAS_LABELS != 0
        if (has_labels and not self.has_labels) or (kind == CHANGE_WITH and present & ~self._in_change):
            return f"bad terms of a {TYPES[kind]} record"
        reason = NO_REASON
        if present & HAS_TRIES:
            at += TRIES_SIZE
            reason = data[at - 1] if at <= end else NO_REASON
        if present & HAS_ORIGIN:
            at += 1 + (data[at] if at < end else 0)
        if present & HAS_MAX_TRIES:
            at += MAX_TRIES_SIZE
        for duration in (HAS_BACKOFF, HAS_TTL, HAS_KEY_HOLD):
            if present & duration:
                at += DURATION_SIZE
        if has_labels:
            at = self._end_of_labels(at, end)
            if at < 0:
                return f"bad labels of a {TYPES[kind]} record"
        at += named
        if at > end:
            return f"{TYPES[kind]} record is too short for its names"
        if kind == CHANGE_WITH and at < end:
            return f"bad length of a {TYPES[kind]} record"
        if reason >= len(REASONS):
            return "bad reason"
        if present & IS_AT and state != DELAYED:
            return f"bad terms of a {TYPES[kind]} record"
        if state == GROUP and kind == PUT_WITH and self.has_labels:
            return ""
        return "" if state in (READY, DELAYED, BURIED, HELD) else "bad job state"

    def _end_of_labels(self, at: i64, end: i64) -> i64:
        """The offset of the end of the labels at an offset; -1 if they are malformed, or longer than the record."""
        data = self.data
        present = data[at] if at < end else 0
        at += 1
        if not present or present & ~_LABELS or (present & AFTER_WAITS and not present & HAS_AFTER):
            return -1
        for flag in (HAS_SHARE, HAS_LIMIT, HAS_GROUP, HAS_AFTER):
            if present & flag:
                if at >= end or not data[at]:
                    return -1
                at += 1 + data[at]
                if flag == HAS_LIMIT:
                    at += LIMIT_COUNT_SIZE
        return at if at <= end else -1


def _read_u32(data: bytes, at: i64) -> i64:
    return i64(read_i32_le(data, at)) & 0xFFFFFFFF


def _read_u64(data: bytes, at: i64) -> int:
    number = int(read_i64_le(data, at))
    return number if number >= 0 else number + (1 << 64)
