"""From files to jobs, at the start.

The segments are replayed from the oldest to the newest, a mebibyte at a time. What a crash can leave is put right: the
torn tail of the newest segment, files that were not finished. Anything else that is wrong is damage, and refuses the
start, unless it is to be salvaged. Must never know clients, nor run beside a server that uses the directory.

What has to be written anew as a whole (the jobs of a beanstalkd directory; the jobs that have been salvaged) is first
written into a directory beside, `rewriting`. When it is complete and on the disk, a file there says which files it
replaces. From then on the rewriting is finished, now or at the next start; before, it is undone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Final, NamedTuple

from beanstalk_server.queue.job import stored_deadline
from beanstalk_server.queue.journal import replay_stored
from beanstalk_server.queue.replay import Replay
from beanstalk_server.storage.beanstalkd import format as beanstalkd7
from beanstalk_server.storage.disk import ZEROS, Directory, File, ReadableFile
from beanstalk_server.storage.record import (
    CLOCK_SIZE,
    COMMIT_SIZE,
    NO_BOOT,
    encode_clock,
    encode_commit,
    encode_put,
    put_size,
)
from beanstalk_server.storage.replaying import replay_records
from beanstalk_server.storage.room import BATCH_OVERHEAD, SEGMENT_OVERHEAD, Spare
from beanstalk_server.storage.segment import (
    HEADER_SIZE,
    FormatError,
    Reader,
    Segment,
    encode_header,
    is_spare,
    segment_name,
    segment_names,
)
from beanstalk_server.storage.stopped import STOPPED, Mark, read_mark

UNUSABLE: Final = 10
"""The exit status for a directory that cannot be used; as beanstalkd's."""

DAMAGED: Final = 65
"""The exit status for a binlog that is damaged (EX_DATAERR of sysexits.h)."""

REWRITING: Final = "rewriting"
COMPLETE: Final = "rewriting/complete"
BATCH_SIZE: Final = 1 << 20  # bytes written in one piece
MISSING: Final = "the file is missing, which was the newest when the last server stopped"
SECOND: Final = 1_000_000_000

log = logging.getLogger("beanstalk_server")


class StorageError(Exception):
    """The binlog cannot be used: one line that names the file and what would help. `status` is the exit status."""

    def __init__(self, message: str, status: int = UNUSABLE) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Recovered:
    """What was found."""

    segments: list[Segment] = field(default_factory=list)
    """Oldest first, each with the ids of all that was put into it."""
    next_id: int = 1
    sequence: int = 0
    """Of the last segment."""
    commit_number: int = 0
    """Of the last commit."""


