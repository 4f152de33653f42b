"""Lifetimes: ready jobs expire, and keys stay taken for some time after their jobs; both survive a restart."""

import pytest
from checking import check_broker
from virtual import BodilessJournal, MemoryJournal, RecordingClient

from beanstalk_server.queue.broker import SLICE, Broker
from beanstalk_server.queue.costs import EXPIRY_COST
from beanstalk_server.queue.job import DELAYED, EXPIRED, NO_EXTRAS, READY, RESERVED
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE, Journal
from beanstalk_server.queue.outcome import DONE, EXISTS, NOT_FOUND, PENDING, REPLACED, TOO_LATE
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Policy
from beanstalk_server.queue.units import FOREVER, SECOND
from beanstalk_server.queue.wheel import TICK

HOUR = 3600 * SECOND


class World:
    """A broker with a journal, one client that uses and watches tube `t`, and the policies of some tubes."""

    def __init__(self, journal=None, **policies):
        self.now = SECOND
        self.policies = policies
        self.journal = journal or MemoryJournal()
        self.broker = Broker(self.journal, self.now, policy_of=self.policy_of)
        self.client = self.connect()

    def policy_of(self, name):
        return self.policies.get(name, NO_POLICY)

    def connect(self):
        client = RecordingClient(self.broker)
        self.broker.use(client, "t")
        self.broker.watch(client, "t")
        return client

    def restart(self, away=0):
        """Let another broker take over the journal after some time, as after a crash."""
        self.now += away
        self.journal = self.journal.restarted()
        self.broker = Broker(self.journal, self.now, policy_of=self.policy_of)
        self.broker.restore(self.journal.clock_offset(), self.now)
        self.client = self.connect()
        check_broker(self.broker)

    def put(self, delay=0, ttr=HOUR, priority=0, **demands):
        """Put a job; return its id."""
        assert self.put_with(delay, ttr, priority, **demands) in (DONE, REPLACED)
        return self.client.answers[-1][1]

    def put_with(self, delay=0, ttr=HOUR, priority=0, **demands):
        return self.broker.put_with(
            self.client, Attributes(**demands), priority, delay, ttr, b"body", self.now, self.now
        )

    def reserve(self, job_id):
        assert self.broker.reserve_job(self.client, job_id, self.now) == DONE

    def delete(self, job_id):
        assert self.broker.delete(self.client, job_id, self.now) == DONE

    def sleep(self, duration):
        end = self.now + duration
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.broker.advance(self.now)
            check_broker(self.broker)
        self.now = end

    def lives_for(self, job_id, duration):
        """Whether a job is there until so long from now, and no longer."""
        self.sleep(duration - 1)
        assert job_id in self.broker.jobs, "it has expired too early"
        self.sleep(TICK)
        return job_id not in self.broker.jobs


# Time to live


@pytest.mark.parametrize(
    ("policy", "demands"),
    [(Policy(ttl=5 * SECOND), {}), (NO_POLICY, {"ttl": 5 * SECOND}), (Policy(ttl=HOUR), {"ttl": 5 * SECOND})],
)
def test_a_job_that_is_ready_for_too_long_is_deleted_and_counted(policy, demands):
    world = World(t=policy)
    job_id = world.put(**demands)
    assert world.lives_for(job_id, 5 * SECOND)
    assert world.broker.counters.expired == 1
    if policy is not NO_POLICY:  # the counters of all other tubes are one object, which nobody reads
        assert world.broker.tubes["t"].counters.expired == 1
    assert world.broker.tubes["t"].deletes == 0
    assert world.journal.jobs == {}


def test_a_plain_put_into_such_a_tube_expires_too():
    world = World(t=Policy(ttl=5 * SECOND))
    assert world.broker.put(world.client, world.broker.take_id(), 0, 0, HOUR, b"x", world.now, world.now) == DONE
    assert world.lives_for(1, 5 * SECOND)


def test_other_jobs_never_expire_and_have_no_terms():
    world = World(t=Policy(key_hold=SECOND, max_jobs=9))
    job_id = world.put()
    world.sleep(1000 * HOUR)
    assert world.broker.jobs[job_id].extras is NO_EXTRAS


def test_the_time_to_live_begins_when_a_job_becomes_ready():
    world = World(t=Policy(ttl=5 * SECOND))
    delayed = world.put(delay=20 * SECOND)
    world.sleep(20 * SECOND)
    assert world.broker.jobs[delayed].state == READY
    assert world.lives_for(delayed, 5 * SECOND)


