"""Shares and limits beyond what the model shows: how much work a reserve is, many lanes, and what is left of them."""

import pytest
from checking import check_broker
from virtual import MemoryJournal, RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.fair_heap import AT_ONCE
from beanstalk_server.queue.job import READY
from beanstalk_server.queue.outcome import DONE, NOT_FOUND, PENDING, TIMED_OUT
from beanstalk_server.queue.policy import Attributes, Labels
from beanstalk_server.queue.state import SLICE
from beanstalk_server.queue.units import FOREVER, SECOND

pytestmark = pytest.mark.compiled

NOW = 10**11


@pytest.fixture
def broker():
    return Broker(MemoryJournal(), NOW)


@pytest.fixture
def client(broker):
    return RecordingClient(broker)


def put(broker, client, body=b"x", **labels):
    attributes = Attributes(labels=Labels(**{"limit_count": 1} | labels))
    assert broker.put_with(client, attributes, 0, 0, 60 * SECOND, body, NOW, NOW) == DONE
    return broker.next_id - 1


def reserved(broker, client, count):
    """The ids of the next jobs."""
    for _ in range(count):
        assert broker.reserve(client, 0, NOW) == DONE
    return [answer[1] for answer in client.answers if answer[0] == "reserved"][-count:]


def test_who_puts_many_jobs_does_not_delay_who_puts_one(broker, client):
    many = [put(broker, client, share="many") for _ in range(1000)]
    one = put(broker, client, share="one")
    assert reserved(broker, client, 4) == [many[0], one, many[1], many[2]]
    check_broker(broker)


def test_a_reserve_behind_a_limit_that_is_reached_moves_no_other_job_of_it(broker, client):
    jobs = [put(broker, client, limit="l") for _ in range(2000)]
    assert reserved(broker, client, 1) == jobs[:1]
    lane = broker.jobs[jobs[1]].terms().labels.lane
    for _ in range(10):
        plain = put(broker, client, share="s")
        assert reserved(broker, client, 1) == [plain]
        assert broker.delete(client, plain, NOW) == DONE
        assert len(lane.jobs) == len(jobs) - 1, "they are where they were"
    assert broker.reserve(client, 0, NOW) == TIMED_OUT
    assert broker.reserve_job(client, jobs[1], NOW) == NOT_FOUND
    broker.delete(client, jobs[0], NOW)
    assert reserved(broker, client, 1) == [jobs[1]]
    check_broker(broker)


def test_a_limit_over_many_tubes_is_offered_in_slices_and_never_exceeded(broker, client):
    workers = []
    tubes = [f"t{number}" for number in range(3 * AT_ONCE)]
    for name in tubes:
        broker.use(client, name)
        put(broker, client, limit="home/l", limit_count=2)
        put(broker, client, limit="home/l", limit_count=2)
    for name in tubes:
        worker = RecordingClient(broker)
        broker.watch(worker, name)
        workers.append(worker)
        assert broker.reserve(worker, FOREVER, NOW) == (DONE if len(workers) <= 2 else PENDING)
    done = 0
    while held := [job for job in broker.jobs.values() if job.client is not None]:
        assert len(held) <= 2
        for job in held:
            worker = job.client
            assert broker.delete(worker, job.id, NOW) == DONE
            done += 1
            assert broker.reserve(worker, FOREVER, NOW) in (DONE, PENDING)
        while broker.next_event() <= NOW:
            broker.advance(NOW, 3)
        check_broker(broker)
    assert done == 2 * len(tubes)
    assert not broker.limits


def test_lanes_that_come_and_go_leave_nothing_in_the_heap(broker, client):
    kept = put(broker, client, share="kept", limit="kept")
    heap = broker.tubes.default.ready
    for _ in range(3):
        for number in range(100):
            broker.delete(client, put(broker, client, share=f"s{number}", limit=f"l{number}"), NOW)
        assert (len(heap.due), len(heap.lanes), len(broker.limits)) == (0, 1, 1)
    assert reserved(broker, client, 1) == [kept]


def test_a_clear_in_slices_takes_what_is_shown_and_what_is_not(broker, client):
    for number in range(2000):
        put(broker, client, share=f"s{number % 7}" if number % 3 else "", limit=f"l{number % 5}")
    reserved(broker, client, 3)
    assert broker.clear(client, "default") == PENDING
    again = put(broker, client, share="s1", limit="other")
    while broker.next_event() <= NOW:
        broker.advance(NOW)
        check_broker(broker)
    assert client.answers[-1] == ("counted", 1997)
    assert [job.id for job in broker.jobs.values() if job.state == READY] == [again]


@pytest.mark.parametrize("lanes", [1, AT_ONCE + 1])
def test_a_place_that_becomes_free_while_jobs_are_cleared_is_offered_to_none_of_them(broker, client, lanes):
    first = put(broker, client, limit="l")
    for number in range(SLICE + 10):
        put(broker, client, limit="l", share=f"s{number % lanes}" if lanes > 1 else "")
    assert reserved(broker, client, 1) == [first]
    assert broker.reserve(client, 0, NOW) == TIMED_OUT  # the lanes are withdrawn
    other = RecordingClient(broker)
    assert broker.clear(other, "default") == PENDING
    broker.delete(client, first, NOW)
    last = put(broker, client, limit="l")
    while broker.next_event() <= NOW:
        broker.advance(NOW)
    check_broker(broker)
    assert reserved(broker, client, 1) == [last]
    assert broker.reserve(client, 0, NOW) == TIMED_OUT
    broker.delete(client, last, NOW)
    assert not broker.limits
