"""The account of memory: what the jobs of a broker take. And what they do take: each byte counts a million times."""

import sys

import pytest
from checking import check_broker
from virtual import MemoryJournal, RecordingClient

from beanstalk_server.queue.body_pages import LARGEST
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.client import Client
from beanstalk_server.queue.job import (
    DELETED,
    NO_EXTRAS,
    NOT_IN_MEMORY,
    READY,
    RESERVED,
    SINCE_UNKNOWN,
    DeadLetter,
    Expiry,
    Extras,
    HeldKey,
    Job,
    Terms,
    Token,
)
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.memory import (
    BODY_COST,
    EXTRAS_COST,
    HELD_COST,
    JOB_COST,
    KEY_COST,
    LETTER_COST,
    PACKED_COST,
    PACKED_FROM,
    TERMS_COST,
    TIMER_COST,
    Memory,
    held_cost,
    job_cost,
)
from beanstalk_server.queue.policy import Attributes, Policy
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.units import SECOND


def a_job(body: bytes) -> Job:
    job = Job(1, 0, 0, SECOND, body, Tube("t", 0), 0)
    job.state = READY
    return job


def test_a_job_counts_for_itself_and_for_its_body_while_that_is_in_memory():
    memory = Memory()
    job = a_job(b"x" * 100)
    memory.add_job(job)
    assert memory.used == JOB_COST + BODY_COST + 100
    memory.drop_body(job)
    assert job.body is NOT_IN_MEMORY and memory.used == JOB_COST
    memory.return_body(job, b"y" * 100)
    assert job.body == b"y" * 100 and memory.used == JOB_COST + BODY_COST + 100
    memory.remove_job(job)
    assert memory.used == 0


def test_a_body_may_be_returned_to_a_job_that_is_gone_and_counts_for_nothing():
    memory = Memory()
    job = a_job(b"body")
    memory.add_job(job)
    memory.drop_body(job)
    memory.remove_job(job)
    job.state = DELETED
    memory.return_body(job, b"body")
    assert job.body == b"body" and memory.used == 0
    memory.drop_body(job)
    assert memory.used == 0


def test_a_packed_body_counts_for_little_more_than_itself():
    memory = Memory()
    job, other = a_job(b"x" * 100), a_job(b"y" * 100)
    for each in (job, other):
        memory.add_job(each)
        memory.pack_body(each)
        memory.pack_body(each)
    assert job.is_packed() and job.body == b"x" * 100 and other.body == b"y" * 100
    assert memory.used == 2 * (JOB_COST + PACKED_COST + 100) == job_cost(job) + job_cost(other)
    memory.unpack_body(job)
    assert not job.is_packed() and job.body == b"x" * 100
    assert memory.used == job_cost(job) + job_cost(other) == 2 * (JOB_COST + 100) + PACKED_COST + BODY_COST
    memory.drop_body(other)
    assert other.body is NOT_IN_MEMORY and memory.used == job_cost(job) + JOB_COST
    memory.pack_body(other)
    assert not other.is_packed()
    memory.return_body(other, b"z" * 100)
    memory.pack_body(other)
    memory.remove_job(other)
    memory.remove_job(job)
    assert other.body == b"z" * 100 and memory.used == memory.pages.count() == 0


@pytest.mark.parametrize("body", [b"", bytes(LARGEST + 1)])
def test_an_empty_and_a_large_body_are_not_packed(body):
    memory = Memory()
    job = a_job(body)
    memory.add_job(job)
    memory.pack_body(job)
    assert not job.is_packed() and memory.used == JOB_COST + BODY_COST + len(body)


def test_a_job_is_packed_from_a_long_delay_until_it_is_reserved():
    broker = Broker(MemoryJournal())
    client = RecordingClient(broker)
    for delay in (PACKED_FROM - 1, PACKED_FROM):
        broker.put(client, broker.take_id(), 0, delay, SECOND, b"x" * 100, 0, 0)
    short, long = broker.jobs.values()
    assert not short.is_packed() and long.is_packed()
    broker.advance(PACKED_FROM + SECOND)
    assert long.state == READY and long.is_packed()
    for _ in range(2):
        broker.reserve(client, 0, PACKED_FROM + SECOND)
    assert long.state == RESERVED and not long.is_packed() and long.body == b"x" * 100
    broker.release(client, long.id, 0, PACKED_FROM, PACKED_FROM + SECOND)
    assert long.is_packed()
    check_broker(broker)
    broker.delete(client, long.id, PACKED_FROM + SECOND)
    assert not broker.memory.pages.count()
    check_broker(broker)


@pytest.mark.parametrize("is_packed", [False, True])
def test_it_may_be_unknown_since_when_a_packed_job_is_ready(is_packed):
    memory = Memory()
    for _ in range(2):
        job = a_job(b"body")
        memory.add_job(job)
        if is_packed:
            memory.pack_body(job)
        assert job.page >= 0
        job.forget_since()
        job.forget_since()
        assert job.page < 0 and job.body == b"body"
        if is_packed:
            memory.unpack_body(job)
            assert job.page == SINCE_UNKNOWN and job.body == b"body"
            memory.pack_body(job)
            assert job.page < 0 and job.body == b"body"


