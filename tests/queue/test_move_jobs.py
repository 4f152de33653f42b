"""Moves: jobs go from tube to tube as they are, in order, in slices, and a restart finds each of them in one tube."""

import pytest
from checking import check_broker
from virtual import MemoryJournal, RecordingClient

from beanstalk_server.queue.broker import SLICE, Broker
from beanstalk_server.queue.costs import MOVE_COST, NEW_TUBE_COST
from beanstalk_server.queue.job import BURIED, DELAYED, READY, RESERVED
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.outcome import DONE, NOT_FOUND, PENDING
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Policy
from beanstalk_server.queue.units import FOREVER, SECOND

OFFSET = 1_700_000_000 * SECOND


class World:
    """A broker with a journal, one client, and the policies of some tubes."""

    def __init__(self, journal=None, **policies):
        self.now = SECOND
        self.policies = policies
        self.journal = journal or MemoryJournal()
        self.broker = Broker(self.journal, self.now, policy_of=self.policy_of)
        self.broker.set_wall_offset(OFFSET)
        self.client = RecordingClient(self.broker)

    def policy_of(self, name):
        return self.policies.get(name, NO_POLICY)

    def restart(self):
        """Let another broker take over the journal, as after a crash."""
        self.journal = self.journal.restarted()
        self.broker = Broker(self.journal, self.now, policy_of=self.policy_of)
        self.broker.restore(self.journal.clock_offset(), self.now)
        self.client = RecordingClient(self.broker)

    def put(self, tube="from", priority=5, delay=0, body=b"body", **demands):
        self.broker.use(self.client, tube)
        self.broker.put_with(self.client, Attributes(**demands), priority, delay, 9 * SECOND, body, self.now, self.now)
        return self.broker.jobs[self.client.answers[-1][1]]

    def bury(self, *jobs):
        for job in jobs:
            self.broker.reserve_job(self.client, job.id, self.now)
            self.broker.bury(self.client, job.id, job.priority, self.now)

    def move(self, name, state, target, bound=1000, client=None):
        """Move jobs; return how many have gone, or the outcome if that is something else."""
        client = client or self.client
        outcome = self.broker.move(client, name, state, target, bound, self.now)
        if outcome not in (DONE, PENDING):
            return outcome
        self.sleep(0)
        kind, count = client.answers[-1]
        assert kind == "counted"
        return count

    def sleep(self, seconds):
        end = self.now + round(seconds * SECOND)
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.broker.advance(self.now)
        check_broker(self.broker)
        self.now = end

    def peek(self, tube, state):
        """The id of the first job in a state."""
        self.broker.use(self.client, tube)
        outcome = getattr(self.broker, f"peek_{state}")(self.client)
        return self.client.answers[-1][1] if outcome == DONE else None

    def in_order(self, tube, state):
        """The ids of the jobs of a tube in one state, each of which is deleted to see the next."""
        found = []
        while (job_id := self.peek(tube, state)) is not None:
            found.append(job_id)
            self.broker.delete(self.client, job_id, self.now)
        return found


def names(*jobs):
    return [job.tube.name for job in jobs]


def test_ready_jobs_go_those_first_that_would_be_reserved_first():
    world = World()
    low, high, other = world.put(priority=9), world.put(priority=1), world.put(priority=9)
    assert world.move("from", READY, "to", 2) == 2
    assert names(low, high, other) == ["to", "to", "from"]
    assert world.move("from", READY, "to", 1000) == 1
    assert "from" in world.broker.tubes, "the client uses it"
    assert world.in_order("to", "ready") == [high.id, low.id, other.id]


def test_a_job_keeps_all_but_its_tube():
    world = World()
    job = world.put(priority=3, key="k", max_tries=5)
    world.broker.reserve_job(world.client, job.id, world.now)
    world.broker.release(world.client, job.id, 3, 0, world.now)
    world.sleep(2)

    def told():
        found = world.broker.job_statistics(job.id, world.now)
        extras = job.extras
        return [job.id, job.state, job.priority, job.delay, job.ttr, job.key, found.age, job.reserves, extras.releases,
                extras.kicks, extras.tries, extras.reason, extras.max_tries, job.body]  # fmt: skip

    before = told()
    assert world.move("from", READY, "to") == 1
    assert told() == before
    assert job.extras.tries == 1
    assert world.broker.tube_statistics("to", world.now).total_jobs == 0, "it was not put there"


