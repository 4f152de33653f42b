"""Defines the format of beanstalkd's files, versions 7 and 5: their names, their records, and what a record may hold.

`reader.py` reads the files, `writer.py` writes them. Must never touch a file.

A directory holds binlog.1, binlog.2 and so on, oldest first. A file begins with its version; then come records, then
zeros up to the size that it was created with. All numbers are little-endian. Times are in nanoseconds, wall clock since
1970.

| bytes | what | in version 5 |
|---|---|---|
| 4 | version: 7; signed, as are all numbers but ids, priorities and counters | 5 |

A record is full, or it is short: an update of a job, with neither tube nor body.

| bytes | what | in version 5 |
|---|---|---|
| 4 | length of the tube's name; 0 in a short record | 8 bytes |
| | the tube's name | |
| 8 | id; 0 after the last record of a file | |
| 4 + 4 | priority; padding | |
| 8 | delay | microseconds |
| 8 | ttr | microseconds |
| 4 + 4 | length of the body, with its CR LF; padding | |
| 8 | created at; the same in all records of a job | microseconds |
| 8 | deadline; of a delayed job, when it is due | microseconds |
| 5 times 4 | reserves, timeouts, releases, buries, kicks | |
| 1 + 3 | state: 0 deleted, 1 ready, 2 reserved, 3 buried, 4 delayed; padding | no padding |
| | the body, with its CR LF; not in a short record | |

A job's first record is a full one. Compaction writes another full record into the newest file, and removes the oldest
file once no job needs it. So an update of a job that is in no file belongs to a deleted job. Records have no checksums.
beanstalkd writes no record of a release without delay, of a reservation, or of the end of a delay.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Final

from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.tube_names import NAME

VERSION: Final = 7
FILE_SIZE: Final = 10_485_760
"""The size of beanstalkd's files, in bytes, unless -s says otherwise."""

VERSION_FIELD: Final = struct.Struct("<i")
LENGTH: Final = {7: struct.Struct("<i"), 5: struct.Struct("<Q")}
"""The length of a tube's name, by version."""
RECORD: Final = {7: struct.Struct("<QI4xqqi4xqqIIIIIB3x"), 5: struct.Struct("<QI4xqqi4xqqIIIIIB")}
"""The fields of a record, from its id to its state, by version."""
CREATED_AT: Final = slice(40, 48)
"""The bytes of a record of version 7 that hold its time of creation."""
STATE_OFFSET: Final = 76
"""The offset of the state in a record, in bytes."""

DELETED: Final = 0
STATES: Final = {1: READY, 2: READY, 3: BURIED, 4: DELAYED}
"""The state of a job after a restart, by the number in its record; a reserved job is ready again."""
STATE_NUMBERS: Final = {READY: 1, BURIED: 3, DELAYED: 4}

TUBE_NAME: Final = re.compile(NAME.encode())
LONGEST_NAME: Final = 200
LONGEST_DURATION: Final = 2**32 * 1_000_000_000  # a delay or ttr is below 2^32 seconds
LONGEST_BODY: Final = 2**30 + 2  # -z cannot be more than 2^30, and a CR LF follows
LAST_TIME: Final = 2**63 - 1
_LAST_STATE: Final = 4

_FILE_NAME: Final = re.compile(r"binlog\.(0|[1-9][0-9]{0,9})")


def file_names(names: Iterable[str]) -> list[str]:
    """The binlog files among the files of a directory, oldest first. Like beanstalkd, it ignores binlog.07."""
    found = [(int(match[1]), name) for name in names if (match := _FILE_NAME.fullmatch(name))]
    return [name for _, name in sorted(found)]


def file_name(number: int) -> str:
    """The name of the file with this number; the first one is 1."""
    return f"binlog.{number}"


def impossible(fields: tuple[int, ...], version: int) -> str:
    """The first field that beanstalkd cannot have written, as a message; "" if all are possible.

    Args:
        fields: of the record, as RECORD has them.
    """
    unit = 1 if version == VERSION else 1000
    longest = LONGEST_DURATION // unit
    if not 0 <= fields[2] <= longest:
        return f"impossible delay: {fields[2] * unit} ns"
    if not 0 <= fields[3] <= longest:
        return f"impossible ttr: {fields[3] * unit} ns"
    if not 2 <= fields[4] <= LONGEST_BODY:
        return f"impossible body size: {fields[4]} bytes"
    if not 0 <= fields[5] <= LAST_TIME // unit:
        return f"impossible creation time: {fields[5] * unit} ns after 1970"
    if not 0 <= fields[6] <= LAST_TIME // unit:
        return f"impossible deadline: {fields[6] * unit} ns after 1970"
    if fields[12] > _LAST_STATE:
        return f"impossible job state: {fields[12]}"
    return ""


def as_version_7(fields: tuple[int, ...]) -> bytes:
    """A record of version 5, whose times are in microseconds, as one of version 7."""
    job_id, priority, delay, ttr, body_size, created_at, deadline, *rest = fields
    return RECORD[7].pack(
        job_id, priority, delay * 1000, ttr * 1000, body_size, created_at * 1000, deadline * 1000, *rest
    )
