"""When the server is woken, and when due timers are handled."""

from itertools import pairwise

import pytest
from checking import check_broker
from rounds import SECOND, Rounds, SteppingClock
from virtual import RecordingClient

from beanstalk_server.queue.outcome import PENDING, TIMED_OUT
from beanstalk_server.server.alarm import Alarm
from beanstalk_server.server.timers import ADVANCE_SLICE, ADVANCE_TIME
from beanstalk_server.server.turns import COST_TIME, ROUND_QUANTUM

ASK = b"list-tube-used\r\n"
USING = b"USING default\r\n"


@pytest.fixture
def rounds():
    return Rounds()


def put_delayed(rounds, count):
    """Let this many jobs be due now."""
    caller = rounds.connect()
    for _ in range(count // 100):
        caller.send(b"put 0 1 60 1\r\nx\r\n" * 100)
        rounds.loop.settle()
    caller.read()
    rounds.loop.now += 2 * SECOND
    return caller


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
        rounds.timers.use_alarm(lambda *arguments: alarms.append(Recorded(*arguments)) or alarms[-1])
    first, second = alarms
    assert first.deadline is None
    rounds.loop.sleep(60)
    assert rounds.broker.ready == 0, "the event loop's alarm is not set any more"
    while not rounds.broker.ready:
        second.go_off()


def test_no_alarm_takes_the_place_of_another_after_a_stop(rounds, alarms):
    rounds.turns.stop()
    rounds.timers.use_alarm(lambda *arguments: alarms.append(Recorded(*arguments)) or alarms[-1])
    assert alarms == []


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
    alarmed.turns.clock = SteppingClock(alarmed.loop, ADVANCE_TIME)
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
    rounds.turns.clock = SteppingClock(rounds.loop, ADVANCE_TIME // 4)
    in_between = set()
    while rounds.broker.ready < 5000:
        assert rounds.loop.go_round()
        rounds.turns.budget = ROUND_QUANTUM
        assert caller.send(ASK) == USING
        in_between.add(rounds.broker.ready)
    assert len(in_between) > 2


def test_what_is_due_is_handled_for_a_bounded_time_in_each_round(rounds):
    put_delayed(rounds, 5000)
    rounds.turns.clock = SteppingClock(rounds.loop, ADVANCE_TIME // 4)
    handled = []
    while rounds.broker.ready < 5000:
        before = rounds.broker.ready
        assert rounds.loop.go_round()
        handled.append(rounds.broker.ready - before)
    assert max(handled) <= 4 * ADVANCE_SLICE


def test_the_time_for_what_is_due_counts_against_the_budget_of_the_round(rounds):
    put_delayed(rounds, 5000)
    rounds.turns.budget = 10_000
    rounds.turns.clock = SteppingClock(rounds.loop, ADVANCE_TIME // 4)
    rounds.loop.go_round()
    assert rounds.turns.budget <= 10_000 - ADVANCE_TIME // COST_TIME


def test_who_gets_a_job_that_is_due_has_it_before_the_next_slice(rounds):
    put_delayed(rounds, 1000)
    worker = rounds.connect()
    worker.send(b"reserve\r\n" * 1000)
    rounds.turns.clock = SteppingClock(rounds.loop, ADVANCE_TIME // 4)
    rounds.turns.budget = rounds.turns.quantum = 1_000_000
    left = [1000]
    worker.transport.on_write = lambda data: left.append(rounds.broker.delayed)
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
    rounds.turns.run_pending()
    rounds.loop.settle()
    assert [client.answers for client in failing] == [[TIMED_OUT]] * 3
    assert len(caplog.records) == 3
    assert (rounds.broker.waiting, rounds.broker.ready) == (0, 200)
    assert caller.send(ASK) == USING
    check_broker(rounds.broker)
