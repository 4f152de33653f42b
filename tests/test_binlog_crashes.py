"""Nothing acknowledged is lost, and nothing deleted comes back, wherever the machine stops.

A broker with a binlog over a disk in memory does random commands. The machine stops at one of its operations on the
disk, and what it comes back with is held against all that the broker ever told, job by job: each job must be as it was
when it was last acknowledged, or as it was told to be after that. The same commands are done again for each operation
at which the machine can stop.
"""

import asyncio
import contextlib
import errno
import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from memory_disk import Crash, MemoryDirectory

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.client import Client
from beanstalk_server.storage.binlog import NEVER, Binlog

SECOND = 1_000_000_000
OFFSET = 1_700_000_000 * SECOND
SEGMENT = 4096
GONE = None
PHASES = [Phase.generate]  # a seed does not shrink


class Witness(Client):
    """A client that only ever asks."""


class Life:
    """One process, from its start on a directory to its end."""

    def __init__(self, history, directory, rng, now, sync_interval=0.0):
        self.history = history
        self.directory = directory
        self.rng = rng
        self.now = now
        self.binlog = Binlog(
            directory,
            segment_size=SEGMENT,
            sync_interval=sync_interval,
            clock=lambda: self.now,
            in_thread=self.in_thread,
            draw_salt=lambda: rng.getrandbits(32),
        )
        self.binlog.clock_offset = OFFSET
        self.binlog.on_failure = self.failed
        self.failure = None

    def failed(self, error):
        self.failure = error

    async def in_thread(self, work):
        for _ in range(self.rng.randrange(3)):  # others go on meanwhile
            await asyncio.sleep(0)
        return work()

    def start(self):
        self.broker = Broker(self.binlog, self.now)
        self.broker.restore(OFFSET, self.now)
        self.broker.check()
        self.binlog._log.check()
        self.client = Client(self.broker.default)
        self.broker.connect()
        self.told = History.Telling(self.history, self.binlog, self.broker)

    async def commit(self):
        position = self.told.position()
        await self.binlog.commit()
        self.history.acknowledge(position)

    async def settle(self):
        """Let the upkeep end."""
        while self.binlog._upkeep is not None:
            await asyncio.sleep(0)
        if self.directory.crashed:  # within the upkeep
            raise Crash
        assert self.failure is None, self.failure

    def command(self):
        """Do something that a client might ask for."""
        rng, broker, client = self.rng, self.broker, self.client
        self.now += rng.randrange(SECOND)
        broker.advance(self.now)
        jobs = broker.jobs
        number = rng.choice(list(jobs)) if jobs and rng.random() < 0.95 else rng.randrange(1, 50)
        job = jobs.get(number)
        choice = rng.randrange(14)
        if choice < 4 or not jobs:
            body = rng.randbytes(rng.choice((0, 3, 100, 700, 5000 if rng.random() < 0.05 else 10)))
            delay = rng.choice((0, 0, 2 * SECOND, 1000 * SECOND))
            broker.use(client, rng.choice(("default", "tube")))
            key = f"k{rng.randrange(20)}" if rng.random() < 0.3 else ""
            if key and broker.find_keyed(client.use, key) is not None:
                key = ""
            broker.put(client, broker.take_id(), rng.randrange(5), delay, 60 * SECOND, body, self.now, self.now, key)
        elif choice < 7:
            broker.delete(client, number)
        elif choice == 7:
            broker.reserve_job(client, number, self.now)
        elif choice == 8:
            broker.release(client, number, rng.randrange(5), rng.choice((0, SECOND, 500 * SECOND)), self.now)
        elif choice == 9:
            broker.bury(client, number, rng.randrange(5))
        elif choice == 10:
            broker.kick(client, rng.randrange(1, 4), self.now)
        elif choice == 11:
            broker.reschedule(job, rng.choice((0, SECOND, 100 * SECOND)), self.now)
        elif choice == 12 and job is not None and job.client is None:
            broker.replace(job, rng.randrange(5), rng.choice((0, 9 * SECOND)), SECOND, rng.randbytes(20), self.now)
        elif choice == 13:
            broker.reserve(client, self.now)
            if rng.random() < 0.1:
                broker.clear(client, broker.default)


