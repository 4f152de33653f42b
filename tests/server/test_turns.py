"""Whose turn it is."""

import pytest
from rounds import SECOND, Rounds

from beanstalk_server.server.connection import IO_COST, READ_COST, SLOW
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.turns import ROUND_QUANTUM, Runnable
from beanstalk_server.wire.session import SESSION_QUANTUM

ASK = b"list-tube-used\r\n"
USING = b"USING default\r\n"


@pytest.fixture
def rounds():
    return Rounds()


def turns_taken(callers):
    """How many of them have been answered a whole turn of questions since the last look."""
    return sum(len(caller.read()) == SESSION_QUANTUM * len(USING) for caller in callers)


def test_one_clients_turn_is_over_before_its_input_is(rounds):
    caller = rounds.connect()
    rounds.turns.budget = 1
    assert caller.send(ASK * 1000) == USING * SESSION_QUANTUM
    rounds.loop.settle()
    assert caller.read() == USING * (1000 - SESSION_QUANTUM)


def test_clients_with_more_to_do_take_turns_first_come_first_served(rounds):
    callers = [rounds.connect() for _ in range(3)]
    rounds.turns.budget = 0
    for caller in callers:
        assert caller.send(ASK * 300) == b"", "the round has no budget left for them"
    order = []
    for number, caller in enumerate(callers):
        caller.transport.on_write = lambda data, number=number: order.append((number, len(data) // len(USING)))
    rounds.loop.settle()
    assert order == [(0, 128), (1, 128), (2, 128)] * 2 + [(0, 44), (1, 44), (2, 44)]


def test_a_round_spends_its_budget_and_no_more_than_a_turn_beyond_it(rounds):
    callers = [rounds.connect() for _ in range(40)]
    rounds.turns.budget = 0
    for caller in callers:
        caller.send(ASK * 200)
    rounds.turns.budget = 0
    rounds.loop.go_round()
    assert turns_taken(callers) == -(-ROUND_QUANTUM // (SESSION_QUANTUM + IO_COST))
    rounds.loop.settle()
    assert all(len(caller.connection.transport.written) for caller in callers)


def test_what_a_round_spends_beyond_its_budget_the_next_one_has_less(rounds):
    callers = [rounds.connect() for _ in range(40)]
    rounds.turns.budget = 0
    for caller in callers:
        caller.send(ASK * 200)
    assert rounds.turns.budget <= -40 * READ_COST
    rounds.turns.budget = -ROUND_QUANTUM // 2
    rounds.loop.go_round()
    assert turns_taken(callers) == -(-ROUND_QUANTUM // 2 // (SESSION_QUANTUM + IO_COST))
    rounds.turns.budget = -1_000_000
    rounds.loop.go_round()
    assert turns_taken(callers) == -(-ROUND_QUANTUM // 4 // (SESSION_QUANTUM + IO_COST)), "never less than a quarter"


def test_what_is_spent_within_a_turn_counts_besides_its_cost(rounds):
    turns = rounds.turns

    class Spending(Runnable):
        def take_turn(self):
            turns.spend(30)
            return 5

        def is_slow(self):
            return False

    turns.enqueue(Spending())
    turns.run_pending()
    assert turns.budget == ROUND_QUANTUM - 35


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
    rounds.turns.budget = 0
    for caller in [*busy, *slow]:
        caller.send(ASK * 2000)
    for done in (1, 2, 3):
        rounds.loop.go_round()
        assert sum(bool(caller.transport.written) for caller in slow) == done
    assert all(caller.connection.queued for caller in busy)


def test_one_whose_every_turn_costs_more_than_a_round_leaves_turns_to_others(rounds):
    turns = rounds.turns

    class Costly(Runnable):
        turns = 0

        def take_turn(self):
            self.turns += 1
            turns.enqueue(self)
            return 3 * ROUND_QUANTUM

        def is_slow(self):
            return True

    costly = Costly()
    turns.enqueue(costly)
    turns.run_pending()
    caller = rounds.connect()
    for _ in range(10):
        caller.send(ASK)
        rounds.loop.go_round()
        assert caller.read() == USING
    assert costly.turns == 11


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("command", [b"stats", b"stats-tube default"])
def test_statistics_count_a_hangup_that_is_reported_after_them_in_the_same_round(rounds, command, ahead):
    caller, other = rounds.connect(), rounds.connect()
    assert caller.send(ASK * ahead + command + b"\r\n" + ASK) == USING * ahead, "the rest of the round comes first"
    other.shut_down()
    rounds.loop.settle()
    answer = caller.read()
    assert b"\ncurrent-connections: 1\n" in answer or b"current-using: 1\n" in answer
    assert answer.endswith(USING)


def test_they_do_so_behind_a_malformed_put(rounds, monkeypatch):
    counts = []
    monkeypatch.setattr(
        Listeners, "note_malformed_puts", lambda _self, count, _listener_policy, _name: counts.append(count)
    )
    caller, other = rounds.connect(), rounds.connect()
    caller.connection.name = "a client"
    assert caller.send(b"put x\r\nstats\r\n") == b"BAD_FORMAT\r\n"
    other.shut_down()
    rounds.loop.settle()
    assert b"\ncurrent-connections: 1\n" in caller.read()
    caller.send(b"put x\r\n")
    assert counts == [1, 1]


def test_statistics_that_wait_for_a_round_wait_for_no_second_one(rounds):
    caller = rounds.connect()
    caller.send(b"stats\r\n" * 3)
    caller.send(b"stats-tube default\r\n")
    assert rounds.loop.go_round()
    assert caller.read().count(b"OK ") == 4


def test_a_body_that_begins_like_statistics_waits_for_nothing(rounds):
    caller = rounds.connect()
    caller.send(b"put 0 0 60 5\r\n")
    assert caller.send(b"stats\r\n") == b"INSERTED 1\r\n"


def test_statistics_among_other_commands_keep_their_order(rounds):
    caller = rounds.connect()
    caller.send(b"stats-tube default\r\n")
    caller.send(ASK)
    rounds.loop.settle()
    answer = caller.read()
    assert answer.startswith(b"OK ")
    assert answer.endswith(USING)


def test_nothing_happens_after_a_stop(rounds):
    caller, other = rounds.connect(), rounds.connect()
    caller.send(b"put 0 1 60 1\r\nx\r\n")
    caller.read()
    rounds.turns.budget = 0
    caller.send(ASK)
    other.send(b"stats\r\n")
    rounds.turns.stop()
    rounds.loop.sleep(10)
    assert (caller.read(), other.read(), rounds.broker.delayed) == (b"", b"", 1)


def test_nothing_happens_while_suspended_and_all_of_it_afterwards(rounds):
    producer, worker, other = rounds.connect(), rounds.connect(), rounds.connect()
    producer.send(b"put 0 1 60 1\r\nx\r\n")
    worker.send(b"reserve\r\n")
    producer.read()
    other.send(b"stats-tube default\r\n" + ASK * 1000)
    other.read()
    rounds.turns.suspend()
    rounds.turns.suspend()
    assert producer.send(ASK) == b""
    other.send(b"stats\r\n")
    rounds.turns.budget = rounds.turns.quantum
    assert producer.send(ASK) == b""
    rounds.loop.sleep(10)
    assert (producer.read(), worker.read(), other.read(), rounds.broker.delayed) == (b"", b"", b"", 1)
    assert not rounds.loop.soon
    rounds.turns.resume()
    rounds.loop.sleep(1)
    assert producer.read() == USING * 2
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"
    assert other.read().count(USING) > SESSION_QUANTUM


def test_a_client_that_sends_much_while_suspended_is_not_read_from(rounds):
    caller = rounds.connect()
    rounds.turns.suspend()
    while caller.transport.reading:
        caller.send(ASK * 1000)
    rounds.turns.resume()
    rounds.loop.settle()
    assert caller.transport.reading
    assert caller.read().startswith(USING)


def test_who_hangs_up_while_suspended_leaves_its_job_to_one_that_gets_it_afterwards(rounds):
    holder, worker = rounds.connect(), rounds.connect()
    holder.send(b"put 0 0 60 1\r\nx\r\nreserve\r\n")
    worker.send(b"reserve\r\n")
    rounds.turns.suspend()
    holder.lose()
    rounds.loop.sleep(1)
    assert worker.read() == b""
    rounds.turns.resume()
    rounds.loop.settle()
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"


def test_a_stop_while_suspended_is_final(rounds):
    caller = rounds.connect()
    rounds.turns.suspend()
    caller.send(ASK)
    rounds.turns.stop()
    rounds.turns.resume()
    rounds.turns.suspend()
    rounds.loop.sleep(1)
    assert caller.read() == b""


@pytest.mark.parametrize("sends", ["a command", "statistics", "nothing"])
def test_a_lease_that_has_run_out_is_noticed_before_anything_is_handed_out(rounds, sends):
    """A process that was stopped for a while gets its input before its timers."""
    turns = rounds.turns
    caller, worker = rounds.connect(), rounds.connect()
    caller.send(b"put 0 1 60 1\r\nx\r\n")
    worker.send(b"reserve\r\n")
    rounds.loop.settle()
    caller.read()
    ends = []
    turns.on_lease_end = lambda: (ends.append(rounds.clock()), turns.suspend())
    turns.lease_end = rounds.clock() + SECOND // 2
    assert caller.send(ASK) == USING
    rounds.loop.now += 2 * SECOND
    if sends != "nothing":
        caller.send(ASK if sends == "a command" else b"stats\r\n")
    rounds.loop.sleep(1)
    assert (caller.read(), worker.read(), len(ends)) == (b"", b"", 1)
    turns.lease_end = rounds.clock() + 10 * SECOND
    turns.resume()
    rounds.loop.settle()
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"
    assert bool(caller.read()) is (sends != "nothing")


def test_a_suspension_after_a_stop_ends_what_clients_may_still_do(rounds):
    """A node that stops waits for the engine first, and its lease may be another's meanwhile."""
    caller = rounds.connect()
    rounds.turns.stop()
    rounds.turns.suspend()
    rounds.turns.budget = rounds.turns.quantum
    assert caller.send(b"put 0 0 60 1\r\nx\r\n") == b""
    assert not rounds.broker.jobs


def test_services_that_share_an_event_loop_share_its_rounds(rounds):
    turns = rounds.turns
    turns.share_rounds(3)
    turns.budget = turns.quantum
    assert turns.budget == ROUND_QUANTUM // 3
    turns.suspend()
    turns.share_rounds(1000)
    assert turns.quantum == 0
    turns.resume()
    assert 0 < turns.quantum < ROUND_QUANTUM // 3
    turns.share_rounds(1)
    assert turns.quantum == ROUND_QUANTUM
