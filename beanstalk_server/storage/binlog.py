"""The binlog: a journal that keeps jobs in the segments of a directory.

It carries out, on the event loop and in threads, what the log and its room ask for. A commit writes and syncs all
changes since the last one. Besides, one task at a time, the upkeep, makes room ahead and removes garbage.
docs/binlog.md says what the binlog promises.

While commits take less than LOOP_LIMIT and the event loop has nothing else to do, the loop writes and syncs: the way to
a thread and back would cost more. Otherwise a thread does, and an idle loop waits for it, at most COMMIT_WAIT. So a
disk that is always slow holds up no client, and one that becomes slow holds them up for one commit.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from time import monotonic_ns, time_ns
from typing import Any, Final, TypeVar

from beanstalk_server.events import event
from beanstalk_server.queue.groups import Group
from beanstalk_server.queue.job import NOT_IN_MEMORY, HeldKey, Holder, Job, Token
from beanstalk_server.queue.journal import ALL, Files, Journal, OnCommit
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.bodies import Bodies
from beanstalk_server.storage.body_reader import BodyReader
from beanstalk_server.storage.disk import Directory, boot_id
from beanstalk_server.storage.errors import lock_directory, unusable
from beanstalk_server.storage.fetches import Fetches
from beanstalk_server.storage.record_writer import clear_size, put_size
from beanstalk_server.storage.recovery import recover
from beanstalk_server.storage.segment import VERSION
from beanstalk_server.storage.segment_log import CommitBatch, NoRoomError, SegmentLog
from beanstalk_server.storage.segment_writer import SegmentWriter
from beanstalk_server.storage.spares import BLOCK, RETRY_INTERVAL, Allocator, find_spares
from beanstalk_server.storage.stopped import STOPPED, Mark, use_mark, write_mark
from beanstalk_server.storage.upkeep import ALLOCATE, COMMIT_LIMIT, DROP_SPARE, NOTHING, SEAL, Spare
from beanstalk_server.storage.write_thread import Writer, WriteThread

SEGMENT_SIZE: Final = 10485760
"""Bytes; as beanstalkd's -s."""

BODY_THRESHOLD: Final = 256
"""Bytes: a longer body would take more memory than the rest of its job."""

BODY_CACHE: Final = 16 << 20
"""Bytes, which are 16 for each of a million jobs."""

OPEN_FILES: Final = 8
"""How many segments stay open for reading."""

NO_SYNC: Final = -1.0
"""The sync interval for `never`: replies wait for no sync, and none follows until the segment is full."""

UNKNOWN_IDS: Final = 1 << 20
"""How many ids are left out where a client may have heard of some that the log does not know: more than there can be
jobs that wait for their first commit. A worker may have got such a job, and would delete another one if its id were
given again."""

LEAST_PUT: Final = 64
"""Bytes: every PUT is longer. If nothing is synced (-F), a loss of power can cost what the newest segment holds."""

COMMIT_WAIT: Final = 0.002
"""Seconds for which the event loop waits for a commit at most, and only while commits end within that time."""

LOOP_LIMIT: Final = 500_000
"""Nanoseconds: the event loop itself writes and syncs commits that take less."""

NOT_TIMED: Final = -1
"""In place of the moment when a commit began, if its time says nothing about the disk: the event loop was busy."""

LOCK_INTERVAL: Final = 10_000_000
"""Nanoseconds between two looks at the lock file while commits follow one another. Another server takes several times
as long to start."""

LOST_LOCK: Final = "the lock file was removed or replaced, so another server may use the directory"
"""Why a binlog fails whose lock no longer keeps other servers out."""

T = TypeVar("T")
logger = logging.getLogger("beanstalk_server")


