"""Lifetimes: ready jobs expire, and keys stay taken for some time after their jobs; both survive a restart."""

import pytest
from checking import check_broker
from virtual import BrokerWorld

from beanstalk_server.queue.broker import SLICE
from beanstalk_server.queue.costs import EXPIRY_COST
from beanstalk_server.queue.job import READY
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE, Journal
from beanstalk_server.queue.outcome import DONE, DRAINING, EXISTS, PENDING
from beanstalk_server.queue.policy import Policy
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.wheel import TICK

HOUR = 3600 * SECOND


class World(BrokerWorld):
    """Its client watches tube `t`; jobs are named by their ids."""

    def connect(self):
        client = super().connect()
        self.broker.watch(client, "t")
        return client

    def put(self, **how):
        return super().put(**how).id

    def reserve(self, job_id):
        super().reserve(self.broker.jobs[job_id])

    def delete(self, job_id):
        super().delete(self.broker.jobs[job_id])

    def lives_for(self, job_id, duration):
        """Whether a job is there until so long from now, and no longer."""
        self.sleep(duration - 1)
        assert job_id in self.broker.jobs, "it has expired too early"
        self.sleep(TICK)
        return job_id not in self.broker.jobs


# Time to live


def test_what_has_expired_while_a_clear_goes_on_is_cleared():
    world = World(t=Policy(ttl=SECOND))
    for _ in range(3 * SLICE):
        world.put()
    assert world.broker.clear(world.client, "t") == PENDING
    world.sleep(2 * SECOND)
    assert world.client.answers[-1] == ("counted", 3 * SLICE)
    assert world.broker.counters.expired == 0
    assert not world.broker.jobs and not world.journal.jobs


