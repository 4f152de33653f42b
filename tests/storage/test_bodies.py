"""Bodies leave memory when they have been written, and the one that asks for one gets it byte for byte as it was
put.
"""

import asyncio
import errno
import random

import pytest
from binlog_process import BinlogProcess
from effort import seeded
from memory_disk import MemoryDirectory
from virtual import RecordingClient, put

from beanstalk_server.queue.job import NOT_IN_MEMORY
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage import disk
from beanstalk_server.storage.beanstalkd.writer import write
from beanstalk_server.storage.binlog import OPEN_FILES
from beanstalk_server.storage.body_reader import BodyReader
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import DAMAGED, StorageError
from beanstalk_server.storage.inspection import inspect
from beanstalk_server.storage.segment import segment_names
from harness.waiting import eventually_async

SEGMENT = 4096


async def at_once(work):
    await asyncio.sleep(0)
    return work()


class Worker(RecordingClient):
    """A client that compares each body it gets with what was put."""

    def __init__(self, process):
        super().__init__(process.broker)
        self.process = process
        self.held = []

    def on_reserved(self, job):
        self.process.compare(job)
        self.held.append(job.id)

    def on_reserved_batch(self, jobs):
        for job in jobs:
            self.on_reserved(job)

    def on_found(self, job):
        self.process.compare(job)


class Process(BinlogProcess):
    """Knows what it has been given: the body of each job."""

    def __init__(
        self, directory, bodies=None, threshold=0, cache=0, in_thread=at_once, segment_size=SEGMENT, salvage=False
    ):
        self.bodies = {} if bodies is None else bodies
        options = {"segment_size": segment_size, "salvage": salvage, "in_thread": in_thread}
        super().__init__(directory, body_threshold=threshold, body_cache=cache, **options)
        self.workers = [Worker(self) for _ in range(4)]
        self.put_bodies = {job: self.bodies[job.id] for job in self.broker.jobs.values()}
        self.compared = self.rounds = self.asked = self.got = 0
        self.binlog.on_fetches_done = self._count_round

    def _count_round(self):
        self.rounds += 1

    def put(self, body, delay=0, key=""):
        assert put(self.broker, self.client, delay=delay, ttr=1000 * SECOND, body=body, now=self.now, key=key) == DONE
        job_id = self.broker.next_id - 1
        self.note_put(job_id, body)
        return job_id

    def note_put(self, job_id, body):
        self.bodies[job_id] = self.put_bodies[self.job(job_id)] = body

    def compare(self, job):
        """Compare the body of a job that a worker has got with what was put."""
        assert job.body == self.put_bodies[job]
        self.compared += 1

    def job(self, job_id):
        return self.broker.jobs[job_id]

    def fetch(self, *job_ids):
        """Ask for the bodies of these jobs; what comes is compared with what was put by now."""
        jobs = [self.job(job_id) for job_id in job_ids]
        wanted = [self.bodies[job_id] for job_id in job_ids]
        self.asked += 1

        def on_fetched():
            self.got += 1
            assert [job.body for job in jobs] == wanted
            assert all(job.body is not NOT_IN_MEMORY for job in jobs)

        self.binlog.fetch(jobs, on_fetched)

    def in_memory(self):
        """The ids of the jobs whose bodies are in memory."""
        return [job.id for job in self.broker.jobs.values() if job.body is not NOT_IN_MEMORY]

    async def commit(self):
        await self.binlog.commit()
        assert not self.failures, self.failures

    async def settle(self):
        """Let the upkeep and all fetches end."""
        await super().settle()
        await eventually_async(lambda: self.binlog._fetches.task is None, "all bodies have come")
        assert self.failures or self.asked == self.got

    def check(self):
        super().check()
        log = self.log
        assert log.bodies.memory is self.broker.memory
        assert all(segment.reads >= 0 for segment in log.segments)
        for job in self.broker.jobs.values():
            if job.file:
                assert self.binlog.body_size(job) == len(self.bodies[job.id])


@pytest.fixture
def directory():
    return MemoryDirectory()


async def test_a_body_leaves_memory_when_it_has_been_written(directory):
    process = Process(directory, threshold=10)
    long, short = process.put(b"x" * 11), process.put(b"y" * 10)
    assert process.in_memory() == [long, short]
    await process.commit()
    assert process.in_memory() == [short]
    assert process.binlog.body_size(process.job(long)) == 11
    process.fetch(long, short)
    assert process.got == 0, "never within the call"
    await process.settle()
    assert process.got == process.rounds == 1
    assert process.in_memory() == [short]
    process.check()


