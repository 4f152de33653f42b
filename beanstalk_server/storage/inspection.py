"""Looks at a binlog without a server: whether it is whole, what its records say, which jobs are live.

It reads as recovery does, and changes nothing: what recovery would cut off is left out of account, what is damaged is
told and passed over. Must never write, nor run beside a server that uses the directory.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from time import monotonic_ns, time_ns
from typing import Final
from uuid import UUID

from beanstalk_server.queue.job import BURIED, DELAYED, STATES, Job
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredChange, StoredJob, stored_job
from beanstalk_server.queue.table import JobTable
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.binlog_reader import BinlogReader, Damage, Progress, Tail
from beanstalk_server.storage.disk import Directory, boot_id
from beanstalk_server.storage.errors import StorageError, lock_directory, unusable
from beanstalk_server.storage.record import CHANGE, CLEAR, CLOCK, COMMIT, DELETE, NO_BOOT, PUT, TYPES, Scanner
from beanstalk_server.storage.rewriting import REWRITING
from beanstalk_server.storage.segment import Segment, segment_names
from beanstalk_server.storage.segment_reader import SegmentReader

SECOND: Final = 1_000_000_000

_COUNTERS: Final = ("reserves", "timeouts", "releases", "buries", "kicks")


@dataclass(slots=True)
class Count:
    """What a segment holds."""

    name: str
    records: int = 0
    """Puts, changes, deletes and clears."""
    live: int = 0
    """How many of them say how a live job is now: its last put, and the last change after that."""
    commits: int = 0
    bytes: int = 0
    """From the beginning of the file to the end of its last record."""
    torn: int = 0
    """Bytes of the torn tail behind that, which is no damage."""
    damages: list[Damage] = field(default_factory=list)

    @property
    def dead(self) -> int:
        """How many records are garbage."""
        return self.records - self.live


class Inspection:
    """A binlog that nobody else uses meanwhile; made by `inspect`. Each method reads it from its beginning."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.boot = boot_id()
        """The present boot of this machine, and its clocks: jobs are due when a server would find them due."""
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
        """Check every record; say what each segment holds, oldest first, those that are missing included.

        Raises:
            StorageError: a segment cannot be read, or is of a newer version.
        """
        counts: dict[str, Count] = {}

        def counted(name: str) -> Count:
            return counts.setdefault(name, Count(name))

        # Here the file of a job is the count, in their order, that its last put is in; `created_at` is the offset of
        # that put, and `heap_index` the count that its last change after that is in, or -1.
        replay = Replay(JobTable())
        jobs = replay.jobs
        numbers: dict[str, int] = {}
        for reader in self._read(lambda damage: counted(damage.segment).damages.append(damage), on_progress):
            count = counted(reader.name)
            scanner = reader.scanner
            while reader.next():
                if scanner.kind == COMMIT:
                    count.commits += 1
                    continue
                if scanner.kind == CLOCK:
                    continue
                count.records += 1
                if scanner.kind == PUT:
                    job = replay.put(scanner.put())
                    job.body = b""
                    job.file, job.heap_index = numbers.setdefault(reader.name, len(numbers)), -1
                    job.created_at = reader.offset
                elif scanner.kind == CHANGE:
                    changed = jobs.get(scanner.job_id())
                    if changed is not None:
                        changed.heap_index = numbers.setdefault(reader.name, len(numbers))
                elif scanner.kind == DELETE:
                    replay.delete(scanner.job_id())
                else:
                    replay.clear(*scanner.clear())
            count.bytes = reader.offset
        replay.finish(NO_BOOT)
        names = list(numbers)
        for job in jobs.values():
            counts[names[job.file]].live += 1
            if job.heap_index >= 0:
                counts[names[job.heap_index]].live += 1
        for job, key, other in replay.give_up_shared_keys():
            what = f"job {job.id} has the key {key!r} in tube {job.tube.name!r}, and so has job {other.id}"
            counted(names[job.file]).damages.append(Damage(names[job.file], job.created_at, what))
        if self.tail is not None:
            counted(self.segments[-1][1]).torn = self.tail.torn
        return list(counts.values())

    def records(
        self, on_damage: Callable[[Damage], None], on_progress: Progress | None = None
    ) -> Iterator[dict[str, object]]:
        """Every record, as it is shown: docs/binlog-tools.md has the fields.

        Raises:
            StorageError: a segment cannot be read, or is of a newer version.
        """
        for reader in self._read(on_damage, on_progress):
            while reader.next():
                yield {"segment": reader.name, "offset": reader.offset, **_shown_record(reader.scanner)}

    def live(self, on_damage: Callable[[Damage], None], on_progress: Progress | None = None) -> Iterator[StoredJob]:
        """The live jobs, those that are buried last and in the order in which they were buried. All is read at once.

        Raises:
            StorageError: a segment cannot be read, or is of a newer version.
        """
        replay = Replay(JobTable(), self.clock_offset)
        for reader in self._read(on_damage, on_progress):
            reader.replay(replay, Segment(reader.sequence, reader.size, reader.salt, reader.version))
        replay.finish(self.boot)
        replay.give_up_shared_keys()
        self.next_id = max(self.next_id, replay.last_id + 1)
        return _in_order(replay.jobs.values())

    def _read(self, on_damage: Callable[[Damage], None], on_progress: Progress | None) -> Iterator[SegmentReader]:
        with _readable(self.directory):
            binlog = BinlogReader(self.directory, on_damage)
            yield from binlog.read(on_progress)
            self.tail = binlog.tail
            self.next_id = binlog.next_id


