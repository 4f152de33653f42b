"""A binlog that is cut short or has a flipped bit is recovered as promised, or refused; it is never silently wrong.

The binlog writes a real directory, with every kind of record. Then the files, in memory, are cut off at any of their
last bytes, and random bits are flipped, one at a time. What must come back is known for each commit.
"""

import asyncio
import logging
import random
import re
from bisect import bisect_right

import pytest
from checking import check_broker
from effort import BASE_SEED, examples, some_of
from lives import Binlog
from memory_disk import MemoryDirectory, Node, at_once
from virtual import RecordingClient, put, reserve_job

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import NOT_IN_MEMORY, STATES
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.body_reader import BodyReader
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import DAMAGED, StorageError
from beanstalk_server.storage.record import CHANGE, CLEAR, CLOCK, COMMIT, DELETE, PUT
from beanstalk_server.storage.recovery import recover
from beanstalk_server.storage.segment import HEADER_SIZE, segment_names
from beanstalk_server.storage.segment_reader import SegmentReader
from harness.waiting import eventually_async

pytestmark = pytest.mark.usefixtures("places")

OFFSET = 1_700_000_000 * SECOND
CLOCKS = {"clock": lambda: SECOND, "wall_clock": lambda: OFFSET + SECOND}
SEGMENT = 8192
COMMITS = 900
TAIL = 4096  # bytes in which the newest segment is cut off


def shape(job, body):
    """A job, without what is recorded only with its next change."""
    extras = job.extras
    times = (job.delay, job.ttr, job.created_at, job.deadline, extras.bury_sequence)
    counts = (extras.releases, extras.buries, extras.kicks)
    return (job.tube.name, job.key, job.state, job.priority, body, times, *counts)


def bodies_of(jobs, directory, segments):
    """The bodies of recovered jobs."""
    places = [segments[job.file - 1].place_of(job) for job in jobs if job.body is NOT_IN_MEMORY]
    found = BodyReader(directory).read(places)
    return [found[segments[job.file - 1].place_of(job)] if job.body is NOT_IN_MEMORY else job.body for job in jobs]


def stored_shape(stored):
    times = (stored.delay, stored.ttr, stored.created_at, stored.deadline, stored.bury_sequence)
    counts = (stored.releases, stored.buries, stored.kicks)
    return (stored.tube, stored.key, stored.state, stored.priority, stored.body, times, *counts)


