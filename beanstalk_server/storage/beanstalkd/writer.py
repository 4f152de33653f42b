"""Exports the jobs of a binlog to files that beanstalkd can start from.

They get the names that beanstalkd looks for only when everything is on the disk, the first file last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from beanstalk_server.queue.job import BURIED, DELAYED, GROUP, HELD, READY
from beanstalk_server.queue.stored_job import LAST_MOMENT, StoredJob
from beanstalk_server.queue.units import SECOND
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
from beanstalk_server.storage.binlog_reader import Damage, Progress
from beanstalk_server.storage.disk import Directory, File
from beanstalk_server.storage.errors import DAMAGED, StorageError
from beanstalk_server.storage.inspection import Inspection

_CHUNK: Final = 1 << 20  # bytes written at once


@dataclass(frozen=True, slots=True)
class Written:
    """What `write` has written."""

    jobs: int
    keyed: int
    """How many of the jobs had a key, which beanstalkd does not know."""
    with_terms: int
    """How many of the jobs had terms, likewise."""
    held: int
    """How many held keys there were, likewise."""
    paused: int
    """How many tubes were paused: beanstalkd forgets pauses when it stops."""
    waiting: int
    """How many of the jobs wait for a group, likewise: they stay delayed until they are kicked."""
    files: int
    size: int
    """Bytes in all files."""
    body_limit: int
    """The least -z that beanstalkd needs, in bytes. With a lower one, it stops reading a file at a longer body."""


def export(inspection: Inspection, to: Directory, on_progress: Progress | None = None) -> Written:
    """Write all live jobs, and the highest id in use, to a directory, which is created if it is missing.

    Each job keeps everything that beanstalkd has of a job, so its stats-job reports the same as this server's. Keys,
    held ones too, terms and pauses are lost.

    Raises:
        StorageError: the binlog is damaged, or the jobs cannot be written. Then nothing has been written.
    """

    def refuse(damage: Damage) -> NoReturn:
        raise StorageError(
            f"{inspection.directory.path}/{damage.segment}: {damage}; "
            "to export the readable jobs, first start beanstalk-server on this directory with --salvage",
            DAMAGED,
        )

    jobs = inspection.live(refuse, on_progress)
    try:
        with _made(to):
            if to.is_same(inspection.directory) or any(name.startswith("segment.") for name in to.names()):
                raise StorageError(f"{to.path}: holds a binlog of beanstalk-server: name another directory")
            return write(to, _as_before_a_start(jobs), next_id=inspection.next_id)
    except ValueError as error:
        raise StorageError(f"{to.path}: {error}") from None
    except OSError as error:
        raise StorageError(f"{to.path}: cannot write: {error.strerror or error}") from error


def write(
    directory: Directory,
    jobs: Iterable[StoredJob],
    *,
    next_id: int = 1,
    size: int = FILE_SIZE,
) -> Written:
    """Write files that beanstalkd can start from, and make them durable. Buried jobs keep their order.

    Args:
        directory: exists, and holds no binlog files.
        next_id: beanstalkd gives no id below this until its second start; it does not keep the number itself.
        size: the most bytes of a file; a file that holds a single job may be larger.

    Raises:
        StorageError: the directory holds binlog files.
        ValueError: beanstalkd cannot have such a job.
        OSError: a write fails. Everything written so far is removed.
    """
    for name in sorted(directory.names()):
        if name.startswith("binlog."):
            raise StorageError(f"{directory.path / name} already exists: name a directory without binlog files")
    writer = _Writer(directory, size)
    try:
        for job in jobs:
            writer.put(job)
        if next_id - 1 > writer.last_id:  # a deleted job shows beanstalkd which ids are used up
            writer.append(_deleted_job(next_id - 1))
        return writer.finish()
    except BaseException:
        writer.remove()
        raise


class _Writer:
    """Writes records into one file after the other."""

    def __init__(self, directory: Directory, size: int) -> None:
        self.last_id = 0
        self._directory = directory
        self._size = size
        self._names: list[str] = []  # the final names of the files
        self._file: File | None = None  # the file that is being filled
        self._file_size = 0  # bytes that have been written to it
        self._records: list[bytes] = []  # not yet written
        self._buffered = 0  # their bytes
        self._written = 0
        self._jobs = 0
        self._keyed = 0
        self._with_terms = 0
        self._held = 0
        self._paused = 0
        self._waiting = 0
        self._body_limit = 0

    def put(self, job: StoredJob) -> None:
        if job.state == HELD:
            if job.key:
                self._held += 1
            else:
                self._paused += 1
            return
        if job.state == GROUP:
            return
        if job.state == DELAYED and job.deadline == LAST_MOMENT:
            self._waiting += 1
        self.append(_full_fields(job))
        self._jobs += 1
        if job.key:
            self._keyed += 1
        if job.has_terms:
            self._with_terms += 1
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
        for name in reversed(self._names):  # so the first file exists only when all do
            self._directory.rename(_partial(name), name)
        self._directory.sync()
        return Written(
            self._jobs,
            self._keyed,
            self._with_terms,
            self._held,
            self._paused,
            self._waiting,
            len(self._names),
            self._written,
            self._body_limit,
        )

    def remove(self) -> None:
        """Remove everything that has been written."""
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

    def _close(self) -> None:
        if self._file is None:
            return
        self._flush()
        self._file.sync()
        file, self._file = self._file, None
        file.close()


def _partial(name: str) -> str:
    """The name of a file until all files are complete."""
    return f"{name}.partial"


def _full_fields(job: StoredJob) -> bytes:
    name = job.tube.encode("ascii", "replace")
    if len(name) > LONGEST_NAME or not TUBE_NAME.fullmatch(name):
        raise ValueError(f"job {job.id}: beanstalkd does not allow the tube name {job.tube!r}")
    if len(job.body) + 2 > LONGEST_BODY:
        raise ValueError(f"job {job.id}: a body of {len(job.body)} bytes; beanstalkd allows at most {LONGEST_BODY - 2}")
    return b"%b%b%b%b\r\n" % (LENGTH[7].pack(len(name)), name, _fields(job, STATE_NUMBERS[job.state]), job.body)


def _fields(job: StoredJob, state: int) -> bytes:
    """A record without the tube and the body."""
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
        raise ValueError(f"job {job.id}: cannot be written in beanstalkd's format: {error}") from None


def _deleted_job(job_id: int) -> bytes:
    """The records of a job that was put and deleted."""
    name = b"default"
    put, delete = (_fields(StoredJob(job_id, ttr=SECOND), state) for state in (STATE_NUMBERS[READY], DELETED))
    return b"%b%b%b\r\n%b%b" % (LENGTH[7].pack(len(name)), name, put, LENGTH[7].pack(0), delete)


def _as_before_a_start(jobs: Iterable[StoredJob]) -> Iterator[StoredJob]:
    """Subtract one bury from each buried job: beanstalkd adds one when it starts."""
    for job in jobs:
        if job.state == BURIED and job.buries:
            job.buries -= 1
        yield job


@contextmanager
def _made(directory: Directory) -> Iterator[None]:
    """Make a directory, and remove it again if something fails."""
    is_new = directory.make()
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                directory.discard()
        raise
