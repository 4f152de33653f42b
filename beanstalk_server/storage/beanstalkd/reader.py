"""Reads the jobs in beanstalkd's files, and takes them over into a replay. Must never change a file.

How a file may end, and what this module makes of it:

- With zeros, wherever they begin: nothing is wrong. If a record turns into zeros up to the end of the file, beanstalkd
  was killed while it wrote the record, which was never acknowledged: this is a warning.
- In the middle of a record: in the last file that has any records, this is a torn tail and a warning. In an earlier
  file it is damage.
- With a record that beanstalkd cannot have written: this is damage. Like beanstalkd, this module leaves the rest of the
  file unread, unless it is certain where the next record begins. Unlike beanstalkd, it leaves the job as it was before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from beanstalk_server.events import event
from beanstalk_server.queue.job import BURIED
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.storage.beanstalkd.format import (
    CREATED_AT,
    DELETED,
    LENGTH,
    LONGEST_NAME,
    RECORD,
    STATE_OFFSET,
    STATES,
    TUBE_NAME,
    VERSION,
    VERSION_FIELD,
    as_version_7,
    file_name,
    file_names,
    impossible,
)
from beanstalk_server.storage.disk import Directory
from beanstalk_server.storage.errors import DAMAGED, HOW_TO_SALVAGE, StorageError

_CHUNK: Final = 1 << 20
_MOST_NAMES: Final = 10_000  # how many are kept decoded

logger = logging.getLogger("beanstalk_server")


class UnknownVersionError(Exception):
    """A file has a version that this module does not know."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where a file differs from what beanstalkd writes."""

    path: Path
    offset: int
    """Bytes from the beginning of the file to the record that could not be read."""
    what: str

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: {self.what}"


@dataclass(slots=True)
class Contents:
    """What the files of a directory hold."""

    last_id: int = 0
    """The highest id in any record, even of a deleted job; 0 without records."""
    damages: list[Damage] = field(default_factory=list)
    """Faults that no crash of beanstalkd leaves: acknowledged changes may be missing or undone."""
    torn: Damage | None = None
    """The torn tail of the last file, if it has one."""
    _jobs: dict[int, tuple[str, bytes, bytes]] = field(default_factory=dict)  # tube, record (version 7), body

    def __len__(self) -> int:
        """The number of live jobs."""
        return len(self._jobs)

    def jobs(self) -> Iterator[StoredJob]:
        """The live jobs, in the order in which beanstalkd would load them: that of their first records."""
        unpack = RECORD[7].unpack
        for tube, record, body in self._jobs.values():
            job_id, priority, delay, ttr, _, created_at, deadline, *counters, state = unpack(record)
            yield StoredJob(
                job_id, tube, "", STATES[state], priority, delay, ttr, body, created_at, deadline, 0, *counters
            )


def read(directory: Directory, on_warning: Callable[[str], None]) -> Contents:
    """Read all binlog files of a directory that no beanstalkd writes to.

    Args:
        on_warning: called with one line for everything that is odd, damage included.

    Raises:
        UnknownVersionError: a file has neither version 7 nor version 5.
        OSError: a file cannot be read. Only beanstalkd's own user can read its files.
    """
    reader = _Reader(on_warning)
    before = -1
    for name in file_names(directory.names()):
        number = int(name.removeprefix("binlog."))
        if 0 <= before < number - 1:
            missing = f"{file_name(before + 1)} (after {file_name(before)}) is missing"
            reader.damage(directory.path / name, 0, missing)
        before = number
        reader.read(directory, name)
    return reader.contents


def take_over(directory: Directory, replay: Replay, salvage: bool) -> int:
    """Replay all jobs, buried ones in the order in which beanstalkd would load them; return the highest id ever used.

    Args:
        directory: one that no beanstalkd writes to.
        salvage: accept damage, and go on without what is lost.

    Raises:
        StorageError: a file is damaged, or has an unknown version.
        OSError: a file cannot be read.
    """
    warnings: list[str] = []
    try:
        contents = read(directory, warnings.append)
    except UnknownVersionError as error:
        raise StorageError(str(error)) from None
    for warning in warnings:
        logger.warning("%(warning)s", event("beanstalkd-file-warning", warning=warning))
    if contents.damages and not salvage:
        raise StorageError(f"{contents.damages[0]}; {HOW_TO_SALVAGE}", DAMAGED)
    for sequence, job in enumerate(contents.jobs(), 1):
        if job.state == BURIED:
            job.bury_sequence = sequence
        replay.put(job)
    return max(contents.last_id, replay.last_id)