class Written:
    """A directory that the binlog has written, and what the jobs were at each commit."""

    def __init__(self, path):
        self.states = {}  # commit number -> {id: shape}
        self.shapes = {}  # id -> all shapes that it ever had
        self.now = {}
        self.cleared = {}  # a clear, as it is recorded -> the ids that such clears have ended
        asyncio.run(self._write(path))
        directory = RealDirectory(path)
        self.names = [name for _, name in segment_names(directory)]
        self.files = {name: (path / name).read_bytes() for name in self.names}
        self.spares = [name for name in directory.names() if name.startswith("spare.")]
        self.newest = self.names[-1]
        self.records = {name: list(self._records(name)) for name in self.names}
        self.commits = [record for record in self.records[self.newest] if record[2] == COMMIT]
        ends = [commit[0] for commit in self.commits[1:]] + [self.records[self.newest][-1][1]]
        self.ends = ends  # where each commit of the newest segment ends
        self.end = ends[-1]

    async def _write(self, path):
        rng = random.Random(7)
        binlog = Binlog(
            RealDirectory(path),
            segment_size=SEGMENT,
            draw_salt=lambda: rng.getrandbits(32),
            in_thread=at_once,
            **CLOCKS,
        )
        broker = Broker(binlog, SECOND)
        broker.restore(OFFSET, SECOND)
        self._listen(binlog)
        client = RecordingClient(broker)
        moment = SECOND
        commits = first = 0
        while commits < COMMITS or binlog._log.sequence == first or binlog._log.segments[-1].end < TAIL + 1000:
            commits += 1
            if commits == COMMITS:  # no upkeep from now on, so that no segment is removed
                binlog._closing = True
                first = binlog._log.sequence
            for _ in range(rng.choice((1, 1, 2, 5))):
                moment += SECOND // 10
                broker.advance(moment)
                self._command(rng, broker, client, moment)
            await binlog.commit()
            await asyncio.sleep(0)  # the upkeep goes on
        # As after a kill: nothing is closed, and the zeros are not cut off.
        number = broker.take_id()
        assert broker.put(client, number, 0, 0, SECOND, b"last", moment, moment) == DONE
        await binlog.commit()
        binlog.directory.unlock()
        binlog._writer.close()

    def _command(self, rng, broker, client, now):
        number = rng.choice(list(broker.jobs) or [0])
        choice = rng.randrange(10)
        brief = broker.tubes.get("brief")
        if brief is not None and rng.random() < 0.1:
            broker.clear(client, "brief")
        elif choice < (4 if len(broker.jobs) < 150 else 2):
            key = f"key{broker.next_id}" if rng.random() < 0.3 else ""
            delay = rng.choice((0, 0, 1000 * SECOND))
            broker.use(client, rng.choice(("default", "other", "brief")))
            body = rng.randbytes(rng.choice((0, 10, 100)))
            assert put(broker, client, rng.randrange(5), delay, SECOND * 90, body, now, key) == DONE
        elif choice < 6:
            broker.delete(client, number, now)
        elif choice == 6:
            broker.reserve_job(client, number, now)
        elif choice == 7:
            if reserve_job(broker, client, number, now):
                broker.bury(client, number, 3, now)
        elif choice == 8:
            broker.kick(client, 1, now)
        elif reserve_job(broker, client, number, now):
            broker.release(client, number, 2, rng.choice((0, 500 * SECOND)), now)

    def _listen(self, binlog):
        put, change, delete, write_batches = binlog.put, binlog.change, binlog.delete, binlog._write_batches
        clear = binlog.clear

        def note(job):
            self.now[job.id] = stored_shape(binlog.stored(job))
            self.shapes.setdefault(job.id, []).append(self.now[job.id])

        def heard_put(job):
            note(job)
            return put(job)

        def heard_change(job):
            note(job)
            change(job)

        def heard_delete(job):
            del self.now[job.id]
            delete(job)

        def heard_clear(tube, reserved_ids):
            ended = [number for number, job in self.now.items() if job[0] == tube and number not in reserved_ids]
            for number in ended:
                del self.now[number]
            self.cleared.setdefault((tube, *reserved_ids), set()).update(ended)
            return clear(tube, reserved_ids)

        async def heard_write(batches, *, sync):
            self.states[binlog._log.commit_number] = dict(self.now)
            await write_batches(batches, sync=sync)

        binlog.put, binlog.change, binlog.delete, binlog._write_batches = (
            heard_put,
            heard_change,
            heard_delete,
            heard_write,
        )
        binlog.clear = heard_clear

    def _records(self, name):
        """Yield (start, end, kind, the ids that the record is about, or commit number)."""
        directory = MemoryDirectory({name: Node(self.files[name])})
        reader = SegmentReader(directory.open(name), name)
        scanner = reader.scanner
        while reader.next():
            if scanner.kind == COMMIT:
                what = scanner.commit()[0]
            elif scanner.kind == CLEAR:
                tube, reserved_ids = scanner.clear()
                what = self.cleared[tube, *reserved_ids]
            else:
                what = {scanner.job_id()} if scanner.kind != CLOCK else set()
            yield reader.offset, reader.offset + scanner.end - scanner.start, scanner.kind, what
        assert not reader.fault

    def directory(self, name, data):
        """The directory in memory, with these bytes for this file."""
        return MemoryDirectory({other: Node(self.files[other] if other != name else data) for other in self.names})

    def last_state(self):
        return self.states[self.commits[-1][3]]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return Written(tmp_path_factory.mktemp("binlog"))


