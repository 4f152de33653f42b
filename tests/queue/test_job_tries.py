"""Tries: what a process does with many jobs that fail, how long they wait at most, and what their journal admits.

Which job is tried again, buried or moved to its dead tube, and when, is compared with the model (test_broker.py).
"""

import pytest
from checking import check_broker
from virtual import BrokerWorld, RecordingClient

from beanstalk_server.queue.broker import DISCONNECT_SLICE, SLICE
from beanstalk_server.queue.costs import FAILURE_COST, NEW_TUBE_COST
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    LONGEST_DELAY,
    NO_EXTRAS,
    READY,
    RESERVED,
)
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.outcome import DONE, NOT_FOUND, PENDING
from beanstalk_server.queue.policy import NO_POLICY, Policy
from beanstalk_server.queue.units import MILLISECOND, SECOND


class World(BrokerWorld):
    ttr = 2 * SECOND

    def fail(self, job, times=1, delay=0):
        """Reserve and release a job; return the last outcome."""
        for _ in range(times):
            self.reserve(job)
            outcome = self.broker.release(self.client, job.id, 7, delay, self.now)
        return outcome

    def redrive(self, name, bound=1000):
        """Redrive a tube; return how many jobs have come back."""
        outcome = self.broker.redrive(self.client, name, bound, self.now)
        if outcome != NOT_FOUND:
            self.sleep(0)
            kind, count = self.client.answers.pop()
            assert kind == "counted"
            outcome = count
        return outcome


# Limits


@pytest.mark.parametrize("policy", [Policy(max_tries=1), Policy(ttl=5 * SECOND)])
def test_it_is_no_failure_that_the_server_ends_and_nothing_is_recorded_any_more(policy):
    world = World(t=policy)
    job = world.put()
    world.reserve(job)
    lsn = world.broker.last_lsn
    world.broker.halt()
    world.broker.disconnect(world.client, world.now)
    assert (job.state, world.broker.last_lsn) == (READY, lsn)


def test_a_worker_can_see_before_the_first_failure_how_often_a_job_may_fail():
    world = World(t=Policy(max_tries=3))
    job = world.put()
    for tries in range(3):
        found = world.broker.job_statistics(job.id, world.now)
        assert (found.terms.tries, found.max_tries) == (tries, 3)
        world.fail(job)
    assert world.broker.job_statistics(world.put("other").id, world.now).terms is None


@pytest.mark.parametrize("policy", [NO_POLICY, Policy(key_hold=SECOND, max_jobs=9)])
def test_where_nothing_is_asked_for_a_job_stays_as_it_is_and_no_failure_but_a_release_is_recorded(policy):
    world = World(t=policy)
    job = world.put()
    before = job.extras
    world.reserve(job)
    lsn = world.broker.last_lsn
    world.broker.disconnect(world.client, world.now)
    assert (job.state, world.broker.last_lsn) == (READY, lsn)
    assert job.extras is before
    assert policy is not NO_POLICY or before is NO_EXTRAS


# Backoff


def test_a_backoff_doubles_with_each_failure_up_to_its_limit():
    world = World(t=Policy(backoff=SECOND, backoff_max=5 * SECOND))
    job = world.put()
    for seconds in (1, 2, 4, 5, 5):
        assert world.fail(job) == DONE
        assert (job.state, job.deadline - world.now) == (DELAYED, seconds * SECOND)
        world.sleep(seconds * SECOND + MILLISECOND)
        assert job.state == READY
    found = [world.broker.server_statistics(), world.broker.tube_statistics("t", 0)]
    assert [each.counters.retried for each in found] == [5, 5]


def test_without_a_limit_a_backoff_grows_up_to_the_longest_delay():
    world = World(t=Policy(backoff=1))
    job = world.put()
    world.fail(job, 64)
    assert job.deadline - world.now == LONGEST_DELAY
    world.fail(job, 3)
    assert job.deadline - world.now == LONGEST_DELAY


# Redrive


def dead_letters(count, **policy):
    world = World(t=Policy(max_tries=1, dead_tube="dead", **policy))
    jobs = [world.put(key=f"k{number}") for number in range(count)]
    for job in jobs:
        world.fail(job)
    check_broker(world.broker)
    return world, jobs