class _Reader:
    """Reads one file after the other into Contents."""

    def __init__(self, on_warning: Callable[[str], None]) -> None:
        self.contents = Contents()
        self._warn = on_warning
        self._names: dict[bytes, str] = {}

    def damage(self, path: Path, offset: int, what: str) -> None:
        damage = Damage(path, offset, what)
        self.contents.damages.append(damage)
        self._warn(str(damage))

    def read(self, directory: Directory, name: str) -> None:
        with closing(directory.open(name)) as file:
            data = file.read(0, file.size())
        path = directory.path / name
        if len(data) < VERSION_FIELD.size:
            self._warn(f"{path}: offset 0: only {len(data)} bytes, no version: the file holds no jobs")
        else:
            self._read(path, data)

    def _read(self, path: Path, data: bytes) -> None:
        (version,) = VERSION_FIELD.unpack_from(data)
        if version not in RECORD:
            if _only_zeros(data, 0):
                self._warn(f"{path}: offset 0: only zeros, as in a new file: the file holds no jobs")
                return
            raise UnknownVersionError(f"{path}: unknown version {version}: beanstalkd's files have version 7 or 5")
        torn = self.contents.torn
        self.contents.torn = None
        end = self._read_records(path, data, version)
        if torn is None:
            pass
        elif end > VERSION_FIELD.size or self.contents.torn is not None:
            self.contents.damages.append(torn)  # records follow in a later file, so this was not the last
        else:
            self.contents.torn = torn

    def _read_records(self, path: Path, data: bytes, version: int) -> int:
        """Read records as far as possible; return the offset where the last one that was read ends."""
        contents = self.contents
        jobs = contents._jobs
        last_id = contents.last_id
        names = self._names
        unpack_length = LENGTH[version].unpack_from
        unpack = RECORD[version].unpack_from
        length_size = LENGTH[version].size
        record_size = RECORD[version].size
        size = len(data)
        position = VERSION_FIELD.size
        while True:
            start = position
            if size - start < length_size:
                self._handle_file_end(path, data, start, version)
                break
            (length,) = unpack_length(data, start)
            if not 0 <= length <= LONGEST_NAME:
                self.damage(path, start, f"a tube name of {length} bytes; the limit is 200; {_rest(data, start)}")
                break
            at = start + length_size + length
            position = at + record_size
            if position > size:
                self._handle_file_end(path, data, start, version)
                break
            fields = unpack(data, at)
            job_id = fields[0]
            if not job_id:
                self._handle_no_id(path, data, start, at)
                break
            state = fields[12]
            what = impossible(fields, version)
            if what:
                self._handle_impossible(path, data, start, at + STATE_OFFSET, version, what)
                break
            body_size = fields[4]
            known = jobs.get(job_id)
            if length:
                raw_name = data[at - length : at]
                tube = names.get(raw_name)
                if tube is None:
                    if not TUBE_NAME.fullmatch(raw_name):
                        self._handle_impossible(
                            path, data, start, at + STATE_OFFSET, version, f"invalid tube name {raw_name!r}"
                        )
                        break
                    if len(names) >= _MOST_NAMES:
                        names.clear()
                    tube = names[raw_name] = raw_name.decode("ascii")
                if state == DELETED:
                    self._handle_impossible(
                        path, data, start, at + STATE_OFFSET, version, f"job {job_id} is deleted but has a body"
                    )
                    break
                position += body_size
                if position > size:
                    self._handle_file_end(path, data, start, version)
                    break
                if data[position - 2 : position] != b"\r\n":
                    self._handle_impossible(
                        path, data, start, position - 1, version, "a body that does not end in CR LF"
                    )
                    break
                record = data[at : at + record_size] if version == VERSION else as_version_7(fields)
                body = data[position - body_size : position - 2]
                if known is not None:
                    if known[0] != tube or known[1][CREATED_AT] != record[CREATED_AT]:
                        self.damage(path, start, f"job {job_id} is put twice; only the second put is used")
                        del jobs[job_id]
                    elif len(known[2]) != len(body):
                        self._handle_impossible(
                            path, data, start, position - 1, version, _size_changed(job_id, known[2], body_size)
                        )
                        break
                jobs[job_id] = (tube, record, body)
            elif known is not None:
                record = data[at:position] if version == VERSION else as_version_7(fields)
                if len(known[2]) + 2 != body_size:
                    what = _size_changed(job_id, known[2], body_size)
                    self._handle_impossible(path, data, start, at + STATE_OFFSET, version, what)
                    break
                if known[1][CREATED_AT] != record[CREATED_AT]:
                    if state == DELETED and _only_zeros(data, position):
                        self._warn_unfinished(path, data, start)
                        break
                    self.damage(
                        path, start, f"job {job_id} has a different creation time in this record; the record is ignored"
                    )
                elif state == DELETED:
                    del jobs[job_id]
                else:
                    jobs[job_id] = (known[0], record, known[2])
            # else: an update of a job that was deleted, or is in a later file since compaction
            if job_id > last_id:
                last_id = job_id
        contents.last_id = last_id
        return start

    def _handle_file_end(self, path: Path, data: bytes, start: int, version: int) -> None:
        """The file ends before the record does."""
        if _only_zeros(data, start):
            return
        if self._record_follows(data, start, version):
            self.damage(
                path, start, f"a record that is longer than the file and contains other records; {_rest(data, start)}"
            )
            return
        self.contents.torn = Damage(path, start, f"the file ends in the middle of a record; {_rest(data, start)}")
        self._warn(str(self.contents.torn))

    def _handle_no_id(self, path: Path, data: bytes, start: int, at: int) -> None:
        """The id is 0: here zeros end the file, or a record was begun and its id was not written yet."""
        if not _only_zeros(data, at):
            self.damage(path, start, f"zeros, followed by other bytes; {_rest(data, start)}")
        elif not _only_zeros(data, start):
            self._warn_unfinished(path, data, start)

    def _handle_impossible(self, path: Path, data: bytes, start: int, last: int, version: int, what: str) -> None:
        """A record is impossible: unfinished, if only zeros follow from its `last` byte on, else damaged."""
        if _only_zeros(data, last) and not self._record_follows(data, start, version):
            self._warn_unfinished(path, data, start)
        else:
            self.damage(path, start, f"{what}; {_rest(data, start)}")

    def _warn_unfinished(self, path: Path, data: bytes, start: int) -> None:
        self._warn(f"{path}: offset {start}: an unfinished record, never acknowledged; {_rest(data, start)}")

    def _record_follows(self, data: bytes, start: int, version: int) -> bool:
        """Whether the bytes after any CR LF look like a record: then the one at `start` is damaged, not the last one.

        A body may hold such bytes. Then a torn tail is taken for damage, which is the safe mistake.
        """
        length_size = LENGTH[version].size
        record = RECORD[version]
        found = data.find(b"\r\n", start)
        while found >= 0:
            begin = found + 2
            if len(data) - begin < length_size:
                break
            (length,) = LENGTH[version].unpack_from(data, begin)
            at = begin + length_size + length
            if 0 <= length <= LONGEST_NAME and at + record.size <= len(data):
                fields = record.unpack_from(data, at)
                named = not length or TUBE_NAME.fullmatch(data, begin + length_size, at)
                if fields[0] and fields[3] and fields[5] and named and not impossible(fields, version):
                    return True
            found = data.find(b"\r\n", begin)
        return False


def _size_changed(job_id: int, body: bytes, body_size: int) -> str:
    return f"the body of job {job_id} had {len(body)} bytes, and now has {body_size - 2}"


def _rest(data: bytes, start: int) -> str:
    return f"the last {len(data) - start} bytes of the file are not read"


def _only_zeros(data: bytes, start: int) -> bool:
    """Whether only zeros follow from `start` to the end."""
    for at in range(start, len(data), _CHUNK):
        chunk = data[at : at + _CHUNK]
        if chunk.count(0) != len(chunk):
            return False
    return True
