"""Reads the binlog files that beanstalkd writes, so that its jobs move here; writes such files, so that they move back.

Must never know clients or commands. It does not lock the directory, and it never changes a file that it reads.

A directory holds binlog.1, binlog.2 and so on, oldest first. A file is its version, then records, then zeros up to the
size it was made with. All numbers are little-endian. Times are in nanoseconds, wall clock since 1970.

| bytes | what | in version 5 |
|---|---|---|
| 4 | version: 7; signed, as are all numbers but ids, priorities and counters | 5 |

A record is full, or it is short: an update of a job, with neither tube nor body.

| bytes | what | in version 5 |
|---|---|---|
| 4 | length of the tube's name; 0 in a short record | 8 bytes |
| | the tube's name | |
| 8 | id; 0: there are no more records in this file | |
| 4 + 4 | priority; padding | |
| 8 | delay | microseconds |
| 8 | ttr | microseconds |
| 4 + 4 | length of the body, with its CR LF; padding | |
| 8 | created at; the same in all records of a job | microseconds |
| 8 | deadline; of a delayed job, when it is due | microseconds |
| 5 times 4 | reserves, timeouts, releases, buries, kicks | |
| 1 + 3 | state: 0 deleted, 1 ready, 2 reserved, 3 buried, 4 delayed; padding | no padding |
| | the body, with its CR LF; not in a short record | |

A job's first record is a full one. Compaction writes one more into the newest file, and removes the oldest file once no
job needs it; so an update of a job that no file knows is of one that is gone. There are no checksums. What beanstalkd
does not write cannot be read either: a release without delay, a reservation, the end of a delay.

How a file may end, and what is made of it:

- In zeros, wherever they begin: nothing is wrong. A record that turns into zeros up to the end of the file was being
  written when beanstalkd was killed, and was never acknowledged: a warning.
- In the midst of a record: in the last file that has any records, a torn tail: a warning. In an earlier one: damage.
- Whatever a record cannot be is damage. As beanstalkd does, this leaves the rest of the file unread, unless it is
  certain where the next record begins. Unlike beanstalkd, it keeps what it knew of the job.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.queue.stored_job import StoredJob

VERSION: Final = 7
FILE_SIZE: Final = 10_485_760
"""The size of beanstalkd's files, in bytes, unless -s says otherwise."""

_VERSION: Final = struct.Struct("<i")
_LENGTH: Final = {7: struct.Struct("<i"), 5: struct.Struct("<Q")}
_RECORD: Final = {7: struct.Struct("<QI4xqqi4xqqIIIIIB3x"), 5: struct.Struct("<QI4xqqi4xqqIIIIIB")}
_CREATED_AT: Final = slice(40, 48)  # its place in a record
_STATE_AT: Final = 76

_DELETED: Final = 0
_READY: Final = 1
_RESERVED: Final = 2
_BURIED: Final = 3
_DELAYED: Final = 4
_STATES: Final = {_READY: READY, _RESERVED: READY, _BURIED: BURIED, _DELAYED: DELAYED}
"""What a job is after a restart: nobody has it reserved."""
_NUMBERS: Final = {READY: _READY, BURIED: _BURIED, DELAYED: _DELAYED}

_NAME: Final = re.compile(rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9\-+/;.$_()]*")
_LONGEST_NAME: Final = 200
_LONGEST_DURATION: Final = 2**32 * 1_000_000_000  # a delay or ttr is below 2^32 seconds
_LONGEST_BODY: Final = 2**30 + 2  # -z cannot be more than 2^30, and a CR LF follows
_LAST_TIME: Final = 2**63 - 1
_CHUNK: Final = 1 << 20
_PROGRESS: Final = 4 << 20  # bytes between two calls of on_progress
_MOST_NAMES: Final = 10_000  # that are kept decoded


class UnknownVersionError(Exception):
    """A file is of a version that this module does not know."""


class DirectoryInUseError(Exception):
    """There are binlog files where some should be written."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where a file is not what beanstalkd writes."""

    path: Path
    offset: int
    """Where the first record that could not be taken begins, in bytes from the beginning of the file."""
    what: str

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: {self.what}"


