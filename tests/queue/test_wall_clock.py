"""Jobs that are due at a moment of the wall clock: how often that is read, in slices, and while it drifts.

When such a job is ready, however the clock is set, is compared with the model (test_broker.py).
"""

import random

import pytest
from checking import check_broker
from virtual import BrokerWorld, RecordingClient, put

from beanstalk_server.queue.broker import SLICE
from beanstalk_server.queue.job import DELAYED, READY
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.units import FOREVER, SECOND
from beanstalk_server.queue.wall_clock import WALL_CHECK
from beanstalk_server.queue.wheel import END_OF_TIME

MINUTE = 60 * SECOND
EIGHT = 1_800_000_000 * SECOND
"""Eight o'clock, say."""


class Clocks(BrokerWorld):
    """Two clocks: time passes on both, and only one of them can be set."""

    def __init__(self):
        super().__init__(Journal(), now=5 * SECOND)
        self.set(EIGHT - MINUTE)

    @property
    def wall(self):
        return self.now + self.offset

    def set(self, wall):
        """Let the wall clock say this, and the broker know it."""
        self.offset = wall - self.now
        self.broker.set_wall_offset(self.offset)
        check_broker(self.broker)

    def put(self, at, client=None):
        """Put a job; return it."""
        client = client or self.client
        asked = Attributes(at=at)
        assert self.broker.put_with(client, asked, 0, 0, SECOND, b"x", self.now, self.now) == DONE
        return self.broker.jobs[client.answers.pop()[1]]


@pytest.fixture
def clocks():
    return Clocks()


def test_over_its_moment_and_back_between_two_looks_is_nothing_at_all(clocks):
    job = clocks.put(EIGHT)
    clocks.set(EIGHT + MINUTE)
    clocks.set(EIGHT - MINUTE)
    clocks.sleep(MINUTE - 1)
    assert job.state == DELAYED


def test_a_job_that_is_due_is_compared_with_the_clock_as_it_is_then(clocks):
    """It stood among the timers that are due when the clock was set back."""
    other = put(clocks.broker, clocks.client, delay=MINUTE, now=clocks.now)
    job = clocks.put(EIGHT)
    assert other == DONE
    clocks.now += MINUTE
    while not clocks.broker.ready:
        clocks.broker.advance(clocks.now, 1)  # one of the two is handled, and the other is left as due
    assert job.state == DELAYED
    clocks.set(EIGHT - MINUTE)
    clocks.broker.advance(clocks.now)
    assert job.state == DELAYED
    clocks.sleep(MINUTE)
    assert job.state == READY


@pytest.mark.parametrize("drift", [-100_000, 100_000, -900_000, 900_000])
def test_a_clock_that_is_slowed_or_hurried_moves_the_moment_with_it(clocks, drift):
    """Half a second by the server's clock is this many nanoseconds less or more by the wall clock."""
    job = clocks.put(EIGHT)
    clocks.set(EIGHT - 10 * SECOND)
    while job.state == DELAYED:
        assert clocks.wall < EIGHT + SECOND // 2 + drift, "a look at the clock later, it is ready"
        clocks.sleep(WALL_CHECK)
        assert job.state == DELAYED or clocks.wall >= EIGHT, "never early"
        clocks.set(clocks.wall + drift)
        clocks.sleep(0)


def test_nobody_looks_at_the_clock_when_no_job_waits_for_it(clocks):
    assert clocks.broker.next_event() == END_OF_TIME
    assert not clocks.broker.follows_wall_clock()
    jobs = [clocks.put(EIGHT + number) for number in range(3)]
    for job in jobs:
        assert clocks.broker.follows_wall_clock()
        assert clocks.broker.next_event() <= clocks.now + WALL_CHECK, "it is looked at again within that time"
        assert clocks.broker.delete(clocks.client, job.id, clocks.now) == DONE
    assert not clocks.broker.follows_wall_clock()
    clocks.sleep(WALL_CHECK)
    assert clocks.broker.next_event() == END_OF_TIME


def test_the_clock_is_looked_at_again_and_again_while_a_job_waits(clocks):
    clocks.put(EIGHT)
    for _ in range(10):
        clocks.sleep(WALL_CHECK)
        assert clocks.now < clocks.broker.next_event() <= clocks.now + WALL_CHECK


def test_many_that_are_due_at_once_come_in_slices(clocks):
    count = 2 * SLICE
    for number in range(count):
        clocks.put(EIGHT - number % 5)
    clocks.set(EIGHT)
    slices = 0
    while clocks.broker.next_event() <= clocks.now:
        before = clocks.broker.ready
        clocks.broker.advance(clocks.now, 100)
        assert clocks.broker.ready - before <= 100
        slices += 1
    check_broker(clocks.broker)
    assert clocks.broker.ready == count
    assert slices >= count // 100


def test_a_step_of_the_clock_moves_one_timer_however_many_jobs_there_are(clocks):
    """Nobody is kept waiting by it: what the wheel is asked for is counted."""
    for number in range(1000):
        clocks.put(EIGHT + number)
    wheel = clocks.broker.wheel
    timers = wheel.check()
    assert timers == 2, "that of the first job, and that of the next look at the clock"
    clocks.broker.set_wall_offset(clocks.offset + MINUTE // 2)
    assert wheel.check() == timers


def test_a_failing_timer_leaves_the_rest_to_come(clocks):
    """As any bug would: the others are not lost with it."""
    jobs = [clocks.put(EIGHT + number) for number in range(3)]
    worker = RecordingClient(clocks.broker)
    clocks.broker.reserve(worker, FOREVER, clocks.now)
    worker.answers = None  # it cannot be told anything
    clocks.set(EIGHT + SECOND)
    with pytest.raises(AttributeError):
        clocks.sleep(0)
    while clocks.broker.next_event() <= clocks.now:
        clocks.broker.advance(clocks.now)
    assert [job.state for job in jobs[1:]] == [READY, READY]


def test_any_tubes_and_moments_are_in_order(clocks):
    rng = random.Random(3)
    clients = [RecordingClient(clocks.broker) for _ in range(20)]
    for number, client in enumerate(clients):
        clocks.broker.use(client, f"t{number}")
    jobs = []
    for _ in range(400):
        if jobs and rng.random() < 0.4:
            job = jobs.pop(rng.randrange(len(jobs)))
            assert clocks.broker.cancel(clocks.client, job.id) == DONE
            check_broker(clocks.broker)
        else:
            jobs.append(clocks.put(EIGHT + rng.randrange(100), client=rng.choice(clients)))
            check_broker(clocks.broker)
    due = sorted(jobs, key=lambda job: (job.deadline, job.id))
    assert clocks.broker.wall.first() is due[0]
    clocks.set(EIGHT + MINUTE)
    clocks.broker.advance(clocks.now, 1)
    assert due[0].state == READY and due[1].state == DELAYED
