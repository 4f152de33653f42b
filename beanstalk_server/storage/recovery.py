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
from time import monotonic_ns
from typing import Final

from beanstalk_server.queue.job import BURIED
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.storage.beanstalkd import format as beanstalkd7
from beanstalk_server.storage.binlog_reader import BinlogReader, Damage, Tail
from beanstalk_server.storage.disk import ZEROS, Directory, File
from beanstalk_server.storage.errors import DAMAGED, StorageError, unusable
from beanstalk_server.storage.record import (
    CLOCK_SIZE,
    COMMIT_SIZE,
    NO_BOOT,
    encode_clock,
    encode_commit,
    encode_put,
    put_size,
)
from beanstalk_server.storage.room import BATCH_OVERHEAD, SEGMENT_OVERHEAD, Spare
from beanstalk_server.storage.segment import HEADER_SIZE, Segment, encode_header, is_spare, segment_names
from beanstalk_server.storage.stopped import STOPPED

REWRITING: Final = "rewriting"
COMPLETE: Final = "rewriting/complete"
BATCH_SIZE: Final = 1 << 20  # bytes written in one piece
SECOND: Final = 1_000_000_000

logger = logging.getLogger("beanstalk_server")


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
    """Says in the log, once a second, how far recovery is."""

    def __init__(self, replay: Replay, total: int, clock: Callable[[], int] = monotonic_ns) -> None:
        self._replay = replay
        self._total = total  # bytes
        self._clock = clock
        self._next = clock() + SECOND

    def tell(self, done: int) -> None:
        """So many bytes have been read."""
        now = self._clock()
        if now >= self._next:
            self._next = now + SECOND
            jobs = len(self._replay.jobs)
            logger.info("recovering: %d of %d MiB, %d jobs", done >> 20, self._total >> 20, jobs)


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
        return _replay(directory, replay, salvage, segment_size, draw_salt, boot)
    except OSError as error:
        raise unusable(directory, error) from error


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
    salvage: bool,
    segment_size: int,
    draw_salt: Callable[[], int],
    boot: bytes,
) -> Recovered:
    found = Recovered()

    def on_damage(damage: Damage) -> None:
        place = f"{directory.path}/{damage.segment}"
        if not salvage:
            raise StorageError(
                f"{place}: damaged at offset {damage.offset}: {damage.what}; "
                "--salvage goes on behind it, without what is lost",
                DAMAGED,
            )
        logger.warning("%s: %s", place, damage)

    binlog = BinlogReader(directory, on_damage)
    for reader in binlog.read(Progress(replay, binlog.size()).tell):
        if not found.segments or found.segments[-1].sequence != reader.sequence:
            found.segments.append(Segment(reader.sequence, reader.file.size(), reader.salt, reader.version))
        segment = found.segments[-1]
        reader.replay(replay, segment)
        segment.end = segment.durable = reader.offset
        segment.is_closed = True
    found.sequence = binlog.sequence
    found.commit_number = binlog.commit_number
    found.next_id = max(binlog.next_id, replay.last_id + 1)
    replay.finish(boot)
    for job, key, holder in replay.give_up_shared_keys():
        logger.warning(
            "job %d has lost its key %r in tube %r: job %d has it too", job.id, key, job.tube.name, holder.id
        )
    if binlog.damaged:
        names = [name for _, name in binlog.segments]
        kept = [name for name in names if name in binlog.damaged]
        removed = [name for name in names if name not in binlog.damaged] + [STOPPED]
        found.segments = _rewrite(directory, replay, found, segment_size, draw_salt, "damaged", kept, removed)
        logger.warning("salvaged %d jobs; the damaged files are kept in %s/damaged", len(replay.jobs), directory.path)
    elif binlog.tail is not None:
        _settle_tail(directory, found.segments[-1].name, binlog.tail)
    return found


def _settle_tail(directory: Directory, name: str, tail: Tail) -> None:
    """Write zeros over what was torn in the newest segment, and have what is before that on the disk.

    The last process may have ended before it had synced the segment, or its name; what follows will build on it.
    """
    file = directory.open(name, write=True)
    try:
        if tail.torn:
            logger.warning(
                "%s/%s: %d bytes erased at offset %d: a write that was torn, and never acknowledged",
                directory.path,
                name,
                tail.torn,
                tail.end,
            )
            for offset in range(tail.end, tail.end + tail.torn, len(ZEROS)):
                file.write(offset, ZEROS[: tail.end + tail.torn - offset])
        file.sync()
    finally:
        file.close()
    directory.sync()


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
    logger.info("%s: taking over the jobs of beanstalkd from %d files", directory.path, len(old))
    warnings: list[str] = []
    try:
        contents = beanstalkd7.read(directory.path, warnings.append)
    except beanstalkd7.UnknownVersionError as error:
        raise StorageError(str(error)) from None
    for warning in warnings:
        logger.warning("%s", warning)
    if contents.damages and not salvage:
        raise StorageError(f"{contents.damages[0]}; --salvage goes on without what is lost", DAMAGED)
    for number, job in enumerate(contents.jobs(), 1):
        if job.state == BURIED:
            job.bury_sequence = number
        replay.put(job)
    replay.finish(boot)
    found = Recovered(next_id=max(contents.last_id, replay.last_id) + 1)
    found.segments = _rewrite(directory, replay, found, segment_size, draw_salt, "beanstalkd", old, [STOPPED])
    count, path = len(replay.jobs), directory.path
    logger.info("%s: %d jobs taken over; beanstalkd's files are kept in %s/beanstalkd", path, count, path)
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
        logger.info("%s: undoing what was not complete when the last start ended", directory.path)
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

    stored = StoredJob()
    segment = begin(0)
    for job in replay.jobs.values():
        length = put_size(job)
        if segment.end + COMMIT_SIZE + size + length > segment.size:
            segment = begin(length)
        stored.describe(job, 0)
        chunks.append(encode_put(stored, segment.seed))
        size += length
        job.file = segment.sequence
        segment.ids.append(job.id)
        if size >= BATCH_SIZE:
            flush()
    finish()
    return segments
