"""Nothing acknowledged is lost, whatever fails in the engine while the leader lives, or wherever the leader stops.

Brokers whose binlog is in an engine do random commands, as in storage/test_binlog_crashes.py. The engine loses answers
and the tails of its commits, lags, fails over, is wiped; the leader stops before or after a call. The next one must
find what was acknowledged.
"""

import asyncio
import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lives import Clocks, History, Life, run_life
from memory_disk import Crash
from memory_engine import Servers

from beanstalk_server.cluster import engine_writer
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine import EngineError
from beanstalk_server.cluster.engine_binlog import EngineBinlog
from beanstalk_server.cluster.engine_writer import EngineWriter
from beanstalk_server.cluster.sender import Sender
from beanstalk_server.queue.check import check_broker
from beanstalk_server.queue.journal import ALL
from harness.waiting import eventually_async

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

    def loses_what_was_confirmed(self):
        """The replica that becomes the primary is one that did not confirm anything for a while."""
        servers = self.servers
        if servers.replicas[0].lags:
            servers.fail_over(0)
        else:
            servers.replicas[0].lags = True

    def is_wiped(self):
        if self.rng.random() < 0.3:
            self.servers.wipe()


class EngineLife(Life):
    """A leader, from its beginning to its end."""

    def open(self, **options):
        del options["sync_interval"]
        servers = self.directory.servers
        lease = servers.primary.lease
        engine = servers.connect()
        sender = Sender(lease.epoch + 1, lease.position, 1, kept=KEPT)
        directory = EngineDirectory(engine, sender, "engine", sleep=lambda _: None)
        self.writer = EngineWriter(engine, directory, sender, SeededThread(self.rng))
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
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@SEEDS
@given(st.integers(0, 1 << 32))
def test_a_leader_that_stops_anywhere_loses_nothing_that_was_acknowledged(seed):
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
    rng = random.Random(seed)
    history, clocks = History(), Clocks()
    faults = ("cannot_be_reached", "loses_answers", "lags", "fails_over", "loses_what_was_confirmed", "is_wiped")
    engine = Unreliable(rng, faults=faults)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beanstalk_server.cluster.engine_binlog.COMMIT_LIMIT", commit_limit)
        for _ in range(3):
            life = EngineLife(history, engine, rng, clocks)
            asyncio.run(whole_life(life, 60))
            clocks.come_back(rng)
            engine = Unreliable(rng, engine.servers.copy(), faults)


async def whole_life(life, commands):
    """All of a life, with an engine that is reliable in the end: what it has then is what counts."""
    from lives import live

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
