"""Whose turn it is, and when due timers are handled."""

import pytest
from rounds import SECOND, Rounds

from beanstalk_server.server.connection import IO_COST, SLOW
from beanstalk_server.server.scheduler import ROUND_QUANTUM
from beanstalk_server.wire.session import SESSION_QUANTUM

ASK = b"list-tube-used\r\n"
USING = b"USING default\r\n"


@pytest.fixture
def rounds():
    return Rounds()


def test_one_clients_turn_is_over_before_its_input_is(rounds):
    caller = rounds.connect()
    rounds.scheduler.budget = 1
    assert caller.send(ASK * 1000) == USING * SESSION_QUANTUM
    rounds.loop.settle()
    assert caller.read() == USING * (1000 - SESSION_QUANTUM)


def test_clients_with_more_to_do_take_turns_first_come_first_served(rounds):
    callers = [rounds.connect() for _ in range(3)]
    rounds.scheduler.budget = 0
    for caller in callers:
        assert caller.send(ASK * 300) == b"", "the round has no budget left for them"
    order = []
    for number, caller in enumerate(callers):
        caller.transport.write = lambda data, number=number: order.append((number, len(data) // len(USING)))
    rounds.loop.settle()
    assert order == [(0, 128), (1, 128), (2, 128)] * 2 + [(0, 44), (1, 44), (2, 44)]


def test_a_round_spends_its_budget_and_no_more_than_a_turn_beyond_it(rounds):
    callers = [rounds.connect() for _ in range(40)]
    rounds.scheduler.budget = 0
    for caller in callers:
        caller.send(ASK * 200)
    rounds.loop.go_round()
    turns = sum(len(caller.read()) == SESSION_QUANTUM * len(USING) for caller in callers)
    assert turns == -(-ROUND_QUANTUM // (SESSION_QUANTUM + IO_COST))
    rounds.loop.settle()
    assert all(len(caller.connection.transport.written) for caller in callers)


def test_a_client_that_asks_little_is_answered_at_once_while_others_have_much_to_do(rounds):
    busy, other = rounds.connect(), rounds.connect()
    busy.send(ASK * 1_000_000)
    rounds.loop.go_round()
    assert other.send(ASK) == b"", "the budget of the round is spent"
    rounds.loop.go_round()
    rounds.loop.go_round()
    assert other.read() == USING
    assert busy.connection.queued, "it is far from done"


def test_one_client_that_watches_many_tubes_has_a_turn_in_each_round(rounds):
    slow = [rounds.connect() for _ in range(3)]
    for caller in slow:
        for number in range(SLOW):
            caller.send(b"watch t%d\r\n" % number)
            rounds.loop.settle()
        caller.read()
    busy = [rounds.connect() for _ in range(40)]
    rounds.scheduler.budget = 0
    for caller in [*busy, *slow]:
        caller.send(ASK * 2000)
    for done in (1, 2, 3):
        rounds.loop.go_round()
        assert sum(bool(caller.transport.written) for caller in slow) == done
    assert all(caller.connection.queued for caller in busy)


def test_statistics_count_a_hangup_that_is_reported_after_them_in_the_same_round(rounds):
    caller, other = rounds.connect(), rounds.connect()
    assert caller.send(b"stats\r\n") == b"", "the event loop reports the rest of the round first"
    other.shut_down()
    rounds.loop.settle()
    assert b"\ncurrent-connections: 1\n" in caller.read()


def test_statistics_among_other_commands_keep_their_order(rounds):
    caller = rounds.connect()
    caller.send(b"stats-tube default\r\n")
    caller.send(ASK)
    rounds.loop.settle()
    answer = caller.read()
    assert answer.startswith(b"OK ")
    assert answer.endswith(USING)


def test_the_timer_is_set_for_the_soonest_event_and_rounded_up_to_milliseconds(rounds):
    caller, worker = rounds.connect(), rounds.connect()
    caller.send(b"put 0 5 60 1\r\na\r\n")
    caller.send(b"put 0 0.021 60 1\r\nb\r\n")
    worker.send(b"reserve\r\n")
    rounds.loop.sleep(0.02)
    assert worker.read() == b""
    rounds.loop.sleep(0.03)
    assert worker.read() == b"RESERVED 2 1\r\nb\r\n"
    rounds.loop.sleep(5)
    assert worker.send(b"reserve\r\n") == b"RESERVED 1 1\r\na\r\n"


def test_no_timer_is_set_when_nothing_will_ever_be_due(rounds):
    caller = rounds.connect()
    caller.send(b"put 0 0 60 1\r\na\r\nreserve\r\ndelete 1\r\nreserve\r\n")
    rounds.loop.sleep(100)
    assert not rounds.loop.later


def test_what_is_due_is_done_in_slices_while_clients_are_served(rounds):
    caller = rounds.connect()
    for _ in range(50):
        caller.send(b"put 0 1 60 1\r\nx\r\n" * 100)
        rounds.loop.settle()
    caller.read()
    rounds.loop.now += 2 * SECOND

    def slow_clock():  # so slow that a round has time for a few slices
        rounds.loop.now += 1_000_000
        return rounds.loop.now

    rounds.scheduler.clock = slow_clock
    in_between = set()
    while rounds.broker.ready < 5000:
        assert rounds.loop.go_round()
        rounds.scheduler.budget = ROUND_QUANTUM
        assert caller.send(ASK) == USING
        in_between.add(rounds.broker.ready)
    assert len(in_between) > 2


def test_nothing_happens_after_a_stop(rounds):
    caller, other = rounds.connect(), rounds.connect()
    caller.send(b"put 0 1 60 1\r\nx\r\n")
    caller.read()
    rounds.scheduler.budget = 0
    caller.send(ASK)
    other.send(b"stats\r\n")
    rounds.scheduler.stop()
    rounds.loop.sleep(10)
    assert (caller.read(), other.read(), rounds.broker.delayed) == (b"", b"", 1)
