"""Writes files that beanstalkd can start on.

The files get the names that beanstalkd looks for when everything is on the disk, the first one last. Must never know
where the jobs come from.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from beanstalk_server.queue.job import READY
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.storage.beanstalkd.format import (
    DELETED,
    FILE_SIZE,
    LENGTH,
    LONGEST_BODY,
    LONGEST_NAME,
    RECORD,
    STATE_NUMBERS,
    TUBE_NAME,
    VERSION,
    VERSION_FIELD,
    file_name,
)
from beanstalk_server.storage.disk import Directory, File

_CHUNK: Final = 1 << 20  # bytes written at once
SECOND: Final = 1_000_000_000


class DirectoryInUseError(Exception):
    """The directory holds binlog files already."""


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


def write(
    directory: Directory,
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
    for name in sorted(directory.names()):
        if name.startswith("binlog."):
            raise DirectoryInUseError(f"{directory.path / name} exists: name a directory without binlog files")
    writer = _Writer(directory, size, on_progress)
    try:
        for job in jobs:
            writer.put(job)
        if next_id - 1 > writer.last_id:  # a job that is no more tells beanstalkd which ids are used up
            writer.append(_used_up(next_id - 1))
        return writer.finish()
    except BaseException:
        writer.remove()
        raise


class _Writer:
    """Writes records into one file after the other."""

    def __init__(self, directory: Directory, size: int, on_progress: Callable[[int], None] | None) -> None:
        self.last_id = 0
        self._directory = directory
        self._size = size
        self._on_progress = on_progress
        self._names: list[str] = []  # of the files, as they will be
        self._file: File | None = None  # that is being filled
        self._file_size = 0  # bytes that have been written into it
        self._records: list[bytes] = []  # not yet written
        self._buffered = 0  # their bytes
        self._written = 0
        self._jobs = 0
        self._keyed = 0
        self._body_limit = 0

    def put(self, job: StoredJob) -> None:
        self.append(_full_fields(job))
        self._jobs += 1
        if job.key:
            self._keyed += 1
        if job.id > self.last_id:
            self.last_id = job.id
        if len(job.body) + 2 > self._body_limit:
            self._body_limit = len(job.body) + 2

    def append(self, record: bytes) -> None:
        length = len(record)
        if self._file is not None and self._file_size + self._buffered + length > self._size:
            self._close()
        if self._file is None:
            self._open()
        self._records.append(record)
        self._buffered += length
        if self._buffered >= _CHUNK:
            self._flush()

    def finish(self) -> Written:
        self._close()
        for name in reversed(self._names):  # so there is a first one only when there are all
            self._directory.rename(_partial(name), name)
        self._directory.sync()
        return Written(self._jobs, self._keyed, len(self._names), self._written, self._body_limit)

    def remove(self) -> None:
        """Leave nothing of what has been written."""
        if self._file is not None:
            self._file.close()
        there = self._directory.names()
        for name in self._names:
            for either in (_partial(name), name):
                if either in there:
                    self._directory.remove(either)

    def _open(self) -> None:
        name = file_name(len(self._names) + 1)
        self._file = self._directory.create(_partial(name))
        self._names.append(name)
        self._file_size = 0
        self._records.append(VERSION_FIELD.pack(VERSION))
        self._buffered = VERSION_FIELD.size

    def _flush(self) -> None:
        assert self._file is not None
        self._file.write(self._file_size, b"".join(self._records))
        self._file_size += self._buffered
        self._written += self._buffered
        self._records.clear()
        self._buffered = 0
        if self._on_progress is not None:
            self._on_progress(self._written)

    def _close(self) -> None:
        if self._file is None:
            return
        self._flush()
        self._file.sync()
        file, self._file = self._file, None
        file.close()


def _partial(name: str) -> str:
    """The name of a file until all is there."""
    return f"{name}.partial"


def _full_fields(job: StoredJob) -> bytes:
    name = job.tube.encode("ascii", "replace")
    if len(name) > LONGEST_NAME or not TUBE_NAME.fullmatch(name):
        raise ValueError(f"job {job.id}: beanstalkd can have no tube with the name {job.tube!r}")
    if len(job.body) + 2 > LONGEST_BODY:
        raise ValueError(
            f"job {job.id}: a body of {len(job.body)} bytes; beanstalkd can have {LONGEST_BODY - 2} at most"
        )
    return b"%b%b%b%b\r\n" % (LENGTH[7].pack(len(name)), name, _fields(job, STATE_NUMBERS[job.state]), job.body)


def _fields(job: StoredJob, state: int) -> bytes:
    """A record but for the tube and the body."""
    try:
        return RECORD[7].pack(
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


def _used_up(job_id: int) -> bytes:
    """A job that was put and deleted."""
    name = b"default"
    put, delete = (_fields(StoredJob(job_id, ttr=SECOND), state) for state in (STATE_NUMBERS[READY], DELETED))
    return b"%b%b%b\r\n%b%b" % (LENGTH[7].pack(len(name)), name, put, LENGTH[7].pack(0), delete)
