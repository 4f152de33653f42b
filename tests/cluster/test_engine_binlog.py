"""Nothing acknowledged is lost, whatever fails in the engine while the leader lives, or wherever the leader stops.

Brokers whose binlog is in an engine do random commands, as in storage/test_binlog_crashes.py. The engine loses answers
and the tails of its commits, lags, fails over, is wiped; the leader stops before or after a call. The next one must
find what was acknowledged.
"""

import asyncio
import contextlib
import random

import pytest
from checking import check_broker
from effort import BASE_SEED, examples
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st
from lives import SEGMENT, Clocks, History, Life, live, run_life
from memory_disk import Crash
from memory_engine import Servers
from policy_lives import PolicyLife
from virtual import RecordingClient, put, reserve_job

from beanstalk_server.cluster import engine_writer
from beanstalk_server.cluster.commit_sender import CommitSender, FencedError
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine.interface import EngineError
from beanstalk_server.cluster.engine_binlog import EngineBinlog
from beanstalk_server.cluster.engine_writer import EngineWriter, GivenUpError
from beanstalk_server.cluster.lanes import Lanes
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.outcome import DONE, OUT_OF_MEMORY
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.binlog import UNKNOWN_IDS
from beanstalk_server.storage.errors import StorageError
from harness.waiting import eventually_async

pytestmark = pytest.mark.interpreted

KEPT = 8192
"""Bytes of commits that can be sent again: a few dozen."""


class SeededThread:
    """The thread of a writer, which is none: each piece of work is done some rounds of the event loop later."""

    def __init__(self, rng):
        self.rng = rng

    def begin(self, work, on_end, wait=0.0):
        self._soon(self.rng.randrange(4), work, on_end)

    async def run(self, work):
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        return work()

    def close(self):
        pass

    def _soon(self, rounds, work, on_end):
        loop = asyncio.get_running_loop()
        if rounds:
            loop.call_soon(self._soon, rounds - 1, work, on_end)
            return
        error = None
        try:
            work()
        except BaseException as raised:
            error = raised
        loop.call_soon(on_end, error)


class Unreliable:
    """Servers that fail at random calls, as a seed has it.

    Args:
        faults: names of methods here, one of which happens before about every sixth call.
    """

    def __init__(self, rng, servers=None, faults=()):
        self.rng = rng
        self.servers = servers or Servers()
        self.faults = faults
        self.servers.before_call = self._before
        self.servers.after_call = self._after
        self.is_reliable = False
        self.happened = 0
        self.operations = 0
        self.crash_at = None
        self.crashed = False
        self.fail = {}

    @property
    def nodes(self):
        return {}

    def _before(self, method):
        self._count()
        if self.is_reliable or method == "files":
            return
        if self.faults and self.rng.random() < 0.15:
            self.happened += 1
            getattr(self, self.rng.choice(self.faults))()

    def _after(self, method):
        self._count()

    def _count(self):
        if self.crashed:
            raise Crash
        self.operations += 1
        if self.operations == self.crash_at:
            self.crashed = True
            raise Crash

    # Faults

    def cannot_be_reached(self):
        raise EngineError("the engine cannot be reached")

    def loses_answers(self):
        self.servers.lost_answers = self.rng.randrange(1, 3)

    def lags(self):
        """No replica confirms anything, until one of them becomes the primary or they catch up."""
        self.servers.lag(self.rng.random() < 0.5)

    def fails_over(self):
        """To a replica that has everything that was confirmed."""
        self.servers.fail_over()
        self.servers.renew()

    def loses_what_was_confirmed(self):
        """The replica that becomes the primary is one that did not confirm anything for a while."""
        servers = self.servers
        if servers.replicas[0].lags:
            servers.fail_over(0)
            servers.renew()
        else:
            servers.replicas[0].lags = True

    def is_wiped(self):
        if self.rng.random() < 0.3:
            self.servers.wipe()
            self.servers.renew()


