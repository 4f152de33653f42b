"""The binlog of a leader: writes its files into the engine, and writes them anew if the engine has lost them.

All bodies stay in memory. So when the engine has lost more than can be sent again, or everything, the binlog writes all
jobs anew: into a subdirectory first, and then one commit puts the new segments into the place of all old files.
Meanwhile nothing is admitted, and commits wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from beanstalk_server.cluster.commit_sender import DivergedError
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine_writer import EngineWriter
from beanstalk_server.events import event
from beanstalk_server.queue.job import Holder, Job
from beanstalk_server.queue.journal import NONE, OnCommit
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.table import IdTable
from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.bodies import ALL_IN_MEMORY
from beanstalk_server.storage.errors import DAMAGED, HOW_TO_SALVAGE, StorageError, unusable
from beanstalk_server.storage.record_writer import put_size
from beanstalk_server.storage.rewriting import REWRITING
from beanstalk_server.storage.segment_log import CommitBatch, NoRoomError, SegmentLog
from beanstalk_server.storage.segment_writer import SegmentWriter
from beanstalk_server.storage.spares import Allocator, spare_name
from beanstalk_server.storage.upkeep import COMMIT_LIMIT, SEGMENT_OVERHEAD, Spare

SLICE: Final = 512
"""How many jobs are written anew before the event loop does something else."""

FORGET_SLICE: Final = 16 * SLICE
"""The same, for jobs that only forget where they were."""

HOW_TO_GO_ON: Final = (
    "to continue without the lost jobs: run cluster export DIR, start with -b DIR --salvage, run cluster import "
    "DIR with "
    "another --cluster-name"
)
"""What helps here instead of --salvage, which knows files only."""

logger = logging.getLogger("beanstalk_server")


class EngineBinlog(Binlog):
    """Keeps jobs in an engine.

    Args:
        directory: in the direct way, until `restore` has returned.
        writer: sends what the directory collects from then on.
        options: as those of Binlog: segment_size, salvage, and for tests its clocks.
    """

    def __init__(self, directory: EngineDirectory, writer: EngineWriter, **options: Any) -> None:
        super().__init__(directory, write_thread=writer, body_threshold=ALL_IN_MEMORY, **options)
        self.on_rewriting: Callable[[bool], None] | None = None
        """Called with True when the engine has diverged, and with False when it has all jobs again."""
        self._engine_directory = directory
        self._engine_writer = writer
        self._rewriting: asyncio.Task[None] | None = None  # all jobs are being written anew
        self._late_commits: set[asyncio.Task[None]] = set()  # that wait for the end of that

    def restore(self, replay: Replay) -> None:
        try:
            super().restore(replay)
        except StorageError as error:
            if error.status != DAMAGED:
                raise
            raise StorageError(str(error).replace(HOW_TO_SALVAGE, HOW_TO_GO_ON), DAMAGED) from error
        try:
            self.directory.sync()
        except OSError as error:
            raise unusable(self.directory, error) from error
        self._engine_writer.start()

    def _may_repeat_ids(self, is_clean: bool) -> bool:
        """So it may at each start but the first: nothing says that the leader before has stopped cleanly."""
        return super()._may_repeat_ids(is_clean) or self._engine_writer.epoch > 1

    @property
    def admits(self) -> int:
        return NONE if self._rewriting is not None else super().admits

    # Commits wait while everything is written anew

    async def commit(self) -> None:
        while True:
            if self._rewriting is not None:
                await asyncio.wait([self._rewriting])
            try:
                await super().commit()
            except DivergedError:
                continue
            return

    def begin_commit(self, may_wait: bool, on_end: OnCommit) -> bool:
        return self._rewriting is None and super().begin_commit(may_wait, on_end)

    def _end_commit(
        self, batches: list[CommitBatch], began: int, on_end: OnCommit, error: BaseException | None
    ) -> None:
        if isinstance(error, DivergedError):
            self._note_failure(error)
            self._writing.release()
            task = asyncio.get_running_loop().create_task(self._commit_late(on_end))
            self._late_commits.add(task)
            task.add_done_callback(self._late_commits.discard)
        else:
            super()._end_commit(batches, began, on_end, error)

    async def _commit_late(self, on_end: OnCommit) -> None:
        try:
            await self.commit()
        except Exception as error:
            on_end(error)
        else:
            on_end(None)

    def _note_failure(self, error: BaseException) -> None:
        if not isinstance(error, DivergedError):
            super()._note_failure(error)
        elif self._rewriting is None:
            self._rewriting = asyncio.get_running_loop().create_task(self._write_anew(error))

    def _fail(self, error: Exception) -> None:
        if isinstance(error, DivergedError):
            self._note_failure(error)
        else:
            super()._fail(error)

    def _schedule_upkeep(self) -> None:
        if self._rewriting is None:
            super()._schedule_upkeep()

    def _schedule_retry(self) -> None:
        if self._rewriting is None:
            super()._schedule_retry()

    async def _end_log(self) -> None:
        while True:
            if self._rewriting is not None:
                await asyncio.wait([self._rewriting])
            await super()._end_log()
            if self._rewriting is None:  # else the engine has lost something meanwhile
                return

    # Writing everything anew

    async def _write_anew(self, error: DivergedError) -> None:
        logger.critical(
            "%(error)s; rewriting all %(jobs)d jobs",
            event("engine-lost-jobs", error=error, jobs=len(self._log.live)),
        )
        self._room.on_admission = _ignore
        self._report_admission(NONE)
        if self.on_rewriting is not None:
            self.on_rewriting(True)
        try:
            if self._upkeep is not None:
                await self._upkeep
            async with self._writing:  # before the writer works again: the rest of the old log must not be written
                while True:
                    await self._engine_writer.restart()
                    try:
                        await self._write_all()
                        break
                    except DivergedError as again:
                        logger.error(
                            "%(error)s; rewriting all jobs again", event("engine-lost-jobs-again", error=again)
                        )
        except Exception as failure:
            self._rewriting = None
            self._fail(failure)
            return
        logger.info("the engine has all jobs again", event("engine-has-jobs"))
        self._rewriting = None
        self._report_admission(self.admits)
        if self.on_rewriting is not None:
            self.on_rewriting(False)
        self._schedule_upkeep()

    async def _write_all(self) -> None:
        """Write all jobs to new segments, and then put these into the place of all files."""
        directory, run = self._engine_directory, self._engine_writer.run
        jobs: list[Holder] = [*self._log.groups.values(), *self._log.live.values(), *self._log.held.values()]
        for index, job in enumerate(jobs):
            job.file = 0
            terms = job.terms() if isinstance(job, Job) else None
            if terms is not None:
                terms.growth = 0
            if index % FORGET_SLICE == 0:
                await asyncio.sleep(0)
        log = self._begin_log()
        self._writer.close()
        self._writer = SegmentWriter(directory, REWRITING)
        await run(self._remove_remains)
        spares = 1
        self._add_spare(log, spares, 0)
        log.seal()  # even without a job, so that the next id is kept
        for index, job in enumerate(jobs):
            is_there = any(table.get(job.id) is job for table in (log.live, log.held, log.groups))
            if is_there and not _has(log, job) and not job.tube.is_cleared(job):
                size = put_size(job)
                try:
                    log.append(job)
                except NoRoomError:
                    spares += 1
                    self._add_spare(log, spares, size)
                    log.append(job)
            if log.room.pending >= COMMIT_LIMIT:
                await self._write_batch(log)
            elif index % SLICE == 0:
                await asyncio.sleep(0)
        await self._write_batch(log)
        self._writer.close()
        self._writer = SegmentWriter(directory)
        await run(partial(self._replace_all, [segment.name for segment in log.segments]))
        room = log.room
        for segment in log.segments:
            room.resize(segment, segment.end)  # no space was allocated ahead
            segment.is_closed = True
        self._allocator = Allocator(directory, room, 0, self._clock)
        room.on_admission = self._report_admission
        room.review()
        while not room.may_put() and self._allocator.allocate(room.spare_size()):
            pass

    def _begin_log(self) -> SegmentLog:
        """Begin a log that has nothing yet, behind the last segment and the last commit."""
        old = self._log
        log = self._new_log(IdTable(), IdTable(), IdTable())
        log.adopt([], [], old.next_id, old.sequence, old.commit_number)
        log.set_clocks(self.clock_offset())
        log.live = old.live
        log.held = old.held
        log.groups = old.groups
        log.room.on_admission = _ignore  # nothing is admitted before the end
        self._log = log
        self._room = log.room
        self._fetches = self._new_fetches()
        return log

    def _add_spare(self, log: SegmentLog, number: int, size: int) -> None:
        name = spare_name(number)
        self.directory.create(f"{REWRITING}/{name}").close()
        log.room.add_spare(Spare(name, max(self.segment_size, SEGMENT_OVERHEAD + size)))

    async def _write_batch(self, log: SegmentLog) -> None:
        batches = log.take(self._wall_clock(), self.clock_offset())
        await self._engine_writer.run(partial(self._writer.write, batches, True))
        log.confirm(batches, None)

    def _remove_remains(self) -> None:
        """Remove what an earlier rewriting has left."""
        for name in self.directory.names(REWRITING):
            self.directory.remove(f"{REWRITING}/{name}")

    def _replace_all(self, names: list[str]) -> None:
        """Replace all files by these segments. Those in subdirectories stay."""
        directory = self._engine_directory
        for name in directory.all_names():
            if "/" not in name:
                directory.remove(name)
        for name in names:
            directory.rename(f"{REWRITING}/{name}", name)


def _has(log: SegmentLog, job: Holder) -> bool:
    """Whether a log that has just begun has the record of a job. The job may still refer to a segment of an old log."""
    segment = log.slots[job.file] if job.file < len(log.slots) else None
    return segment is not None and job.place < len(segment.ids) and segment.ids[job.place] == job.id


def _ignore(_: int) -> None:
    """Ignore a change of admission."""
