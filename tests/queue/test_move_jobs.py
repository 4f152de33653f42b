"""Moves and redrives: jobs go from tube to tube as they are, in slices, in order."""

import pytest
from checking import check_broker
from virtual import BreakingJournal, BrokerWorld, RecordingClient

from beanstalk_server.queue.broker import SLICE
from beanstalk_server.queue.costs import MOVE_COST, NEW_TUBE_COST
from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.outcome import DONE, PENDING
from beanstalk_server.queue.policy import Policy
from beanstalk_server.queue.units import SECOND


class World(BrokerWorld):
    tube, priority, ttr = "from", 5, 9 * SECOND

    def bury(self, *jobs):
        self.reserve(*jobs)
        for job in jobs:
            self.broker.bury(self.client, job.id, job.priority, self.now)


def names(*jobs):
    return [job.tube.name for job in jobs]


def test_a_job_keeps_all_but_its_tube():
    world = World()
    job = world.put(priority=3, key="k", max_tries=5)
    world.reserve(job)
    world.broker.release(world.client, job.id, 3, 0, world.now)
    world.sleep(2 * SECOND)

    def told():
        found = world.broker.job_statistics(job.id, world.now)
        extras = job.extras
        return [job.id, job.state, job.priority, job.delay, job.ttr, job.key, found.age, job.reserves, extras.releases,
                extras.kicks, extras.tries, extras.reason, extras.max_tries, job.body]  # fmt: skip

    before = told()
    assert world.broker.move(world.client, "from", READY, "to", 9, world.now) == DONE
    assert world.client.answers[-1] == ("counted", 1)
    assert told() == before
    assert job.extras.tries == 1
    assert world.broker.tube_statistics("to", world.now).total_jobs == 0, "it was not put there"


# Many at once


def put_dead(world):
    """Put a job that fails at once, and so goes from `to` to its dead tube."""
    job = world.put("to")
    world.reserve(job)
    world.broker.release(world.client, job.id, 0, 0, world.now)
    return job


def many(count, journal=None, put=World.put, **how):
    world = World(journal, to=Policy(max_tries=1, dead_tube="from"))
    return world, [put(world, **how) for _ in range(count)]


def move_all(world):
    return world.broker.move(world.client, "from", READY, "to", 9999, world.now)


def redrive_all(world):
    return world.broker.redrive(world.client, "from", 9999, world.now)


def gone(jobs):
    return sum(job.tube.name == "to" for job in jobs)


either = pytest.mark.parametrize(
    ("put", "begin"), [(World.put, move_all), (put_dead, redrive_all)], ids=["move", "redrive"]
)


@either
def test_a_move_of_many_jobs_is_done_in_slices_and_those_that_come_meanwhile_stay(put, begin):
    world, jobs = many(SLICE, put=put)
    world.broker.cost = 0
    assert begin(world) == PENDING
    assert 0 < gone(jobs) <= SLICE // MOVE_COST
    assert gone(jobs) * MOVE_COST <= world.broker.cost <= SLICE + 1 + MOVE_COST + NEW_TUBE_COST
    assert world.client.busy
    late = put(world)
    world.sleep(0)
    assert ("counted", SLICE) in world.client.answers
    assert not world.client.busy
    assert (gone(jobs), late.tube.name) == (SLICE, "from")


@either
def test_it_is_suspended_while_the_journal_does_not_admit_it(put, begin):
    world, jobs = many(SLICE, put=put)
    begin(world)
    world.broker.set_admission(NONE)
    world.sleep(0)
    assert gone(jobs) < SLICE // MOVE_COST + 1
    world.broker.set_admission(ALL)
    world.sleep(0)
    assert (gone(jobs), world.client.answers[-1]) == (SLICE, ("counted", SLICE))


@either
def test_its_client_may_disconnect_meanwhile(put, begin):
    world, jobs = many(SLICE, put=put)
    begin(world)
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


@either
def test_a_move_that_fails_in_a_later_slice_is_answered(put, begin):
    world, _ = many(SLICE, BreakingJournal(), put)
    begin(world)
    world.journal.breaks = 1
    with pytest.raises(RuntimeError):
        world.broker.advance(world.now)
    assert world.client.answers[-1] == ("failed",)
    assert not world.client.busy
    world.sleep(0)
    assert world.broker.kick(world.client, 1, world.now) == DONE