def test_the_statistics_of_a_dead_tube_tell_how_many_have_gone_back():
    world, _ = dead_letters(3)
    world.policies["dead"] = Policy(max_tries=9)
    world.restart()
    world.redrive("dead", 2)
    assert world.broker.tube_statistics("dead", 0).counters.redriven == 2


def test_a_cleared_dead_letter_does_not_go_back():
    world, _ = dead_letters(3 * SLICE)
    assert world.broker.clear(world.client, "dead") == PENDING
    fresh = world.put()
    world.fail(fresh)
    other = RecordingClient(world.broker)
    assert world.broker.redrive(other, "dead", 9999, world.now) in (DONE, PENDING)
    world.sleep(0)
    assert other.answers == [("counted", 1)]
    assert world.client.answers[-1] == ("counted", 3 * SLICE)
    assert sorted(world.broker.jobs) == [fresh.id]
    assert fresh.tube.name == "t"


# What the journal does not admit


@pytest.mark.parametrize("admits", [NONE, DELETIONS])
def test_a_job_whose_time_has_run_out_stays_reserved_until_its_failure_may_be_recorded(admits):
    world = World(t=Policy(max_tries=1))
    job, touched, plain = world.put(), world.put(), world.put("elsewhere")
    world.reserve(job, touched, plain)
    lsn = world.broker.last_lsn
    world.broker.set_admission(admits)
    world.sleep(3 * SECOND)
    assert (job.state, touched.state, plain.state) == (RESERVED, RESERVED, READY)
    assert world.broker.last_lsn == lsn
    assert world.broker.next_event() > world.now, "nobody polls"
    world.broker.touch(world.client, touched.id, world.now)
    check_broker(world.broker)
    world.broker.set_admission(ALL)
    assert world.broker.next_event() <= world.now
    world.sleep(SECOND // 10)
    assert (job.state, touched.state) == (BURIED, RESERVED)


def test_a_disconnect_waits_until_failures_may_be_recorded():
    world = World(t=Policy(max_tries=1))
    plain, *jobs = [world.put("elsewhere"), world.put(), world.put(ttr=99 * SECOND)]
    world.reserve(plain, *jobs)
    world.broker.set_admission(NONE)
    world.broker.disconnect(world.client, world.now)
    world.sleep(3 * SECOND)
    assert (plain.state, *[job.state for job in jobs]) == (READY, RESERVED, RESERVED)
    world.broker.set_admission(ALL)
    world.sleep(0)
    assert [(job.state, job.extras.tries) for job in jobs] == [(BURIED, 1)] * 2
    assert world.broker.next_event() > world.now


def test_many_dead_letters_share_the_name_of_their_origin_after_a_restart_too():
    world = World(tube=Policy(max_tries=1, dead_tube="dead"))
    for _ in range(3):
        world.fail(world.put("tube"))
    for job in world.journal.jobs.values():
        job.origin = "".join(job.origin)  # as read from a file
    world.restart()
    assert len({id(job.extras.origin) for job in world.broker.jobs.values()}) == 1


# Many


@pytest.mark.parametrize("policy", [NO_POLICY, Policy(max_tries=1, dead_tube="dead")])
@pytest.mark.parametrize("watches", [True, False])
def test_a_client_that_had_many_jobs_gives_them_all_back_in_slices(policy, watches):
    world = World(t=policy)
    count = 4 * DISCONNECT_SLICE
    jobs = [world.put() for _ in range(count)]
    world.reserve(*jobs)
    if not watches:
        world.broker.unwatch(world.client, "default")
    world.broker.disconnect(world.client, world.now)
    assert any(job.state == RESERVED for job in jobs)
    assert world.broker.cost <= DISCONNECT_SLICE + FAILURE_COST + NEW_TUBE_COST
    world.sleep(0)
    assert {(job.state, job.tube.name) for job in jobs} == {(READY, policy.dead_tube or "t")}


def test_dead_letters_are_freed_with_their_broker():
    world, _ = dead_letters(3)
    letters = [job.extras.letter for job in world.broker.jobs.values()]
    for _ in world.broker.drop_jobs():
        pass
    assert not any(letter.is_linked() for letter in letters)
    assert [letter.job.extras.letter for letter in letters] == [None] * 3