def test_a_job_does_not_expire_while_it_is_reserved_or_buried_or_delayed():
    world = World(t=Policy(ttl=5 * SECOND))
    reserved, buried, delayed = world.put(), world.put(), world.put(delay=HOUR)
    world.reserve(reserved)
    world.reserve(buried)
    assert world.broker.bury(world.client, buried, 0, world.now) == DONE
    world.sleep(HOUR // 2)
    assert set(world.broker.jobs) == {reserved, buried, delayed}
    assert world.broker.release(world.client, reserved, 0, 0, world.now) == DONE
    assert world.lives_for(reserved, 5 * SECOND)
    assert world.broker.kick_job(world.client, buried, world.now) == DONE
    assert world.broker.kick_job(world.client, delayed, world.now) == DONE
    assert world.lives_for(buried, 5 * SECOND)
    assert delayed not in world.broker.jobs


def test_a_job_that_runs_out_of_time_or_loses_its_client_has_its_whole_time_to_live_again():
    world = World(t=Policy(ttl=5 * SECOND))
    slow, lost = world.put(ttr=10 * SECOND), world.put()
    other = world.connect()
    world.reserve(slow)
    assert world.broker.reserve_job(other, lost, world.now) == DONE
    world.sleep(8 * SECOND)
    world.broker.disconnect(other, world.now)
    world.restart()
    assert world.lives_for(lost, 5 * SECOND)


def test_unreserve_gives_back_the_rest_of_the_time_to_live():
    world = World(t=Policy(ttl=5 * SECOND))
    job_id = world.put()
    world.sleep(SECOND)
    assert world.broker.reserve(world.client, 0, world.now) == DONE
    world.sleep(2 * SECOND)
    assert world.broker.unreserve(world.client, job_id, world.now) == DONE
    world.restart()
    assert world.lives_for(job_id, 2 * SECOND)


def test_jobs_of_a_paused_tube_expire():
    world = World(t=Policy(ttl=5 * SECOND))
    job_id = world.put()
    assert world.broker.pause(world.client, "t", HOUR, world.now) == DONE
    assert world.lives_for(job_id, 5 * SECOND)


def test_a_job_that_replaces_another_begins_anew():
    world = World(t=Policy(ttl=5 * SECOND))
    job_id = world.put(key="k", replaces=True)
    world.sleep(4 * SECOND)
    assert world.put(key="k", replaces=True) == job_id
    assert world.lives_for(job_id, 5 * SECOND)


def test_what_has_expired_while_a_clear_goes_on_is_cleared():
    world = World(t=Policy(ttl=SECOND))
    for _ in range(3 * SLICE):
        world.put()
    assert world.broker.clear(world.client, "t") == PENDING
    world.sleep(2 * SECOND)
    assert world.client.answers[-1] == ("counted", 3 * SLICE)
    assert world.broker.counters.expired == 0
    assert not world.broker.jobs and not world.journal.jobs


@pytest.mark.parametrize("name", ["dead", "t"])
def test_an_expired_job_goes_to_the_dead_tube_unless_it_is_there(name):
    world = World(t=Policy(ttl=5 * SECOND, dead_tube=name, key_hold=HOUR))
    job_id = world.put(key="k")
    world.sleep(6 * SECOND)
    assert world.broker.counters.expired == 1
    if name == "t":
        assert job_id not in world.broker.jobs
        return
    job = world.broker.jobs[job_id]
    assert (job.tube.name, job.state, job.key) == ("dead", READY, "k")
    terms = job.terms()
    assert (terms.reason, terms.origin) == (EXPIRED, "t")
    assert not world.broker.held, "a job that lives on holds no key"
    world.sleep(HOUR)
    assert job_id in world.broker.jobs
    assert world.broker.counters.dead == 1
    assert world.broker.redrive(world.client, "dead", 1, world.now) == DONE
    assert world.lives_for(job_id, 5 * SECOND) is False, "it has gone to the dead tube once more"
    assert job.tube.name == "dead"


def test_the_rest_of_the_time_to_live_survives_a_restart():
    world = World(t=Policy(ttl=5 * SECOND))
    first = world.put()
    second = world.put(delay=SECOND)
    world.sleep(2 * SECOND)
    world.restart(away=SECOND)
    assert world.lives_for(first, 2 * SECOND)
    assert world.lives_for(second, SECOND - TICK + 1)


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


@pytest.mark.parametrize("how", ["reserve", "reserve_batch", "wait", "reserve_job"])
def test_a_job_that_a_client_had_at_a_crash_has_its_whole_time_to_live_again(how):
    world = World(t=Policy(ttl=5 * SECOND))
    if how == "wait":
        assert world.broker.reserve(world.client, FOREVER, world.now) == PENDING
    job_id = world.put()
    if how == "reserve":
        assert world.broker.reserve(world.client, 0, world.now) == DONE
    elif how == "reserve_batch":
        assert world.broker.reserve_batch(world.client, 2, 0, world.now) == DONE
    elif how == "reserve_job":
        world.reserve(job_id)
    assert world.broker.jobs[job_id].state == RESERVED
    world.restart(away=HOUR // 2)
    assert world.lives_for(job_id, 5 * SECOND)


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


@pytest.mark.parametrize("journal", [MemoryJournal, BodilessJournal])
@pytest.mark.parametrize(
    ("policy", "demands"),
    [(Policy(key_hold=HOUR), {}), (NO_POLICY, {"key_hold": HOUR}), (Policy(key_hold=9 * HOUR), {"key_hold": HOUR})],
)
def test_a_key_stays_taken_with_its_old_id_after_its_job_has_been_deleted(policy, demands, journal):
    world = World(journal(), t=policy)
    job_id = world.put(key="k", **demands)
    world.delete(job_id)
    broker, client = world.broker, world.client
    check_broker(broker)
    client.answers.clear()
    assert world.put_with(key="k") == EXISTS
    assert world.put_with(key="k", replaces=True) == TOO_LATE
    assert client.answers == [("keyed", job_id)] * 2
    assert broker.cancel_keyed(client, "k") == NOT_FOUND
    assert broker.reschedule_keyed(client, "k", 0, world.now) == NOT_FOUND
    assert broker.peek_keyed(client, "k") == NOT_FOUND
    assert broker.peek(client, job_id) == broker.delete(client, job_id, world.now) == NOT_FOUND
    assert broker.reserve_job(client, job_id, world.now) == broker.kick_job(client, job_id, world.now) == NOT_FOUND
    assert broker.job_statistics(job_id, world.now) is None
    assert broker.tube_of(job_id) == ""
    world.sleep(HOUR - 1)
    assert world.put_with(key="k") == EXISTS
    world.sleep(TICK)
    assert not broker.held
    assert not world.journal.jobs
    assert world.put(key="k") != job_id
    check_broker(broker)


def test_a_held_key_survives_a_restart_and_is_never_free_too_early():
    world = World(t=Policy(key_hold=HOUR))
    job_id = world.put(key="k")
    world.delete(job_id)
    world.policies.clear()
    world.restart(away=HOUR // 2)
    world.sleep(HOUR // 2 - 1)
    assert world.put_with(key="k") == EXISTS
    assert world.client.answers[-1] == ("keyed", job_id)
    world.sleep(TICK)
    assert world.put_with(key="k") == DONE
    assert world.client.answers[-1] == ("keyed", job_id + 1)


def test_a_key_whose_time_has_ended_while_no_server_was_running_is_free_at_the_first_advance():
    world = World(t=Policy(key_hold=HOUR))
    world.delete(world.put(key="k"))
    world.restart(away=HOUR + 1)
    world.sleep(0)
    assert not world.broker.held and not world.journal.jobs


def test_a_held_key_keeps_its_tube():
    world = World(t=Policy(key_hold=HOUR))
    world.delete(world.put(key="k"))
    world.broker.disconnect(world.client, world.now)
    assert "t" in world.broker.tubes
    world.sleep(HOUR + TICK)
    assert "t" not in world.broker.tubes


def test_an_expired_job_holds_its_key():
    world = World(t=Policy(ttl=5 * SECOND, key_hold=HOUR))
    job_id = world.put(key="k")
    assert world.lives_for(job_id, 5 * SECOND)
    assert world.put_with(key="k") == EXISTS


def test_a_job_that_is_called_off_and_one_without_a_key_hold_nothing():
    world = World(t=Policy(key_hold=HOUR))
    world.put(delay=HOUR, key="k")
    assert world.broker.cancel_keyed(world.client, "k") == DONE
    world.delete(world.put())
    assert not world.broker.held
    assert world.put_with(key="k") == DONE


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


def test_an_answer_that_waits_for_the_body_of_a_job_still_comes_when_only_its_key_is_left():
    world = World(BodilessJournal(), t=Policy(key_hold=HOUR))
    job_id = world.put(key="k")
    other = world.connect()
    assert world.broker.peek(other, job_id) == PENDING
    world.delete(job_id)
    world.journal.end_fetch()
    assert other.answers == [("found", job_id)]
    check_broker(world.broker)


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


# Changes of policies


def test_jobs_that_exist_come_under_a_new_time_to_live():
    world = World()
    ready, delayed = world.put(), world.put(delay=HOUR)
    world.sleep(HOUR // 2)
    world.policies["t"] = Policy(ttl=5 * SECOND)
    world.broker.change_policies(world.policy_of, world.now)
    world.sleep(0)
    assert world.lives_for(ready, 5 * SECOND)
    world.sleep(HOUR // 2 - 5 * SECOND)
    assert world.broker.jobs[delayed].state in (READY, DELAYED)
    world.sleep(6 * SECOND)
    assert delayed not in world.broker.jobs


def test_jobs_that_exist_come_under_another_time_to_live_or_none():
    world = World(t=Policy(ttl=5 * SECOND))
    job_id = world.put()
    world.sleep(4 * SECOND)
    world.policies["t"] = Policy(ttl=10 * SECOND)
    world.broker.change_policies(world.policy_of, world.now)
    world.sleep(5 * SECOND)
    assert job_id in world.broker.jobs
    world.policies.clear()
    world.broker.change_policies(world.policy_of, world.now)
    world.sleep(HOUR)
    assert job_id in world.broker.jobs
