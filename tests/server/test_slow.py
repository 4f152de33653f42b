"""What takes too long is told, by clocks that a test moves, and in ten seconds once."""

import asyncio
import json
import logging
import time

import pytest
from rounds import Loop, Rounds, SteppingClock
from sharded import SlowJournal

from beanstalk_server import Config, Server
from beanstalk_server.cli.logs import JsonFormatter
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.server.slow import INTERVAL, SlowLog

THRESHOLD = 50
PUT = b"put 0 1 60 1\r\nx\r\n"


def watched(journal=None):
    """Rounds whose turns, commits and timers are told of, and their clock."""
    rounds = Rounds(journal)
    clock = rounds.turns.clock = SteppingClock(rounds.loop)
    slow = SlowLog(THRESHOLD * MILLISECOND, rounds.loop.clock)
    slow.start(rounds.loop)
    rounds.turns.slow = rounds.timers.slow = rounds.gate.slow = slow
    return rounds, clock


def connect(rounds, name="192.0.2.7:1"):
    slow, rounds.turns.slow = rounds.turns.slow, None  # its transport has no address
    caller = rounds.connect()
    rounds.turns.slow = slow
    caller.connection.name = name
    return caller


def told(caplog):
    """The events of the lines, with their fields."""
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    for line in lines:
        assert line.pop("level") == "warning"
        del line["time"], line["message"]
    return lines


def test_a_turn_that_takes_too_long_is_told_with_its_client(caplog):
    rounds, clock = watched()
    caller = connect(rounds)
    clock.step = 62_345_600
    caller.send(b"list-tube-used\r\n")
    assert told(caplog) == [{"event": "slow-turn", "client": "192.0.2.7:1", "milliseconds": 62.346}]
    assert caplog.messages == ["192.0.2.7:1: one turn took 62 ms"]


def test_a_turn_that_waits_in_the_queue_is_told_too(caplog):
    rounds, clock = watched()
    caller = connect(rounds)
    rounds.turns.budget = 0
    caller.send(b"list-tube-used\r\n")
    clock.step = THRESHOLD * MILLISECOND
    rounds.loop.settle()
    (line,) = told(caplog)
    assert (line["event"], line["client"]) == ("slow-turn", "192.0.2.7:1")
    assert caller.read() == b"USING default\r\n"


def test_a_client_that_is_gone_by_the_end_of_its_turn_needs_no_name(caplog):
    rounds, clock = watched()
    caller = connect(rounds, name="")
    clock.step = (THRESHOLD + 1) * MILLISECOND
    caller.send(b"quit\r\n")
    (line,) = told(caplog)
    assert line["client"] == "a client"


def test_a_client_has_its_address_for_a_name(caplog):
    async def ask():
        async with Server(Config(port=0, slow_ms=0.001)) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"list-tubes\r\nquit\r\n")
            await reader.read()
            host, port = writer.get_extra_info("sockname")
            writer.close()
            return f"{host}:{port}"

    client = asyncio.run(ask())
    assert [line["client"] for line in told(caplog) if line["event"] == "slow-turn"] == [client]


def test_what_takes_no_longer_than_it_may_is_not_told(caplog):
    rounds, clock = watched()
    caller = connect(rounds)
    clock.step = THRESHOLD * MILLISECOND
    caller.send(PUT)
    assert caplog.messages == []


def test_a_timer_that_is_late_is_told(caplog):
    rounds, _ = watched()
    connect(rounds).send(PUT)
    rounds.loop.now += SECOND + 200 * MILLISECOND
    rounds.loop.settle()
    (line,) = told(caplog)
    assert line["event"] == "late-timer"
    assert line["milliseconds"] >= 200


def test_work_that_is_due_at_once_is_not_late(caplog):
    rounds, _ = watched()
    caller = connect(rounds)
    caller.send(b"put 0 0 60 1\r\nx\r\n" * 2000)
    rounds.loop.now += SECOND  # since the last timer
    caller.send(b"clear-tube default\r\n")
    rounds.loop.settle()
    assert caller.read().endswith(b"CLEARED 2000\r\n")
    assert caplog.messages == []


def test_a_timer_that_is_in_time_is_not_told(caplog):
    rounds, _ = watched()
    connect(rounds).send(PUT)
    rounds.loop.sleep(2)
    assert rounds.broker.tubes["default"].ready
    assert caplog.messages == []


def test_a_commit_that_takes_too_long_is_told_with_its_changes(caplog):
    journal = SlowJournal()
    journal.is_slow = True
    rounds, _ = watched(journal)
    connect(rounds).send(PUT * 3)
    rounds.loop.settle()
    rounds.loop.now += 80 * MILLISECOND
    journal.end_commit()
    assert told(caplog) == [{"event": "slow-commit", "changes": 3, "milliseconds": 80.0}]
    assert caplog.messages == ["a commit of 3 changes took 80 ms"]
    connect(rounds).send(PUT)
    rounds.loop.settle()
    journal.end_commit()
    assert len(caplog.messages) == 1