def test_no_body_of_a_client_is_taken_for_the_one_that_is_not_in_memory():
    assert bytes(memoryview(NOT_IN_MEMORY)) is not NOT_IN_MEMORY


IS_COMPILED = hasattr(Job, "__mypyc_attrs__")

SIZES = {  # by class: bytes compiled, and the fields that each take eight interpreted
    Job: (128, 19),
    HeldKey: (96, 10),
    Token: (104, 11),
    Extras: (96, 9),
    Terms: (192, 24),
    Expiry: (56, 4),
    DeadLetter: (48, 3),
}


@pytest.mark.parametrize("kind", SIZES)
def test_what_jobs_are_made_of_takes_no_more_bytes_than_it_did(kind):
    """Those of a job and of its extras are what they were before there were policies."""
    compiled, fields = SIZES[kind]
    assert kind.__basicsize__ == (compiled if IS_COMPILED else object.__basicsize__ + 8 * fields)
    assert not kind.__dictoffset__ and not kind.__weakrefoffset__


def test_what_is_counted_is_what_the_classes_take():
    """Their objects come in steps of 16 bytes."""
    counted = {Extras: EXTRAS_COST, Terms: TERMS_COST, Expiry: TIMER_COST, DeadLetter: LETTER_COST}
    assert counted == {kind: -(-SIZES[kind][0] // 16) * 16 for kind in counted}
    assert SIZES[Job][0] < JOB_COST and KEY_COST > EXTRAS_COST and HELD_COST == KEY_COST + 16


@pytest.mark.skipif(not IS_COMPILED, reason="interpreted, each number is an object of its own, too")
def test_a_plain_put_makes_one_object():
    broker = Broker(Journal())
    client = Client()
    broker.connect(client)
    bodies = [b"%d" % number for number in range(20_000)]

    def put(start, end):
        for number in range(start, end):
            broker.put(client, number, 0, SECOND, SECOND, bodies[number], 0, 0)

    put(1, 10_000)
    before = sys.getallocatedblocks()
    put(10_000, 20_000)
    assert 10_000 <= sys.getallocatedblocks() - before < 10_100, "the job; now and then a page of ids, or a longer list"


def test_nothing_that_happens_to_a_job_without_a_policy_gives_it_terms():
    broker = Broker(MemoryJournal())
    client = RecordingClient(broker)
    now = SECOND
    broker.put(client, broker.take_id(), 0, 0, SECOND, b"x", now, now)
    job = broker.jobs[1]
    broker.reserve(client, 0, now)
    broker.unreserve(client, 1, now)
    assert job.extras is NO_EXTRAS
    broker.reserve(client, 0, now)
    broker.release(client, 1, 0, SECOND, now)
    broker.kick_job(client, 1, now)
    broker.reserve(client, 0, now)
    broker.bury(client, 1, 0, now)
    broker.kick(client, 1, now)
    broker.reserve(client, 0, now)
    broker.advance(now + SECOND)
    broker.advance(now + 2 * SECOND)
    assert (job.state, job.extras.timeouts) == (READY, 1)
    broker.reserve(client, 0, now + 2 * SECOND)
    broker.disconnect(client, now + 2 * SECOND)
    broker.advance(now + 2 * SECOND)
    assert job.state == READY and type(job.extras) is Extras
    assert broker.memory.used == JOB_COST + BODY_COST + 1
    check_broker(broker)


def test_terms_count_as_the_extras_that_they_are():
    broker = Broker(MemoryJournal())
    client = RecordingClient(broker)
    plain = JOB_COST + BODY_COST + 1
    costs = []
    for demands in ({}, {"max_tries": 3}, {"ttl": SECOND}, {"key": "kk"}, {"key": "kkk", "ttl": SECOND}):
        before = broker.memory.used
        broker.put_with(client, Attributes(**demands), 0, 0, SECOND, b"x", 0, 0)
        costs.append(broker.memory.used - before - plain)
    terms = TERMS_COST - EXTRAS_COST
    assert costs == [0, TERMS_COST, TERMS_COST + TIMER_COST, KEY_COST + 2, KEY_COST + 3 + terms + TIMER_COST]
    used = broker.memory.used
    broker.reserve_job(client, 3, 0)
    assert broker.memory.used == used - TIMER_COST, "only a ready job expires"
    check_broker(broker)


def test_a_held_key_counts_little_more_than_a_key():
    broker = Broker(MemoryJournal(), policy_of=lambda _: Policy(key_hold=SECOND))
    client = RecordingClient(broker)
    broker.put_with(client, Attributes(key="key"), 0, 0, SECOND, bytes(1000), 0, 0)
    job = broker.jobs[1]
    before = job_cost(job)
    broker.delete(client, 1, 0)
    assert broker.memory.used == held_cost(broker.held[1]) == HELD_COST + 3
    assert broker.memory.used - 16 == before - JOB_COST - BODY_COST - 1000 == KEY_COST + 3
    broker.advance(2 * SECOND)
    assert broker.memory.used == 0
    check_broker(broker)
