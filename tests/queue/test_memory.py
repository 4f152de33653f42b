"""The account of memory: what the jobs of a broker take."""

from beanstalk_server.queue.job import DELETED, NOT_IN_MEMORY, READY, Job
from beanstalk_server.queue.memory import BODY_COST, JOB_COST, Memory
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


def test_no_body_of_a_client_is_taken_for_the_one_that_is_not_in_memory():
    assert bytes(memoryview(NOT_IN_MEMORY)) is not NOT_IN_MEMORY