def _ignore(_: Damage) -> None:
    """Whoever wants to know only how much there is."""


def _in_order(jobs: Iterable[Job]) -> Iterator[StoredJob]:
    """Jobs of a replay as they are stored; their times are wall clock already."""
    buried: list[Job] = []
    for job in jobs:
        if job.state == BURIED:
            buried.append(job)
        else:
            yield stored_job(job, 0)
    for job in sorted(buried, key=attrgetter("extras.bury_sequence")):
        yield stored_job(job, 0)


@contextmanager
def inspect(directory: Directory) -> Iterator[Inspection]:
    """Keep servers out of a directory while it is looked at.

    The lock is a file of the directory. Where there is none, no server has ever used it (it is a copy, say), and none
    is made: it would belong to whoever inspects, and might keep the server out later.

    Raises:
        StorageError: a server uses it, or it holds no binlog that can be looked at.
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
                f"{directory.path}: beanstalkd's files ({old[0]}) are there, which are taken over "
                "when beanstalk-server is started on them"
            )
        if REWRITING in names:
            raise StorageError(
                f"{directory.path}/{REWRITING}: a start of beanstalk-server was interrupted; "
                "when it is started again, it finishes what it had begun"
            )
        inspection = Inspection(directory)
        if not has_lock and not inspection.segments:
            raise StorageError(f"{directory.path}: there is no binlog")
        yield inspection
    finally:
        if has_lock:
            directory.unlock()
    if not has_lock and "lock" in directory.names():
        raise StorageError(f"{directory.path}: a server was started on it meanwhile: do not trust what was found")


@contextmanager
def _readable(directory: Directory) -> Iterator[None]:
    """Turns what the system refuses into what a person is told."""
    try:
        yield
    except OSError as error:
        raise unusable(directory, error) from error


# How records and jobs are shown: docs/binlog-tools.md


def shown_job(job: StoredJob) -> dict[str, object]:
    """A job in the words of stats-job; durations in seconds, moments in seconds since 1970."""
    return {
        "id": job.id,
        "tube": job.tube,
        **({"key": job.key} if job.key else {}),
        "state": STATES[job.state],
        "pri": job.priority,
        "delay": _seconds(job.delay),
        "ttr": _seconds(job.ttr),
        "created-at": _seconds(job.created_at),
        **_shown_deadline(job),
        **_shown_counters(job),
        **_shown_body(job.body),
    }


def _shown_record(scanner: Scanner) -> dict[str, object]:
    """The record that the scanner has come to."""
    kind = TYPES[scanner.kind]
    if scanner.kind == PUT:
        return {"type": kind, **shown_job(scanner.put())}
    if scanner.kind == CHANGE:
        change = scanner.change()
        return {
            "type": kind,
            "id": change.id,
            "state": STATES[change.state],
            "pri": change.priority,
            "delay": _seconds(change.delay),
            **_shown_deadline(change),
            **_shown_counters(change),
        }
    if scanner.kind == DELETE:
        return {"type": kind, "id": scanner.job_id()}
    if scanner.kind == CLEAR:
        tube_name, reserved_ids = scanner.clear()
        return {"type": kind, "tube": tube_name, "reserved": reserved_ids}
    if scanner.kind == CLOCK:
        clock_offset, boot = scanner.clock()
        return {"type": kind, "clock-offset": _seconds(clock_offset), "boot": str(UUID(bytes=boot))}
    number, durable, length, next_id, written_at = scanner.commit()
    return {
        "type": kind,
        "number": number,
        "durable": durable,
        "length": length,
        "next-id": next_id,
        **({"written-at": _seconds(written_at)} if written_at else {}),
    }


def _shown_deadline(job: StoredChange) -> dict[str, object]:
    if job.state == DELAYED:
        return {"due-at": _seconds(job.deadline)}
    return {"buried-as": job.bury_sequence} if job.state == BURIED else {}


def _shown_counters(job: StoredChange) -> dict[str, object]:
    return {name: getattr(job, name) for name in _COUNTERS}


def _shown_body(body: bytes) -> dict[str, object]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body-base64": b64encode(body).decode()}


def _seconds(nanoseconds: int) -> int | float:
    """To the microsecond, which a JSON number holds exactly."""
    return round(nanoseconds / SECOND, 6) if nanoseconds % SECOND else nanoseconds // SECOND