def test_delayed_jobs_are_due_when_they_were():
    world = World()
    late, soon = world.put(delay=9 * SECOND), world.put(delay=4 * SECOND)
    world.sleep(1)
    assert world.move("from", DELAYED, "to", 1) == 1
    assert names(late, soon) == ["from", "to"]
    assert world.move("from", DELAYED, "to") == 1
    assert world.broker.job_statistics(late.id, world.now).time_left == 8 * SECOND
    world.sleep(2.9)
    assert (soon.state, late.state) == (DELAYED, DELAYED)
    world.sleep(0.2)
    assert (soon.state, late.state) == (READY, DELAYED)
    assert world.broker.tube_statistics("to", world.now).delayed == 1


def test_a_job_that_waits_for_a_moment_of_the_wall_clock_goes_on_waiting_for_it():
    world = World()
    job = world.put(at=world.now + OFFSET + 5 * SECOND)
    assert world.move("from", DELAYED, "to") == 1
    world.broker.set_wall_offset(OFFSET + 3 * SECOND)
    world.sleep(1.9)
    assert (job.state, job.tube.name, job.is_timed()) == (DELAYED, "to", True)
    world.sleep(0.2)
    assert (job.state, job.is_timed()) == (READY, False)


def test_buried_jobs_keep_their_order_and_come_behind_those_that_are_there():
    world = World()
    jobs = [world.put() for _ in range(3)]
    there = world.put("to")
    world.bury(jobs[2], jobs[0], there, jobs[1])
    assert world.move("from", BURIED, "to") == 3
    assert jobs[0].extras.buries == 1
    world.restart()
    assert world.in_order("to", "buried") == [there.id, jobs[2].id, jobs[0].id, jobs[1].id]


def test_only_jobs_in_the_state_that_was_named_go():
    world = World()
    ready, delayed, buried, reserved = world.put(), world.put(delay=SECOND), world.put(), world.put()
    world.bury(buried)
    world.broker.reserve_job(world.client, reserved.id, world.now)
    assert world.move("from", BURIED, "to") == 1
    assert names(ready, delayed, buried, reserved) == ["from", "from", "to", "from"]
    assert world.move("from", DELAYED, "to") == 1
    assert world.move("from", READY, "to") == 1
    assert names(ready, delayed, buried, reserved) == ["to", "to", "to", "from"]
    assert (delayed.state, buried.state, reserved.state) == (DELAYED, BURIED, RESERVED)


def test_nothing_moves_to_where_it_is_or_from_where_nothing_is():
    world = World()
    job = world.put()
    assert world.move("from", READY, "from") == 0
    assert world.move("from", DELAYED, "to") == 0
    assert world.move("nowhere", READY, "from") == NOT_FOUND
    assert world.move("nowhere", READY, "nowhere") == NOT_FOUND
    assert job.tube.name == "from"
    assert "to" not in world.broker.tubes


def test_a_tube_that_nobody_needs_goes_with_its_last_job_and_the_other_comes():
    world = World()
    world.put()
    world.broker.use(world.client, "default")
    assert world.move("from", READY, "to") == 1
    assert sorted(world.broker.tubes) == ["default", "to"]


def test_a_key_that_is_taken_there_is_dropped_and_one_that_is_free_goes_along():
    world = World(to=Policy(key_hold=9 * SECOND))
    taken, held, free = world.put(key="taken"), world.put(key="held"), world.put(key="free")
    there = world.put("to", key="taken")
    world.broker.delete(world.client, world.put("to", key="held").id, world.now)
    assert world.move("from", READY, "to") == 3
    assert [job.key for job in (taken, held, free, there)] == ["", "", "free", "taken"]
    world.restart()
    assert [world.broker.jobs[job.id].key for job in (taken, held, free, there)] == ["", "", "free", "taken"]
    assert world.put(key="free").id != free.id, "it is free where it was"


def test_waiting_clients_of_the_other_tube_are_served():
    world = World()
    worker = RecordingClient(world.broker)
    world.broker.watch(worker, "to")
    assert world.broker.reserve(worker, FOREVER, world.now) == PENDING
    first, second = world.put(), world.put()
    assert world.move("from", READY, "to") == 2
    assert worker.answers == [("reserved", first.id)]
    assert (first.client, second.state) == (worker, READY)


