"""How much of the disk a binlog takes, and what it does when the disk is full.

The tests use a broker with a binlog on a disk in memory. Before each change they wait, as a session does, until the
binlog admits it. Other files may take the rest of the disk at any moment.
"""

import random

import pytest
from binlog_process import BinlogProcess
from effort import seeded
from memory_disk import MemoryDirectory
from virtual import reserve_job

from beanstalk_server.queue.journal import ALL, DELETIONS
from beanstalk_server.queue.outcome import DONE, OUT_OF_MEMORY
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.upkeep import COMMIT_LIMIT

pytestmark = pytest.mark.usefixtures("bodies")


class NoRoomError(Exception):
    """The binlog has no room for this, and will have none as long as the disk is full."""


class Queue(BinlogProcess):
    async def make_room(self, least=ALL):
        if not await self.room(least):
            raise NoRoomError

    async def put(self, size, delay=0):
        """Put a job; return its id, or None when it is refused."""
        await self.make_room(DELETIONS)
        number = self.broker.take_id()
        done = self.broker.put(self.client, number, 0, delay, 100 * SECOND, bytes(size), self.now, self.now) == DONE
        return number if done else None

    async def delete(self, number):
        await self.make_room(DELETIONS)
        assert self.broker.delete(self.client, number, SECOND) == DONE

    async def change(self, number):
        """Let a job be released, buried or kicked, and be ready again."""
        await self.make_room()
        if self.broker.jobs[number].client is None:
            assert reserve_job(self.broker, self.client, number, self.now)
        await self.make_room()
        if number % 2:
            assert self.broker.release(self.client, number, 1, 0, self.now) == DONE
        else:
            assert self.broker.bury(self.client, number, 1, self.now) == DONE
            await self.make_room()
            assert self.broker.kick_job(self.client, number, self.now) == DONE

    def bound(self):
        """What the directory may take, in bytes (docs/binlog.md, guarantee 7)."""
        files = len(self.log.segments) + len(self.log.room.spares)
        return 2 * self.log.room.live_size + 2 * self.log.room.segment_size + 256 * files

    async def stop(self):
        await self.binlog.close()
        assert not self.failures, self.failures

    def restarted(self, is_killed):
        """The next process, after this one was stopped or killed."""
        directory = self.directory.after_a_kill() if is_killed else self.directory
        directory.locked = False
        return Queue(directory, self.now, segment_size=self.log.room.segment_size)


SIZES = (0, 10, 100, 1000, 3000, 4000, 9000, 20_000, 60_000)
SEGMENT_SIZES = (4096, 8192, 12_288, 65_536, 1 << 20)


@seeded(12)
async def test_the_directory_takes_no_more_than_twice_the_live_records_and_two_segments(seed):
    """Whatever the sizes of jobs against those of segments, and however long they live."""
    rng = random.Random(seed)
    segment_size = rng.choice(SEGMENT_SIZES)
    lasting = rng.choices(SIZES, k=rng.randrange(21))
    passing = rng.choices(SIZES, k=rng.randrange(1, 4))
    alive = rng.randrange(1, 31)
    batch = rng.choice((1, 5, 50))

    queue = Queue(MemoryDirectory(), segment_size=segment_size)
    for size in lasting:
        assert await queue.put(size)
    await queue.commit()
    jobs = []
    total = 0
    for count in range(3000):
        size = passing[count % len(passing)]
        total += size + 200
        if total > 40 * segment_size + 4_000_000 * (segment_size > 65_536):
            break
        jobs.append(await queue.put(size))
        assert jobs[-1] is not None
        if len(jobs) > alive:
            await queue.delete(jobs.pop(count * 7919 % len(jobs)))
        if count % batch == 0:
            await queue.commit()
        # Between two commits nothing is cleaned, and what is moved takes its place twice.
        largest = max(segment.size for segment in queue.log.segments)
        assert queue.directory.used() <= 2 * (queue.bound() + largest + segment_size + batch * max(passing))
    await queue.commit()
    assert queue.directory.used() <= queue.bound(), (queue.directory.used(), queue.bound())
    queue.check()
    for number in jobs:
        await queue.delete(number)
    await queue.commit()
    assert queue.directory.used() <= queue.bound()
    await queue.stop()


