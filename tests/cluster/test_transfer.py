"""The tools carry a binlog into an engine and back, byte for byte, whatever happens meanwhile: all of it or nothing."""

import asyncio
import contextlib

import pytest
from memory_disk import MemoryDirectory, Node
from memory_engine import Servers
from virtual import RecordingClient, put

from beanstalk_server.cluster.commit_sender import CommitSender
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.division import divide, join
from beanstalk_server.cluster.engine.interface import EngineError, Lease
from beanstalk_server.cluster.transfer import copy_segments, export_jobs, import_jobs
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import DELAYED, GROUP, HELD
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import LAST_MOMENT, StoredJob
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.beanstalkd import writer
from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import DAMAGED, StorageError
from beanstalk_server.storage.inspection import inspect
from beanstalk_server.storage.recovery import recover
from beanstalk_server.storage.rewriting import REWRITING, Rewriting
from beanstalk_server.storage.segment import segment_names
from beanstalk_server.storage.stopped import STOPPED
from beanstalk_server.wire.places import Places

SEGMENT = 4096


class Clock:
    """Time that passes when somebody sleeps, and a little whenever somebody looks."""

    def __init__(self):
        self.now = 0.0
        self.on_sleep = lambda: None

    def __call__(self):
        self.now += 0.1
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.on_sleep()


async def at_once(work):
    return work()


@contextlib.asynccontextmanager
async def serving(directory):
    """A function that lets a server put a job into a directory, as `virtual.put` does; the server stops at the end."""
    binlog = Binlog(directory, segment_size=SEGMENT, in_thread=at_once)
    broker = Broker(binlog, SECOND)
    broker.restore(binlog.clock_offset(), SECOND)
    client = RecordingClient(broker)

    async def put_one(body, tube="default", **options):
        broker.use(client, tube)
        assert put(broker, client, body=body, now=SECOND, **options) == DONE
        await binlog.commit()

    yield put_one
    await binlog.close()


def fill(directory, jobs, *, first=1):
    """Let a server put this many jobs into a directory, and stop."""

    async def work():
        async with serving(directory) as put_one:
            for number in range(first, first + jobs):
                await put_one(b"job %d" % number * 50)

    asyncio.run(work())
    return directory


def jobs_of(directory):
    """The bodies of the jobs that a start finds, in their order."""
    assert directory.lock()
    replay = Replay(IdTable())
    recover(directory, replay, salvage=False, segment_size=SEGMENT, draw_salt=lambda: 5)
    directory.unlock()
    return [job.body for job in sorted(replay.jobs.values(), key=lambda job: job.id)]


def bodies(count):
    return [b"job %d" % number * 50 for number in range(1, count + 1)]


def in_engine(servers):
    """The directory that a node would find."""
    return EngineDirectory(servers.engine(), CommitSender(servers.lead(), 1))


def carry(servers, source, clock=None, shards=1, **options):
    clock = clock or Clock()
    return import_jobs(servers.engine, shards, 1, source, clock=clock, sleep=clock.sleep, **options)


@pytest.fixture
def servers():
    return Servers()


@pytest.fixture
def source():
    return fill(MemoryDirectory(), 40)


def contents(directory):
    return {name: bytes(node.data) for name, node in directory.nodes.items()}


def test_a_binlog_is_imported_and_a_node_finds_its_jobs(servers, source):
    before = contents(source)
    progress = []
    names = carry(servers, source, on_progress=lambda *shown: progress.append(shown))
    assert len([name for name in names if name.startswith("segment.")]) > 2
    assert jobs_of(in_engine(servers.copy())) == bodies(40)
    assert contents(source) == before
    assert progress[-1] == (sum(len(data) for name, data in before.items() if name in names),) * 2
    assert servers.primary.lease.node == "", "the lease is given back"


def test_files_of_beanstalkd_are_imported_and_taken_over_by_the_first_node(servers):
    source = MemoryDirectory()
    jobs = [StoredJob(number, "default", "", 1, 0, 0, SECOND, b"%d" % number, SECOND, 0) for number in range(1, 9)]
    writer.write(source, jobs, next_id=21, size=2000)
    names = carry(servers, source)
    assert names[0] == "binlog.1"
    with pytest.raises(StorageError, match="start a node to take over their jobs"):
        export_jobs(servers.engine, 1, MemoryDirectory())
    assert jobs_of(in_engine(servers.copy())) == [b"%d" % number for number in range(1, 9)]


