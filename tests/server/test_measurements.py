"""How long replies wait for commits, and how long the event loop is held: by clocks that a test moves. And a server
that measures all of it, if it is asked to.
"""

import pytest
from rounds import Loop, Rounds

from beanstalk_server import Config, Server
from beanstalk_server.queue.histogram import Histogram
from beanstalk_server.queue.journal import DELETIONS
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.server.alarm import LoopAlarm
from beanstalk_server.server.front.listener_policy import listener_policy_of
from beanstalk_server.server.front.listeners import Listeners, open_listener
from beanstalk_server.server.measurements import INTERVAL, HeldSamples
from beanstalk_server.settings.sections import ListenerConfig
from harness.in_thread import ServerThread
from harness.waiting import eventually
from tests.server.test_commits import ASK, PUT, QuickJournal, committing

# Commits


class Committing:
    """Rounds in which commits go on beside an event loop that is never idle, and are measured."""

    def __init__(self):
        self.rounds = Rounds(QuickJournal())
        self.rounds.gate.commits = self.found = Histogram()
        self.busy = self.rounds.connect()
        self.settle()

    def settle(self, milliseconds=0):
        """Go on for a while."""
        self.busy.send(ASK * 10_000)
        self.rounds.loop.go_round()
        self.rounds.loop.go_round()
        self.rounds.loop.now += milliseconds * MILLISECOND

    def end(self):
        self.rounds.journal.end_commit()
        self.settle()

    def milliseconds(self):
        """How many commits there were, and how long they took together."""
        return self.found.count, self.found.total // MILLISECOND


@pytest.fixture
def world():
    return Committing()


def test_a_commit_takes_from_the_reply_that_waits_first_until_it_leaves(world):
    world.rounds.connect().send(PUT)
    world.settle(7)
    assert world.milliseconds() == (0, 0)
    world.end()
    assert world.milliseconds() == (1, 7)


def test_what_comes_during_a_commit_waits_for_the_rest_of_it_and_for_its_own(world):
    world.rounds.connect().send(PUT)
    world.settle(4)
    world.rounds.connect().send(PUT)
    world.settle(2)
    world.rounds.connect().send(PUT)
    world.settle(1)
    world.end()
    assert world.milliseconds() == (1, 7)
    world.settle(10)
    world.end()
    assert world.milliseconds() == (2, 7 + 13)


def test_a_client_that_does_not_wait_for_its_replies_waits_from_each_of_them(world):
    caller = world.rounds.connect()
    caller.send(PUT)
    world.settle(4)
    caller.send(PUT)
    world.settle(2)
    world.end()
    world.settle(10)
    world.end()
    assert world.milliseconds() == (2, 6 + 12)


def test_a_reply_that_leaves_with_the_commit_under_way_does_not_wait_for_the_next(world):
    caller = world.rounds.connect()
    caller.send(PUT)
    world.settle(4)
    caller.send(ASK)
    world.settle(5)
    world.end()
    world.settle(100)
    caller.send(PUT)
    world.settle(3)
    world.end()
    assert world.milliseconds() == (2, 9 + 3)


def test_a_commit_for_which_no_reply_waits_takes_as_long_as_it_takes(world):
    world.rounds.gate.on_admission(DELETIONS)
    world.settle(5)
    world.end()
    assert world.milliseconds() == (1, 5)


def test_a_commit_that_has_begun_before_anybody_asked_is_not_counted():
    rounds, caller = committing()
    rounds.gate.commits = found = Histogram()
    rounds.loop.now += SECOND
    rounds.journal.end_commit()
    assert caller.read() == b"INSERTED 1\r\n"
    assert found.count == 0


# The event loop


@pytest.fixture
def loop():
    return Loop()


def test_a_sample_is_as_late_as_the_loop_comes_to_it(loop):
    held = Histogram()
    samples = HeldSamples(held, loop.clock, LoopAlarm)
    samples.start(loop)
    loop.sleep(1)
    assert (held.count, held.total) == (SECOND // INTERVAL, 0)
    loop.now += INTERVAL + 7 * MILLISECOND
    loop.go_round()
    assert (held.count, held.total) == (SECOND // INTERVAL + 1, 7 * MILLISECOND)
    loop.now += 3600 * SECOND
    loop.settle()
    assert held.count == SECOND // INTERVAL + 2, "however long it is held, that is one sample"
    samples.stop()
    loop.sleep(1)
    assert held.count == SECOND // INTERVAL + 2


class EarlyAlarm(LoopAlarm):
    """Goes off at once, too."""

    def set(self, deadline):
        super().set(deadline)
        self._loop.call_soon(self._on_due)


def test_an_alarm_that_goes_off_early_or_after_the_end_is_no_sample(loop):
    held = Histogram()
    samples = HeldSamples(held, loop.clock, EarlyAlarm)
    samples.start(loop)
    for _ in range(3):
        loop.go_round()
    assert held.count == 0
    samples.stop()
    loop.sleep(1)
    assert held.count == 0


# A server


def measured(config):
    server = Server(config)
    server.measure()
    return server


def work(server):
    """Put, reserve and delete a job."""
    caller = server.connect()
    assert caller.ask(PUT) == b"INSERTED 1\r\n"
    assert caller.ask(b"reserve\r\n") == b"RESERVED 1 1\r\n"
    assert caller.line() == b"x\r\n"
    assert caller.ask(b"delete 1\r\n") == b"DELETED\r\n"


def counts(measurements):
    durations = measurements.durations
    return [durations.waited.count, durations.ran.count, measurements.commits.count > 0]


def test_a_server_measures_all_of_it_from_its_start_on(loop_factory, tmp_path):
    server = ServerThread(Config(port=0, binlog=str(tmp_path)), loop_factory, measured)
    try:
        measurements = server.server.measure()
        work(server)
        eventually(lambda: counts(measurements) == [1, 1, True], "all is counted")
        eventually(lambda: measurements.held.count > 1, "the event loop is sampled")
    finally:
        server.stop()


def test_a_server_measures_nothing_until_it_is_asked_to(run):
    server = run()
    work(server)
    assert server.server.measurements is None
    assert server.server.broker.durations is None and server.server.gate.commits is None
    measurements = server.call(server.server.measure)
    assert server.call(server.server.measure) is measurements
    eventually(lambda: measurements.held.count > 1, "the event loop is sampled")
    assert counts(measurements) == [0, 0, False]


# Counters


def test_failures_at_listeners_that_are_gone_are_still_counted():
    listeners = Listeners()
    config = ListenerConfig(address="127.0.0.1:0")
    listeners.all = [open_listener(config, Config()) for _ in range(2)]
    for listener in listeners.all:
        listener.policy = listener_policy_of(config, "here", None)
        assert listener.policy.authenticate("token") is None
    assert listeners.failures == 2
    listeners.change([(listeners.all[0], listener_policy_of(config, "here", None))])
    assert len(listeners.listener_policies) == 1
    assert listeners.failures == 2
    listeners.close()