def test_nobody_looks_at_a_clock_for_a_server_that_is_not_asked():
    rounds, clock = watched()
    rounds.turns.slow = rounds.timers.slow = rounds.gate.slow = None
    caller = connect(rounds)
    clock.step = MILLISECOND
    before = rounds.loop.now
    caller.send(b"list-tube-used\r\n")
    assert rounds.loop.now == before + MILLISECOND, "once, for the present"


class Held:
    """A loop that is held before the next look, for some milliseconds, of which the thread worked some."""

    def __init__(self):
        self.loop = Loop()
        self.cpu = 0
        self.slow = SlowLog(THRESHOLD * MILLISECOND, self.loop.clock, lambda: self.cpu)
        self.slow.start(self.loop)
        self.slow.watch()

    def hold(self, milliseconds, cpu=0):
        self.cpu += cpu * MILLISECOND
        self.loop.now += milliseconds * MILLISECOND
        self.loop.settle()


def test_a_loop_that_is_held_is_told_with_its_cpu_time(caplog):
    held = Held()
    held.loop.sleep(1)
    assert caplog.messages == []
    held.loop.now = held.loop.later[0][0]  # the next look is due
    held.hold(120, 90)
    assert told(caplog) == [{"event": "loop-held", "milliseconds": 120.0, "cpu_milliseconds": 90.0}]
    assert caplog.messages == ["the event loop stalled for 120.0 ms (90.0 ms of CPU)"]


@pytest.mark.parametrize("beginning", range(0, 13, 3))
def test_a_loop_that_is_held_for_a_quarter_longer_is_always_seen(beginning, caplog):
    held = Held()
    held.loop.now += beginning * MILLISECOND
    held.hold(THRESHOLD * 5 // 4 + 1)
    assert len(caplog.messages) == 1


def test_each_kind_has_a_line_in_ten_seconds_and_then_one_about_the_others(caplog):
    held = Held()
    for milliseconds in (200, 70, 300, 90):
        held.hold(milliseconds, cpu=milliseconds - 10)
    held.slow.note_commit(1, SECOND)
    assert [line["event"] for line in told(caplog)] == ["loop-held", "slow-commit"]
    caplog.clear()
    held.loop.sleep(INTERVAL)
    (line,) = told(caplog)
    assert line.pop("milliseconds") == pytest.approx(300, abs=THRESHOLD / 4)
    assert line.pop("cpu_milliseconds") == pytest.approx(290, abs=THRESHOLD / 4)
    assert line == {"event": "slow-left-out", "kind": "loop-held", "count": 3, "seconds": INTERVAL}
    caplog.clear()
    held.hold(200)
    assert caplog.messages == [], "the line about the others was one, too"
    held.loop.sleep(2 * INTERVAL)
    caplog.clear()
    held.hold(200)
    assert [line["event"] for line in told(caplog)] == ["loop-held"]


def test_in_an_hour_of_slow_turns_there_are_six_lines_a_minute(caplog):
    held = Held()
    rounds, _ = watched()
    caller = connect(rounds)
    for _ in range(3600):
        held.slow.note_turn(caller.connection, SECOND)
        held.loop.sleep(1)
    assert len(caplog.messages) <= 3600 / INTERVAL + 1
    counted = sum(line.get("count", 1) for line in told(caplog))
    assert counted > 3600 - INTERVAL


def test_what_was_left_out_is_told_at_the_end_and_nothing_looks_any_more(caplog):
    held = Held()
    for _ in range(3):
        held.hold(200)
    held.slow.stop()
    assert [line["event"] for line in told(caplog)] == ["loop-held", "slow-left-out"]
    caplog.clear()
    held.loop.sleep(10 * INTERVAL)
    assert caplog.messages == []
    assert not held.loop.later


def test_a_server_tells_what_is_slow_if_it_is_asked(caplog):
    caplog.set_level(logging.WARNING)

    async def serve(config):
        async with Server(config):
            asyncio.get_running_loop().call_soon(hold)
            await asyncio.sleep(0.03)

    def hold():
        end = time.monotonic() + 0.03
        while time.monotonic() < end:
            pass

    asyncio.run(serve(Config(port=0)))
    assert [each for each in caplog.messages if "stalled" in each] == []
    asyncio.run(serve(Config(port=0, slow_ms=4)))
    assert [each for each in caplog.messages if "stalled" in each] != []
