"""What the log counts of jobs with terms, held keys and groups: their records become longer, or shorter, when moved."""

import asyncio
import random

import pytest
from binlog_process import BinlogProcess
from effort import seeded
from memory_disk import MemoryDirectory
from virtual import put, reserve_job

from beanstalk_server.queue.job import NOT_IN_MEMORY, READY
from beanstalk_server.queue.outcome import DONE, REPLACED, TOO_LATE
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Labels, Policy
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.record import PUT_SIZE
from beanstalk_server.storage.recovery import recover
from harness.waiting import eventually_async

pytestmark = pytest.mark.usefixtures("bodies")

SEGMENT = 8192
POLICIES = {
    "again": Policy(backoff=SECOND),
    "tried": Policy(max_tries=1, dead_tube="a-dead-tube-with-a-long-name"),
    "held": Policy(key_hold=1000 * SECOND),
}


class Process(BinlogProcess):
    def __init__(self, directory, now=SECOND):
        super().__init__(directory, now, lambda name: POLICIES.get(name, NO_POLICY), segment_size=SEGMENT)
        self.check()

    def put(self, tube, size, key=""):
        self.broker.use(self.client, tube)
        return put(self.broker, self.client, body=bytes(size), now=self.now, key=key)

    def put_limited(self, count, limit="l", key="", tube="limited"):
        self.broker.use(self.client, tube)
        labels = Labels(limit=limit, limit_count=count)
        attributes = Attributes(key=key, replaces=bool(key), labels=labels)
        outcome = self.broker.put_with(self.client, attributes, 0, 0, 100 * SECOND, b"", self.now, self.now)
        assert outcome in (DONE, REPLACED, TOO_LATE)  # the last if the job with this key is reserved

    def numbers(self):
        """The number of each limit."""
        return {name: limit.count for name, limit in self.broker.limits.items()}

    def move(self, old, new, bound):
        """Move ready jobs, the first ones first."""
        return self.broker.move(self.client, old, READY, new, bound, self.now)

    def release(self, number):
        assert reserve_job(self.broker, self.client, number, self.now)
        return self.broker.release(self.client, number, 0, 0, self.now)

    async def churn(self):
        """Make garbage until every segment that there is has been cleaned."""
        last = self.log.sequence
        while self.log.segments[0].sequence <= last:
            assert await self.room()
            assert self.put("other", 900) == DONE
            assert self.broker.delete(self.client, self.broker.next_id - 1, self.now) == DONE
            await self.commit()

    def restarted(self, now=SECOND):
        self.check()
        return Process(self.directory.after_a_kill(), now)


async def test_a_held_key_costs_the_disk_no_body():
    process = Process(MemoryDirectory())
    for number in range(20):
        assert process.put("held", 3000, f"k{number}") == DONE
        await process.commit()
    assert process.log.room.live_size > 60_000
    for number in range(1, 21):
        assert await process.room()
        assert process.broker.delete(process.client, number, process.now) == DONE
        await process.commit()
    live_size = process.log.room.live_size
    assert 20 * PUT_SIZE < live_size < 20 * (PUT_SIZE + 12)
    again = process.restarted()
    assert again.log.room.live_size == live_size, "a restart counts the same"
    await process.churn()
    assert process.log.room.live_size == live_size, "what cleaning has written is what was counted"
    again = process.restarted()
    assert again.log.room.live_size == live_size
    assert sorted(job.key for job in again.broker.held.values()) == sorted(f"k{number}" for number in range(20))
    assert not again.broker.jobs
    process.now += 1000 * SECOND
    process.broker.advance(process.now)
    await process.commit()
    assert process.log.room.live_size == 0
    assert not process.restarted().broker.held


@pytest.mark.parametrize("tube", ["again", "tried"])
async def test_what_jobs_will_grow_by_is_known_before_they_are_moved(tube):
    process = Process(MemoryDirectory())
    for _ in range(100):
        assert process.put(tube, 10) == DONE
    await process.commit()
    room = process.log.room
    live_size, growth = room.live_size, room.growth
    assert growth == 0
    for number in range(1, 101):
        assert await process.room()
        process.release(number)
    await process.commit()
    grown = room.live_size + room.growth
    assert room.growth
    assert grown - live_size == 100 * (6 if tube == "again" else 6 + 1 + len("tried") + 28 - len("tried"))
    again = process.restarted()
    assert again.log.room.live_size + again.log.room.growth == grown, "a restart counts the same"
    await process.churn()
    assert (room.live_size, room.growth) == (grown, 0), "what cleaning has written is what was counted"
    assert process.restarted().log.room.live_size == grown