async def test_the_latest_bodies_stay_in_memory_as_far_as_the_cache_goes(directory):
    process = Process(directory, cache=250)
    jobs = [process.put(bytes([number]) * 100) for number in range(5)]
    await process.commit()
    assert process.in_memory() == jobs[3:]
    process.fetch(jobs[0])  # it is the latest then
    await process.settle()
    assert process.in_memory() == [jobs[0], jobs[4]]
    process.broker.delete(process.client, jobs[0], process.now)
    process.check()


async def test_a_body_that_is_in_memory_when_it_is_asked_for_may_leave_before_the_others_have_come(directory):
    process = Process(directory, cache=150)
    old = process.put(b"a" * 100)
    new = process.put(b"b" * 100)
    await process.commit()
    assert process.in_memory() == [new]
    process.fetch(old, new)
    process.put(b"c" * 100)
    await process.commit()
    await process.settle()
    assert process.got == 1


async def test_what_is_asked_for_at_once_is_read_at_once(directory):
    calls = []

    async def in_thread(work):
        calls.append(work)
        return await at_once(work)

    process = Process(directory, in_thread=in_thread, segment_size=1 << 20)
    jobs = [process.put(bytes([number]) * 100) for number in range(50)]
    await process.commit()
    await process.settle()
    calls.clear()
    operations = directory.operations
    for job_id in jobs:
        process.fetch(job_id)
    await process.settle()
    assert process.rounds == len(calls) == 1
    assert directory.operations - operations == 2, "the file is opened and read once"
    directory.has_cached = lambda: True
    process.fetch(*jobs)
    await process.settle()
    assert (process.rounds, len(calls), directory.operations - operations) == (2, 1, 2)
    process.broker.clear(process.client, "default")
    await process.commit()
    await process.binlog.close()
    assert directory.opened == 0


async def test_others_have_their_turn_between_two_rounds_even_if_nothing_has_to_be_read(directory):
    process = Process(directory, segment_size=1 << 20)
    jobs = [process.put(b"%d" % number) for number in range(2000)]
    await process.commit()
    process.fetch(jobs[0])  # the file is open then
    await process.settle()
    directory.has_cached = lambda: True
    for job_id in jobs:
        process.fetch(job_id)
    while process.asked > process.got:
        before = process.rounds
        await asyncio.sleep(0)
        assert process.rounds <= before + 1
    assert process.rounds > 2


async def test_no_segment_goes_while_a_body_is_read_from_it(directory):
    gate = asyncio.Event()
    gate.set()

    async def in_thread(work):
        if "BodyReader" in repr(work):
            await gate.wait()
        return await at_once(work)

    process = Process(directory, in_thread=in_thread)
    first = process.put(b"a" * 500)
    await process.commit()
    await process.settle()
    oldest = segment_names(directory)[0]
    gate.clear()
    process.fetch(first)
    await asyncio.sleep(0)
    process.broker.delete(process.client, first, process.now)
    for _ in range(30):
        job_id = process.put(b"b" * 500)
        await process.commit()
        process.broker.delete(process.client, job_id, process.now)
        await process.commit()
        for _ in range(20):
            await asyncio.sleep(0)
    assert oldest in segment_names(directory)
    gate.set()
    await process.settle()
    assert process.got == 1
    await process.commit()
    await process.settle()
    assert oldest not in segment_names(directory)
    process.check()


PRECIOUS = b"precious" * 10


async def keep_precious(directory, before=b""):
    """A process that has committed a precious body, after another one if that is given; and the job's id."""
    process = Process(directory)
    if before:
        process.put(before)
        await process.commit()
    job_id = process.put(PRECIOUS)
    await process.commit()
    return process, job_id