def test_what_is_imported_comes_back_byte_for_byte(servers, source):
    carry(servers, source)
    to = MemoryDirectory()
    names = [name for _, name in segment_names(source)]
    assert export_jobs(servers.engine, 1, to) == len(names)
    for name in names:
        data = bytes(source.nodes[name].data)
        assert data.startswith(bytes(to.nodes[name].data))
        assert not data[len(to.nodes[name].data) :].strip(b"\0"), "zeros are not copied"
    assert jobs_of(to) == bodies(40)


async def test_zeros_at_the_end_of_the_last_record_come_back(servers):
    source, to = MemoryDirectory(), MemoryDirectory()
    async with serving(source) as put_one:
        await put_one(bytes(500))
        carry(servers, source.after_a_kill())
    export_jobs(servers.engine, 1, to)
    assert jobs_of(to) == [bytes(500)]


def test_an_export_is_on_the_disk_when_it_is_done(servers, source):
    carry(servers, source)
    to = MemoryDirectory()
    export_jobs(servers.engine, 1, to)
    assert jobs_of(to.after_a_crash()) == bodies(40)


def test_an_export_that_is_interrupted_is_no_binlog(servers, source):
    carry(servers, source)
    to = MemoryDirectory()
    calls = []

    def fail(method):
        calls.append(method)
        if calls.count("read") == 3:
            raise EngineError("the engine cannot be reached")

    servers.before_call = fail
    with pytest.raises(EngineError):
        export_jobs(servers.engine, 1, to)
    assert not to.nodes


def test_a_copy_is_whole_although_a_node_writes_and_removes_segments_meanwhile(servers, source):
    carry(servers, source)
    node = in_engine(servers)
    node.lock()
    asyncio.run(asyncio.sleep(0))
    more = iter(range(41, 60))
    busy = [False]

    def write(method):
        number = next(more, None)
        if method == "read" and not busy[0] and number is not None:
            busy[0] = True
            fill(in_engine(servers), 1, first=number)
            busy[0] = False

    servers.before_call = write
    to = MemoryDirectory()
    copy_segments(servers.engine(), 0, to)
    found = jobs_of(to)
    assert found == bodies(len(found)), "as it was at some moment"
    assert len(found) >= 40


def test_a_segment_that_goes_while_it_is_copied_is_not_in_the_copy(servers, source):
    carry(servers, source)
    oldest = segment_names(source)[0][1]

    def remove(method):
        if method == "read":
            for dataset in (servers.primary, *(replica.dataset for replica in servers.replicas)):
                dataset.files.pop(oldest, None)

    servers.after_call = remove
    to = MemoryDirectory()
    names = copy_segments(servers.engine(), 0, to)
    assert oldest not in names
    assert sorted(to.nodes) == names


@pytest.mark.parametrize("shards", [1, 3])
def test_an_engine_without_jobs_has_nothing_to_export(servers, shards):
    servers.engine().shards(shards)
    to = MemoryDirectory()
    with pytest.raises(StorageError, match="has no jobs"):
        export_jobs(servers.engine, shards, to)
    assert not to.nodes


@pytest.mark.parametrize(
    "there",
    [{"notes": b"mine"}, {REWRITING: b"", f"{REWRITING}/segment.1": b"the only copy"}],
    ids=["notes", "start"],
)
def test_a_directory_with_anything_in_it_is_not_exported_to_and_keeps_it(servers, source, there):
    carry(servers, source)
    to = MemoryDirectory({name: Node(data) for name, data in there.items()})
    with pytest.raises(StorageError, match="not empty"):
        export_jobs(servers.engine, 1, to)
    assert contents(to) == there


def test_nothing_is_imported_into_an_engine_that_has_a_journal(servers, source):
    carry(servers, source)
    before = {name: bytes(data) for name, (_, data) in servers.primary.files.items()}
    with pytest.raises(StorageError, match="already has a journal"):
        carry(servers, source)
    assert {name: bytes(data) for name, (_, data) in servers.primary.files.items()} == before
    assert servers.primary.lease.node == ""


