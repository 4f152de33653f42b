"""How a commit of the binlog ends: while the event loop waits, or beside it when the disk takes longer."""

import asyncio
import contextlib
import errno
import struct
import threading

import pytest
from binlog_process import BinlogProcess
from memory_disk import MemoryDirectory
from virtual import put

from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage import binlog as binlogs
from harness.waiting import WITHIN, eventually_async

pytestmark = pytest.mark.interpreted


class SlowDirectory(MemoryDirectory):
    """A disk whose syncs can be made to last until the test ends them."""

    def __init__(self):
        super().__init__()
        self.quick = threading.Event()
        self.quick.set()
        self.failing = None
        self.takes = 0  # how long a write or a sync takes by the clock of the process, in nanoseconds
        self.touched_by = []  # the thread of each write and sync
        self.process = None

    def touch(self, operation):
        super().touch(operation)
        if self.process is not None and operation in ("write", "sync"):
            self.process.now += self.takes
            self.touched_by.append(threading.current_thread())
        if operation == "sync":
            assert self.quick.wait(WITHIN), "the test has ended the sync"
            if self.failing is not None:
                raise self.failing


class Process(BinlogProcess):
    """On such a disk, with commits as the server begins them."""

    def __init__(self, directory, **options):
        super().__init__(directory, in_thread=None, **options)
        directory.process = self
        self.ended = []

    def put(self):
        put(self.broker, self.client)

    def begin_commit(self, may_wait=True):
        return self.binlog.begin_commit(may_wait, self.ended.append)

    async def commits(self, count):
        await eventually_async(lambda: len(self.ended) == count, f"the end of {count} commits")

    async def commit_quickly(self):
        """Let the binlog see that the disk is quick."""
        assert not await self.commit_here()

    async def commit_here(self, may_wait=True):
        """Commit; return whether the event loop has written, and not a thread."""
        self.directory.touched_by.clear()
        count = len(self.ended) + 1
        self.put()
        assert self.begin_commit(may_wait)
        await self.commits(count)
        (thread,) = set(self.directory.touched_by)
        return thread is threading.current_thread()

    async def come_to_the_loop(self):
        """Commit until the event loop does it; return how many times a thread did."""
        for count in range(1000):
            if await self.commit_here():
                return count
        raise AssertionError("a thread still commits")


@pytest.fixture
def directory():
    return SlowDirectory()


@pytest.fixture
def sync_interval():
    return 0.0


@pytest.fixture
@contextlib.asynccontextmanager
async def process(directory, sync_interval, monkeypatch):
    """A process over a quick disk; the event loop waits for it, even if the machine is busy."""
    monkeypatch.setattr(binlogs, "COMMIT_WAIT", WITHIN)
    process = Process(directory, sync_interval=sync_interval)
    try:
        yield process
    finally:
        directory.quick.set()
        await process.binlog.close()


@pytest.mark.parametrize("sync_interval", [0.0, 3_600_000.0, binlogs.NO_SYNC])
async def test_the_event_loop_waits_for_a_quick_disk(process):
    await process.commit_quickly()
    for count in range(2, 5):
        process.put()
        assert process.begin_commit()
        assert process.ended == [None] * count


async def test_the_first_commit_holds_nobody_because_the_disk_may_be_slow(process, directory):
    directory.quick.clear()
    process.put()
    assert process.begin_commit()
    assert process.ended == []
    directory.quick.set()
    await process.commits(1)


async def test_a_commit_that_may_not_wait_goes_on_beside_the_event_loop(process, directory):
    await process.commit_quickly()
    directory.quick.clear()
    process.put()
    assert process.begin_commit(may_wait=False)
    assert process.ended == [None]
    directory.quick.set()
    await process.commits(2)


async def test_a_disk_that_becomes_slow_holds_the_event_loop_once_and_for_the_wait_alone(
    process, directory, monkeypatch
):
    await process.commit_quickly()
    monkeypatch.setattr(binlogs, "COMMIT_WAIT", 0.001)
    waits = []
    begin = process.binlog._write_thread.begin
    monkeypatch.setattr(
        process.binlog._write_thread,
        "begin",
        lambda work, on_end, wait=0.0: (waits.append(wait), begin(work, on_end, wait)),
    )
    now = [SECOND]
    monkeypatch.setattr(process.binlog, "_clock", lambda: now[0])
    process.binlog._commit_time = 700_000  # a thread commits, and is waited for
    for count in range(2, 5):
        directory.quick.clear()
        process.put()
        assert process.begin_commit()
        assert len(process.ended) == count - 1, "the loop goes on while the disk is busy"
        now[0] += 50_000_000
        directory.quick.set()
        await process.commits(count)
    assert waits == [0.001, 0.0, 0.0]


@pytest.mark.parametrize("sync_interval", [0.0, 3_600_000.0, binlogs.NO_SYNC])
async def test_the_event_loop_commits_while_the_disk_is_quick_and_a_slow_commit_ends_that_at_once(process, directory):
    directory.takes = binlogs.LOOP_LIMIT // 8
    assert await process.come_to_the_loop() > 1, "the disk may be slow: it has to show that it is not"
    for _ in range(10):
        assert await process.commit_here()
    directory.takes = binlogs.LOOP_LIMIT
    assert await process.commit_here(), "this is not known before"
    assert not await process.commit_here()
    directory.takes = 0
    few = await process.come_to_the_loop()
    directory.takes = 200 * binlogs.LOOP_LIMIT
    assert await process.commit_here()
    directory.takes = 0
    assert await process.come_to_the_loop() > 5 * max(few, 1), "after a long one, a thread commits for longer"


