"""Inspects a binlog without a server: checks it, and lists its records and its live jobs.

It reads as recovery does, but changes nothing: it leaves out a torn tail, which recovery would erase, and it reports
damage and continues after it. Must never write, and must never run beside a server that uses the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from time import monotonic_ns, time_ns
from typing import Final

from beanstalk_server.queue.job import BURIED, NOT_IN_MEMORY, Job
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob, stored_job
from beanstalk_server.queue.table import IdTable
from beanstalk_server.storage import record
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.binlog_reader import BinlogReader, Damage, Progress, Tail
from beanstalk_server.storage.body_reader import BodyReader
from beanstalk_server.storage.disk import Directory, boot_id
from beanstalk_server.storage.errors import StorageError, lock_directory, unusable
from beanstalk_server.storage.rewriting import REWRITING
from beanstalk_server.storage.segment import Segment, segment_names
from beanstalk_server.storage.segment_reader import SegmentReader
from beanstalk_server.storage.shown import shown_record

BODY_THRESHOLD: Final = 256
"""Bytes: longer bodies are read when they are shown."""


@dataclass(slots=True)
class Count:
    """What a segment holds."""

    name: str
    records: int = 0
    """Puts, changes, deletes, clears, and what groups count."""
    live: int = 0
    """How many of them determine a live job, a held key or a group: its last put, and the last change after that."""
    commits: int = 0
    bytes: int = 0
    """From the beginning of the file to the end of its last record."""
    torn: int = 0
    """Bytes of the torn tail after that, which is not damage."""
    damages: list[Damage] = field(default_factory=list)

    @property
    def dead(self) -> int:
        return self.records - self.live


class Inspection:
    """A binlog that no server uses meanwhile; made by `inspect`. Each method reads it from the beginning."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.boot = boot_id()
        """The present boot of this machine. With it, jobs are due when a server would find them due."""
        self.clock_offset = time_ns() - monotonic_ns()
        self.segments = segment_names(directory)
        self.tail: Tail | None = None
        """How the newest segment ends, unless it is damaged; known when everything has been read."""
        self.next_id = 1
        """The smallest id that has never been given; known when everything has been read."""

    def size(self) -> int:
        """Bytes of all segments."""
        with _readable(self.directory):
            return BinlogReader(self.directory, _ignore).size()

    def count(self, on_progress: Progress | None = None) -> list[Count]:
        """Check every record; return what each segment holds, oldest first, missing segments included.

        Raises:
            StorageError: a segment cannot be read, or is of a newer version.
        """
        counts: dict[str, Count] = {}

        def counted(name: str) -> Count:
            return counts.setdefault(name, Count(name))

        replay = Replay(IdTable())
        puts: dict[int, tuple[Count, int]] = {}  # by job: the count of its last put, and the put's offset
        changes: dict[int, Count] = {}  # by job: the count of its last change after that
        for reader in self._read(lambda damage: counted(damage.segment).damages.append(damage), on_progress):
            count = counted(reader.name)
            scanner = reader.scanner
            while reader.next():
                if scanner.kind == record.COMMIT:
                    count.commits += 1
                    continue
                if scanner.kind == record.CLOCK:
                    continue
                count.records += 1
                if scanner.kind in (record.PUT, record.PUT_WITH):
                    job = replay.put(scanner.put(BODY_THRESHOLD))
                    puts[job.id] = count, reader.offset
                    changes.pop(job.id, None)
                elif scanner.kind == record.CHANGE:
                    changes[scanner.job_id()] = count
                elif scanner.kind == record.CHANGE_WITH:
                    changes[scanner.job_id()] = count
                    replay.change(scanner.change())  # it may name another tube, or leave nothing but the key
                elif scanner.kind in (record.DELETE, record.LEAVE):
                    replay.delete(scanner.job_id())
                    puts.pop(scanner.job_id(), None)
                    changes.pop(scanner.job_id(), None)
                else:
                    replay.clear(*scanner.clear())
            count.bytes = reader.offset
        replay.finish(record.NO_BOOT)
        for job in replay.holders():
            puts[job.id][0].live += 1
            if job.id in changes:
                changes[job.id].live += 1
        for job, key, other in replay.give_up_shared_keys():
            count, offset = puts[job.id]
            what = f"job {job.id} has the key {key!r} in tube {job.tube.name!r}, and so has job {other.id}"
            count.damages.append(Damage(count.name, offset, what))
        if self.tail is not None:
            counted(self.segments[-1][1]).torn = self.tail.torn
        return list(counts.values())

    def records(
        self, on_damage: Callable[[Damage], None], on_progress: Progress | None = None
    ) -> Iterator[dict[str, object]]:
        """Yield every record as the tools show it; docs/binlog.md lists the fields.

        Raises:
            StorageError: a segment cannot be read, or is of a newer version.
        """
        for reader in self._read(on_damage, on_progress):
            while reader.next():
                yield {"segment": reader.name, "offset": reader.offset, **shown_record(reader.scanner)}

    def live(self, on_damage: Callable[[Damage], None], on_progress: Progress | None = None) -> Iterator[StoredJob]:
        """Return the groups, as jobs in the state GROUP; then the live jobs, the buried ones last, in the order of
        their burial; and then the held keys, as jobs in the state HELD. Reads all but the bodies at once.

        Raises:
            StorageError: a segment cannot be read, or is of a newer version.
        """
        replay = Replay(IdTable(), self.clock_offset)
        segments: list[Segment] = []
        for reader in self._read(on_damage, on_progress):
            if not segments or segments[-1].sequence != reader.sequence:
                segments.append(Segment(reader.sequence, reader.size, reader.salt, reader.version))
                segments[-1].slot = len(segments)
            reader.replay(replay, segments[-1], BODY_THRESHOLD)
        replay.finish(self.boot)
        replay.give_up_shared_keys()
        self.next_id = max(self.next_id, replay.last_id + 1)
        return self._in_order(replay, segments)

    def _in_order(self, replay: Replay, segments: list[Segment]) -> Iterator[StoredJob]:
        """Jobs of a replay as they are stored, with their bodies; their times are already wall clock."""
        reader = BodyReader(self.directory, 1)
        buried: list[Job] = []

        def stored(job: Job) -> StoredJob:
            found = stored_job(job, 0)
            if found.body is NOT_IN_MEMORY:
                with _readable(self.directory):
                    found.body = reader.read_one(segments[job.file - 1].place_of(job))
            return found

        with closing(reader):
            for group in replay.groups.values():
                yield stored_job(group, 0)
            for job in replay.jobs.values():
                if job.state == BURIED:
                    buried.append(job)
                else:
                    yield stored(job)
            for job in sorted(buried, key=attrgetter("extras.bury_sequence")):
                yield stored(job)
            for held in replay.held.values():
                yield stored_job(held, 0)

    def _read(self, on_damage: Callable[[Damage], None], on_progress: Progress | None) -> Iterator[SegmentReader]:
        with _readable(self.directory):
            binlog = BinlogReader(self.directory, on_damage)
            yield from binlog.read(on_progress)
            self.tail = binlog.tail
            self.next_id = binlog.next_id