def in_use(source):
    source.nodes["lock"] = Node()
    source.lock()
    return source


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: MemoryDirectory(), "holds no jobs"),
        (lambda _: MemoryDirectory({"notes": Node(b"")}), "holds no jobs"),
        (in_use, "another server uses this directory"),
        (lambda source: source, "the limit of an engine is 2000 bytes per file"),
    ],
    ids=["empty", "notes", "in use", "too large"],
)
def test_nothing_is_imported_from_a_directory_that_has_nothing_for_an_engine(servers, source, monkeypatch, make, said):
    monkeypatch.setattr("beanstalk_server.cluster.transfer.LARGEST", 2000)
    with pytest.raises(StorageError, match=said):
        carry(servers, make(source))
    assert servers.primary.lease == Lease()
    assert not servers.primary.files


def test_nothing_is_imported_that_is_damaged(servers, source):
    name = segment_names(source)[0][1]
    source.nodes[name].data[300] ^= 1
    with pytest.raises(StorageError, match=f"{name}: damaged at offset") as caught:
        carry(servers, source)
    assert caught.value.status == DAMAGED
    assert servers.primary.lease == Lease()


def test_nothing_is_imported_while_nodes_use_the_engine(servers, source):
    servers.connect().observe("a", "here:1")
    with pytest.raises(StorageError, match="the node at here:1 uses the engine: stop all nodes"):
        carry(servers, source)


def test_nothing_is_imported_while_a_node_leads(servers, source):
    engine, clock = servers.connect(), Clock()
    lease = engine.take(Lease(), Lease(1, 0, "a", "here:1", "secret"))
    clock.on_sleep = lambda: engine.renew(lease)
    with pytest.raises(StorageError, match="the node at here:1 leads"):
        carry(servers, source, clock)


def test_a_leader_that_is_gone_does_not_keep_anybody_from_importing(servers, source):
    servers.connect().take(Lease(), Lease(1, 0, "a", "here:1", "secret"))
    clock = Clock()
    carry(servers, source, clock)
    assert clock.now >= 10.0
    assert servers.primary.lease.epoch == 2


def test_an_import_that_takes_long_keeps_the_lease(servers, source):
    carry(servers, source)
    assert servers.primary.lease.renewals > 0


def test_an_import_that_does_not_fit_leaves_nothing(source):
    servers = Servers(limit=3000)
    with pytest.raises(StorageError, match="cannot write to the engine: the engine has reached its memory limit"):
        carry(servers, source)
    assert not servers.primary.files
    assert servers.primary.lease.node == ""


def test_an_import_that_is_killed_is_no_binlog(servers, source):
    calls = []

    def stop(method):
        calls.append(method)
        if method == "append" and calls.count(method) >= 5:
            raise KeyboardInterrupt

    servers.before_call = stop
    with pytest.raises(KeyboardInterrupt):
        import_jobs(servers.engine, 1, 1, source)
    assert servers.primary.files
    assert jobs_of(in_engine(servers.copy())) == []
    servers.before_call = lambda method: None
    carry(servers, source)
    assert jobs_of(in_engine(servers.copy())) == bodies(40)


# Several shards

SHARDS = 3
TUBES = [f"tube-{number}" for number in range(7)]


def fill_tubes(directory):
    """Let a server put jobs of all kinds into several tubes, and stop; return them as they are stored, by their ids."""

    async def work():
        async with serving(directory) as put_one:
            for number in range(1, 60):
                await put_one(b"job %d" % number * 50, TUBES[number % len(TUBES)], delay=number % 3 * 60 * SECOND)

    asyncio.run(work())
    return stored_in(directory)


def stored_in(directory):
    """What matters of the jobs in a directory, by their ids."""
    with inspect(directory) as binlog:
        jobs = list(binlog.live(pytest.fail))
    return {job.id: (job.tube, job.body, job.state, job.priority, job.delay, job.ttr) for job in jobs}


def deadlines_in(directory):
    """When the jobs in a directory are due, by their ids, roughly: the clocks are read again each time."""
    with inspect(directory) as binlog:
        return {job.id: job.deadline for job in binlog.live(pytest.fail)}


def node_finds(servers, shard):
    """The jobs that a node would find in a shard, by their ids: the bodies."""
    servers = servers.copy()
    directory = EngineDirectory(servers.engine(), CommitSender(servers.lead(shard), 1), shard=shard)
    assert directory.lock()
    replay = Replay(IdTable(SHARDS, shard))
    recover(directory, replay, salvage=False, segment_size=SEGMENT, draw_salt=lambda: 5)
    return {job.id: (job.tube.name, job.body) for job in replay.jobs.values()}


