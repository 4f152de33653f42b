"""The tables of jobs, compared with dictionaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue import table as tables
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.table import PAGE_BITS, JobTable, KeyTable
from beanstalk_server.queue.tube import Tube

TUBE = Tube("t", 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5).map(lambda n: n << (PAGE_BITS - 1)))))
def test_the_table_is_a_dictionary_of_jobs_by_id(steps):
    table, model = JobTable(), {}
    for is_taken_in, job_id in steps:
        if is_taken_in:
            model[job_id] = Job(job_id, 0, 0, 0, b"", TUBE, 0)
            table.add(model[job_id])
        else:
            model.pop(job_id, None)
            table.remove(job_id)
        table.check()
        assert table.get(job_id) is model.get(job_id)
        assert (job_id in table) is (job_id in model)
    assert len(table) == len(model)
    assert sorted(table) == sorted(model)
    assert {job.id: job for job in table.values()} == model
    assert all(table[job_id] is job for job_id, job in model.items())


def test_a_page_goes_with_the_last_of_its_jobs():
    table = JobTable()
    for job_id in range(1, 5 << PAGE_BITS, 1000):
        table.add(Job(job_id, 0, 0, 0, b"", TUBE, 0))
        table.remove(job_id)
    assert not table._pages


def keyed(job_id, key):
    job = Job(job_id, 0, 0, 0, b"", TUBE, 0)
    job.key = key
    return job


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=200))
def test_the_table_is_a_dictionary_of_jobs_by_key_however_many_pages_it_has(steps):
    table, model = KeyTable(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "PAGE_KEYS", 3)
        for step, (is_taken_in, job_id) in enumerate(steps):
            key = f"k{job_id}"
            if is_taken_in:
                table.add(model.setdefault(key, keyed(step, key)))
            else:
                table.remove(keyed(step, key))
                table.remove(model.pop(key, keyed(step, key)))
            table.check()
            assert len(table) == len(model)
    assert {job.key: job for job in table.values()} == model
    assert all(table.get(key) is job for key, job in model.items())
    assert table.get("nobody's") is None
