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


class SlowDirectory(MemoryDirectory):
    """A disk whose syncs can be made to last until the test ends them."""

    def __init__(self):
        super().__init__()
        self.quick = threading.Event()
        self.quick.set()
        self.failing = None

    def touch(self, operation):
        super().touch(operation)
        if operation == "sync":
            assert self.quick.wait(WITHIN), "the test has ended the sync"
            if self.failing is not None:
                raise self.failing


class Process(BinlogProcess):
    """On such a disk, with commits as the server begins them."""

    def __init__(self, directory, **options):
        super().__init__(directory, in_thread=None, **options)
        self.ended = []

    def put(self):
        put(self.broker, self.client)

    def begin_commit(self, may_wait=True):
        return self.binlog.begin_commit(may_wait, self.ended.append)

    async def commits(self, count):
        await eventually_async(lambda: len(self.ended) == count, f"the end of {count} commits")

    async def commit_quickly(self):
        """Let the binlog see that the disk is quick."""
        self.put()
        assert self.begin_commit()
        await self.commits(1)


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
    for count in range(2, 5):
        directory.quick.clear()
        process.put()
        assert process.begin_commit()
        assert len(process.ended) == count - 1, "the loop goes on while the disk is busy"
        now[0] += 50_000_000
        directory.quick.set()
        await process.commits(count)
    assert waits == [0.001, 0.0, 0.0]
    process.put()
    process.begin_commit()
    await process.commits(5)
    process.put()
    process.begin_commit()
    await process.commits(6)
    assert waits[3:] == [0.0, 0.001], "a commit that was quick again: the next one is waited for"


async def test_a_commit_that_fails_says_why_and_no_other_begins(process, directory):
    await process.commit_quickly()
    failures = []
    process.binlog.on_failure = failures.append
    directory.failing = OSError(errno.EIO, "Input/output error")
    process.put()
    assert process.begin_commit()
    assert process.ended == [None, directory.failing]
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