class History:
    """All that was ever told of each job, and how much of it was acknowledged."""

    def __init__(self):
        self.jobs = {}  # id -> [(position, stored job or GONE)]
        self.clears = []  # (position, ids of the jobs that it has ended)
        self.position = 0
        self.acknowledged = 0

    def tell(self, number, stored):
        self.position += 1
        self.jobs.setdefault(number, []).append((self.position, stored))

    def tell_clear(self, numbers):
        """All at one position: whoever finds the jobs as they were before it finds all of them."""
        self.position += 1
        self.clears.append((self.position, numbers))
        for number in numbers:
            self.jobs[number].append((self.position, GONE))

    def acknowledge(self, position):
        self.acknowledged = max(self.acknowledged, position)

    class Telling:
        """Listens to what a broker tells its journal."""

        def __init__(self, history, journal, broker):
            self.history = history
            put, change, delete, clear = journal.put, journal.change, journal.delete, journal.clear

            def heard_put(job):
                if not put(job):
                    return False
                history.tell(job.id, journal.stored(job))
                return True

            def heard_change(job):
                change(job)
                history.tell(job.id, journal.stored(job))

            def heard_delete(job):
                delete(job)
                history.tell(job.id, GONE)

            def heard_clear(tube_name, reserved_ids):
                if not clear(tube_name, reserved_ids):
                    return False
                tube = broker.tubes[tube_name]
                gone = [job.id for job in broker.jobs.values() if job.tube is tube and not tube.is_cleared(job)]
                history.tell_clear([number for number in gone if number not in reserved_ids])
                return True

            journal.put, journal.change, journal.delete = heard_put, heard_change, heard_delete
            journal.clear = heard_clear

        def position(self):
            return self.history.position

    def compare(self, life):
        """Hold what was recovered against what was told; then that is what there is."""
        broker, now = life.broker, life.now
        for number, told in self.jobs.items():
            job = broker.jobs.get(number)
            found = GONE if job is None else life.binlog.stored(job)
            possible = [stored for position, stored in told if position >= self.acknowledged]
            before = [stored for position, stored in told if position < self.acknowledged or not self.acknowledged]
            last = [stored for position, stored in told if position <= self.acknowledged]
            possible += last[-1:] if last else [GONE]
            assert any(same(found, stored, now) for stored in possible), (found, possible, before[-1:])
        for number in broker.jobs:
            assert number in self.jobs, f"job {number} was never told"
        for position, numbers in self.clears:
            if any(number in broker.jobs for number in numbers):  # so it never happened
                assert position > self.acknowledged
                for number in numbers:
                    kept = self.jobs[number][0][0] > self.acknowledged or number in broker.jobs
                    assert kept, f"half a clear: job {number} is gone"
        self.clears.clear()
        given = [number for number, told in self.jobs.items() if told[0][0] <= self.acknowledged]
        assert broker.next_id > max(given, default=0), "an id is given twice"
        # What was not acknowledged and has not survived never happened; what has survived counts.
        self.position += 1
        self.jobs = {job.id: [(self.position, life.binlog.stored(job))] for job in broker.jobs.values()} | {
            number: [(self.position, GONE)] for number in given if number not in broker.jobs
        }
        self.acknowledged = self.position


def same(found, told, now):
    """Whether a job that was recovered is one that was told."""
    if found is GONE or told is GONE:
        return found is told
    if told.state == "delayed" and told.deadline - OFFSET <= now:
        told = told._replace(state="ready", deadline=0)
    # These two are told with the job's next change, or when it is written again.
    if not (told.reserves <= found.reserves and told.timeouts <= found.timeouts):
        return False
    return found._replace(reserves=0, timeouts=0) == told._replace(reserves=0, timeouts=0)


async def live(life, commands, commit_chance=0.4):
    """Do so many commands, with commits now and then; leave when the machine stops."""
    rng = life.rng
    commit = None
    for _ in range(commands):
        life.command()
        if life.failure is not None:
            raise life.failure
        if commit is None or commit.done():
            if commit is not None:
                commit.result()
            commit = asyncio.ensure_future(life.commit()) if rng.random() < commit_chance else None
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if life.binlog.sync_interval > 0 and rng.random() < 0.1:
            life.binlog._begin_sync()  # what its timer does
    if commit is not None:
        await commit
    await life.commit()
    await life.settle()


def run_life(history, directory, rng, now, commands, **options):
    """One process that does its commands; returns it, or None when the machine stopped before it was there."""
    life = Life(history, directory, rng, now, **options)

    async def work():
        life.start()
        history.compare(life)
        await live(life, commands)
        life.broker.check()
        life.binlog._log.check()
        assert_bound(life)

    with asyncio.Runner() as runner, contextlib.suppress(Crash):
        runner.get_loop().set_exception_handler(ignore_crash)
        runner.run(work())
    return life


