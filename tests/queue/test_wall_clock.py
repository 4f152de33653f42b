"""Jobs that are due at a moment of the wall clock, however it is set meanwhile."""

import random

import pytest
from checking import check_broker
from virtual import BrokerWorld, MemoryJournal, RecordingClient, put

from beanstalk_server.queue.broker import SLICE, Broker
from beanstalk_server.queue.job import DELAYED, READY
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.outcome import DONE, DRAINING, NOT_FOUND, PENDING, REPLACED, TIMED_OUT
from beanstalk_server.queue.policy import Attributes, Policy
from beanstalk_server.queue.units import FOREVER, MILLISECOND, SECOND
from beanstalk_server.queue.wall_clock import WALL_CHECK
from beanstalk_server.queue.wheel import END_OF_TIME

MINUTE = 60 * SECOND
EIGHT = 1_800_000_000 * SECOND
"""Eight o'clock, say."""


class Clocks(BrokerWorld):
    """Two clocks: time passes on both, and only one of them can be set."""

    def __init__(self, journal=None, wall=EIGHT - MINUTE):
        super().__init__(journal or Journal(), now=5 * SECOND)
        self.set(wall)

    @property
    def wall(self):
        return self.now + self.offset

    def set(self, wall):
        """Let the wall clock say this, and the broker know it."""
        self.offset = wall - self.now
        self.broker.set_wall_offset(self.offset)
        check_broker(self.broker)

    def put(self, at, priority=0, client=None, **attributes):
        """Put a job; return it."""
        client = client or self.client
        asked = Attributes(at=at, **attributes)
        outcome = self.broker.put_with(client, asked, priority, 0, SECOND, b"x", self.now, self.now)
        assert outcome in (DONE, REPLACED)
        return self.broker.jobs[client.answers.pop()[1]]


@pytest.fixture
def clocks():
    return Clocks()


def test_a_job_is_ready_when_the_wall_clock_says_so_and_not_before(clocks):
    job = clocks.put(EIGHT)
    check_broker(clocks.broker)
    assert (job.state, clocks.broker.delayed) == (DELAYED, 1)
    clocks.sleep(MINUTE - 1)
    assert job.state == DELAYED
    clocks.sleep(MILLISECOND)
    assert (job.state, clocks.broker.delayed, clocks.broker.ready) == (READY, 0, 1)


@pytest.mark.parametrize("late", [0, 1, MINUTE, EIGHT - 1])
def test_a_job_whose_moment_is_past_is_ready_at_once(clocks, late):
    assert clocks.put(clocks.wall - late).state == READY


def test_a_clock_that_is_set_beyond_the_moment_makes_the_job_ready_with_the_next_look(clocks):
    job = clocks.put(EIGHT)
    clocks.set(EIGHT)
    assert clocks.broker.next_event() <= clocks.now
    clocks.sleep(0)
    assert job.state == READY


def test_a_clock_that_is_set_back_makes_the_job_wait_longer(clocks):
    job = clocks.put(EIGHT)
    clocks.sleep(MINUTE - SECOND)
    clocks.set(EIGHT - 2 * MINUTE)
    clocks.sleep(2 * MINUTE - 1)
    assert job.state == DELAYED
    clocks.sleep(MILLISECOND)
    assert job.state == READY


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


def test_once_ready_a_job_stays_so_when_the_clock_goes_back(clocks):
    job = clocks.put(EIGHT)
    clocks.set(EIGHT)
    clocks.sleep(0)
    clocks.set(EIGHT - MINUTE)
    clocks.sleep(SECOND)
    assert job.state == READY
    assert not job.is_timed()


def test_a_delay_lasts_as_long_whatever_the_wall_clock_says(clocks):
    put(clocks.broker, clocks.client, delay=MINUTE, now=clocks.now)
    clocks.put(EIGHT + MINUTE)
    clocks.set(EIGHT + MINUTE)
    clocks.sleep(SECOND)
    assert (clocks.broker.ready, clocks.broker.delayed) == (1, 1)
    clocks.set(EIGHT - 10 * MINUTE)
    clocks.sleep(MINUTE)
    assert (clocks.broker.ready, clocks.broker.delayed) == (2, 0)


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


def test_a_waiting_client_is_given_the_job_when_its_moment_comes(clocks):
    worker = RecordingClient(clocks.broker)
    assert clocks.broker.reserve(worker, FOREVER, clocks.now) == PENDING
    job = clocks.put(EIGHT)
    clocks.set(EIGHT)
    clocks.sleep(0)
    assert worker.answers == [("reserved", job.id)]


def test_jobs_of_all_tubes_come_in_the_order_of_their_moments(clocks):
    workers = [RecordingClient(clocks.broker) for _ in range(5)]
    moments = [EIGHT + SECOND * step for step in (3, 0, 4, 1, 2)]
    came = []
    for number, worker in enumerate(workers):
        clocks.broker.use(worker, f"t{number}")
        clocks.put(moments[number], client=worker)
        clocks.put(moments[number] + 10 * SECOND, client=worker)
    clocks.set(EIGHT)
    for _ in workers:
        clocks.sleep(MILLISECOND)
        came += [number for number in range(5) if number not in came and clocks.broker.tubes[f"t{number}"].ready.jobs]
        clocks.sleep(SECOND - MILLISECOND)
    assert came == [1, 3, 4, 0, 2]
    assert clocks.broker.delayed == 5


