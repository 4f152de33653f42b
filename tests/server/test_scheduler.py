"""Whose turn it is, and when due timers are handled."""

from itertools import pairwise

import pytest
from rounds import SECOND, Rounds
from virtual import RecordingClient

from beanstalk_server.queue.check import check_broker
from beanstalk_server.queue.outcome import PENDING, TIMED_OUT
from beanstalk_server.server.alarm import Alarm
from beanstalk_server.server.connection import IO_COST, READ_COST, SLOW
from beanstalk_server.server.scheduler import ADVANCE_SLICE, ADVANCE_TIME, COST_TIME, ROUND_QUANTUM, Runnable
from beanstalk_server.wire.session import SESSION_QUANTUM

ASK = b"list-tube-used\r\n"
USING = b"USING default\r\n"


@pytest.fixture
def rounds():
    return Rounds()


def turns_taken(callers):
    """How many of them have been answered a whole turn of questions since the last look."""
    return sum(len(caller.read()) == SESSION_QUANTUM * len(USING) for caller in callers)


class SlowClock:
    """A clock that moves on with every look at it: the time that passes while a callback runs."""

    def __init__(self, loop, step):
        self.loop, self.step = loop, step

    def __call__(self):
        self.loop.now += self.step
        return self.loop.now


def put_delayed(rounds, count):
    """Let so many jobs be due now."""
    caller = rounds.connect()
    for _ in range(count // 100):
        caller.send(b"put 0 1 60 1\r\nx\r\n" * 100)
        rounds.loop.settle()
    caller.read()
    rounds.loop.now += 2 * SECOND
    return caller


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
    rounds.scheduler.budget = 0
    rounds.loop.go_round()
    assert turns_taken(callers) == -(-ROUND_QUANTUM // (SESSION_QUANTUM + IO_COST))
    rounds.loop.settle()
    assert all(len(caller.connection.transport.written) for caller in callers)


def test_what_a_round_spends_beyond_its_budget_the_next_one_has_less(rounds):
    callers = [rounds.connect() for _ in range(40)]
    rounds.scheduler.budget = 0
    for caller in callers:
        caller.send(ASK * 200)
    assert rounds.scheduler.budget <= -40 * READ_COST
    rounds.scheduler.budget = -ROUND_QUANTUM // 2
    rounds.loop.go_round()
    assert turns_taken(callers) == -(-ROUND_QUANTUM // 2 // (SESSION_QUANTUM + IO_COST))
    rounds.scheduler.budget = -1_000_000
    rounds.loop.go_round()
    assert turns_taken(callers) == -(-ROUND_QUANTUM // 4 // (SESSION_QUANTUM + IO_COST)), "never less than a quarter"


def test_what_is_spent_within_a_turn_counts_besides_its_cost(rounds):
    scheduler = rounds.scheduler

    class Spending(Runnable):
        def take_turn(self):
            scheduler.spend(30)
            return 5

        def is_slow(self):
            return False

    scheduler.enqueue(Spending())
    scheduler.run_pending()
    assert scheduler.budget == ROUND_QUANTUM - 35


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


def test_one_whose_every_turn_costs_more_than_a_round_leaves_turns_to_others(rounds):
    scheduler = rounds.scheduler

    class Costly(Runnable):
        turns = 0

        def take_turn(self):
            self.turns += 1
            scheduler.enqueue(self)
            return 3 * ROUND_QUANTUM

        def is_slow(self):
            return True

    costly = Costly()
    scheduler.enqueue(costly)
    scheduler.run_pending()
    caller = rounds.connect()
    for _ in range(10):
        caller.send(ASK)
        rounds.loop.go_round()
        assert caller.read() == USING
    assert costly.turns == 11


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


class Recorded(Alarm):
    """An alarm that goes off when the test says so."""

    def __init__(self, loop, clock, on_due):
        self.loop, self.on_due = loop, on_due
        self.deadline = None
        self.times_set = 0

    def set(self, deadline):
        self.deadline = deadline
        self.times_set += 1

    def cancel(self):
        self.deadline = None

    def go_off(self):
        """Go off at the moment that it is set for, or later."""
        self.loop.now = max(self.loop.now, self.deadline)
        self.deadline = None
        self.on_due()
        self.loop.settle()


@pytest.fixture
def alarms():
    """All that have been made."""
    return []


@pytest.fixture
def alarmed(alarms):
    return Rounds(make_alarm=lambda *arguments: alarms.append(Recorded(*arguments)) or alarms[-1])


def test_the_alarm_is_set_when_something_will_be_due(alarmed, alarms):
    (alarm,) = alarms
    caller = alarmed.connect()
    caller.send(b"put 0 0 60 1\r\na\r\npeek-ready\r\n")
    assert alarm.times_set == 0
    caller.send(b"put 0 5 60 1\r\na\r\n")
    caller.send(b"put 0 4 60 1\r\na\r\n")
    assert alarm.deadline <= alarmed.loop.now + 4 * SECOND


def test_an_alarm_that_takes_the_place_of_another_goes_off_in_its_stead(rounds, alarms):
    caller = rounds.connect()
    caller.send(b"put 0 5 60 1\r\na\r\n")
    for _ in range(2):
        rounds.scheduler.use_alarm(lambda *arguments: alarms.append(Recorded(*arguments)) or alarms[-1])
    first, second = alarms
    assert first.deadline is None
    rounds.loop.sleep(60)
    assert rounds.broker.ready == 0, "the event loop's alarm is not set any more"
    while not rounds.broker.ready:
        second.go_off()


def test_no_alarm_takes_the_place_of_another_after_a_stop(rounds):
    rounds.scheduler.stop()
    rounds.scheduler.use_alarm(lambda *_: pytest.fail("it is made"))


def test_an_alarm_that_goes_off_early_does_nothing_and_is_set_again(alarmed, alarms):
    caller = alarmed.connect()
    caller.send(b"put 0 0.020 60 1\r\na\r\n")
    (alarm,) = alarms
    deadline = alarm.deadline
    for _ in range(3):
        alarm.on_due()
        assert (alarmed.broker.ready, alarm.deadline) == (0, deadline)
    alarm.go_off()
    while alarmed.broker.delayed:
        alarm.go_off()
    assert alarmed.broker.ready == 1
    assert alarm.deadline is None, "an idle server is not woken"


def test_a_later_deadline_does_not_set_the_alarm_anew(alarmed, alarms):
    caller = alarmed.connect()
    caller.send(b"put 0 1 60 1\r\na\r\n")
    for number in range(100):
        caller.send(b"put 0 %d 60 1\r\na\r\ndelete %d\r\n" % (2 + number, 2 + number))
        alarmed.loop.settle()
    assert alarmed.broker.delayed == 1
    assert alarms[0].times_set == 1


def test_what_is_left_of_what_is_due_is_due_at_once(alarmed, alarms):
    put_delayed(alarmed, 1000)
    alarmed.scheduler.clock = SlowClock(alarmed.loop, ADVANCE_TIME)
    while not alarmed.broker.ready:
        alarms[0].go_off()
    assert alarmed.broker.ready < 1000
    assert alarms[0].deadline <= alarmed.loop.now


def test_no_timer_is_set_when_nothing_will_ever_be_due(rounds):
    caller = rounds.connect()
    caller.send(b"put 0 0 60 1\r\na\r\nreserve\r\ndelete 1\r\nreserve\r\n")
    rounds.loop.sleep(100)
    assert not rounds.loop.later


def test_what_is_due_is_done_in_slices_while_clients_are_served(rounds):
    caller = put_delayed(rounds, 5000)
    rounds.scheduler.clock = SlowClock(rounds.loop, ADVANCE_TIME // 4)
    in_between = set()
    while rounds.broker.ready < 5000:
        assert rounds.loop.go_round()
        rounds.scheduler.budget = ROUND_QUANTUM
        assert caller.send(ASK) == USING
        in_between.add(rounds.broker.ready)
    assert len(in_between) > 2


def test_what_is_due_is_handled_for_a_bounded_time_in_each_round(rounds):
    put_delayed(rounds, 5000)
    rounds.scheduler.clock = SlowClock(rounds.loop, ADVANCE_TIME // 4)
    handled = []
    while rounds.broker.ready < 5000:
        before = rounds.broker.ready
        assert rounds.loop.go_round()
        handled.append(rounds.broker.ready - before)
    assert max(handled) <= 4 * ADVANCE_SLICE


def test_the_time_for_what_is_due_counts_against_the_budget_of_the_round(rounds):
    put_delayed(rounds, 5000)
    rounds.scheduler.budget = 10_000
    rounds.scheduler.clock = SlowClock(rounds.loop, ADVANCE_TIME // 4)
    rounds.loop.go_round()
    assert rounds.scheduler.budget <= 10_000 - ADVANCE_TIME // COST_TIME


def test_who_gets_a_job_that_is_due_has_it_before_the_next_slice(rounds):
    put_delayed(rounds, 1000)
    worker = rounds.connect()
    worker.send(b"reserve\r\n" * 1000)
    rounds.scheduler.clock = SlowClock(rounds.loop, ADVANCE_TIME // 4)
    rounds.scheduler.budget = rounds.scheduler.quantum = 1_000_000
    left = [1000]
    worker.transport.write = lambda data: left.append(rounds.broker.delayed)
    rounds.loop.settle()
    assert left[-1] == 0
    assert all(before - after <= ADVANCE_SLICE for before, after in pairwise(left))


def test_a_timer_that_fails_keeps_nothing_else_from_being_due_and_does_not_fail_again(rounds, caplog):
    class Failing(RecordingClient):
        def on_outcome(self, outcome):
            self.answers.append(outcome)
            raise MemoryError

    failing = [Failing(rounds.broker) for _ in range(3)]
    for client in failing:
        assert rounds.broker.reserve(client, SECOND, rounds.loop.now) == PENDING
    caller = put_delayed(rounds, 200)
    rounds.scheduler.run_pending()
    rounds.loop.settle()
    assert [client.answers for client in failing] == [[TIMED_OUT]] * 3
    assert len(caplog.records) == 3
    assert (rounds.broker.waiting, rounds.broker.ready) == (0, 200)
    assert caller.send(ASK) == USING
    check_broker(rounds.broker)


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


def test_nothing_happens_while_suspended_and_all_of_it_afterwards(rounds):
    producer, worker, other = rounds.connect(), rounds.connect(), rounds.connect()
    producer.send(b"put 0 1 60 1\r\nx\r\n")
    worker.send(b"reserve\r\n")
    producer.read()
    other.send(b"stats-tube default\r\n" + ASK * 1000)
    other.read()
    rounds.scheduler.suspend()
    rounds.scheduler.suspend()
    assert producer.send(ASK) == b""
    other.send(b"stats\r\n")
    rounds.scheduler.refill()
    assert producer.send(ASK) == b""
    rounds.loop.sleep(10)
    assert (producer.read(), worker.read(), other.read(), rounds.broker.delayed) == (b"", b"", b"", 1)
    assert not rounds.loop.soon
    rounds.scheduler.resume()
    rounds.loop.sleep(1)
    assert producer.read() == USING * 2
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"
    assert other.read().count(USING) > SESSION_QUANTUM


def test_a_client_that_sends_much_while_suspended_is_not_read_from(rounds):
    caller = rounds.connect()
    rounds.scheduler.suspend()
    while caller.transport.reading:
        caller.send(ASK * 1000)
    rounds.scheduler.resume()
    rounds.loop.settle()
    assert caller.transport.reading
    assert caller.read().startswith(USING)


def test_who_hangs_up_while_suspended_leaves_its_job_to_one_that_gets_it_afterwards(rounds):
    holder, worker = rounds.connect(), rounds.connect()
    holder.send(b"put 0 0 60 1\r\nx\r\nreserve\r\n")
    worker.send(b"reserve\r\n")
    rounds.scheduler.suspend()
    holder.lose()
    rounds.loop.sleep(1)
    assert worker.read() == b""
    rounds.scheduler.resume()
    rounds.loop.settle()
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"


def test_a_stop_while_suspended_is_final(rounds):
    caller = rounds.connect()
    rounds.scheduler.suspend()
    caller.send(ASK)
    rounds.scheduler.stop()
    rounds.scheduler.resume()
    rounds.scheduler.suspend()
    rounds.loop.sleep(1)
    assert caller.read() == b""


@pytest.mark.parametrize("sends", ["a command", "statistics", "nothing"])
def test_a_lease_that_has_run_out_is_noticed_before_anything_is_handed_out(rounds, sends):
    """A process that was stopped for a while gets its input before its timers."""
    scheduler = rounds.scheduler
    caller, worker = rounds.connect(), rounds.connect()
    caller.send(b"put 0 1 60 1\r\nx\r\n")
    worker.send(b"reserve\r\n")
    rounds.loop.settle()
    caller.read()
    ends = []
    scheduler.on_lease_end = lambda: (ends.append(rounds.clock()), scheduler.suspend())
    scheduler.lease_end = rounds.clock() + SECOND // 2
    assert caller.send(ASK) == USING
    rounds.loop.now += 2 * SECOND
    if sends != "nothing":
        caller.send(ASK if sends == "a command" else b"stats\r\n")
    rounds.loop.sleep(1)
    assert (caller.read(), worker.read(), len(ends)) == (b"", b"", 1)
    scheduler.lease_end = rounds.clock() + 10 * SECOND
    scheduler.resume()
    rounds.loop.settle()
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"
    assert bool(caller.read()) is (sends != "nothing")


def test_a_suspension_after_a_stop_ends_what_clients_may_still_do(rounds):
    """A node that stops waits for the engine first, and its lease may be another's meanwhile."""
    caller = rounds.connect()
    rounds.scheduler.stop()
    rounds.scheduler.suspend()
    rounds.scheduler.refill()
    assert caller.send(b"put 0 0 60 1\r\nx\r\n") == b""
    assert not rounds.broker.jobs


def test_schedulers_that_share_an_event_loop_share_its_rounds(rounds):
    scheduler = rounds.scheduler
    scheduler.share_rounds(3)
    scheduler.refill()
    assert scheduler.budget == ROUND_QUANTUM // 3
    scheduler.suspend()
    scheduler.share_rounds(1000)
    assert scheduler.quantum == 0
    scheduler.resume()
    assert 0 < scheduler.quantum < ROUND_QUANTUM // 3
    scheduler.share_rounds(1)
    assert scheduler.quantum == ROUND_QUANTUM
