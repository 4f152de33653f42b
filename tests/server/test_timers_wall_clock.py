"""When the server looks at the wall clock: before what is due, and each half second while a job waits for it."""

import pytest
from rounds import SECOND, Rounds
from virtual import RecordingClient

from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.wall_clock import WALL_CHECK
from beanstalk_server.server.process import clock_offset


class Watched(Rounds):
    """Counts the looks at the wall clock."""

    looks = 0

    def clock_offset(self):
        self.looks += 1
        return super().clock_offset()

    def put(self, after):
        """Put a job that is due this many seconds after the present, by the wall clock; return when that is."""
        at = self.clock() + self.wall_offset + round(after * SECOND)
        self.broker.set_wall_offset(self.wall_offset)
        client = RecordingClient(self.broker)
        asked = Attributes(at=at)
        assert self.broker.put_with(client, asked, 0, 0, SECOND, b"x", self.clock(), self.clock()) == DONE
        self.turns.run_pending()
        return at

    @property
    def wall(self):
        return self.clock() + self.wall_offset

    def due(self):
        """Let time pass until the job is ready; return what the wall clock says then."""
        while not self.broker.ready:
            self.loop.sleep(0.001)
        return self.wall


@pytest.fixture
def rounds():
    return Watched()


def test_nobody_looks_while_no_job_waits_for_the_clock(rounds):
    caller = rounds.connect()
    caller.send(b"put 0 3 60 1\r\nx\r\n")
    rounds.loop.sleep(3600)
    assert (rounds.looks, rounds.broker.ready) == (0, 1)
    assert not rounds.loop.later, "and nothing is set"


def test_while_one_waits_the_clock_is_looked_at_each_half_second(rounds):
    rounds.put(3600)
    rounds.loop.sleep(100)
    assert 200 <= rounds.looks <= 600, "the wheel wakes the server when a slot cascades, too"
    rounds.broker.cancel(RecordingClient(rounds.broker), 1)
    rounds.loop.sleep(100)
    looks = rounds.looks
    rounds.loop.sleep(100)
    assert rounds.looks == looks
    assert not rounds.loop.later


def test_that_begins_at_once_although_the_server_was_to_be_woken_later(rounds):
    caller = rounds.connect()
    caller.send(b"put 0 1000 60 1\r\nx\r\n")
    rounds.loop.sleep(1)
    rounds.put(3600)
    rounds.wall_offset += 4000 * SECOND
    rounds.loop.sleep(WALL_CHECK / SECOND + 0.01)
    assert rounds.broker.ready == 1


@pytest.mark.parametrize("step", [3600, 10, 7200])
def test_a_step_forward_counts_within_half_a_second(rounds, step):
    at = rounds.put(step)
    rounds.loop.sleep(3.14)
    rounds.wall_offset += step * SECOND
    before = rounds.clock()
    assert rounds.due() >= at
    assert rounds.clock() - before <= WALL_CHECK + SECOND // 100


def test_a_step_back_just_before_the_moment_is_seen_in_time(rounds):
    """No look at the clock lies between the step and the moment, but for the one before the job would be ready."""
    at = rounds.put(60)
    while rounds.wall < at - SECOND // 1000:
        rounds.loop.sleep(0.0007)
    rounds.wall_offset -= 5 * SECOND
    assert at <= rounds.due() <= at + SECOND // 100


def test_back_and_forth_over_the_moment_is_never_early(rounds):
    at = rounds.put(30)
    for step in (29, -40, 20, -33, 3, -3, 28, -28):
        rounds.wall_offset += step * SECOND
        rounds.loop.sleep(0.7)
        assert rounds.wall < at and not rounds.broker.ready
    assert at <= rounds.due() <= at + SECOND // 100


@pytest.mark.parametrize("drift", [-500, -1, 1, 500])
def test_a_clock_that_runs_slower_or_faster_is_followed(rounds, drift):
    """This many nanoseconds in each millisecond: what a daemon that corrects the clock may do."""
    at = rounds.put(20)
    while not rounds.broker.ready:
        rounds.loop.sleep(0.001)
        rounds.wall_offset += drift
    assert at <= rounds.wall <= at + SECOND // 100


def test_a_job_that_is_due_while_nothing_may_be_handed_out_is_ready_when_that_ends(rounds):
    rounds.put(10)
    rounds.turns.suspend()
    rounds.wall_offset += 20 * SECOND
    rounds.loop.sleep(5)
    assert rounds.broker.ready == 0
    rounds.turns.resume()
    rounds.loop.sleep(0.01)
    assert rounds.broker.ready == 1


def test_the_offset_of_this_process_is_that_of_its_clocks(monkeypatch):
    monkeypatch.setattr("beanstalk_server.server.process.time_ns", lambda: 1_800_000_000)
    monkeypatch.setattr("beanstalk_server.server.process.monotonic_ns", lambda: 300)
    assert clock_offset() == 1_799_999_700
