"""The table of jobs, held against a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue.job import Job
from beanstalk_server.queue.table import PAGE, JobTable
from beanstalk_server.queue.tube import Tube

TUBE = Tube("t", 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5).map(lambda n: n << (PAGE - 1)))))
def test_it_is_a_dictionary_of_jobs_by_id(steps):
    table, model = JobTable(), {}
    for is_taken_in, number in steps:
        if is_taken_in:
            model[number] = Job(number, 0, 0, 0, b"", TUBE, 0)
            table.add(model[number])
        else:
            model.pop(number, None)
            table.remove(number)
        table.check()
        assert table.get(number) is model.get(number)
        assert (number in table) is (number in model)
    assert len(table) == len(model)
    assert sorted(table) == sorted(model)
    assert {job.id: job for job in table.values()} == model
    assert all(table[number] is job for number, job in model.items())


def test_pages_that_nothing_is_left_in_are_gone():
    table = JobTable()
    for number in range(1, 5 << PAGE, 1000):
        table.add(Job(number, 0, 0, 0, b"", TUBE, 0))
        table.remove(number)
    assert not table._pages