@seeded(12)
async def test_on_a_full_disk_puts_are_refused_and_all_else_goes_on(seed):
    """No matter how large the jobs are and what fills the disk, and across stops, kills and starts."""
    rng = random.Random(seed)
    segment_size = rng.choice(SEGMENT_SIZES)
    job_sizes = rng.choices(SIZES, k=rng.randrange(1, 4))
    taken_by_others = rng.random() < 0.5
    capacity = rng.randrange(3, 13) * max(segment_size, *[size + 200 for size in job_sizes])

    is_mixed = max(job_sizes) + 200 > segment_size // 4  # of records
    queue = Queue(MemoryDirectory(capacity=capacity), segment_size=segment_size)
    jobs = []

    async def delete(number):
        try:
            await queue.delete(number)
        except NoRoomError:
            assert is_mixed  # rare: nothing fits anywhere, until the disk has room again
            queue.directory.ballast -= 4 * segment_size
            await queue.delete(number)

    most = rng.randrange(1, 30) if taken_by_others else 3000
    while len(jobs) < most:
        number = await queue.put(rng.choice(job_sizes), rng.choice((0, 0, 1000 * SECOND)))
        if number is None:
            break
        jobs.append(number)
        if rng.random() < 0.3:
            await queue.commit()
    await queue.commit()
    for _ in range(3):
        queue.directory.ballast += queue.directory.free()
        for _ in range(200 if jobs else 0):
            try:
                await queue.change(rng.choice(jobs))
            except NoRoomError:
                assert is_mixed  # then changes may have to wait until something is deleted
                break
            if rng.random() < 0.7:
                await queue.commit()
        await queue.commit()
        queue.check()
        is_killed = rng.random() < 0.5
        if not is_killed:
            await queue.stop()
        queue = queue.restarted(is_killed)
        queue.directory.ballast += queue.directory.free()
        if jobs:
            await delete(jobs.pop(rng.randrange(len(jobs))))
            await queue.commit()
        assert sorted(queue.broker.jobs) == sorted(jobs)
    for number in jobs:
        await delete(number)
        if rng.random() < 0.5:
            await queue.commit()
    await queue.commit()
    assert not queue.broker.jobs
    queue.directory.ballast = 0
    queue.now += 2 * SECOND
    assert await queue.put(100), "there is room again"
    await queue.commit()
    queue.check()
    await queue.stop()


@pytest.mark.parametrize("capacity", [2.5, 3.5])
@pytest.mark.parametrize("size", [10, 1000, 5000])
@pytest.mark.parametrize("share", [0.2, 0.94])
async def test_deletions_make_room_for_as_many_puts_on_a_full_disk(capacity, size, share):
    """Even on a disk with room for one segment and one spare."""
    segment_size = 1 << 18

    queue = Queue(MemoryDirectory(capacity=int(capacity * segment_size)), segment_size=segment_size)
    jobs = []

    async def fill():
        while number := await queue.put(size):
            jobs.append(number)
            if len(jobs) % 50 == 0:
                await queue.commit()
        await queue.commit()

    await fill()
    most = len(jobs)
    for number in jobs[: int(most * share)]:
        await queue.delete(number)
    del jobs[: int(most * share)]
    await queue.commit()
    await fill()
    queue.now += 2 * SECOND  # after which a full disk is tried again
    await fill()
    assert len(jobs) > most * 0.9
    queue.check()
    await queue.stop()


@pytest.mark.parametrize("free", [0, 4096, 8192, 16_384])
async def test_on_a_full_disk_without_jobs_no_client_waits(free):
    queue = Queue(MemoryDirectory(capacity=free), segment_size=12_288)
    await queue.commit()
    assert queue.binlog.admits == ALL
    assert await queue.put(10_000) is None
    await queue.stop()


def remove_files(directory, beginning=""):
    """Do what nobody should while a server uses the directory."""
    for name in directory.names():
        if name.startswith(beginning):
            directory.remove(name)


