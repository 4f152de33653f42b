"""From files to jobs, at the start.

The segments are replayed from the oldest to the newest, a mebibyte at a time. What a crash can leave is put right: the
torn tail of the newest segment, files that were not finished. Anything else that is wrong is damage, and refuses the
start, unless it is to be salvaged. Must never know clients, nor run beside a server that uses the directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Final

from beanstalk_server.queue.replay import Replay
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.beanstalkd.takeover import take_over
from beanstalk_server.storage.binlog_reader import BinlogReader, Damage, Tail
from beanstalk_server.storage.disk import ZEROS, Directory
from beanstalk_server.storage.errors import DAMAGED, StorageError, unusable
from beanstalk_server.storage.record import (
    NO_BOOT,
)
from beanstalk_server.storage.rewriting import Rewriting, finish_rewriting
from beanstalk_server.storage.room import SEGMENT_OVERHEAD, Spare
from beanstalk_server.storage.segment import Segment, is_spare, segment_names
from beanstalk_server.storage.stopped import STOPPED

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
        finish_rewriting(directory)
        if f"{STOPPED}.new" in directory.names():
            directory.remove(f"{STOPPED}.new")
        segments = segment_names(directory)
        old = file_names(directory.names())
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
        found = _rewrite(directory, replay, found, segment_size, draw_salt, "damaged", kept, removed)
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
    last_id = take_over(directory, replay, salvage)
    replay.finish(boot)
    found = Recovered(next_id=last_id + 1)
    found = _rewrite(directory, replay, found, segment_size, draw_salt, "beanstalkd", old, [STOPPED])
    count, path = len(replay.jobs), directory.path
    logger.info("%s: %d jobs taken over; beanstalkd's files are kept in %s/beanstalkd", path, count, path)
    return found


def _rewrite(
    directory: Directory,
    replay: Replay,
    found: Recovered,
    segment_size: int,
    draw_salt: Callable[[], int],
    aside: str,
    kept: list[str],
    removed: list[str],
) -> Recovered:
    """Let new segments with all jobs take the place of old files; return what is there then."""
    rewriting = Rewriting(
        directory, replay, segment_size, draw_salt, found.next_id, found.sequence, found.commit_number
    )
    rewriting.replace(aside, kept, removed)
    log = rewriting.log
    return Recovered(log.segments, log.next_id, log.sequence, log.commit_number)
