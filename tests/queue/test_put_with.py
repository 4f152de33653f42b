"""Puts of which the producer demands something special: by the broker, with a key or without one."""

import pytest
from checking import check_broker
from virtual import MemoryJournal, RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import NO_EXTRAS, Extras, Terms
from beanstalk_server.queue.memory import TERMS_COST, job_cost
from beanstalk_server.queue.outcome import DONE, EXISTS, REPLACED, TOO_LATE
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.units import SECOND

NOW = SECOND


@pytest.fixture
def broker():
    return Broker(MemoryJournal())


@pytest.fixture
def client(broker):
    return RecordingClient(broker)


def put_with(broker, client, delay=0, **demands):
    return broker.put_with(client, Attributes(**demands), 0, delay, SECOND, b"x", NOW, NOW)


def test_a_job_remembers_what_is_demanded(broker, client):
    demands = {"at": 2 * SECOND, "max_tries": 2, "backoff": 3, "ttl": 4 * SECOND, "key_hold": 5}
    assert put_with(broker, client, **demands) == DONE
    assert client.answers == [("keyed", 1)]
    terms = broker.jobs[1].extras
    assert {name: getattr(terms, name) for name in demands} == demands
    assert broker.jobs[1].key == ""
    check_broker(broker)


def test_a_job_of_which_nothing_is_demanded_has_no_terms(broker, client):
    assert put_with(broker, client) == DONE
    assert put_with(broker, client, key="k") == DONE
    assert broker.jobs[1].extras is NO_EXTRAS
    assert type(broker.jobs[2].extras) is Extras


def test_a_key_names_one_job(broker, client):
    assert put_with(broker, client, key="k", max_tries=1) == DONE
    assert put_with(broker, client, key="k", max_tries=2) == EXISTS
    assert client.answers == [("keyed", 1), ("keyed", 1)]
    assert broker.jobs[1].extras.max_tries == 1
    broker.reserve(client, 0, NOW)
    assert put_with(broker, client, key="k", replaces=True) == TOO_LATE


@pytest.mark.parametrize("demands", [{}, {"backoff": 7}])
def test_a_job_that_replaces_another_has_what_is_demanded_of_it_and_all_its_tries(broker, client, demands):
    assert put_with(broker, client, key="k", replaces=True, max_tries=3) == DONE
    broker.jobs[1].extras.tries = 2
    assert put_with(broker, client, key="k", replaces=True, **demands) == REPLACED
    assert client.answers == [("keyed", 1), ("keyed", 1)]
    extras = broker.jobs[1].extras
    assert extras.key == "k"
    assert isinstance(extras, Terms) == bool(demands)
    if isinstance(extras, Terms):
        assert (extras.max_tries, extras.backoff, extras.tries) == (0, 7, 0)
    check_broker(broker)


def test_the_account_of_memory_knows_terms(broker, client):
    assert put_with(broker, client) == DONE
    job = broker.jobs[1]
    before = job_cost(job)
    terms = broker.memory.give_terms(job)
    assert job.extras is terms is broker.memory.give_terms(job)
    assert job_cost(job) == broker.memory.used == before + TERMS_COST
    check_broker(broker)