class Said(logging.Handler):
    """Collects warnings without the cost of caplog."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def said():
    handler = Said()
    logger = logging.getLogger("beanstalk_server")
    logger.addHandler(handler)
    logger.propagate = False
    yield handler.lines
    logger.propagate = True
    logger.removeHandler(handler)


def recovered(directory, *, salvage=False):
    """Recover a directory; return the shape of each job by its id."""
    assert directory.lock()
    replay = Replay(IdTable())
    try:
        found = recover(directory, replay, salvage=salvage, segment_size=SEGMENT, draw_salt=lambda: 5)
    finally:
        directory.unlock()
    jobs = list(replay.jobs.values())
    bodies = bodies_of(jobs, directory, found.segments)
    return {job.id: shape(job, body) for job, body in zip(jobs, bodies, strict=True)}


def assert_refused_at(error, name, offset):
    """Assert that a refusal names the file, and a place that is not after the damage."""
    assert error.status == DAMAGED
    found = re.search(r"/(segment\.\d+): damaged at offset (\d+): .*--salvage", str(error))
    assert found, error
    assert found[1] == name, error
    assert int(found[2]) <= offset, error


def test_the_directory_has_every_kind_of_record_and_some_segments(written):
    kinds = [record[2] for records in written.records.values() for record in records]
    print(f"{len(written.names)} segments, {len(kinds)} records, {len(written.last_state())} jobs")
    assert len(written.names) >= 3
    assert all(kinds.count(kind) > 20 for kind in (COMMIT, PUT, CHANGE, DELETE))
    assert kinds.count(CLEAR) > 5
    states = [job[2] for job in written.last_state().values()]
    assert all(states.count(STATES.index(state)) for state in ("ready", "delayed", "buried"))
    assert any(job[1] for job in written.last_state().values())
    assert len(written.files[written.newest]) > written.end, "zeros follow"


def test_the_untouched_directory_is_recovered(written, said):
    assert recovered(written.directory("", b"")) == written.last_state()
    assert not said


def test_a_newest_segment_that_is_cut_short_comes_back_to_a_commit(written, places, said):
    """An engine, which makes a commit as a whole, has lost a part: it is refused."""
    data = written.files[written.newest]
    for size in some_of(range(max(written.end - TAIL, 0), written.end + 1), 200, BASE_SEED):
        said.clear()
        directory = written.directory(written.newest, data[:size])
        whole = bisect_right(written.ends, size)  # commits that are whole
        if places == "in-engine" and data[written.ends[whole - 1] : size].strip(b"\0"):
            with pytest.raises(StorageError) as caught:
                recovered(directory)
            assert_refused_at(caught.value, written.newest, size)
            continue
        assert recovered(directory) == written.states[written.commits[whole - 1][3]], size
        end = written.ends[whole - 1]
        cut = data[end:size].rstrip(b"\0")
        assert len(said) == bool(cut)
        if cut:
            erased = re.search(
                rf"{written.newest}: erased an incomplete write of (\d+) bytes at offset {end},", said[0]
            )
            assert len(cut) <= int(erased[1]) <= size - end
        assert not directory.nodes[written.newest].data[written.ends[whole - 1] :].strip(b"\0"), "zeros are left"


def test_a_newest_segment_without_its_first_commit_is_refused(written):
    for size in [*range(written.ends[0]), written.ends[0] - 1]:
        with pytest.raises(StorageError) as caught:
            recovered(written.directory(written.newest, written.files[written.newest][:size]))
        assert_refused_at(caught.value, written.newest, size)


def test_an_older_segment_that_is_cut_short_is_refused(written):
    name = written.names[-2]
    data = written.files[name]
    end = written.records[name][-1][1]  # zeros follow
    for size in some_of(range(end - 300, end), 60, BASE_SEED):
        with pytest.raises(StorageError) as caught:
            recovered(written.directory(name, data[:size]))
        assert caught.value.status == DAMAGED


def test_a_segment_that_is_missing_is_refused(written):
    name = written.names[1]
    directory = written.directory("", b"")
    del directory.nodes[name]
    with pytest.raises(StorageError) as caught:
        recovered(directory)
    assert_refused_at(caught.value, name, 0)


def flips(written, count):
    """(name, offset, the file with that bit flipped), bits of all files alike."""
    rng = random.Random(BASE_SEED)
    total = sum(map(len, written.files.values()))
    for _ in range(count):
        offset = rng.randrange(total)
        for name in written.names:
            if offset < len(written.files[name]):
                break
            offset -= len(written.files[name])
        data = bytearray(written.files[name])
        data[offset] ^= 1 << rng.randrange(8)
        yield name, offset, data


def test_a_flipped_bit_is_found_or_changes_nothing(written, places, said):
    last = written.commits[-1][0]
    newest = written.files[written.newest]
    of_last = [(written.newest, at, flipped(newest, at)) for at in range(last, written.end + 20)]
    before = written.states[written.commits[-2][3]]
    counts = {"refused": 0, "the last commit cut off": 0, "in free space": 0}
    for name, offset, data in [*of_last, *flips(written, examples(150))]:
        said.clear()
        try:
            found = recovered(written.directory(name, data))
        except StorageError as error:
            assert_refused_at(error, name, offset)
            counts["refused"] += 1
            continue
        assert name == written.newest, (name, offset)
        assert f"{name}: " in said[0] and "erased an incomplete write" in said[0]
        if offset >= written.end:
            assert found == written.last_state()
            counts["in free space"] += 1
        else:
            assert offset >= last, (name, offset)
            assert found == before
            counts["the last commit cut off"] += 1
    if places == "in-engine":  # which makes a commit as a whole
        assert list(counts.values()) == [sum(counts.values()), 0, 0]
    else:
        assert all(counts.values()), counts


def spoiled(written, name, offset):
    """The jobs whose records a flip at this place can destroy."""
    records = [record for record in written.records[name] if record[2] != COMMIT]
    if name == written.newest and offset >= written.commits[-1][0]:
        records = [record for record in records if record[0] > written.commits[-1][0]]
    elif offset >= HEADER_SIZE:
        records = [record for record in records if record[0] <= offset < record[1]]
    return set().union(*[ids for _, _, _, ids in records])


def test_what_is_damaged_can_be_salvaged(written, said):
    true = written.last_state()
    salvaged = 0
    places = [(name, offset) for name in written.names for offset in (0, 9, 13, 20, 30, HEADER_SIZE)]
    places = [(name, at, flipped(written.files[name], at)) for name, at in places]
    for name, offset, data in [*places, *flips(written, examples(40))]:
        said.clear()
        directory = written.directory(name, data)
        found = recovered(directory, salvage=True)
        lost = spoiled(written, name, offset)
        assert {number: job for number, job in found.items() if number not in lost} == {
            number: job for number, job in true.items() if number not in lost
        }, (name, offset)
        for number in lost & set(found):
            assert found[number] in written.shapes[number], "as it was at some time"
        assert said
        if "damaged at offset" in said[0]:
            salvaged += 1
            assert any("skipped" in line for line in said)
            assert "are kept in" in said[-1]
            assert directory.nodes[f"damaged/{name}"].data == data
        said.clear()
        assert recovered(directory) == found, "the next start needs no salvage"
        assert not said
    assert salvaged > examples(40) // 2


def flipped(data, offset):
    data = bytearray(data)
    data[offset] ^= 1
    return data


def test_a_broker_starts_on_what_was_salvaged_and_goes_on(written):
    """With all that a server does at its start and its end."""
    for name, _, data in flips(written, examples(10)):

        async def work(name=name, data=data):
            directory = written.directory(name, data)
            for salvage in (True, False):
                binlog = Binlog(directory, segment_size=SEGMENT, salvage=salvage, **CLOCKS)
                broker = Broker(binlog, 100 * SECOND)
                broker.restore(OFFSET, 100 * SECOND)
                check_broker(broker)
                binlog._log.check()
                client = RecordingClient(broker)
                highest = max(written.shapes)
                assert broker.next_id > max(broker.jobs)
                if name != written.newest:
                    assert broker.next_id > highest
                number = broker.take_id()
                assert broker.put(client, number, 0, 0, SECOND, b"new", SECOND, SECOND) == DONE
                await binlog.commit()
                for other in list(broker.jobs)[::2]:
                    broker.delete(client, other, SECOND)
                await binlog.commit()
                await eventually_async(lambda: binlog._upkeep is None, "the upkeep ends")  # noqa: B023
                binlog._log.check()
                await binlog.close()

        asyncio.run(work())


@pytest.fixture
def small():
    """Does a few commands on an empty directory in memory; returns it, as it is after an orderly end."""

    def do(commands):
        async def work():
            directory = MemoryDirectory()
            binlog = Binlog(directory, segment_size=SEGMENT, in_thread=at_once, **CLOCKS)
            broker = Broker(binlog, SECOND)
            broker.restore(OFFSET, SECOND)
            client = RecordingClient(broker)
            for command in commands:
                command(broker, client)
                await binlog.commit()
            await binlog.close()
            return directory

        return asyncio.run(work())

    return do


def put_keyed(broker, client):
    assert put(broker, client, key="k") == DONE


def test_a_key_whose_deletion_is_lost_still_names_one_job_only(small, said):
    directory = small([put_keyed, lambda broker, client: broker.delete(client, 1, SECOND), put_keyed])
    name = segment_names(directory)[0][1]
    reader = SegmentReader(directory.open(name), name)
    while reader.next() and reader.scanner.kind != DELETE:
        pass
    directory.nodes[name].data[reader.offset + 10] ^= 1

    async def work():
        for salvage in (True, False):
            binlog = Binlog(directory, segment_size=SEGMENT, salvage=salvage)
            broker = Broker(binlog, SECOND)
            broker.restore(OFFSET, SECOND)
            check_broker(broker)
            binlog._log.check()
            assert {job.id: job.key for job in broker.jobs.values()} == {1: "", 2: "k"}
            await binlog.close()

    asyncio.run(work())
    assert any("key" in line and "job 1 " in line for line in said), said


def test_what_was_written_without_a_sync_counts_as_durable_after_one(said, needs_a_disk):
    """With -f, the sync after a commit finds nothing to write; the next commit still says that all is on the disk."""

    async def work():
        directory = MemoryDirectory()
        binlog = Binlog(directory, segment_size=SEGMENT, sync_interval=3_600_000.0, in_thread=at_once)
        broker = Broker(binlog, SECOND)
        broker.restore(OFFSET, SECOND)
        client = RecordingClient(broker)
        for _ in range(3):
            put_one(broker, client)
            await binlog.commit()
            binlog._begin_sync()
            await binlog._syncing
        put_one(broker, client)
        await binlog.commit()
        return directory.after_a_kill()

    directory = asyncio.run(work())
    name = segment_names(directory)[0][1]
    records = []
    reader = SegmentReader(directory.open(name), name)
    while reader.next():
        if reader.scanner.kind == PUT:
            records.append(reader.offset)
    directory.nodes[name].data[records[2] + 20] ^= 1
    with pytest.raises(StorageError) as caught:
        recovered(directory)
    assert_refused_at(caught.value, name, records[2])


def put_one(broker, client):
    assert put(broker, client) == DONE
