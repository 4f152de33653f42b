"""Moves: jobs go from tube to tube as they are, in order, in slices, and a restart finds each of them in one tube."""

import pytest
from checking import check_broker
from virtual import BreakingJournal, BrokerWorld, RecordingClient

from beanstalk_server.queue.broker import SLICE
from beanstalk_server.queue.costs import MOVE_COST, NEW_TUBE_COST
from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.outcome import DONE, PENDING
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


def test_a_move_that_fails_in_a_later_slice_is_answered():
    world, _ = many(SLICE, BreakingJournal())
    world.broker.move(world.client, "from", READY, "to", 9999, world.now)
    world.journal.breaks = True
    with pytest.raises(RuntimeError):
        world.broker.advance(world.now)
    assert world.client.answers[-1] == ("failed",)
    assert not world.client.busy