class Progress:
    """Tells once a second how far it is."""

    def __init__(self, total: int, clock: Callable[[], int] = monotonic_ns) -> None:
        self.total = total
        self.done = 0  # bytes, in the files before
        self._clock = clock
        self._next = clock() + SECOND

    def tell(self, at: int, jobs: int) -> None:
        """So many bytes of this file have been read, and so many jobs are live so far."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + SECOND
        log.info("recovering: %d of %d MiB, %d jobs", (self.done + at) >> 20, self.total >> 20, jobs)


def open_directory(directory: Directory) -> None:
    """Lock a directory.

    Raises:
        StorageError: another server has it, or it cannot be written to.
    """
    try:
        if directory.lock():
            return
    except OSError as error:
        raise StorageError(f"{directory.path}: cannot be locked: {error.strerror}") from error
    raise StorageError(f"{directory.path}: another server uses this directory")


def recover(
    directory: Directory,
    replay: Replay,
    *,
    salvage: bool,
    segment_size: int,
    draw_salt: Callable[[], int],
    boot: bytes = NO_BOOT,
) -> Recovered:
    """Replay what a locked directory keeps, and leave it fit to be written to.

    Args:
        salvage: go on behind what is damaged; the damaged files are kept aside.
        segment_size: bytes of a segment, if jobs have to be written anew.
        boot: the present one.

    Raises:
        StorageError: it cannot be used, or is damaged.
    """
    try:
        _finish_rewriting(directory)
        if f"{STOPPED}.new" in directory.names():
            directory.remove(f"{STOPPED}.new")
        segments = segment_names(directory)
        old = beanstalkd_files(directory)
        if old and segments:
            raise StorageError(
                f"{directory.path}: both beanstalkd's files ({old[0]}) and this server's ({segments[0][1]}) are there: "
                "move those away whose jobs are not wanted"
            )
        if old:
            return _take_over(directory, replay, old, salvage, segment_size, draw_salt, boot)
        return _replay(directory, replay, segments, salvage, segment_size, draw_salt, boot)
    except OSError as error:
        raise unusable(directory, error) from error


def unusable(directory: Directory, error: OSError) -> StorageError:
    """What a person is told when the system refuses something."""
    where = Path(error.filename) if error.filename else directory.path
    if not where.is_relative_to(directory.path):
        where = directory.path / where
    return StorageError(f"{where}: cannot be used: {error.strerror or error}")


def beanstalkd_files(directory: Directory) -> list[str]:
    """The files of beanstalkd that nobody has taken over yet, oldest first."""
    if not any(name.startswith("binlog.") for name in directory.names()):
        return []
    return [path.name for path in beanstalkd7.files(directory.path)]


def find_spares(directory: Directory) -> list[Spare]:
    """The files of zeros that earlier processes have set aside.

    The last one may have begun a segment in one of them, or may have ended before it had filled it with zeros.

    Raises:
        StorageError: one of them cannot be used.
    """
    spares: list[Spare] = []
    try:
        for name in sorted(directory.names()):
            if not is_spare(name):
                continue
            size = _erase(directory, name)
            if size > SEGMENT_OVERHEAD:
                spares.append(Spare(name, size))
            else:
                directory.remove(name)
    except OSError as error:
        raise unusable(directory, error) from error
    return spares


def _erase(directory: Directory, name: str) -> int:
    """Let a file have nothing but zeros; return its size."""
    file = directory.open(name, write=True)
    try:
        size = file.size()
        dirty = False
        for offset in range(0, size, len(ZEROS)):
            zeros = ZEROS[: size - offset]
            if file.read(offset, len(zeros)) != zeros:
                file.write(offset, zeros)
                dirty = True
        if dirty:
            file.sync()
        return size
    finally:
        file.close()


def _replay(
    directory: Directory,
    replay: Replay,
    names: list[tuple[int, str]],
    salvage: bool,
    segment_size: int,
    draw_salt: Callable[[], int],
    boot: bytes,
) -> Recovered:
    found = Recovered()
    damaged: list[str] = []
    progress = Progress(0)
    mark, fault = read_mark(directory)
    if fault:
        log.warning("%s/%s: %s", directory.path, STOPPED, fault)
    for sequence, name in names:
        if found.sequence and sequence != found.sequence + 1:
            missing = segment_name(found.sequence + 1)
            _damage(directory, missing, 0, "the file is missing", salvage)
            damaged.append("")
            found.commit_number = 0
        is_last = sequence == names[-1][0]
        if _replay_segment(directory, replay, name, sequence, is_last, salvage, found, progress, mark):
            damaged.append(name)
    if mark is not None and not damaged and (found.sequence, found.commit_number) < (mark.sequence, mark.commit_number):
        _damage(directory, segment_name(mark.sequence), 0, MISSING, salvage)
        damaged.append("")
    found.next_id = max(found.next_id, replay.last_id + 1)
    replay.finish(boot)
    for job, key, holder in replay.give_up_shared_keys():
        log.warning("job %d has lost its key %r in tube %r: job %d has it too", job.id, key, job.tube.name, holder.id)
    if damaged:
        kept = [name for name in damaged if name]
        removed = [name for _, name in names if name not in kept] + [STOPPED]
        found.segments = _rewrite(directory, replay, found, segment_size, draw_salt, "damaged", kept, removed)
        log.warning("salvaged %d jobs; the damaged files are kept in %s/damaged", len(replay.jobs), directory.path)
    return found


def _replay_segment(
    directory: Directory,
    replay: Replay,
    name: str,
    sequence: int,
    is_last: bool,
    salvage: bool,
    found: Recovered,
    progress: Progress,
    mark: Mark | None,
) -> bool:
    """Replay one segment; return whether it is damaged, and salvaged."""
    file = directory.open(name, write=is_last)
    try:
        damaged = False
        if is_last:
            tail = find_tail(file, name)
            missing = missing_behind(mark, sequence, tail)
            if tail is not None and missing:
                _damage(directory, name, tail.end, missing, salvage)
                damaged = True
            elif tail is not None:
                _erase_torn_tail(directory, name, file, tail)
        progress.total = max(progress.total, progress.done + file.size())
        try:
            reader = open_reader(directory, file, name, sequence, found.commit_number)
        except FormatError as error:
            _damage(directory, name, 0, str(error), salvage)
            log.warning("%s/%s: %d bytes skipped", directory.path, name, file.size())
            found.sequence = sequence
            found.commit_number = 0
            return True
        segment = Segment(sequence, reader.size, reader.salt, reader.version)
        while True:
            if not reader.fault:
                while replay_records(reader, replay, segment):
                    progress.tell(reader.offset, len(replay.jobs))
            if not find_fault(reader, damaged):
                break
            _damage(directory, name, reader.offset, reader.fault, salvage)
            damaged = True
            if not reader.offset:
                log.warning("%s/%s: skipped: its header is needed to read on", directory.path, name)
                reader.commit_number = 0
                break
            log.warning("%s/%s: %d bytes skipped", directory.path, name, reader.skip())
        segment.end = segment.durable = reader.offset
        segment.is_closed = True
        found.segments.append(segment)
        found.next_id = max(found.next_id, reader.next_id)
        found.sequence = sequence
        found.commit_number = reader.commit_number
        progress.done += reader.size
        return damaged
    finally:
        file.close()


def open_reader(directory: Directory, file: ReadableFile, name: str, sequence: int, commit_number: int) -> Reader:
    """A reader at the beginning of a segment; it has a fault already if the header is not the right one.

    Args:
        sequence: which segment it should be, by its name.
        commit_number: of the last commit in the segment before; 0 when that is not known.

    Raises:
        FormatError: this is no segment.
        StorageError: it is one of a newer version.
    """
    try:
        reader = Reader(file, name)
    except FormatError as error:
        if error.version:
            raise StorageError(f"{directory.path}/{error}") from None
        raise
    if reader.sequence != sequence and not reader.fault:
        reader.fault = f"the header of segment {reader.sequence}"
    reader.commit_number = commit_number
    return reader


def find_fault(reader: Reader, has_skipped: bool) -> str:
    """What is wrong where the reader has stopped, or "" at the end of a segment.

    Args:
        has_skipped: that something is missing is known already.
    """
    if not reader.fault and reader.content_end() > reader.offset:
        reader.fault = "something behind the last record"
    if not reader.fault and not reader.commits and not has_skipped:
        reader.fault = "there is no commit"  # but it gets its name when its first one is on the disk
    return reader.fault


class Tail(NamedTuple):
    """How the newest segment ends."""

    end: int
    """The offset at which the last whole commit ends."""
    torn: int
    """Bytes behind it of what was being written when the last process ended."""


def find_tail(file: ReadableFile, name: str) -> Tail | None:
    """Find how the newest segment ends; None when it is damaged.

    A commit that is not whole is torn as a whole: it had not been acknowledged.
    """
    try:
        reader = Reader(file, name)
    except FormatError:
        return None
    if reader.fault:
        return None
    while reader.next():
        pass
    content_end = reader.content_end()
    end = reader.whole_end()
    if not reader.commits:
        return None  # no crash leaves that: a segment gets its name when its first commit is on the disk
    if not reader.fault and content_end <= reader.offset:
        return Tail(end, 0)
    if reader.is_known_durable(reader.offset):
        return None  # it was not torn: it is damaged
    return Tail(end, content_end - end)


def missing_behind(mark: Mark | None, sequence: int, tail: Tail | None) -> str:
    """What a clean stop has left in the newest segment, and is not there any more; or ""."""
    if mark is None or tail is None or mark.sequence != sequence or mark.end <= tail.end:
        return ""
    return f"{mark.end - tail.end} bytes are missing that were there when the last server stopped"


def _erase_torn_tail(directory: Directory, name: str, file: File, tail: Tail) -> None:
    """Write zeros over what was torn in the newest segment, and have what is before that on the disk.

    The last process may have ended before it had synced the segment, or its name; what follows will build on it.
    """
    if tail.torn:
        log.warning(
            "%s/%s: %d bytes erased at offset %d: a write that was torn, and never acknowledged",
            directory.path,
            name,
            tail.torn,
            tail.end,
        )
        for offset in range(tail.end, tail.end + tail.torn, len(ZEROS)):
            file.write(offset, ZEROS[: tail.end + tail.torn - offset])
    file.sync()
    directory.sync()


def _damage(directory: Directory, name: str, offset: int, what: str, salvage: bool) -> None:
    message = f"{directory.path}/{name}: damaged at offset {offset}: {what}"
    if not salvage:
        raise StorageError(f"{message}; --salvage goes on behind it, without what is lost", DAMAGED)
    log.warning("%s", message)


# beanstalkd's files


def _take_over(
    directory: Directory,
    replay: Replay,
    old: list[str],
    salvage: bool,
    segment_size: int,
    draw_salt: Callable[[], int],
    boot: bytes,
) -> Recovered:
    """Write the jobs of a beanstalkd directory anew, and set its files aside."""
    log.info("%s: taking over the jobs of beanstalkd from %d files", directory.path, len(old))
    warnings: list[str] = []
    try:
        contents = beanstalkd7.read(directory.path, warnings.append)
    except beanstalkd7.UnknownVersionError as error:
        raise StorageError(str(error)) from None
    for warning in warnings:
        log.warning("%s", warning)
    if contents.damages and not salvage:
        raise StorageError(f"{contents.damages[0]}; --salvage goes on without what is lost", DAMAGED)
    for number, job in enumerate(contents.jobs(), 1):
        replay_stored(job._replace(deadline=number) if job.state == "buried" else job, replay)
    replay.finish(boot)
    found = Recovered(next_id=max(contents.last_id, replay.last_id) + 1)
    found.segments = _rewrite(directory, replay, found, segment_size, draw_salt, "beanstalkd", old, [STOPPED])
    count, path = len(replay.jobs), directory.path
    log.info("%s: %d jobs taken over; beanstalkd's files are kept in %s/beanstalkd", path, count, path)
    return found


# Rewriting


def _rewrite(
    directory: Directory,
    replay: Replay,
    found: Recovered,
    segment_size: int,
    draw_salt: Callable[[], int],
    aside: str,
    kept: list[str],
    removed: list[str],
) -> list[Segment]:
    """Write all jobs into new segments that take the place of old files.

    Args:
        found: what has been found; its sequence and commit number are counted on.
        aside: the directory in which the files of `kept` will be; those of `removed` will be nowhere.
    """
    directory.make_directory(REWRITING)
    segments = _write_jobs(directory, replay, found, segment_size, draw_salt)
    complete = directory.create(COMPLETE + ".new")
    text = {"aside": aside, "kept": kept, "removed": removed}
    complete.write(0, json.dumps(text).encode())
    complete.sync()
    complete.close()
    directory.rename(COMPLETE + ".new", COMPLETE)
    directory.sync(REWRITING)
    directory.sync()
    _finish_rewriting(directory)
    return segments


def _finish_rewriting(directory: Directory) -> None:
    """Let what has been rewritten take the place of the old files, if it is complete; else undo it."""
    names = directory.names(REWRITING)
    if "complete" in names:
        file = directory.open(COMPLETE)
        text = json.loads(file.read(0, file.size()))
        file.close()
        aside: str = text["aside"]
        directory.make_directory(aside)
        there = set(directory.names())
        for name in text["kept"]:
            if name in there:
                directory.rename(name, f"{aside}/{name}")
        for name in text["removed"]:
            if name in there:
                directory.remove(name)
        directory.sync(aside)
        directory.sync()
        for name in sorted(names):
            if name.startswith("segment."):
                directory.rename(f"{REWRITING}/{name}", name)
        directory.sync()
        directory.sync(REWRITING)
    elif names:
        log.info("%s: undoing what was not complete when the last start ended", directory.path)
    for name in directory.names(REWRITING):
        directory.remove(f"{REWRITING}/{name}")
    if REWRITING in directory.names():
        directory.remove(REWRITING)
        directory.sync()


def _write_jobs(
    directory: Directory,
    replay: Replay,
    found: Recovered,
    segment_size: int,
    draw_salt: Callable[[], int],
) -> list[Segment]:
    """Write jobs, whose times are wall clock, into segments of the directory beside, and sync them.

    There is one at least, so that the next id is kept.
    """
    segments: list[Segment] = []
    chunks: list[bytes] = []
    size = 0
    segment: Segment | None = None
    file: File | None = None

    def flush() -> None:
        nonlocal size
        if segment is not None and file is not None:
            found.commit_number += 1
            commit = encode_commit(found.commit_number, segment.durable, size, found.next_id, 0, segment.seed)
            file.write(segment.end, b"".join([commit, *chunks]))
            segment.end += COMMIT_SIZE + size
            chunks.clear()
            size = 0

    def finish() -> None:
        if segment is not None and file is not None:
            flush()
            file.sync()
            file.close()
            segment.size = segment.durable = segment.end
            segment.is_closed = True

    def begin(length: int) -> Segment:
        nonlocal file, size
        finish()
        found.sequence += 1
        begun = Segment(found.sequence, max(segment_size, HEADER_SIZE + BATCH_OVERHEAD + length), draw_salt())
        segments.append(begun)
        file = directory.create(f"{REWRITING}/{begun.name}")
        file.write(0, encode_header(begun.sequence, begun.salt))
        chunks.append(encode_clock(replay.clock_offset, replay.boot, begun.seed))
        size = CLOCK_SIZE
        return begun

    segment = begin(0)
    for job in replay.jobs.values():
        length = put_size(job)
        if segment.end + COMMIT_SIZE + size + length > segment.size:
            segment = begin(length)
        chunks.append(encode_put(job, job.state, job.created_at, stored_deadline(job, 0), segment.seed))
        size += length
        job.file = segment.sequence
        segment.ids.append(job.id)
        if size >= BATCH_SIZE:
            flush()
    finish()
    return segments
