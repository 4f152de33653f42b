"""The age of the oldest ready job, compared with a look at all jobs, while these come, go and come back."""

import random

import pytest
from checking import check_broker
from effort import seeded
from virtual import MemoryJournal, RecordingClient, put

from beanstalk_server.queue import oldest
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import RESERVED
from beanstalk_server.queue.job import STATES as STATE
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Labels, Policy
from beanstalk_server.queue.units import SECOND

pytestmark = pytest.mark.compiled

MEASURED = Policy(measures=True)


def new_broker(journal, now):
    broker = Broker(journal, now, policy_of=lambda name: MEASURED if name == "mail" else NO_POLICY)
    broker.restore(journal.clock_offset(), now)
    client = RecordingClient(broker)
    broker.use(client, "mail")
    broker.watch(client, "mail")
    return broker, client


def found_by(broker):
    search = broker.find_oldest("mail")
    while not search.is_complete():
        assert search.go_on() >= 1
    return search.since


def run(broker, now):
    while broker.next_event() <= now:
        broker.advance(max(now, broker.next_event()))


@pytest.mark.parametrize("is_large", [False, True], ids=["one look", "pages"])
@seeded(10)
def test_it_is_found_exactly_whatever_the_jobs_have_been_through(seed, is_large, monkeypatch):
    if is_large:
        monkeypatch.setattr(oldest, "AT_ONCE", 0) if not oldest.__file__.endswith(".so") else None
    rng = random.Random(seed)
    now = 10**9
    broker, client = new_broker(MemoryJournal(), now)
    since = {}  # by job: since when it is ready
    for _ in range(300):
        now += rng.randrange(SECOND)
        due = {job.id: job.deadline for job in broker.jobs.values() if STATE[job.state] == "delayed"}
        held = [job.id for job in client.reserved]
        run(broker, now)
        since |= {job_id: moment for job_id, moment in due.items() if STATE[broker.jobs[job_id].state] == "ready"}
        since |= {job_id: now for job_id in held if STATE[broker.jobs[job_id].state] == "ready"}
        job_id = rng.choice(sorted(broker.jobs)) if len(broker.jobs) else 0
        delay = rng.choice((0, SECOND, 3 * SECOND))
        before = {job.id: STATE[job.state] for job in broker.jobs.values()}
        choice = rng.randrange(9)
        if choice < 3:
            put(broker, client, rng.randrange(3), delay, SECOND, b"x", now)
        elif choice == 3:
            labels = Labels(share=rng.choice("ab"))
            broker.put_with(client, Attributes(labels=labels), rng.randrange(3), delay, SECOND, b"x", now, now)
        elif choice == 4:
            broker.reserve_job(client, job_id, now)
        elif choice == 5:
            held = [job.id for job in client.reserved]
            if held:
                broker.release(client, rng.choice(held), rng.randrange(3), delay, now)
        elif choice == 6:
            broker.kick_job(client, job_id, now)
        elif choice == 7:
            broker.reschedule(client, job_id, delay, now)
        else:
            broker.delete(client, job_id, now)
        for job in broker.jobs.values():
            if STATE[job.state] == "ready" and before.get(job.id) != "ready":
                since[job.id] = now
        ready = [since[job.id] for job in broker.jobs.values() if STATE[job.state] == "ready"]
        assert found_by(broker) == min(ready, default=0)
        if ready:
            assert broker.tube_statistics("mail", now, min(ready)).oldest == now - min(ready)


def test_a_tube_that_is_not_measured_is_not_searched():
    broker, _ = new_broker(MemoryJournal(), SECOND)
    assert broker.find_oldest("default") is None and broker.find_oldest("none") is None


def test_a_restart_counts_from_the_end_of_the_delay():
    broker, client = new_broker(MemoryJournal(), SECOND)
    put(broker, client, 5, 0, SECOND, b"x", 2 * SECOND)
    put(broker, client, 0, 3 * SECOND, SECOND, b"x", 2 * SECOND)
    broker, _ = new_broker(broker.journal.restarted(), 9 * SECOND)
    assert found_by(broker) == 2 * SECOND
    assert sum(job.terms() is not None for job in broker.jobs.values()) == 0, "a start makes no terms"


def test_a_delayed_job_is_overdue_until_time_has_come_to_it():
    broker, client = new_broker(MemoryJournal(), SECOND)
    put(broker, client, 0, 2 * SECOND, SECOND, b"x", SECOND)
    at = 4 * SECOND + broker.wall.offset
    broker.put_with(client, Attributes(at=at), 0, 0, SECOND, b"x", SECOND, SECOND)
    assert [broker.tube_statistics("mail", now * SECOND).overdue for now in (2, 3, 5)] == [0, 0, 2 * SECOND]
    broker.delete(client, 1, 5 * SECOND)
    assert broker.tube_statistics("mail", 5 * SECOND).overdue == SECOND
    run(broker, 5 * SECOND)
    assert broker.tube_statistics("mail", 5 * SECOND).overdue == 0


def test_a_job_that_becomes_ready_again_notes_since_when_only_where_that_is_measured():
    broker, client = new_broker(MemoryJournal(), SECOND)
    for tube in ("mail", "default"):
        broker.use(client, tube)
        put(broker, client, 0, 0, SECOND, b"x", SECOND)
        broker.reserve(client, 0, SECOND)
    assert [job.state for job in broker.jobs.values()] == [RESERVED, RESERVED]
    for job_id in (1, 2):
        broker.release(client, job_id, 0, 0, 3 * SECOND)
    assert [job.terms() and job.terms().ready_since for job in broker.jobs.values()] == [3 * SECOND, None]


@pytest.mark.parametrize("delay", [0, SECOND])
def test_memory_is_counted_right_when_a_job_is_replaced_that_was_reserved(delay):
    broker, client = new_broker(MemoryJournal(), SECOND)
    attributes = Attributes(key="k", replaces=True)
    for _ in range(2):
        broker.put_with(client, attributes, 0, delay, SECOND, b"x", SECOND, SECOND)
        check_broker(broker)
        assert broker.reserve_job(client, 1, SECOND) == DONE
        broker.release(client, 1, 0, 0, SECOND)
    broker.delete(client, 1, SECOND)
    assert broker.memory.used == 0