def test_jobs_are_divided_among_shards_by_their_tubes_and_joined_again(servers):
    source = MemoryDirectory()
    jobs = fill_tubes(source)
    carry(servers, source, shards=SHARDS)
    places = Places(SHARDS)
    expected = [{}, {}, {}]
    for job_id, (tube, body, *_) in jobs.items():
        shard = places.of_tube(tube.encode())
        expected[shard][job_id * SHARDS + shard] = (tube, body)
    assert all(expected), "each shard has some"
    assert [node_finds(servers, shard) for shard in range(SHARDS)] == expected
    assert servers.engine().shards(0) == SHARDS
    assert [servers.primary.of(shard).lease.node for shard in range(SHARDS)] == [""] * SHARDS
    to = MemoryDirectory()
    assert export_jobs(servers.engine, SHARDS, to) == len(segment_names(to))
    assert {job_id // SHARDS: job for job_id, job in stored_in(to).items()} == jobs
    deadlines = {job_id // SHARDS: deadline for job_id, deadline in deadlines_in(to).items()}
    assert deadlines == pytest.approx(deadlines_in(source), abs=SECOND, rel=0)


def test_terms_and_held_keys_are_divided_and_joined_but_for_origins_in_other_shards(tmp_path):
    places = Places(SHARDS)
    origins = {places.of_tube(name.encode()): name for name in TUBES}
    assert len(origins) == SHARDS
    source, directories = MemoryDirectory(), [RealDirectory(tmp_path / str(shard)) for shard in range(SHARDS)]
    replay = Replay(IdTable())
    for number, origin in enumerate(origins.values(), 1):
        fields = {"has_terms": True, "tries": number, "max_tries": 7, "at": 0, "created_at": SECOND, "ttr": SECOND}
        replay.put(StoredJob(number, TUBES[0], origin=origin, **fields))
    held = StoredJob(9, TUBES[0], "key", HELD, deadline=5 * SECOND, created_at=SECOND, has_terms=True)
    replay.put(held)
    token = StoredJob(10, TUBES[0], "-token", HELD, deadline=5 * SECOND, created_at=SECOND, has_terms=True)
    token.set_token_job(1)
    replay.put(token)
    replay.finish(bytes(16))
    Rewriting(source, replay, [], SEGMENT, lambda: 5, 1 << 30, 20, sequence=0, commit_number=0).replace("a", [], [])
    divide(source, directories)
    to = MemoryDirectory()
    join(directories, to)
    with inspect(to) as binlog:
        *jobs, last, once = binlog.live(pytest.fail)
    shard = places.of_tube(TUBES[0].encode())
    assert [job.origin for job in jobs] == [origin if place == shard else "" for place, origin in origins.items()]
    assert [(job.tries, job.max_tries, job.tube) for job in jobs] == [(n, 7, TUBES[0]) for n in (1, 2, 3)]
    assert (last.state, last.key, last.id) == (HELD, "key", 9 * SHARDS + shard)
    assert (once.state, once.key, once.token_job()) == (HELD, "-token", SHARDS + shard)


def test_files_of_beanstalkd_are_divided_too(servers):
    source = MemoryDirectory()
    jobs = [StoredJob(n, f"tube-{n}", "", 1, 0, 0, SECOND, b"%d" % n, SECOND, 0) for n in range(1, 9)]
    writer.write(source, jobs, next_id=21, size=2000)
    carry(servers, source, shards=SHARDS)
    to = MemoryDirectory()
    export_jobs(servers.engine, SHARDS, to)
    assert {job_id // SHARDS: body for job_id, (_, body, *_) in stored_in(to).items()} == {
        number: b"%d" % number for number in range(1, 9)
    }


def test_ids_go_on_behind_all_that_were_ever_given(servers):
    source = MemoryDirectory()
    writer.write(source, [], next_id=21, size=2000)
    carry(servers, source, shards=SHARDS)
    to = MemoryDirectory()
    export_jobs(servers.engine, SHARDS, to)
    with inspect(to) as binlog:
        assert list(binlog.live(pytest.fail)) == []
        assert binlog.next_id >= 21 * SHARDS


@pytest.mark.parametrize("before", [1, 2, 3])
def test_an_import_that_ends_when_some_shards_have_their_jobs_leaves_none(servers, before):
    """Its last commits, one for each shard, are those that put files in their places."""
    source = MemoryDirectory()
    fill_tubes(source)
    calls = []
    servers.before_call = calls.append
    carry(servers, source, shards=SHARDS)
    last = calls.count("append") - before
    calls.clear()

    def interrupt(method):
        calls.append(method)
        if method == "append" and calls.count(method) == last + 1:
            raise KeyboardInterrupt

    servers = Servers()
    servers.before_call = interrupt
    with pytest.raises(KeyboardInterrupt):
        carry(servers, source, shards=SHARDS)
    assert [servers.primary.of(shard).files for shard in range(SHARDS)] == [{}, {}, {}]


def test_nothing_is_imported_into_an_engine_with_another_number_of_shards(servers, source):
    servers.engine().shards(8)
    with pytest.raises(StorageError, match="--shards 3: the engine has 8 shards"):
        carry(servers, source, shards=SHARDS)
    assert not servers.primary.files


def test_one_shard_that_has_jobs_keeps_all_from_being_imported(servers, source):
    servers.engine().shards(SHARDS)
    last = EngineDirectory(servers.engine(), CommitSender(servers.lead(2), 1), shard=2)
    last.create("segment.0000000001", 10)
    last.sync()
    with pytest.raises(StorageError, match="already has a journal"):
        carry(servers, source, shards=SHARDS)
    assert not servers.primary.of(0).files
    assert not servers.primary.of(1).files
    assert set(servers.primary.of(2).files) == {"segment.0000000001"}


def test_a_shard_that_was_led_and_has_never_had_a_job_keeps_no_other_from_being_exported(servers):
    source = MemoryDirectory()
    fill(source, 3)
    carry(servers, source, shards=SHARDS)
    shard = next(each for each in range(SHARDS) if not node_finds(servers, each))
    servers.primary.of(shard).files.clear()
    led = EngineDirectory(servers.engine(), CommitSender(servers.lead(shard), 1), shard=shard)
    led.create("spare.1", SEGMENT)  # which a leader takes ahead
    led.sync()
    to = MemoryDirectory()
    export_jobs(servers.engine, SHARDS, to)
    assert len(stored_in(to)) == 3


def grouped(tube, group="", after="", **fields):
    """A stored job of a group, or one that waits for a group."""
    terms = {"has_terms": True, "created_at": SECOND, "ttr": SECOND, "group": group, "after": after}
    waits = {"state": DELAYED, "deadline": LAST_MOMENT} if after else {}
    return {"tube": tube, **terms, **waits, **fields}


@pytest.mark.parametrize("is_divided", [True, False])
def test_a_group_is_divided_if_its_jobs_are_in_the_shard_of_its_tube(tmp_path, is_divided):
    places = Places(SHARDS)
    near, far = TUBES[0], next(name for name in TUBES if places.of_tube(name.encode()) != places.of_tube(b"tube-0"))
    source, directories = MemoryDirectory(), [RealDirectory(tmp_path / str(shard)) for shard in range(SHARDS)]
    replay = Replay(IdTable())
    group = f"{near}/g"
    jobs = [
        {"key": group, "state": GROUP, "has_terms": True, "created_at": SECOND, "reserves": 3},
        grouped(near, group),
        grouped(near, "", group),
        grouped(near, f"{far}/dead", origin=far),
        grouped(far, "", "" if is_divided else group),
    ]
    for number, fields in enumerate(jobs, 1):
        replay.put(StoredJob(number, **fields))
    replay.finish(bytes(16))
    Rewriting(source, replay, [], SEGMENT, lambda: 5, 1 << 30, 20, sequence=0, commit_number=0).replace("a", [], [])
    if not is_divided:
        with pytest.raises(
            StorageError, match=f"job 5 of tube {far} would be in a different shard from its group {group}"
        ):
            divide(source, directories)
        return
    divide(source, directories)
    with inspect(directories[places.of_tube(near.encode())]) as binlog:
        first, member, waiting, dead = binlog.live(pytest.fail)
    assert (first.state, first.key, first.reserves) == (GROUP, group, 3)
    assert (member.group, waiting.after, waiting.deadline) == (group, group, LAST_MOMENT)
    assert (dead.origin, dead.group) == ("", "")


def test_a_torn_tail_is_not_imported_because_a_node_would_take_it_for_damage(servers, source):
    name = segment_names(source)[-1][1]
    end = len(bytes(source.nodes[name].data).rstrip(b"\0"))
    source.nodes[name].data[end : end + 3] = b"a t"
    source.remove(STOPPED)
    carry(servers, source)
    assert jobs_of(in_engine(servers)) == bodies(40)
