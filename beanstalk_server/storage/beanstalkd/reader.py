"""Reads the jobs in beanstalkd's files. Must never change a file, and never know what becomes of the jobs.

How a file may end, and what this module makes of it:

- In zeros, wherever they begin: nothing is wrong. A record that turns into zeros up to the end of the file was being
  written when beanstalkd was killed, and was never acknowledged: a warning.
- In the middle of a record: in the last file that has any records, that is a torn tail: a warning. In an earlier file
  it is damage.
- A record that beanstalkd cannot have written is damage. As with beanstalkd, the rest of the file is left unread,
  unless it is certain where the next record begins. Unlike with beanstalkd, the job stays as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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

_CHUNK: Final = 1 << 20
_PROGRESS: Final = 4 << 20  # bytes between two calls of on_progress
_MOST_NAMES: Final = 10_000  # that are kept decoded


class UnknownVersionError(Exception):
    """A file has a version that this module does not know."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where a file is not as beanstalkd writes it."""

    path: Path
    offset: int
    """Where the record begins that could not be read, in bytes from the beginning of the file."""
    what: str

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: {self.what}"


@dataclass(slots=True)
class Contents:
    """What the files of a directory say."""

    last_id: int = 0
    """The highest id in any record, even of a job that is gone; 0 if there is none."""
    damages: list[Damage] = field(default_factory=list)
    """What no crash of beanstalkd leaves: acknowledged changes may be missing or undone."""
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