@dataclass(slots=True)
class Contents:
    """What the files of a directory say."""

    last_id: int = 0
    """The highest id in any record, also of jobs that are gone; 0 if there is none."""
    damages: list[Damage] = field(default_factory=list)
    """What cannot come from a crash of beanstalkd alone; acknowledged changes may be missing, or undone."""
    torn: Damage | None = None
    """The torn tail of the last file, if it has one."""
    _jobs: dict[int, tuple[str, bytes, bytes]] = field(default_factory=dict)  # tube, record (version 7), body

    def __len__(self) -> int:
        """The number of live jobs."""
        return len(self._jobs)

    def jobs(self) -> Iterator[StoredJob]:
        """The live jobs, in the order in which beanstalkd would take them up: that of their first records."""
        unpack = _RECORD[7].unpack
        for tube, record, body in self._jobs.values():
            job_id, priority, delay, ttr, _, created_at, deadline, *counters, state = unpack(record)
            yield StoredJob(
                job_id, tube, "", _STATES[state], priority, delay, ttr, body, created_at, deadline, 0, *counters
            )


@dataclass(frozen=True, slots=True)
class Written:
    """What `write` has written."""

    jobs: int
    keyed: int
    """How many of the jobs had a key, which beanstalkd does not know."""
    files: int
    size: int
    """Bytes in all files."""
    body_limit: int
    """What beanstalkd's -z must at least be, in bytes. Below, it does not read on in a file at a longer body."""


def files(directory: str | os.PathLike[str]) -> list[Path]:
    """The binlog files in a directory, oldest first. As with beanstalkd, binlog.07 is not one of them.

    Raises:
        OSError: the directory cannot be read.
    """
    found = [
        (int(match[1]), entry.path)
        for entry in os.scandir(directory)
        if (match := re.fullmatch(r"binlog\.(0|[1-9][0-9]{0,9})", entry.name))
    ]
    return [Path(path) for _, path in sorted(found)]


def read(
    directory: str | os.PathLike[str],
    on_warning: Callable[[str], None],
    on_progress: Callable[[int], None] | None = None,
) -> Contents:
    """Read all binlog files of a directory that no beanstalkd writes to.

    Args:
        on_warning: called with one line for each thing that is odd, all damages included.
        on_progress: called now and then with the number of bytes read so far.

    Raises:
        UnknownVersionError: a file has neither version 7 nor 5.
        OSError: a file cannot be read. beanstalkd's files can be read by its own user only.
    """
    reader = _Reader(on_warning, on_progress)
    before = -1
    for path in files(directory):
        number = int(path.name.removeprefix("binlog."))
        if 0 <= before < number - 1:
            reader.damage(path, 0, f"binlog.{before + 1}, the one after binlog.{before}, is missing")
        before = number
        reader.read(path)
    return reader.contents


