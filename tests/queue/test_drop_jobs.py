"""A broker that is used no more lets its jobs go, some in each step, so that others are served meanwhile."""

import sys

from virtual import World

from beanstalk_server.queue.table import PAGE_SIZE

MOST = PAGE_SIZE
"""Jobs that one step may free."""


def test_the_jobs_of_a_broker_are_freed_in_steps():
    world = World()
    producer, worker = world.connect(), world.connect()
    count = 2 * PAGE_SIZE
    puts = []
    for number in range(count):
        key = "" if number % 3 else f" k{number}"
        puts.append(f"put{'-keyed' if key else ''}{key} 0 {number % 2 * 60} 60 1\r\n!\r\n")
    producer.send("".join(puts).encode())
    worker.send(b"reserve\r\n")
    worker.disconnect()
    world.settle()
    jobs = [world.broker.jobs[job_id] for job_id in sorted(world.broker.jobs)]
    assert len(jobs) == count
    held = [sys.getrefcount(jobs[index]) for index in range(count)]
    before = count
    for _ in world.broker.drop_jobs():
        assert before - len(world.broker.jobs) <= MOST
        before = len(world.broker.jobs)
    assert not world.broker.jobs
    left = [sys.getrefcount(jobs[index]) for index in range(count)]
    assert sum([references >= min(held) for references in left]) < 20, "only the ends of slots of the wheel are held"
