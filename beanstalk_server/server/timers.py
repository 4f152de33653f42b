"""The broker's timers: wakes the server when the broker has something due, and lets it handle that.

What is due is handled for ADVANCE_TIME in one round of the event loop, which spends from the budget of turns; the one
that gets an answer from it has a turn after each slice. The rest follows in the next round.

While a job waits for a moment of the wall clock, that clock is looked at before the broker handles what is due, and
each half second (`WALL_CHECK`). While none does, the clock is not read.

Time comes from clocks that their owner may replace, in nanoseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from beanstalk_server.events import event
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.wheel import END_OF_TIME
from beanstalk_server.server.alarm import Alarm, AlarmMaker, LoopAlarm
from beanstalk_server.server.process import clock_offset
from beanstalk_server.server.turns import COST_TIME, Turns

if TYPE_CHECKING:
    from beanstalk_server.server.slow import SlowLog

ADVANCE_TIME: Final = 1_000_000
"""Nanoseconds that the broker may spend on due timers in one round of the event loop, give or take a slice."""

ADVANCE_SLICE: Final = 128
"""The most timers that it handles between two looks at the clock, and at the clients that it has given an answer."""

log = logging.getLogger("beanstalk_server")


class Timers:
    """Lets the broker handle what is due, while turns are given.

    Args:
        turns: of the broker's clients. They tell what the present is, and whether anything may come due.
        clock_offset: returns the wall clock minus their clock.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, broker: Broker, turns: Turns, clock_offset: Callable[[], int] = clock_offset) -> None:
        self._broker = broker
        self._turns = turns
        self.clock_offset = clock_offset
        self.slow: SlowLog | None = None  # is told how late time is
        self._alarm_set = 0  # nanoseconds: when it was set, if it is logged how late it is
        self._alarm: Alarm | None = None  # from `start` on

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake this event loop from now on."""
        self._loop = loop
        self._alarm = LoopAlarm(loop, self._turns.clock, self._advance)
        self._turns.wheel = self._broker.wheel
        self._turns.set_alarm = self.set_alarm

    def use_alarm(self, make_alarm: AlarmMaker) -> None:
        """Be woken by another alarm than the event loop's from now on."""
        if self._turns.stopped:
            return
        if self._alarm is not None:
            self._alarm.close()
        self._alarm = make_alarm(self._loop, self._turns.clock, self._advance)
        self.set_alarm()

    def stop(self) -> None:
        """Wake the server no more; turns have been stopped."""
        if self._alarm is not None:
            self._alarm.close()

    def set_alarm(self) -> None:
        """Set the alarm for the broker's next event, if anything may come due."""
        if self._turns.halted or self._alarm is None:
            self._turns.alarm_at = END_OF_TIME  # so that the first look afterwards sets it
            return
        when = self._broker.next_event()
        self._turns.alarm_at = when
        if self.slow is not None:
            self._alarm_set = self._turns.clock()
        if when < END_OF_TIME:
            self._alarm.set(when)
        else:
            self._alarm.cancel()

    def _advance(self) -> None:
        """Let the broker handle what is due, for ADVANCE_TIME; the rest follows in the next round."""
        turns = self._turns
        broker = self._broker
        now = turns.clock()
        if now >= turns.lease_end:
            turns.lose_lease()
        if turns.halted:
            turns.alarm_at = END_OF_TIME
            return
        if self.slow is not None:
            # What is due at once has no deadline.
            self.slow.note_timer(now - max(turns.alarm_at, self._alarm_set))
        end = now + ADVANCE_TIME
        if broker.follows_wall_clock():
            broker.set_wall_offset(self.clock_offset())
        while now < end and broker.next_event() <= now:
            try:
                broker.advance(now, ADVANCE_SLICE)
            except Exception:
                log.exception("a timer failed; this is a bug in the server", event("bug-in-timer"))
                break
            before = now
            now = turns.clock()
            turns.budget -= (now - before) // COST_TIME
            if turns.queue or turns.slow_turns:
                turns.serve_queues()
                now = turns.clock()
        self.set_alarm()
        turns.run_pending()