def ignore_crash(loop, context):
    """What was going on beside when the machine stopped is nobody's to tell."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)


def assert_bound(life):
    log = life.binlog._log
    largest = max([segment.size for segment in log.segments] + [SEGMENT])
    assert life.directory.used() <= 2 * log.live_size + 2 * largest, log.next_step(True)


def crash_and_recover(seed, crash_at, sync_interval=0.0):
    """Live, stop at an operation, come back; return how many operations there were."""
    rng = random.Random(seed)
    history = History()
    first = run_life(history, MemoryDirectory(), rng, SECOND, 40, sync_interval=sync_interval)
    directory = first.directory.after_a_kill()
    directory.crash_at = crash_at
    second = run_life(history, directory, rng, first.now, 100, sync_interval=sync_interval)
    if sync_interval:  # then a reply says that it is written, and not that it is on the disk
        history.acknowledged = 0
    after = directory.after_a_crash(rng)
    run_life(history, after, rng, second.now, 10)
    assert not after.crashed
    return directory.operations


def every_crash(seed, sync_interval=0.0):
    operations = crash_and_recover(seed, None, sync_interval)
    for crash_at in range(1, operations + 1):
        crash_and_recover(seed, crash_at, sync_interval)
    return operations


@pytest.mark.exhaustive
def test_a_machine_that_stops_at_any_operation_loses_nothing_that_was_acknowledged():
    crash_points = 0

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=PHASES)
    @given(st.integers(0, 1 << 32))
    def live_and_crash(seed):
        nonlocal crash_points
        crash_points += every_crash(seed)

    live_and_crash()
    print(f"{crash_points} crash points")
    assert crash_points > 1000


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=PHASES)
@given(st.integers(0, 1 << 32), st.sampled_from((50.0, NEVER)))
def test_without_a_sync_for_each_reply_it_comes_back_to_what_was_told_at_some_moment(seed, sync_interval):
    assert every_crash(seed, sync_interval) > 20


@settings(max_examples=100, deadline=None, derandomize=True, phases=PHASES)
@given(st.integers(0, 1 << 32), st.sampled_from((0.0, 50.0, NEVER)))
def test_a_process_that_is_killed_loses_nothing_that_was_acknowledged(seed, sync_interval):
    rng = random.Random(seed)
    history = History()
    directory = MemoryDirectory()
    now = SECOND
    for _ in range(3):
        life = run_life(history, directory, rng, now, 60, sync_interval=sync_interval)
        directory, now = life.directory.after_a_kill(), life.now + rng.randrange(100 * SECOND)


@settings(max_examples=100, deadline=None, derandomize=True, phases=PHASES)
@given(st.integers(0, 1 << 32), st.integers(2, 8))
def test_a_full_disk_refuses_puts_and_nothing_else(seed, segments):
    """Until there is room again; then it goes on by itself."""
    rng = random.Random(seed)
    history = History()
    life = Life(history, MemoryDirectory(capacity=segments * SEGMENT), rng, SECOND)

    async def work():
        life.start()
        refused = 0
        for _ in range(200):
            before = len(life.broker.jobs), history.position
            if life.broker.put(life.client, life.broker.take_id(), 0, 0, SECOND, rng.randbytes(500), 0, life.now):
                await life.commit()
            else:
                refused += 1
                assert (len(life.broker.jobs), history.position) == before, "a put that is refused changes nothing"
            await life.settle()
        assert refused
        for _ in range(300):
            number = rng.choice(list(life.broker.jobs))
            assert life.broker.reserve_job(life.client, number, life.now)
            choice = rng.randrange(20)
            if choice == 0 and len(life.broker.jobs) > 1:
                assert life.broker.delete(life.client, number)
            elif choice < 10:
                assert life.broker.release(life.client, number, 1, 0, life.now)
            else:
                assert life.broker.bury(life.client, number, 1)
                assert life.broker.kick_job(number, life.now)
            if rng.random() < 0.7:
                await life.commit()
            await life.settle()
        await life.commit()
        life.directory.capacity = 1 << 30
        life.now += 2 * SECOND
        assert life.broker.put(life.client, life.broker.take_id(), 0, 0, SECOND, bytes(500), 0, life.now)
        await life.commit()
        for number in list(life.broker.jobs):
            assert life.broker.delete(life.client, number)
        await life.commit()
        await life.settle()
        life.binlog._log.check()
        assert_bound(life)

    asyncio.run(work())
    run_life(history, life.directory.after_a_kill(), rng, life.now, 10)


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
def test_a_disk_that_fails_once_is_never_trusted_again(operation):
    """A commit that has failed fails for ever, and what comes back is what was acknowledged before."""
    for seed in range(20):
        rng = random.Random(seed)
        history = History()
        life = run_life(history, MemoryDirectory(), rng, SECOND, 20)
        life = Life(history, life.directory.after_a_kill(), rng, life.now)

        async def work(life=life, history=history):
            life.start()
            history.compare(life)
            life.directory.fail[operation] = errno.EIO
            with pytest.raises(OSError, match="failed on demand"):
                await live(life, 1000)
            with pytest.raises(OSError, match="failed on demand"):
                await life.commit()
            await life.binlog.close()

        asyncio.run(work())
        run_life(history, life.directory.after_a_crash(rng), rng, life.now, 10)