def test_limits_of_the_other_tube_are_not_asked():
    world = World(to=Policy(max_jobs=1, max_bytes=1))
    world.put()
    world.put()
    assert world.move("from", READY, "to") == 2
    assert world.broker.tubes["to"].bytes == 8


def test_a_paused_tube_can_be_left_and_entered():
    world = World()
    job = world.put()
    world.put("to")
    for name in ("from", "to"):
        world.broker.pause(world.client, name, 9 * SECOND, world.now)
    worker = RecordingClient(world.broker)
    world.broker.watch(worker, "to")
    world.broker.reserve(worker, FOREVER, world.now)
    assert world.move("from", READY, "to") == 1
    assert (job.tube.name, worker.answers) == ("to", [])


def test_a_job_expires_by_the_policy_of_the_tube_that_it_is_in():
    world = World(short=Policy(ttl=5 * SECOND), long=Policy(ttl=60 * SECOND))
    plain, hurried = world.put("plain"), world.put("long")
    world.sleep(10)
    assert world.move("plain", READY, "short") == 1
    world.sleep(4)
    assert plain.id in world.broker.jobs, "its time to live has begun when it came"
    world.sleep(2)
    assert plain.id not in world.broker.jobs
    assert world.move("long", READY, "short") == 1
    world.sleep(0.1)
    assert hurried.id not in world.broker.jobs, "it has been ready for longer"


def test_a_job_that_could_expire_does_not_where_nothing_does():
    world = World(short=Policy(ttl=5 * SECOND))
    job = world.put("short")
    assert world.move("short", READY, "plain") == 1
    world.sleep(99)
    assert job.id in world.broker.jobs


def test_a_dead_letter_stays_one_but_not_where_it_has_come_from():
    world = World(work=Policy(max_tries=1, dead_tube="dead"))
    letters = [world.put("work") for _ in range(3)]
    for job in letters:
        world.broker.reserve_job(world.client, job.id, world.now)
        world.broker.release(world.client, job.id, 0, 0, world.now)
    assert world.move("dead", READY, "archive", 2) == 2
    assert world.move("dead", READY, "work") == 1
    assert [job.extras.origin for job in letters] == ["work", "work", ""]
    assert letters[2].extras.tries == 0
    world.restart()
    assert world.broker.redrive(world.client, "archive", 9, world.now) == DONE
    assert world.client.answers[-1] == ("counted", 2)
    assert {job.tube.name for job in world.broker.jobs.values()} == {"work"}


@pytest.mark.parametrize("state", [READY, DELAYED, BURIED])
def test_a_restart_finds_what_has_moved_in_the_other_tube(state):
    world = World()
    jobs = [world.put(priority=number, delay=SECOND * 50 * (state == DELAYED), key=f"k{number}") for number in (3, 2)]
    if state == BURIED:
        world.bury(*jobs)
    assert world.move("from", state, "to", 1) == 1
    moved = next(job for job in jobs if job.tube.name == "to")
    world.restart()
    found = {job.id: (job.tube.name, job.state, job.priority, job.key) for job in world.broker.jobs.values()}
    assert found == {job.id: (job.tube.name, state, job.priority, job.key) for job in jobs}
    assert moved.id in found
    check_broker(world.broker)


def test_a_move_to_and_fro_leaves_nothing_behind():
    world = World()
    job = world.put(key="k", delay=3 * SECOND)
    for _ in range(3):
        assert world.move("from", DELAYED, "to") == 1
        assert world.move("to", DELAYED, "from") == 1
    world.broker.delete(world.client, job.id, world.now)
    world.broker.use(world.client, "default")
    check_broker(world.broker)
    assert (world.broker.memory.used, world.broker.tubes.default.bytes, sorted(world.broker.tubes)) == (
        0,
        0,
        ["default"],
    )


# Many at once


def many(count, journal=None, **how):
    world = World(journal)
    return world, [world.put(**how) for _ in range(count)]


def gone(jobs):
    return sum(job.tube.name == "to" for job in jobs)


