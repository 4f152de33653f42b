"""The reserved jobs of a client, compared with a list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue import reserved_jobs
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.reserved_jobs import MAX_PAGES, PAGE_JOBS, ReservedJobs
from beanstalk_server.queue.tube import Tube

TUBE = Tube("t", 0)


def new_job(job_id):
    return Job(job_id, 0, 0, 0, b"", TUBE, 0)


@given(
    steps=st.lists(st.one_of(st.just("add"), st.integers(0, 100)), max_size=200),
    page_jobs=st.integers(1, 5),
    max_pages=st.sampled_from([1, 3, MAX_PAGES]),
    slice_size=st.integers(1, 7),
)
def test_the_jobs_of_a_client_are_a_list(steps, page_jobs, max_pages, slice_size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserved_jobs, "PAGE_JOBS", page_jobs)
        patch.setattr(reserved_jobs, "MAX_PAGES", max_pages)
        reserved, model = ReservedJobs(), []
        for number, step in enumerate(steps):
            if step == "add":
                model.append(new_job(1000 - number))
                reserved.add(model[-1])
            elif model:
                job = model.pop(step % len(model))
                assert reserved.holds(job)
                reserved.remove(job)
                assert not reserved.holds(job)
            reserved.check()
            assert list(reserved) == model
            assert len(reserved) == len(model)
        taken = []
        while len(reserved):
            reserved.move_last(taken, slice_size)
        assert taken == model[::-1]


def test_pages_go_when_their_jobs_have_gone():
    reserved = ReservedJobs()
    jobs = [new_job(number) for number in range(5 * PAGE_JOBS + 10)]
    for job in jobs:
        reserved.add(job)
    assert len(reserved._pages) == 6
    for job in jobs[:-5]:
        reserved.remove(job)
    reserved.check()
    assert len(reserved._pages) == 1
    assert list(reserved) == jobs[-5:]


def test_one_job_that_stays_keeps_no_page_but_its_own():
    reserved = ReservedJobs()
    stays = new_job(0)
    reserved.add(stays)
    for _ in range(3):
        jobs = [new_job(number) for number in range(1, PAGE_JOBS + 1)]
        for job in jobs:
            reserved.add(job)
        for job in jobs:
            reserved.remove(job)
        reserved.check()
    assert list(reserved) == [stays]
    assert sum(map(bool, reserved._pages)) == 1
