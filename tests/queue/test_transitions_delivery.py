"""Deliveries: who gets which job, and when, while its body is not in memory."""

import pytest
from checking import check_broker
from virtual import BodilessJournal, RecordingClient, put

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import NOT_IN_MEMORY, RESERVED
from beanstalk_server.queue.outcome import DONE, PENDING, REPLACED
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.transitions import BATCH_BYTES
from beanstalk_server.queue.units import FOREVER, SECOND

NOW = SECOND


class Reader(RecordingClient):
    """Records the bodies that it gets, or fails to take them."""

    __slots__ = ("fails",)

    def __init__(self, broker):
        super().__init__(broker)
        self.fails = False

    def take(self, kind, jobs):
        if self.fails:
            raise MemoryError
        self.answers.append((kind, *[job.body for job in jobs]))

    def on_reserved(self, job):
        self.take("reserved", [job])

    def on_reserved_batch(self, jobs):
        self.take("batch", jobs)

    def on_found(self, job):
        self.take("found", [job])


class World:
    """A broker whose journal takes every body out of memory, one client that puts, and two that ask."""

    def __init__(self):
        self.journal = BodilessJournal()
        self.broker = Broker(self.journal, NOW)
        self.producer, self.client, self.other = [Reader(self.broker) for _ in range(3)]

    def put(self, body=b"body", **settings):
        assert put(self.broker, self.producer, body=body, **settings) == DONE
        job = self.broker.jobs[self.broker.next_id - 1]
        assert job.body is NOT_IN_MEMORY
        return job

    def advance(self, seconds):
        self.broker.advance(NOW + round(seconds * SECOND))

    def end_fetches(self):
        while self.journal.fetches:
            self.journal.end_fetch()
        check_broker(self.broker)


@pytest.fixture
def world():
    return World()


def test_a_job_is_reserved_at_once_and_given_when_its_body_is_there(world):
    job = world.put()
    assert world.broker.reserve(world.client, 0, NOW) == PENDING
    assert (job.state, job.client, job.reserves, world.broker.reserved) == (RESERVED, world.client, 1, 1)
    assert world.client.busy and not world.client.waiting and world.client.answers == []
    check_broker(world.broker)
    world.end_fetches()
    assert not world.client.busy and world.client.answers == [("reserved", b"body")]
    assert job.body is NOT_IN_MEMORY, "the journal has taken it again"


def test_a_job_that_is_asked_for_by_its_id_is_recorded_at_once_and_given_later(world):
    job = world.put(delay=SECOND)
    lsn = world.broker.last_lsn
    assert world.broker.reserve_job(world.client, job.id, NOW) == PENDING
    assert job.state == RESERVED and world.broker.last_lsn == lsn + 1
    world.end_fetches()
    assert world.client.answers == [("reserved", b"body")]


@pytest.mark.parametrize("waits", [False, True], ids=["at-once", "waiting"])
def test_a_batch_is_given_in_one_piece_whatever_of_it_is_in_memory(world, waits):
    assert world.broker.pause(world.producer, "default", SECOND, NOW) == DONE
    jobs = [world.put(b"%d" % number) for number in range(3)]
    world.journal.memory.return_body(jobs[1], b"1")
    if waits:
        assert world.broker.reserve_batch(world.client, 9, FOREVER, NOW) == PENDING
        world.advance(2)
    else:
        world.broker.pause(world.producer, "default", 0, NOW)
        assert world.broker.reserve_batch(world.client, 9, 0, NOW) == PENDING
    assert [job.state for job in jobs] == [RESERVED] * 3
    world.journal.memory.drop_body(jobs[1])  # meanwhile
    world.end_fetches()
    assert world.client.answers == [("batch", b"0", b"1", b"2")]


@pytest.mark.parametrize("waits", [False, True], ids=["at-once", "waiting"])
def test_a_batch_is_bounded_by_the_sizes_of_bodies_that_are_not_in_memory(world, waits):
    assert world.broker.pause(world.producer, "default", SECOND, NOW) == DONE
    for _ in range(5):
        world.put(bytes(BATCH_BYTES // 2))
    if waits:
        world.broker.reserve_batch(world.client, 9, FOREVER, NOW)
        world.advance(2)
    else:
        world.broker.pause(world.producer, "default", 0, NOW)
        world.broker.reserve_batch(world.client, 9, 0, NOW)
    assert world.broker.reserved == 3, "the third job takes the batch past the bound"


def test_a_client_that_has_gone_gets_nothing_and_its_job_goes_to_the_next(world):
    job = world.put()
    world.broker.reserve(world.client, 0, NOW)
    world.broker.disconnect(world.client, NOW)
    assert world.broker.reserve(world.other, 0, NOW) == PENDING
    assert job.client is world.other
    world.end_fetches()
    assert (world.client.answers, world.other.answers) == ([], [("reserved", b"body")])


def test_a_job_that_was_deleted_meanwhile_is_given_all_the_same(world):
    job = world.put(ttr=SECOND)
    world.broker.reserve(world.client, 0, NOW)
    world.broker.peek(world.producer, job.id)
    world.advance(2)
    assert world.broker.delete(world.other, job.id, NOW) == DONE
    world.end_fetches()
    assert world.client.answers == [("reserved", b"body")]
    assert world.producer.answers == [("found", b"body")]


def test_a_peek_shows_the_body_that_it_has_found_even_if_it_is_replaced_meanwhile(world):
    world.put(b"old", key="k")
    assert world.broker.peek_keyed(world.client, "k") == PENDING
    fresh = Attributes(key="k", replaces=True)
    assert world.broker.put_with(world.producer, fresh, 0, 0, SECOND, b"new", NOW, NOW) == REPLACED
    assert world.broker.reserve(world.other, 0, NOW) == PENDING
    world.end_fetches()
    assert (world.client.answers, world.other.answers) == ([("found", b"old")], [("reserved", b"new")])


def test_a_client_that_cannot_take_its_answer_is_told_that_the_command_has_failed(world):
    world.put()
    world.broker.reserve(world.client, 0, NOW)
    world.client.fails = True
    with pytest.raises(MemoryError):
        world.journal.end_fetch()
    assert world.client.answers == [("failed",)] and not world.client.busy


def test_bodies_in_memory_are_given_without_a_fetch(world):
    job = world.put()
    world.journal.memory.return_body(job, b"body")
    assert world.broker.peek_ready(world.client) == DONE
    assert world.broker.reserve(world.client, 0, NOW) == DONE
    assert world.client.answers == [("found", b"body"), ("reserved", b"body")]
    assert not world.journal.fetches