def test_jobs_of_both_kinds_are_next_by_what_is_left_of_their_time(clocks):
    broker, client = clocks.broker, clocks.client
    put(broker, client, delay=MINUTE // 2, now=clocks.now)
    timed = clocks.put(EIGHT)
    assert broker.peek_delayed(client) == DONE
    clocks.set(EIGHT - MINUTE // 4)
    assert broker.peek_delayed(client) == DONE
    assert client.answers == [("found", timed.id - 1), ("found", timed.id)]
    assert broker.tube_statistics("default", clocks.now).delayed == 2
    assert broker.job_statistics(timed.id, clocks.now).time_left == MINUTE // 4
    assert broker.kick(client, 1, clocks.now) == DONE
    assert (timed.state, timed.is_timed()) == (READY, False)
    check_broker(broker)
    assert broker.kick(client, 5, clocks.now) == DONE
    assert client.answers[2:] == [("counted", 1), ("counted", 1)]
    check_broker(broker)


def end_by_kick(clocks, job):
    assert clocks.broker.kick_job(clocks.client, job.id, clocks.now) == DONE


def end_by_reschedule(clocks, job):
    assert clocks.broker.reschedule(clocks.client, job.id, 2 * MINUTE, clocks.now) == DONE


def end_by_reserve_and_release(clocks, job):
    clocks.broker.reserve_job(clocks.client, job.id, clocks.now)
    assert clocks.broker.release(clocks.client, job.id, 0, 2 * MINUTE, clocks.now) == DONE


def end_by_bury(clocks, job):
    clocks.broker.reserve_job(clocks.client, job.id, clocks.now)
    assert clocks.broker.bury(clocks.client, job.id, 0, clocks.now) == DONE


@pytest.mark.parametrize("end", [end_by_kick, end_by_reschedule, end_by_reserve_and_release, end_by_bury])
def test_whoever_gives_it_another_state_or_delay_ends_what_was_agreed(clocks, end):
    job = clocks.put(EIGHT)
    end(clocks, job)
    check_broker(clocks.broker)
    before = job.state
    clocks.set(EIGHT + MINUTE)
    clocks.sleep(MINUTE)
    assert (job.state, job.is_timed()) == (before, False)


def test_cancel_and_clear_delete_it(clocks):
    broker = clocks.broker
    job = clocks.put(EIGHT)
    assert broker.cancel(clocks.client, job.id) == DONE
    for number in range(SLICE + 10):
        clocks.put(EIGHT + number % 7)
    assert broker.clear(clocks.client, "default") == PENDING
    check_broker(broker)
    assert broker.peek_delayed(clocks.client) == NOT_FOUND
    clocks.set(EIGHT + MINUTE)
    clocks.sleep(0)
    assert clocks.client.answers == [("counted", SLICE + 10)]
    assert not broker.jobs and not broker.ready


def test_a_replacement_has_its_own_moment_or_none(clocks):
    first = clocks.put(EIGHT, key="k")
    second = clocks.put(EIGHT + MINUTE, key="k", replaces=True)
    assert second.id == first.id
    clocks.set(EIGHT)
    clocks.sleep(SECOND)
    assert second.state == DELAYED
    broker, client = clocks.broker, clocks.client
    fresh = Attributes(key="k", replaces=True)
    assert broker.put_with(client, fresh, 0, 0, SECOND, b"x", clocks.now, clocks.now) == REPLACED
    check_broker(broker)
    assert broker.jobs[first.id].state == READY


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


@pytest.mark.parametrize(("wall", "state"), [(EIGHT - 1, DELAYED), (EIGHT, READY), (0, DELAYED), (2 * EIGHT, READY)])
def test_after_a_restart_the_moment_is_what_it_was_whatever_has_become_of_the_clock(wall, state):
    clocks = Clocks(MemoryJournal())
    job = clocks.put(EIGHT)
    again = Broker(clocks.broker.journal.restarted(), clocks.now)
    again.restore(wall - clocks.now, clocks.now)
    check_broker(again)
    found = again.jobs[job.id]
    assert (found.state, found.is_timed()) == (state, state == DELAYED)
    assert not found.is_timed() or found.terms().at == EIGHT


def test_what_had_come_due_may_wait_again_if_the_clock_was_set_back_while_no_server_ran():
    """Nothing is recorded when a job comes due; and the clock that counts is the one of the new start."""
    clocks = Clocks(MemoryJournal())
    job = clocks.put(EIGHT)
    clocks.set(EIGHT)
    clocks.sleep(0)
    assert job.state == READY
    again = Broker(clocks.broker.journal.restarted(), clocks.now)
    again.restore(EIGHT - MINUTE - clocks.now, clocks.now)
    assert again.jobs[job.id].state == DELAYED


def test_who_asks_for_a_job_that_waits_is_not_made_to_wait_for_it(clocks):
    clocks.put(EIGHT)
    assert clocks.broker.reserve(clocks.client, 0, clocks.now) == TIMED_OUT


def test_the_longest_delay_of_a_tube_is_also_that_until_a_moment():
    broker = Broker(Journal(), policy_of=lambda _: Policy(max_delay=MINUTE))
    client = RecordingClient(broker)
    broker.set_wall_offset(EIGHT)
    asked = [Attributes(at=EIGHT + MINUTE + late) for late in (0, 1)]
    assert [broker.put_with(client, each, 0, 0, SECOND, b"x", 0, 0) for each in asked] == [DONE, DRAINING]
