"""A clear is one change: after a crash, all of it has happened or none of it, and a key never names two jobs."""

import asyncio
import contextlib
import logging
import random

import pytest
from binlog_process import BinlogProcess
from checking import check_broker
from memory_disk import Crash, MemoryDirectory
from virtual import RecordingClient, put, reserve_job

from beanstalk_server.queue.outcome import DONE, OUT_OF_MEMORY, PENDING
from beanstalk_server.queue.units import SECOND

pytestmark = pytest.mark.usefixtures("bodies")

MANY = 1300
"""More jobs than two slices of a clear."""


class Process(BinlogProcess):
    """With a second client."""

    def __init__(self, directory, segment_size=65536):
        super().__init__(directory, segment_size=segment_size)
        self.check()
        self.other = RecordingClient(self.broker)

    def put(self, key="", body=b"x", delay=0):
        assert put(self.broker, self.client, delay=delay, body=body, key=key) == DONE
        return self.broker.next_id - 1

    def reserve(self, *numbers):
        for number in numbers:
            assert reserve_job(self.broker, self.other, number, SECOND)

    def clear(self):
        """Clear the default tube; return the outcome, and the answers that the client has by then."""
        self.client.answers.clear()
        return self.broker.clear(self.client, "default"), self.client.answers

    def advance(self):
        while self.broker.next_event() <= SECOND:
            self.broker.advance(SECOND)
            self.check()

    def keys(self):
        return {job.id: job.key for job in self.broker.jobs.values()}


@pytest.fixture
def directory():
    return MemoryDirectory()


def come_back(directory):
    """Start on a directory; return the key of each job by its id."""
    return Process(directory).keys()


async def clear_and_take_the_key(directory):
    """Stop in the middle of a clear in slices, after a freed key was given again and acknowledged."""
    process = Process(directory)
    for number in range(MANY):
        process.put(f"k{number}")
    process.reserve(3, 700)
    await process.binlog.commit()
    assert process.clear() == (PENDING, [])
    assert process.put("k0") == MANY + 1
    await process.binlog.commit()
    return process


LEFT = {3: "k2", 700: "k699", MANY + 1: "k0"}


async def test_a_process_that_is_killed_in_the_middle_of_a_clear_has_cleared(directory):
    await clear_and_take_the_key(directory)
    assert come_back(directory.after_a_kill()) == LEFT


async def test_a_process_that_stops_in_the_middle_of_a_clear_has_cleared(directory):
    process = await clear_and_take_the_key(directory)
    await process.binlog.close()
    assert come_back(directory) == LEFT


async def test_jobs_of_a_client_that_is_gone_are_not_cleared_while_they_are_returned(directory):
    process = Process(directory)
    for _ in range(MANY):
        process.put()
    process.reserve(*range(1, MANY))
    process.broker.disconnect(process.other, SECOND)
    returned = process.broker.tubes.default.ready.jobs[0].id
    kept = {job.id for job in process.broker.tubes.default.reserved}
    assert 0 < len(kept) < MANY - 1
    assert returned not in kept
    process.clear()
    await process.binlog.commit()
    process.advance()
    assert set(process.broker.jobs) == kept
    assert set(come_back(directory.after_a_kill())) == kept


def test_a_clear_happens_as_a_whole_or_not_at_all_wherever_the_machine_stops():
    async def work(directory, crash_at):
        process = Process(directory)
        for number in range(MANY):
            process.put(f"k{number}")
        process.reserve(3, 700)
        await process.binlog.commit()
        directory.crash_at = directory.operations + crash_at
        process.clear()
        process.put("k0")
        await process.binlog.commit()
        process.advance()
        process.put("k1")
        await process.binlog.commit()
        await process.settle()
        await process.binlog.close()

    found = []
    for crash_at in range(1, 100):
        directory = MemoryDirectory()
        with contextlib.suppress(Crash):
            asyncio.run(work(directory, crash_at))
        for seed in range(3):
            keys = come_back(directory.after_a_crash(random.Random(seed)))
            found.append(len(keys))
            assert len(set(keys.values())) == len(keys), "a key names one job"
            assert len(keys) in (MANY, 3, 4)
        if not directory.crashed:
            break
    else:
        pytest.fail("it never ends")
    assert set(found) == {MANY, 3, 4}


async def test_a_clear_undoes_nothing_that_came_after_it(directory):
    """Each of two clears keeps what was reserved at its time, and what was put, released or moved afterwards."""

    process = Process(directory, segment_size=4096)
    for _ in range(4):
        process.put(body=bytes(300))
    process.reserve(2, 3)
    assert process.clear() == (DONE, [("counted", 2)])
    process.put(body=bytes(300))
    assert process.broker.release(process.other, 3, 0, 0, SECOND) == DONE
    assert process.clear() == (DONE, [("counted", 2)])
    process.put(delay=SECOND)
    process.broker.use(process.client, "other")
    for _ in range(200):  # until the first segment is cleaned
        number = process.put(body=bytes(300))
        await process.binlog.commit()
        process.broker.delete(process.client, number, SECOND)
        await process.settle()
    process.put()
    await process.binlog.commit()
    assert process.binlog._log.segments[0].sequence > 1
    assert set(come_back(directory.after_a_kill())) == set(process.broker.jobs) == {2, 6, 207}


async def test_cleaning_does_not_bring_back_what_a_clear_has_taken_out(directory):
    process = Process(directory, segment_size=65536)
    for _ in range(MANY):
        process.put(body=bytes(40))
    await process.binlog.commit()
    assert process.clear() == (PENDING, [])
    await process.binlog.commit()
    log = process.binlog._log
    assert len(log.segments) > 1
    while not log.clean():
        log.check()
    await process.binlog.commit()
    assert come_back(directory.after_a_kill()) == {}
    process.advance()
    assert (process.client.answers, log.room.live_size) == ([("counted", MANY)], 0)


async def test_a_clear_that_finds_no_room_changes_nothing(directory):
    process = Process(directory, segment_size=4096)
    for _ in range(2000):
        process.put()
    process.reserve(*range(1, 1999))  # 16 kB to record
    await process.binlog.commit()
    await process.settle()
    directory.capacity = 0
    assert process.clear() == (OUT_OF_MEMORY, [])
    check_broker(process.broker)
    await process.binlog.commit()
    assert len(process.broker.jobs) == len(come_back(directory_with_room(directory))) == 2000
    directory.capacity = 1 << 40
    process.binlog._allocator.full_until = 0
    assert process.clear() == (DONE, [("counted", 2)])
    await process.binlog.commit()
    assert set(come_back(directory.after_a_kill())) == set(range(1, 1999))


def directory_with_room(directory):
    again = directory.after_a_kill()
    again.capacity = 1 << 40
    return again


async def test_a_key_that_names_two_jobs_is_reported_and_the_younger_job_keeps_it(directory, caplog):
    """Such a binlog may come from a server before this version of the format."""

    process = Process(directory)
    process.put("k")
    process.broker.tubes.default.keys.remove(process.broker.jobs[1])  # a bug
    process.put("k")
    await process.binlog.commit()
    caplog.set_level(logging.WARNING)
    assert come_back(directory.after_a_kill()) == {1: "", 2: "k"}
    assert "job 1 loses its key 'k' in tube 'default': job 2 has the same key" in caplog.text