@mypyc_attr(allow_interpreted_subclasses=True)
class Binlog(Journal):
    """Keeps jobs in a directory.

    Args:
        directory: locked from `restore` to `close`.
        segment_size: bytes, rounded up to whole blocks. A larger job gets a larger segment.
        sync_interval: milliseconds. 0: `commit` returns when everything is synced. Above 0: it returns when everything
            is written, and a sync follows within this time. NO_SYNC: a segment is synced only when it is full.
        salvage: at the start, skip what is damaged instead of refusing to start.
        body_threshold: bytes; longer bodies leave memory when they have been written.
        body_cache: bytes of such bodies that stay in memory nevertheless, the latest ones.
        clock: the server's monotonic clock, in nanoseconds.
        wall_clock: nanoseconds since 1970.
        boot: 16 bytes that identify the present boot of the machine, from which `clock` counts.
        write_thread: does the work of commits and of the upkeep, and is closed with the binlog; a thread of its own, if
            it is None.
        in_thread: calls a function off the event loop; tests replace it.
        draw_salt: draws a random number of 32 bits.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        segment_size: int = SEGMENT_SIZE,
        sync_interval: float = 0.0,
        salvage: bool = False,
        body_threshold: int = BODY_THRESHOLD,
        body_cache: int = BODY_CACHE,
        clock: Callable[[], int] = monotonic_ns,
        wall_clock: Callable[[], int] = time_ns,
        boot: bytes | None = None,
        write_thread: Writer | None = None,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None,
        draw_salt: Callable[[], int] = lambda: secrets.randbits(32),
    ) -> None:
        super().__init__()
        self.directory = directory
        self.max_size = segment_size
        self.segment_size = -(-segment_size // BLOCK) * BLOCK
        self.sync_interval = sync_interval
        self.salvage = salvage
        self.body_threshold = body_threshold
        self.body_cache = body_cache
        self._clock = clock
        self._wall_clock = wall_clock
        self._next_look = 0  # at the lock file, in nanoseconds
        self._boot = boot or boot_id()
        self._write_thread = write_thread or WriteThread("binlog")
        self._in_thread = in_thread or (self._in_own_thread if write_thread is None else write_thread.run)
        self._in_write_thread = in_thread or self._write_thread.run
        self._can_begin_commit = in_thread is None
        self._may_hold_loop = write_thread is None  # another writer may wait for a network
        # how long commits take, in nanoseconds: a moving average, but a slower commit counts in full at once
        self._commit_time = round(COMMIT_WAIT * SECOND)
        self._draw_salt = draw_salt
        self._log = self._new_log(self.live, self.held, self.groups)
        self._room = self._log.room
        self._writer = SegmentWriter(directory)
        self._cleaning_reader = BodyReader(directory)
        self._fetching_reader = BodyReader(directory, OPEN_FILES)
        self._fetches = self._new_fetches()
        self._threads: ThreadPoolExecutor | None = None
        self._allocator = Allocator(directory, self._room, 0, clock)
        self._writing = asyncio.Lock()  # held while writing and syncing
        self._upkeep: asyncio.Task[None] | None = None
        self._sync_timer: asyncio.TimerHandle | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None  # until the disk is tried again
        self._failure: BaseException | None = None  # why nothing is acknowledged any more
        self._unreadable: Exception | None = None  # the failure, if it is that of a read
        self._is_ready = False  # `restore` has returned: until then, `close` must leave the files as they are
        self._closing = False

    @property
    def keeps(self) -> bool:
        return True

    def clock_offset(self) -> int:
        return self._wall_clock() - self._clock()

    # Recovery, and changes to record

    def restore(self, replay: Replay) -> None:
        """Lock the directory and replay what it holds.

        Raises:
            StorageError: the directory cannot be used, or the binlog is damaged.
            RestoreInterruptedError: the server is to stop.
        """
        lock_directory(self.directory)
        try:
            found = recover(
                self.directory,
                replay,
                salvage=self.salvage,
                segment_size=self.segment_size,
                draw_salt=self._draw_salt,
                body_threshold=self.body_threshold,
                boot=self._boot,
                is_interrupted=lambda: self.interrupted,
            )
            spares, last_spare = find_spares(self.directory)
        except BaseException:
            self.directory.unlock()
            raise
        self._log = self._new_log(replay.jobs, replay.held, replay.groups)
        self._room = self._log.room
        self._fetches = self._new_fetches()
        self._allocator = Allocator(self.directory, self._room, last_spare, self._clock)
        self._log.set_clocks(replay.clock_offset)
        self._log.adopt(found.segments, spares, found.next_id, found.sequence, found.commit_number)
        newest_size = found.segments[-1].size if found.segments else 0
        try:
            self._make_ready()
            if self._may_repeat_ids(found.is_clean):
                self._leave_out_ids(max(UNKNOWN_IDS, newest_size // LEAST_PUT))
            use_mark(self.directory)
        except OSError as error:
            raise unusable(self.directory, error) from error
        self._is_ready = True

    def _new_log(self, live: IdTable[Job], held: IdTable[HeldKey], groups: IdTable[Group]) -> SegmentLog:
        bodies = Bodies(self.body_threshold, self.body_cache, self.memory)
        size, salt = self.segment_size, self._draw_salt
        return SegmentLog(live, held, size, salt, bodies, self._boot, self._report_admission, groups)

    def _new_fetches(self) -> Fetches:
        return Fetches(self._log, self._fetching_reader, self._in_thread, self._report_fetches, self._fail_to_read)

    def _make_ready(self) -> None:
        """Prepare to write after the newest segment, or in it if the disk has no room for another."""
        segments, room, allocator = self._log.segments, self._room, self._allocator
        if segments:
            has_next = allocator.has_room() if room.has_usual_spare() else allocator.allocate_exactly(self.segment_size)
            if has_next:
                self._cut_newest()
            elif segments[-1].version == VERSION:
                self._writer.reopen(self._log.reopen())
        while not room.may_put() and allocator.allocate(room.spare_size()):
            pass

    def _may_repeat_ids(self, is_clean: bool) -> bool:
        """Whether a client may have heard of ids that the log does not know; `is_clean` as in Recovered."""
        return not is_clean

    def _leave_out_ids(self, count: int) -> None:
        """Give none of this many ids; the log must say so before a client is served.

        If the disk is too full for that, there is no room for a put either, until a commit that says so has made some.
        """
        log, room = self._log, self._room
        log.next_id += count * self.live.stride
        clocks = self._wall_clock(), self.clock_offset()
        batches = log.checkpoint(*clocks)
        if not batches and room.smallest_spare(0) is not None:
            log.seal()
            batches = log.take(*clocks)
        self._writer.write(batches, True)
        log.confirm(batches, self._writer.tail)
        while not room.may_put() and self._allocator.allocate(room.spare_size()):
            pass

    def _cut_newest(self) -> None:
        newest = self._log.cut_newest()
        if newest is None:
            return
        with closing(self.directory.open(newest.name, write=True)) as file:
            file.truncate(newest.size)
            file.sync()

    def next_id(self) -> int:
        return self._log.next_id

    def put(self, job: Job) -> bool:
        # The upkeep makes room ahead, but this job may come too soon for that, or be larger than a segment.
        return self._log.put(job) or (self._make_room(put_size(job)) and self._log.put(job))

    def put_batch(self, jobs: list[Job]) -> bool:
        return self._log.put_batch(jobs) or (self._make_room(sum(map(put_size, jobs))) and self._log.put_batch(jobs))

    def put_once(self, job: Job, token: Token) -> bool:
        return self._log.put_once(job, token) or (
            self._make_room(put_size(job) + put_size(token)) and self._log.put_once(job, token)
        )

    def change(self, job: Job) -> None:
        try:
            self._log.change(job)
        except NoRoomError as error:
            if self._make_room_for_change(error):
                self._log.change(job)

    def hold(self, held: HeldKey) -> None:
        try:
            self._log.hold(held)
        except NoRoomError as error:
            if self._make_room_for_change(error):
                self._log.hold(held)

    def delete(self, job: Holder) -> None:
        try:
            self._log.delete(job)
        except NoRoomError as error:
            if self._make_room_for_change(error):
                self._log.delete(job)

    def begin_group(self, group: Group) -> bool:
        return self._log.begin_group(group) or (self._make_room(put_size(group)) and self._log.begin_group(group))

    def pause(self, pause: HeldKey) -> bool:
        return self._log.pause(pause) or (self._make_room(put_size(pause)) and self._log.pause(pause))

    def leave_group(self, group: Group, end: int, job: Job | None) -> None:
        try:
            self._log.leave_group(group, end, job)
        except NoRoomError as error:
            if self._make_room_for_change(error):
                self._log.leave_group(group, end, job)

    @property
    def admits(self) -> int:
        """What the binlog admits now: ALL, DELETIONS or NONE."""
        return self._room.admits

    def _report_admission(self, admits: int) -> None:
        if self.on_admission is not None:
            self.on_admission(admits)

    def clear(self, tube_name: str, reserved_ids: list[int]) -> bool:
        return self._log.clear(tube_name, reserved_ids) or (
            self._make_room(clear_size(tube_name, reserved_ids)) and self._log.clear(tube_name, reserved_ids)
        )

    def forget(self, job: Holder) -> None:
        self._log.forget(job)

    def _make_room_for_change(self, error: NoRoomError) -> bool:
        """Make room on the spot, if the disk has any: changes came faster than the upkeep could make room ahead."""
        if self._failure is None and self._allocator.allocate(self.segment_size):
            return True
        # The next `commit` raises this error.
        self._failure = self._failure or OSError(errno.ENOSPC, str(error), str(self.directory.path))
        return False

    def files(self) -> Files:
        segments = self._log.segments
        is_open = bool(segments) and segments[-1].file is not None
        current = self._log.sequence if is_open else self._log.sequence + 1
        oldest = segments[0].sequence if segments else current
        return Files(oldest, current, self._log.migrated, self._log.written, self.max_size)

    def file_number(self, job: Job) -> int:
        return self._log.segment_of(job).sequence if job.file else 0

    # Bodies

    def body_size(self, job: Job) -> int:
        return len(job.body) if job.body is not NOT_IN_MEMORY else self._log.body_size(job)

    def fetch(self, jobs: list[Job], on_fetched: Callable[[], None]) -> None:
        if self._failure is None:
            self._fetches.add(jobs, on_fetched)

    def _report_fetches(self) -> None:
        if self.on_fetches_done is not None:
            self.on_fetches_done()

    def stored(self, job: Holder) -> StoredJob:
        """As in Journal. A body that is not in memory is read on the spot."""
        stored = super().stored(job)
        if stored.body is NOT_IN_MEMORY:
            place = self._log.place_to_read(job)
            try:
                stored.body = BodyReader(self.directory).read_one(place)
            finally:
                self._log.release(place)
        return stored

    # Commits

    async def commit(self) -> None:
        async with self._writing:
            await self._write(sync=not self.sync_interval)
        self._schedule_sync()
        self._schedule_upkeep()

    def begin_commit(self, may_wait: bool, on_end: OnCommit) -> bool:
        if not self._can_begin_commit or self._failure is not None or not _acquire(self._writing):
            return False
        try:
            batches = self._take()
        except Exception:
            self._writing.release()
            raise
        write = partial(self._writer.write, batches, not self.sync_interval)
        if self._should_write_here(batches, may_wait):
            began = self._clock()
            error: BaseException | None = None
            try:
                write()
            except BaseException as raised:  # of any kind, as in the thread
                error = raised
            self._end_commit(batches, began, on_end, error)
        else:
            may_wait_for_thread = may_wait and self._commit_time < COMMIT_WAIT * SECOND
            self._write_thread.begin(
                write,
                partial(self._end_commit, batches, self._clock() if may_wait else NOT_TIMED, on_end),
                COMMIT_WAIT if may_wait_for_thread else 0.0,
            )
        return True

    def _should_write_here(self, batches: list[CommitBatch], may_wait: bool) -> bool:
        """Whether the event loop should write: not if it has something else to do during a sync, and not if a segment
        begins, which takes several syncs."""
        if not self._may_hold_loop or self._commit_time >= LOOP_LIMIT:
            return False
        return (may_wait or self.sync_interval != 0) and all(batch.spare is None for batch in batches)

    def _end_commit(
        self, batches: list[CommitBatch], began: int, on_end: OnCommit, error: BaseException | None
    ) -> None:
        if error is None:
            self._log.confirm(batches, None if self.sync_interval else self._writer.tail)
        else:
            self._note_failure(error)
        self._writing.release()
        if began != NOT_TIMED:
            took = self._clock() - began
            self._commit_time = max(took, self._commit_time + ((took - self._commit_time) >> 4))
        if error is None:
            try:
                on_end(None)  # first: it sends replies
            finally:
                self._schedule_sync()
                self._schedule_upkeep()
        else:
            on_end(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _schedule_sync(self) -> None:
        if self.sync_interval > 0 and self._sync_timer is None and not self._closing:
            self._sync_timer = asyncio.get_running_loop().call_later(self.sync_interval / 1000, self._begin_sync)

    async def _write(self, *, sync: bool) -> None:
        """Write all changes so far; the caller holds `_writing`."""
        if self._failure is not None:
            raise self._failure
        await self._write_batches(self._take(), sync=sync)

    def _take(self) -> list[CommitBatch]:
        try:
            now = self._clock()
            if now >= self._next_look:
                self._next_look = now + LOCK_INTERVAL
                if not self.directory.keeps_lock():
                    raise OSError(errno.ENOLCK, LOST_LOCK, str(self.directory.path / "lock"))
            return self._log.take(self._wall_clock(), self.clock_offset())
        except Exception as error:  # what is left of them is not known
            self._failure = error
            raise

    async def _write_batches(self, batches: list[CommitBatch], *, sync: bool) -> None:
        try:
            await self._in_write_thread(partial(self._writer.write, batches, sync))
        except BaseException as error:
            self._note_failure(error)
            raise
        self._log.confirm(batches, self._writer.tail if sync else None)

    def _begin_sync(self) -> None:
        self._sync_timer = None
        self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        try:
            async with self._writing:
                await self._write(sync=True)
        except Exception as error:
            self._fail(error)

    def _note_failure(self, error: BaseException) -> None:
        """Write nothing more: after a failure, nothing is known about the disk."""
        self._failure = error

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        if self.on_failure is not None:
            self.on_failure(error)

    def _fail_to_read(self, error: Exception) -> None:
        """Fail because of a body. Nothing that was written is lost, so `close` writes the last of the log."""
        if self._failure is None:
            self._unreadable = error
        self._fail(error)

    # Upkeep: make room ahead, and remove garbage

    def _schedule_upkeep(self) -> None:
        """Start the upkeep, unless it is running or has nothing to do."""
        if self._upkeep is not None or self._closing:
            return
        if self._room.next_step(self._allocator.may_try()) != NOTHING:
            self._upkeep = asyncio.get_running_loop().create_task(self._run_upkeep())
        else:
            self._schedule_retry()

    def _schedule_retry(self) -> None:
        """If changes have to wait and the upkeep can do nothing, try again when the disk may have room."""
        if self._room.admits != ALL and self._retry_timer is None and not self._closing:
            self._retry_timer = asyncio.get_running_loop().call_later(RETRY_INTERVAL / 1e9, self._retry_upkeep)

    def _retry_upkeep(self) -> None:
        self._retry_timer = None
        self._schedule_upkeep()

    async def _run_upkeep(self) -> None:
        allocations = 16 + 2 * len(self._log.segments)  # cleaning all segments takes fewer; so the loop ends
        try:
            while not self._closing and self._failure is None:
                if self._room.pending > COMMIT_LIMIT:  # commit what is moved in pieces: no client waits long
                    async with self._writing:
                        await self._write(sync=not self.sync_interval)
                step = self._room.next_step(self._allocator.may_try() and allocations > 0)
                if step == NOTHING:
                    break
                if step == ALLOCATE:
                    allocations -= 1
                    await self._allocate()
                elif step == DROP_SPARE:
                    spare = self._room.drop_spare()
                    with suppress(FileNotFoundError):  # it has been removed already
                        await self._in_thread(partial(self.directory.remove, spare.name))
                elif step == SEAL:
                    self._log.seal()
                    async with self._writing:
                        await self._write(sync=True)
                elif self._log.clean():
                    await self._remove_oldest()
                elif self._log.wanted:
                    await self._lend_bodies()
                else:
                    await asyncio.sleep(0)
        except Exception as error:
            self._fail(error)
        finally:
            self._upkeep = None
        if self._failure is None:
            self._schedule_retry()

    async def _lend_bodies(self) -> None:
        try:
            bodies = await self._in_thread(partial(self._cleaning_reader.read, self._log.wanted))
        except OSError as error:
            self._fail_to_read(error)
        else:
            self._log.lend(bodies)

    async def _allocate(self) -> None:
        allocator = self._allocator
        for size in allocator.sizes(self._room.spare_size()):
            try:
                spare = await self._in_thread(partial(allocator.create, allocator.next_name(), size, fill=True))
            except OSError as error:
                allocator.note_full(error)
            else:
                allocator.add(spare)
                return

    async def _remove_oldest(self) -> None:
        """Remove the oldest segment, which has no live job, once everything recorded after it is on the disk."""
        async with self._writing:
            await self._write(sync=True)
            # Record that it is on the disk: a bit that flips there later must not pass for a torn write.
            await self._write_batches(self._log.checkpoint(self._wall_clock(), self.clock_offset()), sync=False)
        segment = self._log.remove_oldest()
        await self._fetches.wait_for(segment)
        if not self._room.should_recycle(segment.size):
            await self._in_thread(partial(self._writer.remove, segment))
            return
        name = self._allocator.next_name()
        await self._in_thread(partial(self._writer.recycle, segment, name))
        self._room.add_spare(Spare(name, segment.size))

    def _make_room(self, record_size: int) -> bool:
        """Make room for a record of this many bytes on the spot, well within a millisecond; False if there is none."""
        may_try = self._allocator.may_try()
        while size := self._room.spare_needed(record_size):
            if not may_try or not self._allocator.allocate(size):
                return False
        return True

    # The end

    async def close(self) -> None:
        self._closing = True
        for timer in (self._sync_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._fetches.close()
        for task in (self._upkeep, self._syncing, self._fetches.task):
            if task is not None:
                await task
        await self._end_log()
        self._write_thread.close()
        if self._threads is not None:
            self._threads.shutdown()
        self._fetching_reader.close()
        self._writer.close()
        self.directory.unlock()

    async def _end_log(self) -> None:
        """Write the last changes, and that the stop was a clean one, unless the binlog has failed."""
        async with self._writing:  # even after a failure: no file may be closed during a write
            if self._is_ready and self._failure is self._unreadable:
                self._failure = None  # a commit after a damaged one tells the next start that it was whole
                await self._write_last()
                if self._unreadable is not None:
                    self._failure = self._unreadable

    async def _write_last(self) -> None:
        try:
            await self._write(sync=True)
            await self._write_batches(self._log.checkpoint(self._wall_clock(), self.clock_offset()), sync=True)
            await self._leave_mark()
        except Exception as error:
            self._fail(error)

    async def _leave_mark(self) -> None:
        segments = self._log.segments
        end, first = (segments[-1].end, segments[0].sequence) if segments else (0, 0)
        mark = Mark(self._log.sequence, end, self._log.commit_number, first)
        try:
            await self._in_thread(partial(write_mark, self.directory, mark))
        except OSError as error:
            path = self.directory.path / STOPPED
            logger.info(
                "%(path)s: cannot write: %(error)s; no job is lost",
                event("stop-mark-unwritten", path=path, error=error.strerror),
            )

    async def _in_own_thread(self, work: Callable[[], T]) -> T:
        if self._threads is None:
            # One makes room and removes files, and one reads bodies.
            self._threads = ThreadPoolExecutor(2, "binlog")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _acquire(lock: asyncio.Lock) -> bool:
    """Acquire a lock if that needs no wait: no task has it, or has waited for it and is about to get it."""
    acquiring = lock.acquire()
    try:
        acquiring.send(None)
    except StopIteration:
        return True
    acquiring.close()
    return False
