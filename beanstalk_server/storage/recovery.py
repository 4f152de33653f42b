"""Recovers the jobs of a directory when a server starts, and prepares the directory for writing.

It repairs what a crash can leave: a torn tail of the newest segment, unfinished files. Anything else is damage, and
refuses the start unless it may be salvaged. It takes over the files of a beanstalkd.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic_ns

from beanstalk_server.events import event
from beanstalk_server.queue.journal import RestoreInterruptedError
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.beanstalkd.reader import take_over
from beanstalk_server.storage.binlog_reader import BinlogReader, Damage, Tail
from beanstalk_server.storage.bodies import ALL_IN_MEMORY
from beanstalk_server.storage.disk import Directory
from beanstalk_server.storage.errors import DAMAGED, HOW_TO_SALVAGE, StorageError, unusable
from beanstalk_server.storage.record import NO_BOOT
from beanstalk_server.storage.rewriting import Rewriting, finish_rewriting
from beanstalk_server.storage.segment import Segment, segment_names
from beanstalk_server.storage.stopped import STARTED, STOPPED

logger = logging.getLogger("beanstalk_server")


@dataclass
class Recovered:
    """What a directory holds, apart from the jobs."""

    segments: list[Segment] = field(default_factory=list)
    """Oldest first, each with the ids of all jobs that were ever put into it."""
    next_id: int = 1
    """The smallest id that has never been given."""
    sequence: int = 0
    """The sequence number of the newest segment."""
    commit_number: int = 0
    """The number of the last commit."""
    is_clean: bool = True
    """Every id is known that a client may have heard of: the last server has stopped cleanly, or there was none."""


class Progress:
    """Logs once a second how far recovery has come, and ends it when the server is to stop."""

    def __init__(
        self,
        replay: Replay,
        total: int,
        is_interrupted: Callable[[], bool] = lambda: False,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._replay = replay
        self._total = total  # bytes
        self._is_interrupted = is_interrupted
        self._clock = clock
        self._next = clock() + SECOND

    def report(self, done: int) -> None:
        """Note that `done` bytes have been read.

        Raises:
            RestoreInterruptedError: the server is to stop.
        """
        if self._is_interrupted():
            raise RestoreInterruptedError
        now = self._clock()
        if now >= self._next:
            self._next = now + SECOND
            jobs = len(self._replay.jobs)
            logger.info(
                "recovering: %(read)d of %(size)d MiB, %(jobs)d jobs",
                event("recovering", read=done >> 20, size=self._total >> 20, jobs=jobs),
            )


def recover(
    directory: Directory,
    replay: Replay,
    *,
    salvage: bool,
    segment_size: int,
    draw_salt: Callable[[], int],
    body_threshold: int = ALL_IN_MEMORY,
    boot: bytes = NO_BOOT,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Recovered:
    """Replay what a locked directory holds, and prepare it for writing.

    Args:
        salvage: skip what is damaged, and keep the damaged files in the subdirectory `damaged`.
        segment_size: bytes of a new segment, if jobs have to be rewritten.
        draw_salt: draws a random number of 32 bits.
        body_threshold: bytes; longer bodies stay on the disk.
        boot: the present boot of the machine.
        is_interrupted: whether the server is to stop; asked about after each mebibyte.

    Raises:
        StorageError: the directory cannot be used, or is damaged.
        RestoreInterruptedError: the server is to stop.
    """
    try:
        return _Recovery(
            directory, replay, salvage, segment_size, draw_salt, body_threshold, boot, is_interrupted
        ).run()
    except OSError as error:
        raise unusable(directory, error) from error


@dataclass
class _Recovery:
    """One recovery; `recover` describes the arguments."""

    directory: Directory
    replay: Replay
    salvage: bool
    segment_size: int
    draw_salt: Callable[[], int]
    body_threshold: int
    boot: bytes
    is_interrupted: Callable[[], bool]
    segments: list[Segment] = field(default_factory=list)
    """Those that hold the jobs."""

    def run(self) -> Recovered:
        directory = self.directory
        finish_rewriting(directory)
        if f"{STOPPED}.new" in directory.names():
            directory.remove(f"{STOPPED}.new")
        segments = segment_names(directory)
        old = file_names(directory.names())
        if old and segments:
            raise StorageError(
                f"{self.directory.path}: holds files of beanstalkd ({old[0]}) and of this server ({segments[0][1]}): "
                "remove the files whose jobs you do not need"
            )
        return self._take_over(old) if old else self._recover_segments()

    def _recover_segments(self) -> Recovered:
        replay = self.replay
        segments = self.segments
        binlog = BinlogReader(self.directory, self._handle_damage)
        for reader in binlog.read(Progress(replay, binlog.size(), self.is_interrupted).report):
            if not segments or segments[-1].sequence != reader.sequence:
                segments.append(Segment(reader.sequence, reader.file.size(), reader.salt, reader.version))
                segments[-1].slot = len(segments)
            reader.replay(replay, segments[-1], self.body_threshold)
            segments[-1].end = segments[-1].durable = reader.offset
            segments[-1].is_closed = True
        replay.finish(self.boot)
        for job, key, holder in replay.give_up_shared_keys():
            logger.warning(
                "job %(job)d loses its key %(key)r in tube %(tube)r: job %(holder)d has the same key",
                event("key-lost", job=job.id, key=key, tube=job.tube.name, holder=holder.id),
            )
        next_id = max(binlog.next_id, replay.last_id + 1)
        is_clean = binlog.is_clean or not (segments or self._has_served())
        found = Recovered(segments, next_id, binlog.sequence, binlog.commit_number, is_clean)
        if binlog.damaged:
            names = [name for _, name in binlog.segments]
            kept = [name for name in names if name in binlog.damaged]
            removed = [name for name in names if name not in binlog.damaged]
            found = self._rewrite(found, "damaged", kept, removed)
            logger.warning(
                "salvaged %(jobs)d jobs; the damaged files are kept in %(path)s",
                event("salvaged", jobs=len(replay.jobs), path=f"{self.directory.path}/damaged"),
            )
        elif binlog.tail is not None:
            self._repair_tail(segments[-1].name, binlog.tail)
        return found

    def _has_served(self) -> bool:
        """Whether a server has been ready to serve here, as far as files without jobs can tell."""
        return any(name in (STARTED, STOPPED) or name.startswith("spare.") for name in self.directory.names())

    def _handle_damage(self, damage: Damage) -> None:
        place = f"{self.directory.path}/{damage.segment}"
        if not self.salvage:
            raise StorageError(
                f"{place}: damaged at offset {damage.offset}: {damage.what}; {HOW_TO_SALVAGE}",
                DAMAGED,
            )
        logger.warning("%(path)s: %(damage)s", event("damaged", path=place, damage=damage))

    def _repair_tail(self, name: str, tail: Tail) -> None:
        """Erase a torn tail of the newest segment, and sync everything before it.

        The last process may have ended before it synced the segment or its name, and all new records rely on both.
        """
        with closing(self.directory.open(name, write=True)) as file:
            if tail.torn:
                file.erase(tail.end, tail.torn)
                logger.warning(
                    "%(path)s: erased an incomplete write of %(bytes)d bytes at offset %(offset)d, which was never "
                    "acknowledged",
                    event("torn-write-erased", path=f"{self.directory.path}/{name}", bytes=tail.torn, offset=tail.end),
                )
            file.sync()
        self.directory.sync()

    def _take_over(self, old: list[str]) -> Recovered:
        """Rewrite the jobs in beanstalkd's files, and move those files away."""
        logger.info(
            "%(path)s: taking over beanstalkd's jobs from %(files)d files",
            event("beanstalkd-takeover-begins", path=self.directory.path, files=len(old)),
        )
        last_id = take_over(self.directory, self.replay, self.salvage)
        self.replay.finish(self.boot)
        found = self._rewrite(Recovered(next_id=last_id + 1), "beanstalkd", old, [])
        jobs, path = len(self.replay.jobs), self.directory.path
        logger.info(
            "%(path)s: took over %(jobs)d jobs; beanstalkd's files are kept in %(kept)s",
            event("beanstalkd-takeover", path=path, jobs=jobs, kept=f"{path}/beanstalkd"),
        )
        return found

    def _rewrite(self, found: Recovered, aside: str, kept: list[str], removed: list[str]) -> Recovered:
        """Replace old files with new segments that hold all jobs; return what the directory holds then.

        Args:
            aside: the subdirectory to which the files in `kept` are moved.
            removed: files to remove, besides the mark of a clean stop.
        """
        rewriting = Rewriting(
            self.directory,
            self.replay,
            self.segments,
            self.segment_size,
            self.draw_salt,
            self.body_threshold,
            found.next_id,
            found.sequence,
            found.commit_number,
        )
        rewriting.replace(aside, kept, [*removed, STOPPED, STARTED])
        log = rewriting.log
        return Recovered(log.segments, log.next_id, log.sequence, log.commit_number, found.is_clean)