async def test_spares_that_somebody_removes_are_made_anew_when_they_are_needed():
    queue = Queue(MemoryDirectory(), segment_size=4096)
    kept = []
    for size in [20_000, 20_000, *([1000] * 40)]:  # the large spares of large jobs are superfluous later
        remove_files(queue.directory, "spare.")
        kept.append(await queue.put(size))
        await queue.commit()
    for _ in range(35):
        remove_files(queue.directory, "spare.")
        await queue.delete(kept.pop(0))
        await queue.commit()
    queue = queue.restarted(is_killed=True)
    assert sorted(queue.broker.jobs) == kept
    await queue.stop()


async def test_nothing_more_is_acknowledged_when_somebody_has_removed_all_files():
    queue = Queue(MemoryDirectory(), segment_size=4096)
    await queue.put(1000)
    await queue.commit()
    remove_files(queue.directory)

    async def put_more():
        for _ in range(10):
            await queue.put(1000)
            await queue.commit()

    with pytest.raises(FileNotFoundError):
        await put_more()
    await queue.binlog.close()


async def test_starts_without_any_traffic_leave_the_directory_as_it_is():
    queue = Queue(MemoryDirectory(), segment_size=4096)
    assert await queue.put(100)
    await queue.commit()
    used = []
    for number in range(6):
        if number % 2:
            await queue.stop()
        queue = queue.restarted(number % 2 == 0)
        used.append(queue.directory.used())
    assert max(used) < used[0] + 64  # DIR/stopped is new
    await queue.stop()


@pytest.mark.interpreted  # a method is replaced
async def test_cleaning_is_written_in_pieces():
    """So that no client waits for all of it: what is pending never exceeds the limit of a commit by much."""

    queue = Queue(MemoryDirectory(), segment_size=8 << 20)
    jobs = [await queue.put(20_000) for _ in range(1000)]
    await queue.binlog.commit()
    pending = []
    take = queue.log.take
    queue.log.take = lambda *clocks: (pending.append(queue.log.room.pending), take(*clocks))[1]
    for number in jobs[::2]:
        await queue.delete(number)
    await queue.commit()
    assert queue.log.migrated > 100
    assert max(pending) < 2 * COMMIT_LIMIT
    await queue.stop()


async def test_changes_that_outrun_the_upkeep_make_room_on_the_spot():
    """As when a tube is kicked while the disk is slow: the disk has room, but no spare is ready yet."""

    queue = Queue(MemoryDirectory(), segment_size=4096)
    for _ in range(500):
        assert await queue.put(0, 100 * SECOND)
    await queue.binlog.commit()
    broker, client = queue.broker, queue.client
    for _ in range(10):
        for number in list(broker.jobs):  # and none of them waits
            assert broker.kick_job(client, number, SECOND) == DONE
            assert reserve_job(broker, client, number, SECOND)
            assert broker.release(client, number, 1, 100 * SECOND, SECOND) == DONE
    for number in list(broker.jobs):
        assert broker.delete(client, number, SECOND) == DONE
    await queue.commit()
    queue.check()
    await queue.stop()


async def test_changes_that_find_no_room_anywhere_fail_the_commit_that_they_belong_to():
    """A session that waits when the binlog asks for it never makes such changes."""

    queue = Queue(MemoryDirectory(), segment_size=4096)
    assert await queue.put(0, 100 * SECOND)
    await queue.commit()
    queue.directory.ballast += queue.directory.free()
    for _ in range(1000):
        queue.broker.reschedule(queue.client, 1, 100 * SECOND, SECOND)
    with pytest.raises(OSError, match="the disk is full, and the space reserved for changes is used up"):
        await queue.binlog.commit()
    await queue.binlog.close()


async def test_pauses_leave_the_room_for_changes_of_a_full_disk():
    queue = Queue(MemoryDirectory(capacity=4 * 65_536), segment_size=65_536)
    jobs = []
    while (number := await queue.put(1000)) is not None:
        jobs.append(number)
    outcomes = []
    while DONE in outcomes[-1:] or not outcomes:
        await queue.make_room(DELETIONS)
        tube = f"tube-{len(outcomes)}"
        queue.broker.use(queue.client, tube)
        outcomes.append(queue.broker.pause(queue.client, tube, SECOND, queue.now))
        await queue.commit()
    assert outcomes[-1] == OUT_OF_MEMORY
    for number in jobs:
        await queue.change(number)
    queue.check()
    await queue.stop()