class _Reader:
    """Reads one file after the other into Contents."""

    def __init__(self, on_warning: Callable[[str], None], on_progress: Callable[[int], None] | None) -> None:
        self.contents = Contents()
        self._warn = on_warning
        self._on_progress = on_progress
        self._done = 0  # bytes, in the files before
        self._names: dict[bytes, str] = {}

    def damage(self, path: Path, offset: int, what: str) -> None:
        damage = Damage(path, offset, what)
        self.contents.damages.append(damage)
        self._warn(str(damage))

    def read(self, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _VERSION.size:
                self._warn(f"{path}: offset 0: no version, {size} bytes only: there is nothing in it")
            else:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    self._read(path, data)
        self._done += size
        if self._on_progress is not None:
            self._on_progress(self._done)

    def _read(self, path: Path, data: mmap.mmap) -> None:
        (version,) = _VERSION.unpack_from(data)
        if version not in _RECORD:
            if _zeros(data, 0):
                self._warn(f"{path}: offset 0: zeros only, beanstalkd had just made it: there is nothing in it")
                return
            raise UnknownVersionError(f"{path}: version {version}; beanstalkd's binlog files are of version 7 (or 5)")
        torn = self.contents.torn
        self.contents.torn = None
        end = self._read_records(path, data, version)
        if torn is None:
            pass
        elif end > _VERSION.size or self.contents.torn is not None:
            self.contents.damages.append(torn)  # there was more to write, so it was not the last
        else:
            self.contents.torn = torn

    def _read_records(self, path: Path, data: mmap.mmap, version: int) -> int:
        """Read records as long as there are any; return where those end that could be read."""
        contents = self.contents
        jobs = contents._jobs
        last_id = contents.last_id
        names = self._names
        unpack_length = _LENGTH[version].unpack_from
        unpack = _RECORD[version].unpack_from
        length_size = _LENGTH[version].size
        record_size = _RECORD[version].size
        size = len(data)
        on_progress = self._on_progress
        report_at = _PROGRESS if on_progress is not None else size
        position = _VERSION.size
        while True:
            start = position
            if start > report_at and on_progress is not None:
                report_at = start + _PROGRESS
                on_progress(self._done + start)
            if size - start < length_size:
                self._cut(path, data, start, version)
                break
            (length,) = unpack_length(data, start)
            if not 0 <= length <= _LONGEST_NAME:
                self.damage(
                    path, start, f"a tube's name of {length} bytes; at most 200 are possible; {_rest(data, start)}"
                )
                break
            at = start + length_size + length
            position = at + record_size
            if position > size:
                self._cut(path, data, start, version)
                break
            fields = unpack(data, at)
            job_id = fields[0]
            if not job_id:
                self._end(path, data, start, at)
                break
            state = fields[12]
            what = _impossible(fields, version)
            if what:
                self._stop(path, data, start, at + _STATE_AT, version, what)
                break
            body_size = fields[4]
            known = jobs.get(job_id)
            if length:
                raw_name = data[at - length : at]
                tube = names.get(raw_name)
                if tube is None:
                    if not _NAME.fullmatch(raw_name):
                        self._stop(path, data, start, at + _STATE_AT, version, f"{raw_name!r} as a tube's name")
                        break
                    if len(names) >= _MOST_NAMES:
                        names.clear()
                    tube = names[raw_name] = raw_name.decode("ascii")
                if state == _DELETED:
                    self._stop(path, data, start, at + _STATE_AT, version, f"job {job_id} is deleted, and has a body")
                    break
                position += body_size
                if position > size:
                    self._cut(path, data, start, version)
                    break
                if data[position - 2 : position] != b"\r\n":
                    self._stop(path, data, start, position - 1, version, "a body that does not end in CR LF")
                    break
                record = data[at : at + record_size] if version == VERSION else _as_version_7(fields)
                body = data[position - body_size : position - 2]
                if known is not None:
                    if known[0] != tube or known[1][_CREATED_AT] != record[_CREATED_AT]:
                        self.damage(path, start, f"job {job_id} is put twice; the second one is taken")
                        del jobs[job_id]
                    elif len(known[2]) != len(body):
                        self._stop(path, data, start, position - 1, version, _size_changed(job_id, known[2], body_size))
                        break
                jobs[job_id] = (tube, record, body)
            elif known is not None:
                record = data[at:position] if version == VERSION else _as_version_7(fields)
                if len(known[2]) + 2 != body_size:
                    what = _size_changed(job_id, known[2], body_size)
                    self._stop(path, data, start, at + _STATE_AT, version, what)
                    break
                if known[1][_CREATED_AT] != record[_CREATED_AT]:
                    if state == _DELETED and _zeros(data, position):
                        self._unfinished(path, data, start)
                        break
                    self.damage(path, start, f"job {job_id} was created at another time; this change is not taken")
                elif state == _DELETED:
                    del jobs[job_id]
                else:
                    jobs[job_id] = (known[0], record, known[2])
            # else: an update of a job that was deleted, or is in a later file since compaction
            if job_id > last_id:
                last_id = job_id
        contents.last_id = last_id
        return start

    def _cut(self, path: Path, data: mmap.mmap, start: int, version: int) -> None:
        """The file ends before the record does."""
        if _zeros(data, start):
            return
        if self._record_follows(data, start, version):
            self.damage(path, start, f"a record that is longer than the file, and others in it; {_rest(data, start)}")
            return
        self.contents.torn = Damage(path, start, f"the file ends in the midst of a record; {_rest(data, start)}")
        self._warn(str(self.contents.torn))

    def _end(self, path: Path, data: mmap.mmap, start: int, at: int) -> None:
        """There is no id: the zeros at the end of a file, or a record of which not even the id was written."""
        if not _zeros(data, at):
            self.damage(path, start, f"zeros, and then something else; {_rest(data, start)}")
        elif not _zeros(data, start):
            self._unfinished(path, data, start)

    def _stop(self, path: Path, data: mmap.mmap, start: int, last: int, version: int, what: str) -> None:
        """A record cannot be so: it is damaged, or unfinished, that is zeros from its `last` byte, or before, on."""
        if _zeros(data, last) and not self._record_follows(data, start, version):
            self._unfinished(path, data, start)
        else:
            self.damage(path, start, f"{what}; {_rest(data, start)}")

    def _unfinished(self, path: Path, data: mmap.mmap, start: int) -> None:
        self._warn(f"{path}: offset {start}: an unfinished record, never acknowledged; {_rest(data, start)}")

    def _record_follows(self, data: mmap.mmap, start: int, version: int) -> bool:
        """Whether anything after a CR LF looks like a record: then the one at `start` is not the last, but damaged.

        A body may hold what looks like one; then a torn tail is taken for damage, which is the safe mistake.
        """
        length_size = _LENGTH[version].size
        record = _RECORD[version]
        found = data.find(b"\r\n", start)
        while found >= 0:
            begin = found + 2
            if len(data) - begin < length_size:
                break
            (length,) = _LENGTH[version].unpack_from(data, begin)
            at = begin + length_size + length
            if 0 <= length <= _LONGEST_NAME and at + record.size <= len(data):
                fields = record.unpack_from(data, at)
                named = not length or _NAME.fullmatch(data, begin + length_size, at)
                if fields[0] and fields[3] and fields[5] and named and not _impossible(fields, version):
                    return True
            found = data.find(b"\r\n", begin)
        return False


def _impossible(fields: tuple[int, ...], version: int) -> str:
    """What it is that a record cannot have, or ""."""
    unit = 1 if version == VERSION else 1000
    longest = _LONGEST_DURATION // unit
    if not 0 <= fields[2] <= longest:
        return f"a delay of {fields[2] * unit} ns"
    if not 0 <= fields[3] <= longest:
        return f"a ttr of {fields[3] * unit} ns"
    if not 2 <= fields[4] <= _LONGEST_BODY:
        return f"a body of {fields[4]} bytes"
    if not 0 <= fields[5] <= _LAST_TIME // unit:
        return f"created {fields[5] * unit} ns after 1970"
    if not 0 <= fields[6] <= _LAST_TIME // unit:
        return f"a deadline {fields[6] * unit} ns after 1970"
    if fields[12] > _DELAYED:
        return f"a state of {fields[12]}"
    return ""


def _as_version_7(fields: tuple[int, ...]) -> bytes:
    """A record of version 5, whose times are in microseconds, as one of version 7."""
    job_id, priority, delay, ttr, body_size, created_at, deadline, *rest = fields
    return _RECORD[7].pack(
        job_id, priority, delay * 1000, ttr * 1000, body_size, created_at * 1000, deadline * 1000, *rest
    )


def _size_changed(job_id: int, body: bytes, body_size: int) -> str:
    return f"the body of job {job_id} had {len(body)} bytes, and now {body_size - 2}"


def _rest(data: mmap.mmap, start: int) -> str:
    return f"the last {len(data) - start} bytes of the file are not read"


def _zeros(data: mmap.mmap, start: int) -> bool:
    """Whether there is nothing but zeros from here to the end."""
    for at in range(start, len(data), _CHUNK):
        chunk = data[at : at + _CHUNK]
        if chunk.count(0) != len(chunk):
            return False
    return True


def write(
    directory: str | os.PathLike[str],
    jobs: Iterable[StoredJob],
    *,
    next_id: int = 1,
    size: int = FILE_SIZE,
    on_progress: Callable[[int], None] | None = None,
) -> Written:
    """Write files that beanstalkd can start on, and make them durable. Buried jobs keep the order they are given in.

    Args:
        directory: exists, and holds no binlog files.
        next_id: no id below this is given again. Until beanstalkd's second start; it does not keep that itself.
        size: of a file at most, in bytes; a file that holds one job only may be larger.
        on_progress: called now and then with the number of bytes written so far.

    Raises:
        DirectoryInUseError: the directory holds binlog files.
        ValueError: a job is not one that beanstalkd can have.
        OSError: writing fails. What has been written is removed again.
    """
    directory = Path(directory)
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name.startswith("binlog."):
            raise DirectoryInUseError(f"{entry.path} exists; a directory without binlog files is needed")
    writer = _Writer(directory, size, on_progress)
    try:
        for job in jobs:
            writer.put(job)
        if next_id - 1 > writer.last_id:  # a job that is no more tells beanstalkd which ids are used up
            last = StoredJob(next_id - 1, "default", ttr=1_000_000_000)
            writer.append(_full_record(last) + _LENGTH[7].pack(0) + _record(last, _DELETED))
        return writer.finish()
    except BaseException:
        writer.remove()
        raise


class _Writer:
    """Writes records into one file after the other. They get the names that beanstalkd looks for when all is done."""

    def __init__(self, directory: Path, size: int, on_progress: Callable[[int], None] | None) -> None:
        self.last_id = 0
        self._directory = directory
        self._size = size
        self._on_progress = on_progress
        self._paths: list[Path] = []
        self._records: list[bytes] = []  # of the file that is being filled, not yet written
        self._buffered = 0  # their bytes
        self._filled = 0  # bytes in that file, with those
        self._descriptor = -1
        self._written = 0
        self._jobs = 0
        self._keyed = 0
        self._body_limit = 0

    def put(self, job: StoredJob) -> None:
        self.append(_full_record(job))
        self._jobs += 1
        if job.key:
            self._keyed += 1
        if job.id > self.last_id:
            self.last_id = job.id
        if len(job.body) + 2 > self._body_limit:
            self._body_limit = len(job.body) + 2

    def append(self, record: bytes) -> None:
        length = len(record)
        if self._filled + length > self._size and self._filled > _VERSION.size:
            self._close()
        if self._descriptor < 0:
            self._open()
        self._records.append(record)
        self._filled += length
        self._buffered += length
        if self._buffered >= _CHUNK:
            self._flush()

    def finish(self) -> Written:
        self._close()
        for path in reversed(self._paths):  # so there is a first one only when there are all
            path.rename(path.with_suffix(""))
        self._paths = [path.with_suffix("") for path in self._paths]
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return Written(self._jobs, self._keyed, len(self._paths), self._written, self._body_limit)

    def remove(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        for path in self._paths:
            path.unlink(missing_ok=True)
            path.with_suffix("").unlink(missing_ok=True)

    def _open(self) -> None:
        path = self._directory / f"binlog.{len(self._paths) + 1}.partial"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._paths.append(path)
        self._records.append(_VERSION.pack(VERSION))
        self._filled = self._buffered = _VERSION.size

    def _flush(self) -> None:
        rest = memoryview(b"".join(self._records))
        self._records.clear()
        self._buffered = 0
        while rest:
            count = os.write(self._descriptor, rest)
            rest = rest[count:]
            self._written += count
        if self._on_progress is not None:
            self._on_progress(self._written)

    def _close(self) -> None:
        if self._descriptor < 0:
            return
        self._flush()
        os.fsync(self._descriptor)
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def _full_record(job: StoredJob) -> bytes:
    name = job.tube.encode("ascii", "replace")
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(f"job {job.id}: beanstalkd can have no tube with the name {job.tube!r}")
    if len(job.body) + 2 > _LONGEST_BODY:
        raise ValueError(
            f"job {job.id}: a body of {len(job.body)} bytes; beanstalkd can have {_LONGEST_BODY - 2} at most"
        )
    return b"%b%b%b%b\r\n" % (_LENGTH[7].pack(len(name)), name, _record(job, _NUMBERS[job.state]), job.body)


def _record(job: StoredJob, state: int) -> bytes:
    try:
        return _RECORD[7].pack(
            job.id,
            job.priority,
            job.delay,
            job.ttr,
            len(job.body) + 2,
            job.created_at,
            job.deadline,
            job.reserves,
            job.timeouts,
            job.releases,
            job.buries,
            job.kicks,
            state,
        )
    except struct.error as error:
        raise ValueError(f"job {job.id}: beanstalkd cannot have it: {error}") from None
