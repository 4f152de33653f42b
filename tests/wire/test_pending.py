"""Every outcome may come later: with a queue that answers nothing at once, a conversation is the same."""

import pytest
from virtual import World

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.outcome import PENDING

pytestmark = pytest.mark.interpreted

REPORTED_LATER = (
    "use watch ignore put put_keyed cancel cancel_keyed reschedule reschedule_keyed delete release bury touch kick_job "
    "pause"
).split()

FOUND_LATER = "peek peek_keyed peek_ready peek_delayed peek_buried".split()


class LateBroker(Broker):
    """Does a command at once, or a peek later, and gives the answer when `report` is called."""

    owed = None

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
    setattr(LateBroker, name, reported_later(name))
for name in FOUND_LATER:
    setattr(LateBroker, name, found_later(name))


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


@pytest.fixture
def late_world(monkeypatch):
    with monkeypatch.context() as only_here:
        only_here.setattr("virtual.Broker", LateBroker)
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