def test_a_job_that_was_due_by_the_wall_clock_does_not_live_longer_for_each_restart():
    world = World()
    job_id = world.put(at=world.journal.clock_offset() + world.now + HOUR, ttl=HOUR)
    for _ in range(3):
        world.restart(HOUR // 2)
    assert world.broker.jobs[job_id].state == READY
    assert world.lives_for(job_id, HOUR // 2)


@pytest.mark.parametrize("end", ["none", "released", "timed out", "disconnected"])
def test_a_job_that_was_reserved_does_not_live_longer_for_each_restart(end):
    """However its reservation has ended, if it has: its time begins once."""
    world = World(t=Policy(ttl=HOUR))
    job_id = world.put(ttr=HOUR // 2)
    world.sleep(HOUR // 2)
    world.reserve(job_id)
    world.sleep(HOUR // 4)
    if end == "released":
        assert world.broker.release(world.client, job_id, 0, 0, world.now) == DONE
    elif end == "disconnected":
        world.broker.disconnect(world.client, world.now)
    elif end == "timed out":
        world.sleep(HOUR // 4 + TICK)
    left = HOUR if end != "none" else HOUR + HOUR // 8  # from the end of the reservation, or the first start, on
    for _ in range(3):
        world.restart(HOUR // 8)
        world.sleep(HOUR // 8)
        left -= HOUR // 4
    assert world.broker.jobs[job_id].state == READY
    assert world.lives_for(job_id, left - TICK if end == "timed out" else left)


@pytest.mark.parametrize("is_reserved", [False, True])
@pytest.mark.parametrize("demands", [{}, {"max_tries": 2}], ids=["plain", "with terms"])
def test_a_time_to_live_that_begins_with_a_policy_does_not_begin_again(is_reserved, demands):
    world = World()
    job_id = world.put(**demands)
    world.sleep(HOUR)
    if is_reserved:
        world.reserve(job_id)
    elif demands:
        world.reserve(job_id)
        assert world.broker.release(world.client, job_id, 0, 0, world.now) == DONE
    world.policies["t"] = Policy(ttl=HOUR // 2)
    world.broker.change_policies(world.policy_of, world.now)
    world.sleep(0)
    for _ in range(2):
        world.restart(HOUR // 8)
        world.sleep(0)
    assert world.lives_for(job_id, HOUR // 4 + (HOUR // 8 if is_reserved else 0))


def test_a_start_records_since_when_jobs_are_ready_as_soon_as_the_journal_admits_it():
    world = World(t=Policy(ttl=HOUR))
    job_ids = [world.put() for _ in range(SLICE + 1)]
    for job_id in job_ids:
        world.reserve(job_id)
    world.restart()
    world.broker.set_admission(NONE)
    world.sleep(0)
    assert world.broker.has_suspended()
    assert not any(stored.ready_since for stored in world.journal.jobs.values())
    world.broker.set_admission(ALL)
    world.broker.advance(world.now)
    world.delete(job_ids[0])
    world.reserve(job_ids[1])
    world.sleep(0)
    assert [number for number, stored in world.journal.jobs.items() if not stored.ready_since] == [job_ids[1]]


def test_what_has_expired_while_no_server_was_running_expires_at_the_first_advance():
    world = World(t=Policy(ttl=5 * SECOND))
    job_id = world.put()
    delayed = world.put(delay=SECOND)
    world.restart(away=HOUR)
    assert set(world.broker.jobs) == {job_id, delayed}
    world.sleep(0)
    assert not world.broker.jobs
    assert world.broker.counters.expired == 2


def test_nobody_waits_while_many_jobs_expire():
    world = World(Journal(), t=Policy(ttl=SECOND))
    for _ in range(5 * SLICE):
        world.put()
    world.now += 2 * SECOND
    slices = 0
    while world.broker.jobs:
        before = len(world.broker.jobs)
        world.broker.advance(world.now)
        assert before - len(world.broker.jobs) <= SLICE / EXPIRY_COST
        slices += 1
    assert slices >= 5 * EXPIRY_COST


# Held keys


def test_a_key_whose_time_has_ended_while_no_server_was_running_is_free_at_the_first_advance():
    world = World(t=Policy(key_hold=HOUR))
    world.delete(world.put(key="k"))
    world.restart(away=HOUR + 1)
    world.sleep(0)
    assert not world.broker.held and not world.journal.jobs


def test_a_clear_frees_held_keys():
    world = World(t=Policy(key_hold=HOUR))
    for number in range(3 * SLICE):
        world.delete(world.put(key=f"k{number}"))
    assert world.broker.clear(world.client, "t") == PENDING
    check_broker(world.broker)
    for key in ("k0", f"k{3 * SLICE - 1}"):
        assert world.put_with(key=key) == DONE, "it is free at once"
    world.delete(world.client.answers[-1][1])
    check_broker(world.broker)
    world.sleep(SECOND)
    assert world.client.answers[-1] == ("counted", 0)
    assert (len(world.broker.held), len(world.broker.jobs)) == (1, 1)
    world.restart()
    assert (len(world.broker.held), len(world.broker.jobs)) == (1, 1)


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"max_jobs": 2}, 2), ({"max_jobs": 2, "max_held_keys": 3}, 3), ({"max_held_keys": 1}, 1)],
    ids=["as many as jobs", "more", "no other limit"],
)
def test_a_tube_holds_a_bounded_number_of_keys(limits, most):
    world = World(t=Policy(**limits))
    for number in range(most):
        world.delete(world.put(key=f"k{number}", key_hold=HOUR))
    assert world.put_with(key="more", key_hold=SECOND) == DRAINING
    assert world.put_with(key="more") == DONE, "its key will be free when it is gone"
    assert world.put_with(key="more", key_hold=SECOND, replaces=True) == DRAINING


# While the journal does not admit everything


def test_a_job_expires_as_soon_as_the_journal_admits_its_deletion():
    world = World(t=Policy(ttl=SECOND))
    job_id = world.put()
    reserved = world.put()
    world.broker.set_admission(NONE)
    world.sleep(5 * SECOND)
    assert job_id in world.broker.jobs
    world.reserve(reserved)
    world.broker.set_admission(DELETIONS)
    world.sleep(0)
    assert list(world.broker.jobs) == [reserved]


@pytest.mark.parametrize("policy", [Policy(ttl=SECOND, key_hold=HOUR), Policy(ttl=SECOND, dead_tube="dead")])
def test_what_is_more_than_a_deletion_waits_for_more(policy):
    world = World(t=policy)
    job_id = world.put(key="k")
    world.broker.set_admission(NONE)
    world.sleep(5 * SECOND)
    world.broker.set_admission(DELETIONS)
    world.sleep(SECOND)
    assert world.broker.jobs[job_id].tube.name == "t"
    world.broker.set_admission(ALL)
    world.sleep(0)
    assert job_id not in world.broker.jobs or world.broker.jobs[job_id].tube.name == "dead"


def test_a_key_is_free_as_soon_as_the_journal_admits_it():
    world = World(t=Policy(key_hold=SECOND))
    world.delete(world.put(key="k"))
    world.broker.set_admission(NONE)
    world.sleep(5 * SECOND)
    assert world.put_with(key="k") == EXISTS
    world.broker.set_admission(DELETIONS)
    world.sleep(0)
    assert not world.broker.held


def test_a_reservation_is_recorded_only_if_the_job_can_expire_and_the_journal_admits_it():
    world = World(t=Policy(max_tries=3))
    plain, mortal = world.put(max_tries=2), world.put(ttl=HOUR)
    lsn = world.broker.last_lsn
    world.reserve(plain)
    assert world.broker.last_lsn == lsn
    world.reserve(mortal)
    assert world.broker.last_lsn == lsn + 1
    assert world.broker.unreserve(world.client, mortal, world.now) == DONE
    assert world.broker.last_lsn == lsn + 2
    world.broker.set_admission(NONE)
    world.reserve(mortal)
    assert world.broker.last_lsn == lsn + 2
