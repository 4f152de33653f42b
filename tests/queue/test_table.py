"""The tables of jobs, compared with dictionaries."""

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from beanstalk_server.queue import table as tables
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.table import PAGE_BITS, PAGE_SIZE, SPARSE, ForeignJobError, IdTable, KeyTable
from beanstalk_server.queue.tube import Tube

TUBE = Tube("t", 0)


def new_job(job_id):
    return Job(job_id, 0, 0, 0, b"", TUBE, 0)


near_page_ends = st.integers(0, 5).map(lambda n: n << (PAGE_BITS - 1))
runs = st.builds(range, near_page_ends, near_page_ends, st.sampled_from([1, 3, 15, 16, 17, 40, PAGE_SIZE]))
"""Numbers of jobs that come or go together: as many on a page as make it dense, or leave it sparse."""

strides = st.sampled_from([(1, 0), (1, 0), (2, 1), (8, 0), (8, 7), (1000, 1)])


@settings(max_examples=examples(50))
@given(strides, st.lists(st.tuples(st.booleans(), runs, st.randoms(use_true_random=False)), max_size=12))
def test_the_table_is_a_dictionary_of_jobs_by_id(ids, steps):
    stride, offset = ids
    table, model = IdTable(stride, offset), {}
    for is_taken_in, numbers, order in steps:
        run = [number * stride + offset for number in numbers]
        job_ids = list(run)
        order.shuffle(job_ids)
        for job_id in job_ids:
            if is_taken_in:
                model[job_id] = new_job(job_id)
                table.add(model[job_id])
            else:
                model.pop(job_id, None)
                table.remove(job_id)
            assert table.get(job_id) is model.get(job_id)
            assert len(table) == len(model)
        table.check()
        assert all((job_id in table) is (job_id in model) for job_id in run)
        assert sorted(table) == sorted(model)
        assert {job.id: job for job in table.values()} == model
        assert all(table[job_id] is job for job_id, job in model.items())
    with pytest.raises(KeyError):
        table[1 << 40]


def test_a_table_with_a_stride_has_as_many_pages_as_one_without():
    plain, strided = IdTable(), IdTable(8, 5)
    for number in range(3 * PAGE_SIZE):
        plain.add(new_job(number))
        strided.add(new_job(number * 8 + 5))
    strided.check()
    assert len(strided._pages) == len(plain._pages) == 3


def test_a_table_with_a_stride_has_no_jobs_of_other_shards():
    table = IdTable(8, 5)
    for number in range(PAGE_SIZE):
        table.add(new_job(number * 8 + 5))
    for job_id in (8, 12, 14, 2**64 - 1):
        assert table.get(job_id) is None
        table.remove(job_id)
        with pytest.raises(ForeignJobError, match=f"job {job_id} does not belong to shard 5 of 8"):
            table.add(new_job(job_id))
    table.check()
    assert len(table) == PAGE_SIZE


def test_a_page_goes_with_the_last_of_its_jobs():
    table = IdTable()
    for job_id in range(1, 5 << PAGE_BITS, 1000):
        table.add(new_job(job_id))
        table.remove(job_id)
    assert not table._pages


def test_a_page_with_few_jobs_has_no_places_for_those_that_are_gone():
    table = IdTable()
    for job_id in range(PAGE_SIZE):
        table.add(new_job(job_id))
    table.check()
    assert table._pages[0]._places is not None
    for job_id in range(PAGE_SIZE):
        if job_id % 100:
            table.remove(job_id)
            assert table.get(job_id) is None
    table.check()
    assert table._pages[0]._places is None
    assert sorted(table) == list(range(0, PAGE_SIZE, 100))


def test_jobs_that_come_and_go_at_the_bound_do_not_turn_the_page_back_and_forth():
    table = IdTable()
    for job_id in range(SPARSE + 1):
        table.add(new_job(job_id))
    places = table._pages[0]._places
    for _ in range(3):
        table.remove(0)
        table.add(new_job(0))
        assert table._pages[0]._places is places is not None


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


def test_a_table_gives_up_its_jobs_page_by_page():
    table = IdTable(8, 5)
    for number in range(2 * PAGE_SIZE + 1):
        table.add(new_job(number * 8 + 5))
    pages = []
    while page := table.pop_page():
        pages.append(page)
        table.check()
        assert len(table) == 2 * PAGE_SIZE + 1 - sum(map(len, pages))
    assert sorted(map(len, pages)) == [1, PAGE_SIZE, PAGE_SIZE]
    assert {job.id for page in pages for job in page} == {number * 8 + 5 for number in range(2 * PAGE_SIZE + 1)}
