"""--max-memory: a put beyond it is refused, and everything else goes on."""

import pytest
from virtual import World

from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.memory import BODY_COST, JOB_COST, KEY_COST
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.units import SECOND

SMALL = JOB_COST + BODY_COST + 10
"""What a job with a body of ten bytes counts for."""


@pytest.fixture
def world():
    world = World(max_memory=3 * SMALL)
    yield world
    world.check()


def memory(client):
    found = client.yaml(b"stats")
    return int(found["current-memory"]), int(found["max-memory"])


def put(client, size=10, delay=0):
    return client.send(b"put 0 %d 60 %d\r\n%s\r\n" % (delay, size, b"x" * size))


def test_a_put_is_refused_that_would_take_more_than_the_limit(client):
    assert memory(client) == (0, 3 * SMALL)
    assert put(client, 11) == b"INSERTED 1\r\n"
    assert put(client, 9, delay=5) == b"INSERTED 2\r\n"
    assert put(client, 11) == b"OUT_OF_MEMORY\r\n", "one byte more than there is"
    assert memory(client) == (2 * SMALL, 3 * SMALL)
    assert put(client, 10) == b"INSERTED 4\r\n"
    assert put(client, 0) == b"OUT_OF_MEMORY\r\n"
    assert memory(client) == (3 * SMALL, 3 * SMALL)


def test_everything_else_goes_on(client):
    for _ in range(3):
        put(client)
    assert client.send(b"reserve\r\n") == b"RESERVED 1 10\r\nxxxxxxxxxx\r\n"
    assert client.send(b"release 1 0 100\r\n") == b"RELEASED\r\n"
    assert client.send(b"reschedule 1 200\r\n") == b"RESCHEDULED\r\n"
    assert client.send(b"reserve-job 2\r\n") == b"RESERVED 2 10\r\nxxxxxxxxxx\r\n"
    assert client.send(b"bury 2 0\r\n") == b"BURIED\r\n"
    assert client.send(b"kick 10\r\n") == b"KICKED 1\r\n"
    assert put(client) == b"OUT_OF_MEMORY\r\n"
    assert client.send(b"cancel 1\r\n") == b"CANCELLED\r\n"
    assert put(client, delay=9) == b"INSERTED 5\r\n"
    assert client.send(b"delete 3\r\n") == b"DELETED\r\n"
    assert put(client) == b"INSERTED 6\r\n"
    assert put(client) == b"OUT_OF_MEMORY\r\n"
    assert client.send(b"clear-tube default\r\n") == b"CLEARED 3\r\n"
    assert memory(client)[0] == 0


def test_a_key_counts_and_a_refused_put_leaves_none(client):
    assert client.send(b"put-keyed abc 0 9 60 10\r\nxxxxxxxxxx\r\n") == b"INSERTED 1\r\n"
    assert memory(client)[0] == SMALL + KEY_COST + 3
    put(client)
    assert client.send(b"put-keyed k 0 9 60 10\r\nxxxxxxxxxx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert client.send(b"peek-keyed k\r\n") == b"NOT_FOUND\r\n"
    assert client.send(b"put-keyed abc 0 9 60 900\r\n" + b"x" * 900 + b"\r\n") == b"EXISTS 1\r\n", "and nothing is kept"


def test_a_replacement_is_refused_only_if_it_takes_more_than_the_limit(client):
    client.send(b"put-keyed k 0 9 60 10\r\nxxxxxxxxxx\r\n")
    free = 3 * SMALL - memory(client)[0]
    big = b"y" * (free + 11)
    assert client.send(b"replace-keyed k 7 9 60 %d\r\n%s\r\n" % (len(big), big)) == b"OUT_OF_MEMORY\r\n"
    assert client.send(b"peek 1\r\n") == b"FOUND 1 10\r\nxxxxxxxxxx\r\n", "the old job stays as it is"
    assert client.send(b"replace-keyed k 7 9 60 %d\r\n%s\r\n" % (len(big) - 1, big[1:])) == b"REPLACED 1\r\n"
    assert memory(client)[0] == 3 * SMALL
    assert client.send(b"replace-keyed k 7 9 60 1\r\nz\r\n") == b"REPLACED 1\r\n"


class MoreThanTheLimit(Journal):
    keeps = True

    def load(self):
        for job_id in range(1, 11):
            yield StoredJob(job_id, "default", "k" if job_id == 1 else "", ttr=SECOND, body=b"x" * 10)

    def next_id(self):
        return 11


def test_a_restart_brings_back_more_jobs_than_the_limit_allows_and_puts_wait_until_there_are_fewer():
    world = World(MoreThanTheLimit(), max_memory=3 * SMALL)
    world.broker.restore(0, world.now)
    client = world.connect()
    world.check()
    assert memory(client)[0] == 10 * SMALL + KEY_COST + 1
    assert client.send(b"replace-keyed k 0 0 60 10\r\nyyyyyyyyyy\r\n") == b"REPLACED 1\r\n", "it takes no more"
    assert client.send(b"replace-keyed k 0 0 60 11\r\nyyyyyyyyyyy\r\n") == b"OUT_OF_MEMORY\r\n"
    for job_id in range(1, 9):
        assert put(client) == b"OUT_OF_MEMORY\r\n"
        assert client.send(b"delete %d\r\n" % job_id) == b"DELETED\r\n"
    assert put(client).startswith(b"INSERTED")
    world.check()


def test_without_a_limit_the_memory_is_counted_all_the_same():
    client = World().connect()
    put(client, 1000)
    assert memory(client) == (JOB_COST + BODY_COST + 1000, 0)
