"""Tokens of put-with: a put with a token that is taken changes nothing, also when the job is gone."""

import pytest
from checking import check_broker
from virtual import BrokerWorld, FullJournal

from beanstalk_server.queue.job import Job, Token
from beanstalk_server.queue.memory import HELD_COST, TOKEN_COST, job_cost
from beanstalk_server.queue.outcome import AGAIN, DONE, DRAINING, EXISTS, OUT_OF_MEMORY, REPLACED, TOO_LATE
from beanstalk_server.queue.policy import NO_POLICY, Policy
from beanstalk_server.queue.units import SECOND

pytestmark = pytest.mark.compiled

HOUR = 3600 * SECOND


def put_once(world, once="t", once_ttl=HOUR, **attributes):
    """Put; return the outcome, and the id that the client was told."""
    outcome = world.put_with(once=once, once_ttl=once_ttl, **attributes)
    check_broker(world.broker)
    return outcome, world.client.answers[-1][1]


def test_a_token_is_taken_for_its_time_whatever_becomes_of_the_job():
    world = BrokerWorld()
    outcome, job_id = put_once(world)
    assert outcome == DONE
    assert put_once(world) == (EXISTS, job_id)
    assert world.broker.delete(world.client, job_id, world.now) == DONE
    assert put_once(world) == (EXISTS, job_id)
    world.restart(away=HOUR // 2)
    assert put_once(world) == (EXISTS, job_id)
    world.sleep(HOUR)
    outcome, other_id = put_once(world)
    assert outcome == DONE and other_id > job_id


def test_a_token_and_a_key_of_the_same_name_do_not_meet_and_a_token_is_one_of_its_tube():
    world = BrokerWorld(t=Policy(key_hold=HOUR))
    job = world.put(key="t")
    assert put_once(world)[0] == DONE
    assert put_once(world, tube="other")[0] == DONE
    world.delete(job)
    assert put_once(world, once="u")[0] == DONE
    assert world.put_with(key="u") == DONE
    assert world.broker.peek_keyed(world.client, "t") != DONE


def test_a_put_that_changes_nothing_takes_no_token():
    world = BrokerWorld(t=Policy(max_jobs=1, max_held_keys=5))
    job = world.put(key="k")
    assert put_once(world, key="k")[0] == EXISTS
    world.reserve(job)
    assert put_once(world, key="k", replaces=True)[0] == TOO_LATE
    assert put_once(world)[0] == DRAINING
    assert not world.broker.held and not world.broker.memory.used - job_cost(job)
    assert put_once(world, key="k", replaces=True, again=True) == (AGAIN, job.id)
    assert put_once(world, key="k", replaces=True, again=True) == (EXISTS, job.id), "it is taken now"


def test_a_put_that_replaces_takes_the_token_with_the_job_that_it_replaces():
    world = BrokerWorld()
    job = world.put(key="k")
    assert put_once(world, key="k", replaces=True) == (REPLACED, job.id)
    assert put_once(world, key="other", replaces=True) == (EXISTS, job.id)


def test_it_exists_even_if_the_server_drains_or_the_tube_is_full():
    world = BrokerWorld(t=Policy(max_jobs=1))
    _, job_id = put_once(world)
    assert put_once(world) == (EXISTS, job_id)
    assert put_once(world, once="u")[0] == DRAINING
    world.policies["t"] = NO_POLICY
    world.broker.change_policies(world.policy_of, world.now)
    world.broker.drain()
    assert put_once(world) == (EXISTS, job_id)
    assert put_once(world, once="u")[0] == DRAINING


def test_tokens_count_as_held_keys():
    world = BrokerWorld(t=Policy(max_held_keys=2))
    for once in ("a", "b"):
        assert put_once(world, once=once)[0] == DONE
    assert world.broker.server_statistics().held == 2
    assert put_once(world, once="c")[0] == DRAINING
    assert world.broker.tube_statistics("t", world.now).counters.refused_jobs == 1


def test_there_must_be_memory_for_the_job_and_its_token():
    world = BrokerWorld()
    memory = world.broker.memory
    job = Job(1, 0, 0, SECOND, b"body", world.broker.tubes.default, 0)
    needed = job_cost(job) + HELD_COST + TOKEN_COST + 2
    memory.limit = needed - 1
    assert put_once(world)[0] == OUT_OF_MEMORY
    assert not memory.used and not world.broker.held
    memory.limit = needed
    assert put_once(world)[0] == DONE
    assert memory.used == needed


def test_a_journal_without_room_takes_neither_the_job_nor_the_token():
    world = BrokerWorld(FullJournal("put"))
    assert put_once(world)[0] == OUT_OF_MEMORY
    assert not world.broker.held and not world.broker.jobs and not world.journal.jobs
    world.journal.refuses = ()
    assert put_once(world)[0] == DONE


def test_a_clear_frees_tokens_with_the_held_keys():
    world = BrokerWorld()
    put_once(world)
    world.broker.clear(world.client, "t")
    assert put_once(world)[0] == DONE
    world.restart()
    assert [type(held) for held in world.broker.held.values()] == [Token]


def test_a_tube_exists_while_a_token_of_it_is_taken():
    world = BrokerWorld()
    _, job_id = put_once(world)
    world.broker.delete(world.client, job_id, world.now)
    world.broker.use(world.client, "default")
    assert world.broker.tubes.get("t") is not None
    world.sleep(2 * HOUR)
    assert world.broker.tubes.get("t") is None and not world.journal.jobs