async def test_a_body_that_is_not_in_memory_is_found_after_its_job_has_moved_and_lost_its_key():
    process = Process(MemoryDirectory())
    assert process.put("a-dead-tube-with-a-long-name", 1, "key") == DONE
    assert process.put("tried", 700, "key") == DONE
    await process.commit()
    assert process.release(2) == DONE
    process = process.restarted()
    job = process.broker.jobs[2]
    assert (job.tube.name, job.key) == ("tried", "key"), "it was not acknowledged"
    process.release(2)
    await process.commit()
    for each in (process, process.restarted()):
        job = each.broker.jobs[2]
        assert (job.tube.name, job.key, job.terms().origin) == ("a-dead-tube-with-a-long-name", "", "tried")
        assert each.binlog.body_size(job) == 700
        assert each.binlog.stored(job).body == bytes(700)
        fetched = []
        if job.body is NOT_IN_MEMORY:
            each.binlog.fetch([job], lambda job=job, fetched=fetched: fetched.append(job.body))
            await eventually_async(lambda fetched=fetched: fetched, "the body is there")
            assert fetched == [bytes(700)]


async def test_a_body_that_is_not_in_memory_has_its_size_after_its_job_has_lost_its_key_at_the_start():
    process = Process(MemoryDirectory())
    for size in (700, 300):
        assert process.put("default", size, "a-key") == DONE
        process.broker.tubes.default.keys.remove(process.broker.jobs[process.broker.next_id - 1])  # a bug
    await process.commit()
    process = Process(process.directory.after_a_kill())
    assert [process.broker.jobs[number].key for number in (1, 2)] == ["", "a-key"]
    assert [process.broker.body_size(process.broker.jobs[number]) for number in (1, 2)] == [700, 300]
    for number in (1, 2):
        process.release(number)
        await process.commit()
    assert process.broker.tubes.default.bytes == 1000
    process = process.restarted()
    await process.churn()
    assert process.broker.tubes.default.bytes == 1000
    assert process.restarted().broker.tubes.default.bytes == 1000
    for number in (1, 2):
        assert process.broker.delete(process.client, number, process.now) == DONE
    assert process.broker.tubes.default.bytes == process.broker.memory.used == 0
    assert process.log.room.live_size == 0
    process.check()


def test_jobs_that_fail_on_a_full_disk_end_nothing():
    """Not even if all of them grow by more than the headroom: then changes wait until something is deleted."""

    async def work(tube, size):
        process = Process(MemoryDirectory(capacity=6 * SEGMENT))
        process.now += SECOND
        count = 0
        while process.put(tube, size) == DONE:
            count += 1
            await process.commit()
        waits = 0
        for number in range(1, count + 1):
            while not await process.room():
                waits += 1
                deleted = max(process.broker.jobs)
                assert process.broker.delete(process.client, deleted, process.now) == DONE
            if number in process.broker.jobs:
                process.release(number)
                await process.commit()
        assert len(process.broker.jobs) + waits == count
        again = process.restarted()
        assert set(again.broker.jobs) == set(process.broker.jobs)
        return waits, count

    waits, _ = asyncio.run(work("again", 100))
    assert waits == 0, "six bytes for each job are less than the headroom"
    waits, count = asyncio.run(work("tried", 0))
    assert waits < count // 2


