"""Deliveries: how large a batch is, and what it costs, while bodies are not in memory.

Who gets which job, and when, is compared with the model (test_broker.py), and the bodies that clients get with those
that were put (storage/test_bodies.py). A client that cannot take its reply: wire/test_pending.py.
"""

import pytest
from virtual import BodilessJournal, RecordingClient, put

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.transitions import BATCH_BYTES
from beanstalk_server.queue.units import FOREVER, SECOND

NOW = SECOND


@pytest.fixture
def broker():
    return Broker(BodilessJournal(), NOW)


@pytest.fixture
def client(broker):
    return RecordingClient(broker)


@pytest.mark.parametrize("waits", [False, True], ids=["at-once", "waiting"])
def test_a_batch_is_bounded_by_the_sizes_of_bodies_that_are_not_in_memory(broker, client, waits):
    producer = RecordingClient(broker)
    assert broker.pause(producer, "default", SECOND, NOW) == DONE
    for _ in range(5):
        assert put(broker, producer, body=bytes(BATCH_BYTES // 2)) == DONE
    if waits:
        broker.reserve_batch(client, 9, FOREVER, NOW)
        broker.advance(NOW + 2 * SECOND)
    else:
        broker.pause(producer, "default", 0, NOW)
        broker.reserve_batch(client, 9, 0, NOW)
    assert broker.reserved == 3, "the third job takes the batch past the bound"


def test_bodies_in_memory_are_given_without_a_fetch(broker, client):
    put(broker, client, body=b"body")
    job = broker.jobs[1]
    broker.journal.memory.return_body(job, b"body")
    assert broker.peek_ready(client) == DONE
    assert broker.reserve(client, 0, NOW) == DONE
    assert client.answers == [("found", 1), ("reserved", 1)]
    assert not broker.journal.fetches
