"""Every outcome may come later: with a queue that answers nothing at once, and with a journal that has to fetch every
body, a conversation is the same."""

import pytest
from virtual import BodilessJournal, World

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.outcome import PENDING

REPORTED_LATER = (
    "use watch ignore put put_with cancel cancel_keyed reschedule reschedule_keyed delete release bury touch "
    "kick_job pause"
).split()

FOUND_LATER = "peek peek_keyed peek_ready peek_delayed peek_buried".split()


class LateQueue(Broker):
    """Does a command at once, or a peek later, and gives the answer when `report` is called."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.owed = None

    def report(self):
        client, outcome_of = self.owed
        self.owed = None
        outcome = outcome_of()
        if client.pending is not None:  # else `on_found` has answered
            client.on_outcome(outcome)


def reported_later(name):
    done_at_once = getattr(Broker, name)

    def done_late(self, client, *arguments):
        outcome = done_at_once(self, client, *arguments)
        self.owed = client, lambda: outcome
        return PENDING

    return done_late


def found_later(name):
    found_at_once = getattr(Broker, name)

    def found_late(self, client, *arguments):
        self.owed = client, lambda: found_at_once(self, client, *arguments)
        return PENDING

    return found_late


for name in REPORTED_LATER:
    setattr(LateQueue, name, reported_later(name))
for name in FOUND_LATER:
    setattr(LateQueue, name, found_later(name))


CONVERSATION = [
    b"use a\r\n",
    b"watch a\r\n",
    b"ignore default\r\n",
    b"ignore a\r\n",
    b"put 0 0 60 1\r\nx\r\n",
    b"put-keyed k 0 60 60 1\r\nx\r\n",
    b"put-keyed k 0 60 60 1\r\nx\r\n",
    b"replace-keyed k 0 60 60 1\r\nx\r\n",
    b"reschedule 2 30\r\n",
    b"reschedule 1 30\r\n",
    b"reschedule-keyed k 30\r\n",
    b"reschedule-keyed none 30\r\n",
    b"peek 1\r\n",
    b"peek 9\r\n",
    b"peek-keyed k\r\n",
    b"peek-keyed none\r\n",
    b"peek-ready\r\n",
    b"peek-delayed\r\n",
    b"peek-buried\r\n",
    b"reserve\r\n",
    b"touch 1\r\n",
    b"release 1 0 10\r\n",
    b"release 1 0 0\r\n",
    b"kick-job 1\r\n",
    b"reserve-job 1\r\n",
    b"bury 1 0\r\n",
    b"peek-buried\r\n",
    b"delete 1\r\n",
    b"delete 1\r\n",
    b"cancel-keyed none\r\n",
    b"cancel-keyed k\r\n",
    b"cancel 2\r\n",
    b"pause-tube a 0\r\n",
    b"pause-tube none 0\r\n",
    b"pause-tube - 0\r\n",
    b"quit\r\n",
]

RESERVATIONS = [
    b"put 0 0 60 3\r\none\r\nput 1 0 60 3\r\ntwo\r\nput 2 9 60 5\r\nthree\r\n",
    b"peek 1\r\npeek-ready\r\npeek-delayed\r\npeek-buried\r\npeek 9\r\n",
    b"reserve\r\nreserve-with-timeout 0\r\nreserve-with-timeout 0\r\n",
    b"release 2 0 0\r\nreserve-batch 9 0\r\nreserve-batch 9 0\r\nreserve-job 3\r\nreserve-job 3\r\n",
    b"bury 1 0\r\npeek-buried\r\nkick 1\r\nreserve-batch 1 9\r\npeek 1\r\ndelete 1\r\npeek 1\r\n",
]
"""Several commands at once, which are answered in order."""


@pytest.fixture
def late_world(monkeypatch):
    with monkeypatch.context() as only_here:
        only_here.setattr("virtual.Broker", LateQueue)
        return World()


def test_a_conversation_is_the_same_when_outcomes_come_later(late_world):
    at_once = World().connect()
    client = late_world.connect()
    for command in CONVERSATION:
        reply = client.send(command + b"list-tube-used\r\n")
        if late_world.broker.owed:
            assert reply == b"", "the next command waits"
            late_world.broker.report()
            assert late_world.answered
            late_world.settle()
            reply = client.read()
        assert reply == at_once.send(command + b"list-tube-used\r\n"), command


def test_a_reply_that_comes_later_waits_for_the_commit_of_what_it_reports(late_world):
    client = late_world.connect()
    client.send(b"put 0 0 60 1\r\nx\r\n")
    late_world.broker.last_lsn += 5
    late_world.broker.report()
    assert client.session.reply_lsn == late_world.broker.last_lsn


def test_a_client_that_may_not_wait_still_gets_an_outcome_that_comes_later(late_world):
    client = late_world.connect()
    client.send(b"delete 1\r\nlist-tube-used\r\n")
    assert client.shut_down() == b""
    assert not client.session.closed
    late_world.broker.report()
    late_world.settle()
    assert client.read() == b"NOT_FOUND\r\nUSING default\r\n"
    assert client.session.closed


@pytest.mark.parametrize("conversation", [CONVERSATION, RESERVATIONS], ids=["one-by-one", "at-once"])
def test_a_conversation_is_the_same_when_bodies_have_to_be_fetched(conversation):
    journal = BodilessJournal()
    world = World(journal)
    client, at_once = world.connect(), World().connect()
    for commands in conversation:
        reply = client.send(commands)
        while journal.fetches:
            assert len(journal.fetches) == 1, "the next command waits"
            journal.end_fetch()
            assert world.answered
            world.settle()
            world.check()
            reply += client.read()
        assert reply == at_once.send(commands), commands


@pytest.fixture
def far():
    """A world in which every body has to be fetched."""
    return World(BodilessJournal())


def end_fetch(world):
    world.broker.journal.end_fetch()
    world.settle()


def test_a_client_that_waits_is_answered_when_the_body_is_there(far):
    worker, producer = far.connect(), far.connect()
    assert worker.send(b"reserve-with-timeout 1\r\nlist-tube-used\r\n") == b""
    producer.put(b"body")
    assert worker.read() == b""
    assert producer.yaml(b"stats")["current-waiting"] == "0"
    far.sleep(2)
    assert worker.read() == b"", "its timeout has been met"
    end_fetch(far)
    assert worker.read() == b"RESERVED 1 4\r\nbody\r\nUSING default\r\n"


def test_a_client_that_may_not_wait_still_gets_a_job_whose_body_is_on_its_way(far):
    client = far.connect()
    client.put(b"body")
    assert client.send(b"reserve\r\nreserve\r\n") == b""
    assert client.shut_down() == b"" and not client.session.closed
    end_fetch(far)
    assert client.read() == b"RESERVED 1 4\r\nbody\r\nTIMED_OUT\r\n"
    assert client.session.closed


def test_a_client_that_hangs_up_gets_nothing_more_and_its_job_goes_to_the_next(far):
    first, second = far.connect(), far.connect()
    first.put(b"body")
    assert first.send(b"reserve\r\n") == second.send(b"reserve\r\n") == b""
    first.disconnect()
    end_fetch(far)
    assert second.read() == b"", "that was the body for the first"
    end_fetch(far)
    assert (first.read(), second.read()) == (b"", b"RESERVED 1 4\r\nbody\r\n")


def test_clients_whose_bodies_come_at_once_or_later_do_not_wait_for_each_other(far):
    first, second, third = [far.connect() for _ in range(3)]
    first.put(b"one")
    first.put(b"two")
    assert first.send(b"reserve\r\n") == second.send(b"reserve\r\n") == b""
    assert third.send(b"stats-job 1\r\n").startswith(b"OK ")
    far.broker.journal.end_fetch(1)
    far.settle()
    assert (first.read(), second.read()) == (b"", b"RESERVED 2 3\r\ntwo\r\n")
    assert second.send(b"delete 2\r\n") == b"DELETED\r\n"
    end_fetch(far)
    assert first.read() == b"RESERVED 1 3\r\none\r\n"


def test_a_reservation_that_is_recorded_waits_for_its_commit_however_late_the_body_comes(far):
    client = far.connect()
    client.put(b"body", delay=60)
    client.send(b"reserve-job 1\r\n")
    recorded = far.broker.last_lsn
    end_fetch(far)
    assert client.read() == b"RESERVED 1 4\r\nbody\r\n"
    assert client.session.reply_lsn == recorded


def too_large(jobs):
    raise MemoryError


@pytest.mark.interpreted  # because a compiled module calls its own functions
def test_a_reply_that_does_not_fit_into_memory_is_an_error_and_the_next_command_is_done(far, monkeypatch):
    client = far.connect()
    client.put(b"body")
    client.send(b"reserve-batch 1 0\r\nlist-tube-used\r\n")
    monkeypatch.setattr("beanstalk_server.wire.replies.reserved_batch", too_large)
    with pytest.raises(MemoryError):
        far.broker.journal.end_fetch()
    far.settle()
    assert client.read() == b"INTERNAL_ERROR\r\nUSING default\r\n"
