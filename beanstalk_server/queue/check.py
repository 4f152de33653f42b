"""Verifies the invariants of a broker: its counts, its orders, its links, and the answers that it owes.

For tests, which call it after every step. It visits every job and tube, and changes nothing.
"""

from __future__ import annotations

from beanstalk_server.queue.broker import OVERDUE, Broker
from beanstalk_server.queue.client import Client, Wait
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import DELAYED, DELETED, NEW, NO_EXTRAS, READY, RESERVED, STATES, URGENT, Job
from beanstalk_server.queue.memory import job_cost
from beanstalk_server.queue.tube import Tube


def check_broker(broker: Broker) -> None:
    """Verify every invariant, between two calls of the broker.

    Raises:
        AssertionError: an invariant does not hold.
    """
    broker.wheel.check()
    broker.jobs.check()
    broker.tubes.check()
    _check_jobs(broker)
    _check_tubes(broker)
    _check_shared_extras()


def _check_jobs(broker: Broker) -> None:
    counts = [0] * (DELETED + 1)
    urgent = 0
    in_safety_margin: dict[Client, int] = {}
    for job in broker.jobs.values():
        assert job.id < broker.next_id, f"job {job.id} has an id that the broker has not given out"
        if job.tube.is_cleared(job):
            continue
        _check_job(broker, job)
        counts[job.state] += 1
        urgent += job.state == READY and job.priority < URGENT
        if job.client is not None:
            in_safety_margin[job.client] = in_safety_margin.get(job.client, 0) + job.in_safety_margin
    assert counts[NEW] == counts[DELETED] == 0, "a new or deleted job can be found"
    assert [broker.ready, broker.reserved, broker.buried, broker.delayed] == counts[READY:DELETED]
    assert broker.urgent == urgent
    assert broker.memory.used == sum(map(job_cost, broker.jobs.values())), "the account of memory is wrong"
    for client, count in in_safety_margin.items():
        assert client.jobs_in_safety_margin == count
        assert not (client.waiting and count), "a client waits although one of its jobs is in its safety margin"


def _check_job(broker: Broker, job: Job) -> None:
    tube = job.tube
    assert broker.tubes[tube.name] is tube, f"job {job.id} is in a tube that cannot be found"
    if job.key:
        assert tube.keys is not None and tube.keys.get(job.key) is job, f"job {job.id} cannot be found by its key"
    is_reserved = job.state == RESERVED
    assert (job.client is not None) == is_reserved, (
        f"job {job.id} is reserved without a client, or has a client and is not reserved"
    )
    client = job.client
    assert client is None or client.leaving or client.reserved.holds(job), (
        f"job {job.id} is not among its client's reserved jobs"
    )
    assert is_reserved or not job.in_safety_margin, f"job {job.id} is in its safety margin, but not reserved"
    assert job.is_linked() == (job.state != READY), f"job {job.id} is {STATES[job.state]}: its link is wrong"


def _check_tubes(broker: Broker) -> None:
    waiting: set[Client] = set()
    totals = [0, 0, 0, 0, 0]
    for tube in broker.tubes.values():
        _check_tube(broker, tube)
        for client in _waiting_in(tube):
            assert client.waiting is not client.leaving, "a tube lists a client that neither waits nor leaves"
            assert tube in client.watched, "a client waits in a tube that it does not watch"
            if client.waiting:
                waiting.add(client)
        found = (len(tube.ready.jobs), len(tube.delayed.jobs), tube.buried_count, len(tube.reserved), tube.urgent)
        totals = [total + part for total, part in zip(totals, found, strict=True)]
    assert totals == [broker.ready, broker.delayed, broker.buried, broker.reserved, broker.urgent]
    assert broker.waiting == len(waiting)
    for client in waiting:
        assert not client.busy, "a client waits although it is owed another answer"
        assert all(client in _waiting_in(tube) for tube in client.watched), "a client does not wait in all its tubes"


def _check_tube(broker: Broker, tube: Tube) -> None:
    assert tube is broker.tubes.default or tube.is_needed(), f"tube {tube.name} exists, but nothing needs it"
    _check_heap(broker, tube.ready, READY, tube)
    _check_heap(broker, tube.delayed, DELAYED, tube)
    for index, job in enumerate(tube.reserved):
        assert job.state == RESERVED and job.tube is tube and job.heap_index == index
    assert tube.buried.check() == tube.buried_count
    assert tube.waiting.check() == tube.waiting_count
    assert tube.urgent == sum(job.priority < URGENT for job in tube.ready.jobs)
    assert not tube.pause or tube.is_linked(), f"nothing will end the pause of tube {tube.name}"
    is_served_later = tube.is_linked() and (tube.pause or tube.deadline == OVERDUE)
    assert not (tube.ready.jobs and tube.waiting_count) or is_served_later, (
        f"tube {tube.name} has ready jobs, and yet clients wait"
    )
    if tube.keys is not None:
        tube.keys.check()
        for job in tube.keys.values():
            assert broker.jobs[job.id] is job, f"key {job.key} of tube {tube.name} outlives its job"


def _check_heap(broker: Broker, heap: JobHeap, state: int, tube: Tube) -> None:
    heap.check()
    for job in heap.jobs:
        assert job.state == state and job.tube is tube and broker.jobs[job.id] is job
        assert state == DELAYED or job.deadline == job.priority


def _waiting_in(tube: Tube) -> list[Client]:
    """The clients in a tube's ring, longest waiting first."""
    found: list[Client] = []
    wait = tube.waiting.after
    while isinstance(wait, Wait):
        found.append(wait.client)
        wait = wait.after
    return found


def _check_shared_extras() -> None:
    shared = NO_EXTRAS
    counters = (shared.timeouts, shared.releases, shared.buries, shared.kicks, shared.bury_sequence, shared.clears)
    rests = (shared.delay_rest, shared.ttr_rest)
    assert not (shared.key or any(counters) or any(rests)), "NO_EXTRAS, which many jobs share, has been written to"