class EngineLife(Life):
    """A leader, from its beginning to its end."""

    def open(self, **options):
        del options["sync_interval"]
        servers = self.directory.servers
        sender = CommitSender(servers.lead(), 1, kept=KEPT)
        directory = EngineDirectory(servers.engine(), sender, "engine", sleep=lambda _: None)
        lanes = Lanes(servers.engine(), SeededThread(self.rng))
        self.writer = EngineWriter(directory, lanes)
        self.rewritings = []
        binlog = EngineBinlog(directory, self.writer, **options)
        binlog.on_rewriting = self.rewritings.append
        return binlog

    def start(self):
        """Another leader cannot take part; so recovery is repeated until it succeeds."""
        self.directory.is_reliable = True
        super().start()
        self.directory.is_reliable = False

    async def settle(self):
        await eventually_async(
            lambda: self.binlog._upkeep is None and self.binlog._rewriting is None, "the upkeep and rewritings end"
        )
        await super().settle()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(engine_writer, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(engine_writer, "LONGEST_PAUSE", 0.0)


SEEDS = settings(
    max_examples=examples(30),
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_an_id_that_a_client_may_have_heard_of_is_never_given_again():
    """A worker may get a job before its put is durable; then the leader stops, and the worker deletes that id."""
    engine = Unreliable(random.Random(1))
    heard = []
    for epoch in range(1, 6):
        life = EngineLife(History(), engine, random.Random(epoch), Clocks())
        life.start()
        heard.append([life.broker.take_id() for _ in range(3)])
        life.writer.close()
    assert heard[0] == [1, 2, 3]
    given = [number for numbers in heard for number in numbers]
    assert given == sorted(set(given))


@SEEDS
@example(58312)  # a job was ready in a time that, after the clock was set back, was still to come
@given(st.integers(0, 1 << 32))
def test_a_leader_that_stops_anywhere_loses_nothing_that_was_acknowledged(seed):
    stop_anywhere(seed)


def stop_anywhere(seed):
    rng = random.Random(seed)
    history, clocks = History(), Clocks()
    faults = ("cannot_be_reached", "loses_answers", "lags", "fails_over")
    engine = Unreliable(rng, faults=faults)
    for _ in range(5):
        engine.crash_at = rng.randrange(1, 400)
        life = run_life(history, engine, rng, clocks, 60, kind=EngineLife)
        life.writer.close()
        clocks.come_back(rng, has_crashed=True)
        engine = Unreliable(rng, engine.servers.copy(), faults)


@pytest.mark.parametrize("commit_limit", [1000, 1 << 20])
@SEEDS
@given(st.integers(0, 1 << 32))
def test_while_the_leader_lives_the_engine_may_lose_everything(commit_limit, seed):
    lose_everything(commit_limit, seed)


class LifeWithPolicies(PolicyLife, EngineLife):
    """A leader whose tubes have policies."""


@settings(SEEDS, max_examples=examples(20))
@given(st.sampled_from((1000, 1 << 20)), st.integers(0, 1 << 32))
def test_with_policies_the_engine_may_lose_everything_too(commit_limit, seed):
    """Held keys, tries and dead letters are written anew; and time goes on meanwhile."""
    lose_everything(commit_limit, seed, LifeWithPolicies)


def lose_everything(commit_limit, seed, kind=EngineLife):
    rng = random.Random(seed)
    history, clocks = History(), Clocks()
    faults = ("cannot_be_reached", "loses_answers", "lags", "fails_over", "loses_what_was_confirmed", "is_wiped")
    engine = Unreliable(rng, faults=faults)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beanstalk_server.cluster.engine_binlog.COMMIT_LIMIT", commit_limit)
        for _ in range(3):
            life = kind(history, engine, rng, clocks)
            asyncio.run(whole_life(life, 60))
            event(f"{len(life.rewritings) // 2} rewritings")
            clocks.come_back(rng)
            engine = Unreliable(rng, engine.servers.copy(), faults)


async def whole_life(life, commands):
    """All of a life, with an engine that is reliable in the end: what it has then is what counts."""
    life.start()
    life.history.compare(life)
    await live(life, commands)
    life.directory.is_reliable = True
    life.directory.servers.lag(False)
    life.directory.servers.lost_answers = 0
    life.writer.check((0, 0), life.writer.durable)
    await life.settle()
    await life.commit()
    await life.settle()
    check_broker(life.broker)
    life.binlog._log.check()
    assert life.binlog.admits == ALL
    assert life.rewritings[::2] == [True] * (len(life.rewritings) // 2)
    if life.rng.random() < 0.5:
        await life.binlog.close()
    else:
        life.writer.close()


class Leader:
    """A leader with a broker, on servers that do as they are told."""

    def __init__(self, servers):
        self.servers = servers
        self.sender = CommitSender(servers.lead(), 1, kept=KEPT)
        self.directory = EngineDirectory(servers.engine(), self.sender, "engine", sleep=lambda _: None)
        self.lanes = Lanes(servers.engine())
        self.writer = EngineWriter(self.directory, self.lanes)
        self.binlog = EngineBinlog(self.directory, self.writer, segment_size=SEGMENT)
        self.failures = []
        self.binlog.on_failure = self.failures.append
        self.rewritings = []
        self.binlog.on_rewriting = self.rewritings.append
        self.admissions = []
        self.broker = Broker(self.binlog, SECOND)
        self.broker.restore(0, SECOND)
        self.client = RecordingClient(self.broker)
        self.binlog.on_admission = self.admissions.append

    async def close(self):
        await self.binlog.close()
        self.lanes.close()

    def put(self, body=b"body", **options):
        return put(self.broker, self.client, body=body, now=SECOND, **options)

    async def settle(self):
        await eventually_async(
            lambda: self.binlog._upkeep is None and self.binlog._rewriting is None, "the upkeep and rewritings end"
        )

    async def commit(self):
        """Commit, and do all that follows from it."""
        await self.binlog.commit()
        await self.settle()

    async def fill(self, jobs):
        """Put this many jobs, each with a commit of its own."""
        for number in range(jobs):
            self.put(b"%02d" % number * 100)
            await self.binlog.commit()
        await self.settle()

    def begin_commit(self):
        """Begin a commit in the quick way; return a list that gets its error, or None."""
        ends = []
        assert self.binlog.begin_commit(False, ends.append)
        return ends

    def bodies(self):
        return sorted(job.body for job in self.broker.jobs.values())


async def found_in(servers):
    """The bodies that the next leader finds."""
    leader = Leader(servers.copy())
    check_broker(leader.broker)
    leader.binlog._log.check()
    bodies = leader.bodies()
    await leader.close()
    return bodies


@pytest.fixture
def servers():
    return Servers()


async def test_jobs_of_one_leader_are_those_of_the_next(servers):
    leader = Leader(servers)
    leader.put(b"one")
    await leader.binlog.commit()
    leader.put(b"two")
    ends = leader.begin_commit()
    await eventually_async(lambda: ends, "the commit ends")
    assert ends == [None]
    leader.put(b"three, which no one has asked for")
    await leader.close()
    assert (await found_in(servers))[-1:] == [b"two"]
    assert len(await found_in(servers)) == 3, "a leader that ends commits what is left"
    assert "stopped" in servers.primary.files


async def test_a_leader_that_is_fenced_commits_nothing_more(servers):
    leader = Leader(servers)
    leader.put(b"one")
    await leader.binlog.commit()
    servers.lead()
    leader.put(b"two")
    ends = leader.begin_commit()
    await eventually_async(lambda: ends, "the commit ends")
    assert isinstance(ends[0], FencedError)
    with pytest.raises(FencedError):
        await leader.binlog.commit()
    await leader.close()
    assert await found_in(servers) == [b"one"]


async def test_commits_wait_while_all_jobs_are_written_anew(servers, caplog):
    caplog.set_level("INFO", "beanstalk_server")

    leader = Leader(servers)
    await leader.fill(60)
    servers.wipe()
    servers.renew()
    leader.put(b"in the quick way")
    ends = leader.begin_commit()
    leader.put(b"in the other way")
    commit = asyncio.ensure_future(leader.binlog.commit())
    await eventually_async(lambda: leader.rewritings, "the engine is found to be empty")
    assert leader.binlog.admits == NONE
    assert leader.admissions[-1] == NONE
    assert not leader.binlog.begin_commit(True, ends.append)
    assert ends == [] and not commit.done()
    await commit
    await eventually_async(lambda: ends, "the commit ends")
    assert ends == [None]
    assert leader.rewritings == [True, False]
    assert leader.admissions[-1] == leader.binlog.admits == ALL
    leader.binlog._log.check()
    leader.put(b"afterwards")
    await leader.binlog.commit()
    await leader.close()
    bodies = leader.bodies()
    assert len(bodies) == 63
    assert await found_in(servers) == bodies
    lines = [line for line in caplog.messages if "rewriting" in line or "again" in line]
    assert lines == [
        "the engine has lost commits: its last commit is 0.0; rewriting all 62 jobs",
        "the engine has all jobs again",
    ]


async def test_ids_are_not_given_twice_although_the_engine_was_wiped_when_there_was_no_job(servers):
    leader = Leader(servers)
    leader.sender.restart(servers.primary.lease.position._replace(number=10_000))
    for _ in range(3):
        leader.put()
    for number in (1, 2, 3):
        assert leader.broker.delete(leader.client, number, SECOND) == DONE
    await leader.commit()
    await leader.close()
    leader = Leader(servers)
    assert leader.put() == DONE
    assert list(leader.broker.jobs) == [4 + UNKNOWN_IDS]
    await leader.close()


async def test_what_was_cleared_does_not_come_back_when_everything_is_written_anew(servers):
    leader = Leader(servers)
    for number in range(2000):
        leader.put(b"%d" % number)
    await leader.binlog.commit()
    leader.broker.use(leader.client, "other")
    leader.put(b"kept")
    leader.broker.clear(leader.client, "default")  # in slices, of which most are still to come
    await leader.commit()
    servers.wipe()
    servers.renew()
    leader.put(b"new")
    await leader.binlog.commit()
    leader.binlog._log.check()
    leader.writer.close()
    leader.lanes.close()
    assert await found_in(servers) == [b"kept", b"new"]


async def test_a_leader_that_gives_up_while_it_writes_everything_anew_can_be_closed(servers):
    leader = Leader(servers)
    await leader.fill(40)
    servers.wipe()
    servers.renew()
    leader.put(b"last")
    ends = leader.begin_commit()
    servers.before_call = lambda method: setattr(servers, "is_reachable", method == "append" and not leader.rewritings)
    await eventually_async(lambda: leader.rewritings, "the engine is found to be empty")
    leader.writer.give_up(GivenUpError("enough"))
    await leader.close()
    assert [str(error) for error in ends] == ["enough"]
    assert [str(error) for error in leader.failures][:1] == ["enough"]


@pytest.mark.parametrize("when", range(1, 6))
@pytest.mark.parametrize("has_more", [False, True], ids=["nothing-new", "a-change"])
async def test_a_leader_that_ends_leaves_all_jobs_although_the_engine_is_wiped_meanwhile(servers, when, has_more):
    calls = []

    def wipe_once(method):
        if method == "append":
            calls.append(method)
            if len(calls) == when:
                servers.wipe()
                servers.renew()

    leader = Leader(servers)
    await leader.fill(40)
    if has_more:
        leader.put(b"last")
    servers.before_call = wipe_once
    await leader.close()
    assert leader.failures == []
    (bodies, rewritings) = leader.bodies(), leader.rewritings
    calls_of_an_end = 2 + has_more  # the last changes, if there are any, a checkpoint, and the mark of a clean end
    assert rewritings == ([True, False] if when <= calls_of_an_end else [])
    servers.before_call = lambda _: None
    assert await found_in(servers) == bodies
    assert "stopped" in servers.primary.files


async def test_a_leader_that_is_fenced_when_it_leaves_its_last_mark_says_so(servers):
    calls = []

    def fence(method):
        if method == "append":
            calls.append(method)
            if len(calls) == 2:
                servers.lead()

    leader = Leader(servers)
    leader.put(b"one")
    await leader.commit()
    servers.before_call = fence
    await leader.close()
    assert [type(error) for error in leader.failures] == [FencedError]
    assert await found_in(servers) == [b"one"]


async def test_a_full_engine_refuses_puts_and_nothing_else():
    servers = Servers(limit=20_000)

    leader = Leader(servers)
    acknowledged = 0
    for number in range(1000):
        if leader.put(b"%03d" % number * 100) != DONE:
            break
        await leader.commit()
        acknowledged += 1
    assert 30 < acknowledged < 200
    assert leader.put(bytes(300)) == OUT_OF_MEMORY
    for number in list(leader.broker.jobs):
        assert reserve_job(leader.broker, leader.client, number, SECOND)
        assert leader.broker.release(leader.client, number, 1, 0, SECOND) == DONE
        await leader.commit()
        assert leader.binlog.admits == ALL
    assert servers.primary.used() < 40_000
    for number in list(leader.broker.jobs)[10:]:
        assert leader.broker.delete(leader.client, number, SECOND) == DONE
        await leader.commit()
    leader.sender._tried -= 2.0  # a second has passed
    leader.binlog._allocator.full_until = 1
    for _ in range(30):
        assert leader.put(bytes(300)) == DONE
        await leader.commit()
    assert not leader.directory.is_full
    bodies = leader.bodies()
    await leader.close()
    assert await found_in(servers) == bodies


@contextlib.asynccontextmanager
async def opened(servers):
    """A broker whose jobs are those in an engine, and its binlog."""
    sender = CommitSender(servers.lead(), 1, kept=KEPT)
    directory = EngineDirectory(servers.engine(), sender, "engine", sleep=lambda _: None)
    lanes = Lanes(servers.engine())
    binlog = EngineBinlog(directory, EngineWriter(directory, lanes), segment_size=SEGMENT)
    broker = Broker(binlog, SECOND)
    try:
        broker.restore(0, SECOND)
        yield broker, binlog
        await binlog.close()
    finally:
        lanes.close()


def test_a_flipped_bit_in_the_engine_is_found_before_a_job_is_served():
    """Also in the last commit: no write to an engine is torn, so what is broken is not erased as on a disk."""

    async def filled(servers):
        """The engine as the leader leaves it that is killed: its end is not marked."""
        async with opened(servers) as (broker, binlog):
            client = RecordingClient(broker)
            for number in range(40):
                put(broker, client, body=b"job %d" % number * 9)
                await binlog.commit()
            return servers.copy()

    async def bodies(servers):
        async with opened(servers) as (broker, _):
            return {job.id: bytes(job.body) for job in broker.jobs.values()}

    servers = asyncio.run(filled(Servers()))
    rng = random.Random(BASE_SEED)
    segments = {name: data for name, (_, data) in servers.primary.files.items() if name.startswith("segment")}
    assert len(segments) > 1
    places = [(name, at) for name, data in segments.items() for at in range(len(data))]
    for name, at in [*places[-100:], *rng.sample(places, examples(100))]:
        damaged = servers.copy()
        damaged.primary.files[name][1][at] ^= 1 << rng.randrange(8)
        with pytest.raises(StorageError, match=r"segment\.\d+: damaged at offset"):
            asyncio.run(bodies(damaged))
    assert asyncio.run(bodies(servers)) == {number + 1: b"job %d" % number * 9 for number in range(40)}