async def test_what_a_group_has_counted_outlives_the_records_that_said_so():
    process = Process(MemoryDirectory())
    broker, client = process.broker, process.client
    broker.use(client, "grouped")
    for number in range(40):
        labels = Labels(group=f"g{number % 4}", after="g0" if number % 4 == 3 else "")
        assert await process.room()
        done = broker.put_with(client, Attributes(labels=labels), 0, 0, SECOND, bytes(100), process.now, process.now)
        assert done == DONE
        await process.commit()
    for number in (1, 3, 5, 7):  # a group has the second id, and so on
        members = list(broker.groups.get(f"g{number % 4}").members)
        for job in members[: len(members) // 2]:
            assert await process.room()
            assert reserve_job(broker, client, job.id, process.now)
            assert broker.delete(client, job.id, process.now) == DONE
        await process.commit()
        await process.churn()
        process.check()
        again = process.restarted().broker
        for group in broker.groups.values():
            other = again.groups.get(group.key)
            assert (other.done, other.cancelled, other.id) == (group.done, group.cancelled, group.id)
            assert sorted(job.id for job in other.members) == sorted(job.id for job in group.members)
    assert sum(group.done for group in broker.groups.values()) > 10
    assert process.log.migrated > 40


@pytest.mark.parametrize("is_clean", [False, True])
async def test_a_time_to_live_begins_once_while_segments_come_and_go(is_clean):
    """Of a job that was reserved when the process ended, by a kill or a clean stop."""

    process = Process(MemoryDirectory())
    process.broker.use(process.client, "mortal")
    attributes = Attributes(ttl=100 * SECOND)
    for _ in range(2):
        assert process.broker.put_with(process.client, attributes, 0, 0, SECOND, b"", process.now, process.now) == DONE
    assert reserve_job(process.broker, process.client, 2, process.now)
    await process.commit()
    begun = SECOND, SECOND + 3 * SECOND  # the second with the next process
    for start in range(4):
        now = process.now + 3 * SECOND
        if is_clean:
            process.broker.halt()
            process.broker.disconnect(process.client, process.now, False)
            await process.binlog.close()
        process = process.restarted(now)
        process.broker.advance(now)
        assert tuple(process.broker.jobs[number].own_terms().ready_since for number in (1, 2)) == begun
        assert await process.room()
        process.broker.advance(now)  # if the binlog had no room to record it before
        await process.commit()
        if start >= 2:  # cleaning writes the job once more: not before its record has to say it
            await process.churn()


@pytest.mark.parametrize("numbers", [(1, 3), (3, 1)])
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_limit_keeps_the_number_of_the_last_put_while_segments_come_and_go(numbers, is_deleted):
    """Also if the job of that put is gone, and when cleaning has written the others once more, in another order."""

    process = Process(MemoryDirectory())
    process.put_limited(numbers[0], key="first")
    process.put_limited(numbers[0])
    if is_deleted:
        process.put_limited(numbers[1])
        assert process.broker.delete(process.client, process.broker.next_id - 1, process.now) == DONE
    else:
        process.put_limited(numbers[1], key="first")  # it replaces the oldest
    await process.commit()
    for _ in range(3):
        process = process.restarted()
        assert process.numbers() == {"limited/l": numbers[1]}
        await process.churn()
    assert process.restarted().numbers() == {"limited/l": numbers[1]}


@pytest.mark.parametrize(
    ("steps", "numbers"),
    [
        ("put a 1, put a 2, move a b 2", {"b/l": 2}),  # it has the number that its limit had, not that of its own put
        ("put a 1, put a 2, move a b 1", {"a/l": 2, "b/l": 2}),
        ("put b 7, put a 2, move a b 1", {"b/l": 7}),
        ("put b 7, put a 2, move a b 1, delete 1", {"b/l": 7}),
        ("put b 7, delete 1, put a 2, move a b 1", {"b/l": 2}),
        ("put a 2, move a b 1, put b 7, delete 2", {"b/l": 7}),
        ("put a 2, move a b 1, put a 3, move b a 1", {"a/l": 3}),
    ],
)
async def test_a_limit_of_jobs_that_have_moved_keeps_its_number_while_segments_come_and_go(steps, numbers):
    process = Process(MemoryDirectory())
    for step in steps.split(", "):
        match step.split():
            case "put", tube, count:
                process.put_limited(int(count), tube=tube)
            case "delete", job_id:
                assert process.broker.delete(process.client, int(job_id), process.now) == DONE
            case "move", old, new, bound:
                process.move(old, new, int(bound))
    assert process.numbers() == numbers
    await process.commit()
    for _ in range(3):
        process = process.restarted()
        assert process.numbers() == numbers
        await process.churn()
    assert process.restarted().numbers() == numbers


@seeded(3)
async def test_every_limit_keeps_its_number_whatever_becomes_of_its_jobs(seed):
    rng = random.Random(seed)
    process = Process(MemoryDirectory())
    for _ in range(6):
        for _ in range(rng.randrange(1, 40)):
            assert await process.room()
            jobs = list(process.broker.jobs.values())
            if len(jobs) < 3 or rng.random() < 0.5:
                key, tube = rng.choice(("", "k1", "k2")), rng.choice(("limited", "a", "b"))
                process.put_limited(rng.randrange(1, 5), rng.choice(("l", "m", "a/l")), key, tube)
            elif rng.random() < 0.3:
                process.move(*rng.sample(("limited", "a", "b"), 2), rng.randrange(1, 4))
            elif rng.random() < 0.3:
                reserve_job(process.broker, process.client, rng.choice(jobs).id, process.now)
            else:
                process.broker.delete(process.client, rng.choice(jobs).id, process.now)
        await process.commit()
        if rng.random() < 0.5:
            await process.churn()
        numbers = process.numbers()
        process = process.restarted()
        assert process.numbers() == numbers


async def test_a_replay_gives_all_jobs_the_number_of_their_limit():
    """So what is written from it, in any order, has that: a salvaged binlog, an export of a cluster."""

    process = Process(MemoryDirectory())
    for number in (2, 1, 3):
        process.put_limited(number)
    assert process.broker.delete(process.client, 3, process.now) == DONE
    await process.commit()
    replay = Replay(IdTable())
    directory = process.directory.after_a_kill()
    recover(directory, replay, salvage=False, segment_size=SEGMENT, draw_salt=lambda: 5)
    assert {job.id: job.own_labels().limit_count for job in replay.jobs.values()} == {1: 3, 2: 3}


def test_jobs_that_have_moved_in_a_binlog_of_version_4_have_a_number():
    """Its changes do not say which. The limit of the new tube keeps its number if it has one."""
    for counts, expected in (((1, 3), 3), ((1, 3, 7), 7)):
        replay = Replay(IdTable())
        for job_id, count in enumerate(counts, 1):
            tube = "b" if job_id == 3 else "a"
            replay.put(StoredJob(job_id, tube, has_terms=True, limit="l", limit_count=count))
        for job_id in (2, 1):
            replay.change(StoredJob(job_id, "b", has_terms=True))
        replay.finish(b"")
        assert {job.own_labels().limit_count for job in replay.jobs.values()} == {expected}