@pytest.mark.parametrize("sync_interval", [0.0, 3_600_000.0, binlogs.NO_SYNC])
async def test_a_busy_event_loop_writes_but_does_not_sync(process, sync_interval):
    await process.come_to_the_loop()
    assert await process.commit_here(may_wait=False) is (sync_interval != 0)


async def test_what_a_commit_takes_beside_a_busy_event_loop_says_nothing_about_the_disk(process, directory):
    await process.come_to_the_loop()
    directory.takes = binlogs.LOOP_LIMIT
    assert not await process.commit_here(may_wait=False)
    directory.takes = 0
    assert await process.commit_here()


@pytest.mark.parametrize("sync_interval", [0.0, binlogs.NO_SYNC])
async def test_a_thread_begins_each_segment(process):
    await process.come_to_the_loop()
    process.log.seal()
    assert not await process.commit_here()
    assert await process.commit_here()


@pytest.mark.parametrize("is_quick", [False, True])
async def test_a_commit_that_fails_says_why_and_no_other_begins(process, directory, is_quick):
    await (process.come_to_the_loop() if is_quick else process.commit_quickly())
    before = len(process.ended)
    failures = []
    process.binlog.on_failure = failures.append
    directory.failing = OSError(errno.EIO, "Input/output error")
    process.put()
    assert process.begin_commit()
    assert process.ended[before:] == [directory.failing]
    process.put()
    assert not process.begin_commit()
    with pytest.raises(OSError, match="Input/output error"):
        await process.binlog.commit()


async def test_a_commit_that_cannot_be_put_together_is_a_failure_and_nothing_waits_for_it(process):
    await process.commit_quickly()
    process.broker.next_id = 2**64 - 1  # the id after it does not fit into a record
    process.put()
    with pytest.raises(struct.error) as caught:
        process.begin_commit()
    assert not process.begin_commit()
    with pytest.raises(struct.error) as again:
        await process.binlog.commit()
    assert again.value is caught.value


async def test_while_the_upkeep_writes_a_commit_waits_in_a_task(process):
    await process.commit_quickly()
    process.put()
    async with process.binlog._writing:
        assert not process.begin_commit()
    assert process.begin_commit()
    assert process.ended == [None, None]


async def test_what_a_begun_commit_has_written_survives(process, directory):
    for count in range(1, 4):
        process.put()
        assert process.begin_commit()
        await process.commits(count)
    found = Process(directory.after_a_crash(None))
    assert len(found.broker.jobs) == 3
    await found.binlog.close()


@pytest.mark.parametrize("sync_interval", [1.0])
async def test_what_a_commit_has_only_written_is_synced_within_the_interval_every_time(process, directory):
    for count in range(1, 4):
        process.put()
        await process.binlog.commit()
        await eventually_async(lambda: not directory.nodes["segment.0000000001"].pending, f"the sync of put {count}")
    found = Process(directory.after_a_crash(None))
    assert len(found.broker.jobs) == 3
    await found.binlog.close()


@pytest.mark.parametrize("sync_interval", [1.0])
async def test_it_is_synced_also_if_what_follows_from_the_commit_fails(process, directory):
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def fail(error):
        process.ended.append(error)
        raise RuntimeError("a bug")

    process.put()
    await process.binlog.commit()
    await eventually_async(lambda: not directory.nodes["segment.0000000001"].pending, "the first sync")
    process.put()
    assert process.binlog.begin_commit(False, fail)
    await process.commits(1)
    await eventually_async(lambda: not directory.nodes["segment.0000000001"].pending, "the sync after the failure")


async def test_a_commit_does_not_overtake_who_waits_for_the_end_of_another_write(process):
    writing = process.binlog._writing
    held = []

    async def write(name):
        async with writing:
            held.append(name)
            await asyncio.sleep(0)

    await writing.acquire()
    waiting = asyncio.create_task(write("the sync"))
    await asyncio.sleep(0)
    writing.release()
    process.put()
    assert not process.begin_commit(), "the lock is free, but promised"
    await waiting
    assert process.begin_commit()
    await process.commits(1)
    assert held == ["the sync"]
    assert not writing.locked()


@pytest.mark.parametrize("sync_interval", [1.0])
async def test_a_sync_that_fails_while_the_binlog_closes_is_a_failure(process, directory):
    failures = []
    process.binlog.on_failure = failures.append
    process.put()
    await process.binlog.commit()
    directory.quick.clear()
    await eventually_async(lambda: process.binlog._syncing is not None, "the sync of what was acknowledged")
    await asyncio.sleep(0)
    closing = asyncio.create_task(process.binlog.close())
    await asyncio.sleep(0)
    directory.failing = OSError(errno.EIO, "Input/output error")
    directory.quick.set()
    await closing
    assert failures == [directory.failing]