def test_a_move_of_many_jobs_is_done_in_slices_and_those_that_come_meanwhile_stay():
    world, jobs = many(SLICE)
    world.broker.cost = 0
    assert world.broker.move(world.client, "from", READY, "to", 9999, world.now) == PENDING
    assert 0 < gone(jobs) <= SLICE // MOVE_COST
    assert world.broker.cost <= SLICE + 1 + MOVE_COST + NEW_TUBE_COST
    assert world.client.busy
    late = world.put()
    world.sleep(0)
    assert ("counted", SLICE) in world.client.answers
    assert not world.client.busy
    assert (gone(jobs), late.tube.name) == (SLICE, "from")


def test_it_is_suspended_while_the_journal_does_not_admit_it():
    world, jobs = many(SLICE)
    world.broker.move(world.client, "from", READY, "to", 9999, world.now)
    world.broker.set_admission(NONE)
    world.sleep(0)
    assert gone(jobs) < SLICE
    world.broker.set_admission(ALL)
    world.sleep(0)
    assert (gone(jobs), world.client.answers[-1]) == (SLICE, ("counted", SLICE))


def test_its_client_may_disconnect_meanwhile():
    world, jobs = many(SLICE)
    world.broker.move(world.client, "from", READY, "to", 9999, world.now)
    world.broker.disconnect(world.client, world.now)
    world.sleep(0)
    assert gone(jobs) == SLICE


@pytest.mark.parametrize("state", [READY, DELAYED, BURIED])
@pytest.mark.parametrize("cleared", ["from", "to"])
def test_each_job_is_either_moved_or_cleared_when_both_are_under_way(state, cleared):
    world, jobs = many(3 * SLICE, delay=99 * SECOND * (state == DELAYED), key="")
    if state == BURIED:
        world.bury(*jobs)
    other = RecordingClient(world.broker)
    assert world.broker.move(world.client, "from", state, "to", 9999, world.now) == PENDING
    moved = gone(jobs)
    assert world.broker.clear(other, cleared) in (DONE, PENDING)
    world.sleep(0)
    (count,) = [told[1] for told in other.answers if told[0] == "counted"]
    left = len(world.broker.jobs)
    if cleared == "from":
        assert (count, left) == (3 * SLICE - moved, moved)
        assert world.client.answers[-1] == ("counted", moved)
    else:
        assert (count, left) == (moved, 3 * SLICE - moved)
        assert world.client.answers[-1] == ("counted", 3 * SLICE)
    assert set(names(*world.broker.jobs.values())) == {"to"}
    check_broker(world.broker)


def test_a_kick_of_the_same_jobs_takes_those_that_are_left():
    world, jobs = many(3 * SLICE)
    world.bury(*jobs)
    other = RecordingClient(world.broker)
    world.broker.use(other, "from")
    assert world.broker.move(world.client, "from", BURIED, "to", 9999, world.now) == PENDING
    assert world.broker.kick(other, 9999, world.now) == PENDING
    world.sleep(0)
    moved, kicked = world.client.answers[-1][1], other.answers[-1][1]
    assert moved + kicked == 3 * SLICE
    assert (moved, kicked) == (gone(jobs), sum(job.state == READY for job in jobs))
    assert moved and kicked


def test_two_moves_to_and_fro_come_to_an_end():
    world, jobs = many(SLICE)
    other = RecordingClient(world.broker)
    assert world.broker.move(world.client, "from", READY, "to", 9999, world.now) == PENDING
    assert world.broker.move(other, "to", READY, "from", 9999, world.now) in (DONE, PENDING)
    world.sleep(0)
    assert world.client.answers[-1][0] == other.answers[-1][0] == "counted"
    assert set(names(*jobs)) <= {"from", "to"}


class BreakingJournal(MemoryJournal):
    breaks = False

    def change(self, job):
        if self.breaks:
            raise RuntimeError
        super().change(job)


def test_a_move_that_fails_in_a_later_slice_is_answered():
    world, _ = many(SLICE, BreakingJournal())
    world.broker.move(world.client, "from", READY, "to", 9999, world.now)
    world.journal.breaks = True
    with pytest.raises(RuntimeError):
        world.broker.advance(world.now)
    assert world.client.answers[-1] == ("failed",)
    assert not world.client.busy