def _ignore(_: Damage) -> None:
    """Ignore damage: a reader that reads nothing finds none."""


@contextmanager
def inspect(directory: Directory) -> Iterator[Inspection]:
    """Keep servers out of a directory while it is inspected.

    The lock is a file in the directory. Without that file, no server has ever used the directory, which may be a copy.
    Then none is made: a lock file of the user who inspects might keep the server out later.

    Raises:
        StorageError: a server uses the directory, or it holds no binlog that can be inspected.
    """
    with _readable(directory):
        names = directory.names()
    has_lock = "lock" in names
    if has_lock:
        lock_directory(directory)
    try:
        with _readable(directory):
            names = directory.names()
            old = file_names(names)
        if old:
            raise StorageError(
                f"{directory.path}: holds files of beanstalkd ({old[0]}): "
                "start beanstalk-server on this directory to take over their jobs"
            )
        if REWRITING in names:
            raise StorageError(
                f"{directory.path}/{REWRITING}: the start of beanstalk-server was interrupted: start it again "
                "to finish it"
            )
        inspection = Inspection(directory)
        if not has_lock and not inspection.segments:
            raise StorageError(f"{directory.path}: holds no binlog: name the directory that is given to -b")
        yield inspection
    finally:
        if has_lock:
            directory.unlock()
    if not has_lock and "lock" in directory.names():
        raise StorageError(
            f"{directory.path}: a server was started on this directory during the run, so the output may be wrong: "
            "stop the server and try again"
        )


@contextmanager
def _readable(directory: Directory) -> Iterator[None]:
    """Turn an error of the system into one line for the operator."""
    try:
        yield
    except OSError as error:
        raise unusable(directory, error) from error
