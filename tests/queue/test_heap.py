"""The heap of jobs, compared with a sorted list; and the ring, which holds buried jobs and the timers of a slot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.ring import Ring, RingNode
from beanstalk_server.queue.tube import Tube

TUBE = Tube("tube", 0)


def new_job(job_id):
    return Job(job_id, 0, 0, 0, b"", TUBE, 0)


@given(st.lists(st.tuples(st.sampled_from(["push", "remove", "first"]), st.integers(0, 30), st.integers(0, 5))))
def test_the_heap_is_a_list_sorted_by_sort_key_and_id(steps):
    heap = JobHeap()
    held = {}
    for action, job_id, sort_key in steps:
        if action == "push" and job_id not in held:
            held[job_id] = new_job(job_id)
            heap.push(held[job_id], sort_key)
        elif action == "remove" and job_id in held:
            heap.remove(held.pop(job_id))
        elif action == "first" and held:
            first = min(held.values(), key=lambda job: (job.deadline, job.id))
            assert heap.jobs[0] is first
            heap.remove(held.pop(first.id))
        heap.check()
        assert sorted(job.id for job in heap.jobs) == sorted(held)


def test_a_job_that_takes_a_free_place_may_have_to_rise():
    heap = JobHeap()
    jobs = [new_job(job_id) for job_id in range(7)]
    for job, sort_key in zip(jobs, [0, 10, 1, 11, 12, 2, 3], strict=True):
        heap.push(job, sort_key)
    heap.remove(jobs[3])  # the last job, of sort key 3, comes below the one of sort key 10
    heap.check()
    assert heap.jobs[1] is jobs[6]


def test_a_broken_heap_is_noticed():
    heap = JobHeap()
    for job_id in range(5):
        heap.push(new_job(job_id), job_id)
    heap.jobs[0].deadline = 9
    with pytest.raises(AssertionError):
        heap.check()


def test_a_ring_keeps_order_through_appends_unlinks_and_joins():
    first, second = Ring(), Ring()
    links = [RingNode() for _ in range(6)]
    for link in links[:3]:
        first.append(link)
    for link in links[3:]:
        second.append(link)
    links[1].unlink()
    first.take_all_of(second)
    assert second.is_empty()
    assert first.check() == 5
    found = []
    link = first.after
    while link is not first:
        found.append(links.index(link))
        link = link.after
    assert found == [0, 2, 3, 4, 5]
    assert not links[1].is_linked()
    first.take_all_of(Ring())
    assert first.check() == 5