def damage(directory, body=PRECIOUS):
    """Flip a bit of a body on the disk; return the name of the file."""
    for name, node in directory.nodes.items():
        at = node.data.find(body)
        if at >= 0:
            node.data[at + len(body) // 2] ^= 4
            return name
    raise AssertionError("the body is on the disk")


async def test_a_body_that_is_damaged_on_the_disk_fails_the_journal_and_reaches_nobody(directory):
    process, job_id = await keep_precious(directory)
    name = damage(directory)
    process.fetch(job_id)
    await eventually_async(lambda: process.failures, "the journal fails")
    assert process.got == 0
    offset = process.binlog._log.segments[0].offsets[0]
    assert f"damaged at offset {offset}, the put of job {job_id}: bad checksum" in str(process.failures[0])
    assert name in str(process.failures[0])
    with pytest.raises(OSError, match="damaged"):
        await process.binlog.commit()
    process.fetch(job_id)
    await process.binlog.close()
    assert process.got == 0


async def test_a_body_that_cannot_be_stored_keeps_no_segment(directory):
    process, job_id = await keep_precious(directory)
    damage(directory)
    with pytest.raises(OSError, match="damaged"):
        process.binlog.stored(process.broker.jobs[job_id])
    assert process.binlog._log.segments[0].reads == 0
    await process.binlog.close()


@pytest.mark.parametrize("waits", [False, True])
async def test_damage_in_the_last_commit_is_not_taken_for_a_torn_write_once_a_read_has_found_it(directory, waits):
    process, job_id = await keep_precious(directory, before=b"the first commit")
    damage(directory)
    if waits:
        process.put(b"not acknowledged")
    process.fetch(job_id)
    await eventually_async(lambda: process.failures, "the journal fails")
    await process.binlog.close()
    assert len(process.failures) == 1
    with pytest.raises(OSError, match="damaged"):
        await process.binlog.commit()  # that of a server which has waited for the end of `close`
    with pytest.raises(StorageError, match="damaged at offset"):
        Process(directory)


async def test_cleaning_that_finds_damage_does_not_hide_it(directory):
    process, job_id = await keep_precious(directory, before=b"the first commit")
    damage(directory)
    await process.binlog._in_thread(process.binlog._log.seal)
    process.binlog._room.is_cleaning = True
    process.binlog._schedule_upkeep()
    await eventually_async(lambda: process.failures, "the journal fails")
    assert f"the put of job {job_id}: bad checksum" in str(process.failures[0])
    await process.binlog.close()
    with pytest.raises(StorageError, match="damaged at offset"):
        Process(directory)


@pytest.mark.parametrize("operation", ["open", "read"])
async def test_a_body_that_cannot_be_read_fails_the_journal(directory, operation):
    process, job_id = await keep_precious(directory)
    await process.settle()
    directory.fail[operation] = errno.EIO
    process.fetch(job_id)
    await eventually_async(lambda: process.failures, "the journal fails")
    assert f"failed on demand, at offset 118, the put of job {job_id}" in str(process.failures[0])
    assert "segment.0000000001" in str(process.failures[0])
    await process.binlog.close()


async def test_a_file_that_has_become_shorter_fails_the_journal(directory):
    process, job_id = await keep_precious(directory)
    await process.settle()
    directory.nodes[segment_names(directory)[0][1]].data[150:] = b""
    process.fetch(job_id)
    await eventually_async(lambda: process.failures, "the journal fails")
    assert "the record is missing" in str(process.failures[0])
    await process.binlog.close()


async def test_cleaning_never_copies_damage(directory):
    """A record with a bad checksum must not get a good one."""

    process, kept = await keep_precious(directory)
    damage(directory)
    for _ in range(100):
        job_id = process.put(b"b" * 500)
        if process.failures:
            break
        await process.binlog.commit()
        process.broker.delete(process.client, job_id, process.now)
        await eventually_async(lambda: process.binlog._upkeep is None, "the upkeep ends")
        if process.failures:
            break
    assert f"the put of job {kept}: bad checksum" in str(process.failures[0])
    await process.binlog.close()


async def test_what_cleaning_has_moved_leaves_memory_while_it_goes_on(directory):
    """Otherwise, a busy server would hold all bodies of a segment until it is clean."""

    process = Process(directory, segment_size=1 << 18)
    ids = [process.put(bytes([65 + number]) * 30_000) for number in range(6)]
    await process.commit()
    await process.settle()
    log, writer = process.binlog._log, process.binlog._writer
    log.seal()
    assert not log.clean()
    log.lend(BodyReader(directory).read(log.wanted))
    assert not log.clean()
    moved = process.in_memory()
    assert ids[: len(moved)] == moved
    batches = log.take(0, 0)
    writer.write(batches, True)
    log.clean()  # beside the write
    log.confirm(batches, writer.tail)
    process.check()
    assert 0 < len(moved) < 6
    assert process.in_memory() == [job_id for job_id in ids if job_id not in moved][: len(process.in_memory())]
    await process.binlog.close()


async def test_a_start_brings_no_long_body_into_memory(directory):
    process = Process(directory, threshold=100)
    for size in (99, 100, 101, 3000, 50_000):
        process.put(bytes(size))
    await process.commit()
    await process.settle()
    again = Process(directory.after_a_kill(), process.bodies, threshold=100)
    assert again.in_memory() == [1, 2]
    again.fetch(1, 2, 3, 4, 5)
    await again.settle()
    again.check()


SIZES = (0, 1, 30, 31, 100, 700, 3000, 6000)


@seeded(20)
async def test_whatever_happens_to_a_job_its_body_is_what_was_put(seed):
    """Through releases, deletions, clears, cleaning, kills and starts, with fetches under way at any moment."""
    rng = random.Random(seed)
    threshold = rng.choice((0, 30, 500))
    cache = rng.choice((0, 1000, 20_000))
    job_sizes = rng.choices(SIZES, k=rng.randrange(1, 5))

    async def in_thread(work):
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        return work()

    directory = MemoryDirectory()
    directory.has_cached = lambda: rng.random() < 0.5
    process = Process(directory, None, threshold, cache, in_thread)
    for _ in range(4):
        await live(process, rng, job_sizes)
        process.check()
        bodies = process.bodies
        directory = process.directory
        if rng.random() < 0.5:
            await process.binlog.close()
            assert not process.failures
        else:
            directory = directory.after_a_kill()
        directory.has_cached = lambda: rng.random() < 0.5
        process = Process(directory, bodies, threshold, cache, in_thread)
        assert {job.id: process.binlog.stored(job).body for job in process.broker.jobs.values()} == {
            job_id: body for job_id, body in bodies.items() if job_id in process.broker.jobs
        }
    await process.settle()


class EndedError(Exception):
    """The journal has failed, so the process ends."""


class EndingProcess(Process):
    async def commit(self):
        try:
            await self.binlog.commit()
        except OSError:
            assert self.failures
        self._end_if_failed()

    async def settle(self):
        await super().settle()
        self._end_if_failed()

    def _end_if_failed(self):
        if self.failures:
            raise EndedError


@seeded(20)
async def test_a_bit_that_flips_at_any_moment_is_found_or_changes_nothing(seed, caplog):
    """In any file, while the process runs: it ends with the damage, or the next start refuses, or no job has changed.

    Only damage in the last commit may look like a write that a kill has torn, and is erased with a warning.
    """
    rng = random.Random(seed)
    threshold = rng.choice((0, 30, 500))
    directory = MemoryDirectory()
    directory.has_cached = lambda: rng.random() < 0.5
    process = EndingProcess(directory, None, threshold)
    await live(process, rng, SIZES)

    async def rot():
        for _ in range(rng.randrange(200)):
            await asyncio.sleep(0)
        nodes = [node for _, node in sorted(directory.nodes.items()) if node.data]
        node = rng.choices(nodes, [len(node.data) for node in nodes])[0]
        node.data[rng.randrange(len(node.data))] ^= 1 << rng.randrange(8)

    rotting = asyncio.create_task(rot())
    try:
        await live(process, rng, SIZES)
    except EndedError:
        assert "damaged at offset" in str(process.failures[0])
    await rotting
    if process.failures or rng.random() < 0.5:
        await process.binlog.close()
    try:
        again = Process(directory.after_a_kill(), process.bodies, threshold)
    except StorageError as error:
        if error.status != DAMAGED:
            raise
        return
    assert not process.failures
    if "erased an incomplete write" not in caplog.text:
        found = {job.id: again.binlog.stored(job).body for job in again.broker.jobs.values()}
        assert found == {job_id: process.bodies[job_id] for job_id in process.broker.jobs}
    await again.binlog.close()


def work(process, rng, chosen):
    """Do what workers do, with a worker that is not waiting for an answer."""
    broker, now = process.broker, process.now
    idle = [worker for worker in process.workers if not worker.busy and not worker.waiting]
    if not idle:
        return
    worker = rng.choice(idle)
    choice = rng.randrange(10)
    if choice == 0:
        broker.watch(worker, rng.choice(("default", "brief", "keyed")))
    elif choice == 1:
        broker.reserve(worker, 0, now)
    elif choice == 2:
        broker.reserve_batch(worker, 5, 0, now)
    elif choice == 3:
        broker.reserve_job(worker, chosen, now)
    elif choice == 4:
        broker.peek(worker, chosen)
    elif choice == 5:
        broker.peek_ready(worker)
    elif choice > 7 and worker.held:
        broker.release(worker, worker.held.pop(), 1, 0, now)
    elif choice > 6 and worker.held:
        broker.delete(worker, worker.held.pop(), now)


async def live(process, rng, job_sizes):
    broker, client = process.broker, process.client
    for _ in range(150):
        while process.binlog.admits != ALL:
            await process.commit()
            await process.settle()
            process.now += SECOND
        jobs = list(broker.jobs)
        chosen = rng.choice(jobs) if jobs else 0
        choice = rng.randrange(12)
        if choice < 3 and len(jobs) < 60:
            broker.use(client, rng.choice(("default", "brief")))
            process.put(rng.randbytes(rng.choice(job_sizes)), rng.choice((0, 0, 9)) * SECOND)
        elif choice == 3:
            broker.use(client, "keyed")
            body = rng.randbytes(rng.choice(job_sizes))
            key = f"k{rng.randrange(5)}"
            tube = broker.tubes["keyed"]
            known = tube.keys.get(key) if tube.keys is not None else None
            if known is None or known.client is None:
                fresh = Attributes(key=key, replaces=True)
                broker.put_with(client, fresh, 0, 0, 1000 * SECOND, body, process.now, process.now)
                process.note_put(tube.keys.get(key).id, body)
        elif choice < 6:
            broker.delete(client, chosen, process.now)
        elif choice == 6:
            broker.kick(client, 3, process.now)
        elif choice == 7 and rng.random() < 0.2:
            broker.clear(client, "brief")
        elif choice < 11 and jobs:
            process.fetch(*rng.choices(jobs, k=rng.choice((1, 1, 1, 5))))
        work(process, rng, chosen)
        if rng.random() < 0.3:
            await process.commit()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            process.check()
    await process.commit()
    await process.settle()
    assert not any(worker.busy for worker in process.workers)
    assert process.compared


async def test_the_bodies_of_a_takeover_leave_memory(directory):
    bodies = {number: bytes([number]) * (5000 if number % 2 else 50) for number in range(1, 30)}
    write(directory, [StoredJob(number, "tube", ttr=SECOND, body=body) for number, body in bodies.items()])
    process = Process(directory, bodies, threshold=100)
    assert process.in_memory() == [number for number in bodies if not number % 2]
    process.fetch(*bodies)
    await process.settle()
    process.check()
    await process.binlog.close()
    assert directory.opened == 0


async def test_a_salvage_rewrites_bodies_without_holding_them(directory):
    process = Process(directory)
    for number in range(20):
        process.put(bytes([number]) * 700)
    await process.commit()
    await process.settle()
    damage(directory, b"\x03" * 700)
    again = Process(directory.after_a_kill(), process.bodies, salvage=True)
    assert sorted(again.broker.jobs) == [number for number in process.bodies if number != 4]
    assert again.in_memory() == []
    again.fetch(*again.broker.jobs)
    await again.settle()
    again.check()
    with inspect(again.directory.after_a_kill()) as binlog:
        assert {job.id: job.body for job in binlog.live(print)} == {
            number: body for number, body in process.bodies.items() if number != 4
        }
        assert binlog.directory.opened == 0


async def test_jobs_number_few_segments_however_many_come_and_go(directory):
    """And stats-job still shows the number of the file."""

    process = Process(directory)
    for _ in range(100):
        job_id = process.put(b"a" * 1500)
        await process.commit()
        job = process.job(job_id)
        shown = process.broker.job_statistics(job_id, process.now).file
        assert shown == process.binlog._log.segment_of(job).sequence
        process.broker.delete(process.client, job_id, process.now)
        await process.commit()
        await process.settle()
    assert process.binlog._log.sequence > 30
    assert len(process.binlog._log.slots) < 10
    process.check()


async def test_a_record_of_another_job_is_not_taken_for_the_one_that_is_wanted(directory):
    process = Process(directory)
    first, second = process.put(b"a" * 50), process.put(b"b" * 50)
    await process.commit()
    log, reader = process.binlog._log, BodyReader(directory)
    place = log.place_to_read(process.job(first))
    assert reader.read_one(place) == b"a" * 50
    with pytest.raises(OSError, match="another record is in its place"):
        reader.read([place._replace(job_id=second)])


async def test_reading_many_segments_keeps_few_files_open(tmp_path):
    process = Process(RealDirectory(tmp_path))
    jobs = [process.put(random.Random(number).randbytes(2000)) for number in range(40)]
    await process.commit()
    await process.settle()
    for _ in range(2):
        process.fetch(*jobs)
        await process.settle()
    assert process.got == 2
    assert len(process.binlog._fetching_reader._files) == OPEN_FILES
    await process.binlog.close()
    assert not process.binlog._fetching_reader._files


def test_what_the_system_has_in_memory_is_read_without_waiting_for_the_disk(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file = RealDirectory(tmp_path).open("file")
    found = file.read_cached(3, 4)  # None where a file system cannot tell
    assert found in (b"3456", None)
    assert file.read_cached(3, 8) is None, "the file is shorter"
    file.close()


def test_a_system_without_such_reads_reads_in_a_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "READ_IF_CACHED", 0)
    (tmp_path / "file").write_bytes(b"0123456789")
    file = RealDirectory(tmp_path).open("file")
    assert file.read_cached(3, 4) is None
    file.close()