def read(
    directory: Directory,
    on_warning: Callable[[str], None],
    on_progress: Callable[[int], None] | None = None,
) -> Contents:
    """Read all binlog files of a directory that no beanstalkd writes to.

    Args:
        on_warning: called with one line for everything that is odd, damage included.
        on_progress: called now and then with the bytes read so far.

    Raises:
        UnknownVersionError: a file has neither version 7 nor version 5.
        OSError: a file cannot be read. Only beanstalkd's own user can read its files.
    """
    reader = _Reader(on_warning, on_progress)
    before = -1
    for name in file_names(directory.names()):
        number = int(name.removeprefix("binlog."))
        if 0 <= before < number - 1:
            missing = f"{file_name(before + 1)}, the one after {file_name(before)}, is missing"
            reader.damage(directory.path / name, 0, missing)
        before = number
        reader.read(directory, name)
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

    def read(self, directory: Directory, name: str) -> None:
        file = directory.open(name)
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        path = directory.path / name
        if len(data) < VERSION_FIELD.size:
            self._warn(f"{path}: offset 0: no version, {len(data)} bytes only: there is nothing in it")
        else:
            self._read(path, data)
        self._done += len(data)
        if self._on_progress is not None:
            self._on_progress(self._done)

    def _read(self, path: Path, data: bytes) -> None:
        (version,) = VERSION_FIELD.unpack_from(data)
        if version not in RECORD:
            if _zeros(data, 0):
                self._warn(f"{path}: offset 0: zeros only, beanstalkd had just made it: there is nothing in it")
                return
            raise UnknownVersionError(f"{path}: version {version}; beanstalkd's binlog files are of version 7 (or 5)")
        torn = self.contents.torn
        self.contents.torn = None
        end = self._read_records(path, data, version)
        if torn is None:
            pass
        elif end > VERSION_FIELD.size or self.contents.torn is not None:
            self.contents.damages.append(torn)  # there was more to write, so it was not the last
        else:
            self.contents.torn = torn

    def _read_records(self, path: Path, data: bytes, version: int) -> int:
        """Read records as long as there are any; return where those end that could be read."""
        contents = self.contents
        jobs = contents._jobs
        last_id = contents.last_id
        names = self._names
        unpack_length = LENGTH[version].unpack_from
        unpack = RECORD[version].unpack_from
        length_size = LENGTH[version].size
        record_size = RECORD[version].size
        size = len(data)
        on_progress = self._on_progress
        report_at = _PROGRESS if on_progress is not None else size
        position = VERSION_FIELD.size
        while True:
            start = position
            if start > report_at and on_progress is not None:
                report_at = start + _PROGRESS
                on_progress(self._done + start)
            if size - start < length_size:
                self._cut(path, data, start, version)
                break
            (length,) = unpack_length(data, start)
            if not 0 <= length <= LONGEST_NAME:
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
            what = impossible(fields, version)
            if what:
                self._stop(path, data, start, at + STATE_OFFSET, version, what)
                break
            body_size = fields[4]
            known = jobs.get(job_id)
            if length:
                raw_name = data[at - length : at]
                tube = names.get(raw_name)
                if tube is None:
                    if not TUBE_NAME.fullmatch(raw_name):
                        self._stop(path, data, start, at + STATE_OFFSET, version, f"{raw_name!r} as a tube's name")
                        break
                    if len(names) >= _MOST_NAMES:
                        names.clear()
                    tube = names[raw_name] = raw_name.decode("ascii")
                if state == DELETED:
                    self._stop(
                        path, data, start, at + STATE_OFFSET, version, f"job {job_id} is deleted, and has a body"
                    )
                    break
                position += body_size
                if position > size:
                    self._cut(path, data, start, version)
                    break
                if data[position - 2 : position] != b"\r\n":
                    self._stop(path, data, start, position - 1, version, "a body that does not end in CR LF")
                    break
                record = data[at : at + record_size] if version == VERSION else as_version_7(fields)
                body = data[position - body_size : position - 2]
                if known is not None:
                    if known[0] != tube or known[1][CREATED_AT] != record[CREATED_AT]:
                        self.damage(path, start, f"job {job_id} is put twice; the second one is taken")
                        del jobs[job_id]
                    elif len(known[2]) != len(body):
                        self._stop(path, data, start, position - 1, version, _size_changed(job_id, known[2], body_size))
                        break
                jobs[job_id] = (tube, record, body)
            elif known is not None:
                record = data[at:position] if version == VERSION else as_version_7(fields)
                if len(known[2]) + 2 != body_size:
                    what = _size_changed(job_id, known[2], body_size)
                    self._stop(path, data, start, at + STATE_OFFSET, version, what)
                    break
                if known[1][CREATED_AT] != record[CREATED_AT]:
                    if state == DELETED and _zeros(data, position):
                        self._unfinished(path, data, start)
                        break
                    self.damage(path, start, f"job {job_id} was created at another time; this change is not taken")
                elif state == DELETED:
                    del jobs[job_id]
                else:
                    jobs[job_id] = (known[0], record, known[2])
            # else: an update of a job that was deleted, or is in a later file since compaction
            if job_id > last_id:
                last_id = job_id
        contents.last_id = last_id
        return start

    def _cut(self, path: Path, data: bytes, start: int, version: int) -> None:
        """The file ends before the record does."""
        if _zeros(data, start):
            return
        if self._record_follows(data, start, version):
            self.damage(path, start, f"a record that is longer than the file, and others in it; {_rest(data, start)}")
            return
        self.contents.torn = Damage(path, start, f"the file ends in the midst of a record; {_rest(data, start)}")
        self._warn(str(self.contents.torn))

    def _end(self, path: Path, data: bytes, start: int, at: int) -> None:
        """There is no id: the zeros at the end of a file, or a record of which not even the id was written."""
        if not _zeros(data, at):
            self.damage(path, start, f"zeros, and then something else; {_rest(data, start)}")
        elif not _zeros(data, start):
            self._unfinished(path, data, start)

    def _stop(self, path: Path, data: bytes, start: int, last: int, version: int, what: str) -> None:
        """A record cannot be so: it is damaged, or unfinished, that is zeros from its `last` byte, or before, on."""
        if _zeros(data, last) and not self._record_follows(data, start, version):
            self._unfinished(path, data, start)
        else:
            self.damage(path, start, f"{what}; {_rest(data, start)}")

    def _unfinished(self, path: Path, data: bytes, start: int) -> None:
        self._warn(f"{path}: offset {start}: an unfinished record, never acknowledged; {_rest(data, start)}")

    def _record_follows(self, data: bytes, start: int, version: int) -> bool:
        """Whether anything after a CR LF looks like a record: then the one at `start` is not the last, but damaged.

        A body may hold what looks like one; then a torn tail is taken for damage, which is the safe mistake.
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
    return f"the body of job {job_id} had {len(body)} bytes, and now {body_size - 2}"


def _rest(data: bytes, start: int) -> str:
    return f"the last {len(data) - start} bytes of the file are not read"


def _zeros(data: bytes, start: int) -> bool:
    """Whether there is nothing but zeros from here to the end."""
    for at in range(start, len(data), _CHUNK):
        chunk = data[at : at + _CHUNK]
        if chunk.count(0) != len(chunk):
            return False
    return True
