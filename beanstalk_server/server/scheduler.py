"""Schedules turns, so that no client waits for long because of another's load.

A client does one turn of work at a time, and a round of the event loop has a budget of several turns. Clients that have
more to do wait in a queue, first come, first served. The broker's own work, for timers that are due, is bounded too,
and spends from the same budget; whoever it gives an answer to has a turn after each slice of it.

    what                        bound                          what is left
    --------------------------  -----------------------------  -------------------------------------
    one client's commands       SESSION_QUANTUM                waits in a queue
    one round of all clients    ROUND_QUANTUM                  the next round, after the event loop
                                                               has looked for input
    handshakes in one round     half of it, but at least one   waits in a queue of its own
    what is due                 ADVANCE_TIME                   the next round

So the event loop is held for a few milliseconds at most. What a round spends beyond its budget, to read what many
clients have sent at once, the next one has less, but never less than a quarter.

While a job waits for a moment of the wall clock, that clock is looked at before the broker handles what is due, and
each half second (`WALL_CHECK`). While none does, nobody looks.

Must never know sockets, replies or commands. Time comes from a clock that its owner may replace, in nanoseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from beanstalk_server.events import event
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.wheel import END_OF_TIME
from beanstalk_server.server.alarm import Alarm, LoopAlarm
from beanstalk_server.server.process import clock_offset
from beanstalk_server.wire.session import SESSION_QUANTUM

if TYPE_CHECKING:
    from beanstalk_server.server.slow import SlowLog

ROUND_QUANTUM: Final = 6 * SESSION_QUANTUM
"""The budget of one round of the event loop, in the unit of SESSION_QUANTUM: one to two milliseconds."""

LEAST_QUANTUM: Final = SESSION_QUANTUM >> 2
"""The least that a round may spend, however many schedulers share an event loop: below, a round costs more than what is
done in it."""

ADVANCE_TIME: Final = 1_000_000
"""Nanoseconds that the broker may spend on due timers in one round of the event loop, give or take a slice."""

ADVANCE_SLICE: Final = 128
"""The most timers that it handles between two looks at the clock, and at the clients that it has given an answer."""

COST_TIME: Final = 2_000
"""Nanoseconds: what one unit of the budget is good for."""

AlarmMaker = Callable[[asyncio.AbstractEventLoop, Callable[[], int], Callable[[], None]], Alarm]
"""Makes an alarm of an event loop, a clock and what to call."""

log = logging.getLogger("beanstalk_server")


@mypyc_attr(allow_interpreted_subclasses=True)
class Runnable:
    """Anything that takes turns. Both flags belong to the scheduler."""

    __slots__ = ("blocked", "queued")

    def __init__(self) -> None:
        self.queued = False  # in one of the queues
        self.blocked = False  # waits until the journal admits its next command

    def take_turn(self) -> int:
        """Do one turn of work; return its cost. Must not raise."""
        raise NotImplementedError

    def is_slow(self) -> bool:
        """Whether the next turn may cost a whole round."""
        raise NotImplementedError

    def label(self) -> str:
        """What the log calls it."""
        return "a client"


class Scheduler:
    """Gives turns to clients that have something to do, and lets the broker handle what is due.

    Args:
        clock: returns the present, in nanoseconds.
        clock_offset: returns the wall clock minus that clock.
    """

    __slots__ = (
        "_alarm",
        "_loop",
        "_next_round",
        "alarm_deadline",
        "alarm_set",
        "blocked",
        "broker",
        "budget",
        "clock",
        "clock_offset",
        "full_quantum",
        "halted",
        "handshakes",
        "lease_end",
        "next_turns",
        "on_lease_end",
        "quantum",
        "serving",
        "slow",
        "slow_served",
        "slow_turns",
        "stopped",
        "turns",
        "wheel",
    )

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        broker: Broker,
        clock: Callable[[], int] = monotonic_ns,
        clock_offset: Callable[[], int] = clock_offset,
    ) -> None:
        self.broker = broker
        self.wheel = broker.wheel
        self.full_quantum = ROUND_QUANTUM  # what a round may spend, unless no turns are given
        self.quantum = ROUND_QUANTUM
        self.clock = clock
        self.clock_offset = clock_offset
        self.budget = ROUND_QUANTUM  # what this round of the event loop may still spend
        self.turns: deque[Runnable] = deque()  # clients with more to do, or with an answer to send
        self.slow_turns: deque[Runnable] = deque()  # those whose next turn may cost a whole round
        self.blocked: deque[Runnable] = deque()  # clients whose next command the journal does not admit yet
        self.handshakes: deque[Runnable] = deque()  # TLS connections whose handshake can go on
        self.serving = False  # turns are being given from the queues
        self.slow: SlowLog | None = None  # is told how long turns take, and how late time is
        self.slow_served = False  # one of the slow has had a turn in this round
        self.next_turns: list[Runnable] = []  # clients that enter the queue when the next round begins
        self.alarm_deadline = END_OF_TIME  # nanoseconds: what the alarm is set for
        self.alarm_set = 0  # nanoseconds: when it was set, if anybody is told how late it is
        self.stopped = False
        self.halted = False  # stopped, or suspended
        self.lease_end = END_OF_TIME  # from this moment on no turn is given; a node of a cluster sets it
        self.on_lease_end: Callable[[], None] | None = None  # called then: must call `suspend`
        self._alarm: Alarm | None = None  # from `start` on
        self._next_round: asyncio.Handle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give turns in this event loop from now on."""
        self._loop = loop
        self._alarm = LoopAlarm(loop, self.clock, self._advance)

    def use_alarm(self, make_alarm: AlarmMaker) -> None:
        """Be woken by another alarm than the event loop's from now on."""
        if self.stopped:
            return
        if self._alarm is not None:
            self._alarm.close()
        self._alarm = make_alarm(self._loop, self.clock, self._advance)
        self.set_alarm()

    def stop(self) -> None:
        """Give no more turns, and let nothing come due."""
        self.stopped = True
        self.halted = True
        if self._alarm is not None:
            self._alarm.close()
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None
        for runnable in self.blocked:
            runnable.blocked = False
        self.turns.clear()
        self.next_turns.clear()
        self.slow_turns.clear()
        self.handshakes.clear()
        self.blocked.clear()

    def suspend(self) -> None:
        """Give no turns, and let nothing come due, until `resume`. What is promised meanwhile is kept.

        There is no budget, so whatever comes waits in its connection.
        """
        self.halted = True
        self.quantum = 0
        self.budget = min(self.budget, 0)
        if self.stopped:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None

    def resume(self) -> None:
        """Undo `suspend`."""
        if self.stopped or not self.halted:
            return
        self.halted = False
        self.quantum = self.full_quantum
        self.budget = self.full_quantum
        self.set_alarm()
        self.run_pending_soon()

    def share_rounds(self, count: int) -> None:
        """Spend in a round what is left to one of so many schedulers in an event loop, which all have turns to give."""
        self.full_quantum = max(ROUND_QUANTUM // count, LEAST_QUANTUM)
        if not self.halted:
            self.quantum = self.full_quantum

    def lose_lease(self) -> None:
        """Suspend, because the lease has run out. Usually that is no news; but the process may have been stopped for a
        while, or its machine, and what came meanwhile is seen before the timer that should have suspended it."""
        if self.on_lease_end is not None and not self.halted:
            self.on_lease_end()

    def _has_lost_lease(self) -> bool:
        if self.lease_end == END_OF_TIME or self.clock() < self.lease_end:
            return False
        self.lose_lease()
        return True

    # Turns

    def spend(self, cost: int) -> None:
        """Take a cost from the budget of this round."""
        self.budget -= cost

    def enqueue(self, runnable: Runnable) -> None:
        """Promise a turn; `run_pending` must follow."""
        if not runnable.queued:
            runnable.queued = True
            if runnable.is_slow():
                self.slow_turns.append(runnable)
            else:
                self.turns.append(runnable)

    def enqueue_next_round(self, runnable: Runnable) -> None:
        """Promise a turn in the next round, when the event loop has reported all the input of this one."""
        runnable.queued = True
        self.next_turns.append(runnable)
        self.run_pending_soon()

    def enqueue_handshake(self, runnable: Runnable) -> None:
        """Promise a turn that costs about as much as a whole round, for a client that nobody knows yet."""
        runnable.queued = True
        self.handshakes.append(runnable)
        self.run_pending_soon()

    def block(self, runnable: Runnable) -> None:
        """Promise a turn as soon as the journal admits everything; `run_pending` must follow."""
        if not runnable.blocked:
            runnable.blocked = True
            self.blocked.append(runnable)

    def unblock(self, runnable: Runnable) -> None:
        """Undo `block`: the client is gone."""
        if runnable.blocked:
            runnable.blocked = False
            self.blocked.remove(runnable)

    def on_admission(self, admits: int) -> None:
        """Let blocked clients go on as far as the journal admits it from now on. The broker must know first."""
        if admits == DELETIONS:
            for runnable in self.blocked:  # their next command may be a deletion
                runnable.blocked = False
                self.enqueue(runnable)
            self.blocked.clear()
        if admits != NONE:
            self.run_pending_soon()

    def run_pending(self) -> None:
        """Give the turns that have been promised, and set the alarm if something is due sooner than before."""
        if self.turns or self.slow_turns or self.blocked:
            self.serve_queues()
        if self.wheel.next_event < self.alarm_deadline:
            self.set_alarm()

    def is_idle(self) -> bool:
        """Whether no turn is due: the event loop is about to wait for input."""
        return self._next_round is None and not (self.turns or self.slow_turns)

    def refill(self) -> None:
        """Give a round its whole budget: for callers that begin one while no turn is due."""
        self.budget = self.quantum

    def run_pending_soon(self) -> None:
        """Call `run_pending` in a new round: for callers that must do nothing more in this one."""
        if self._next_round is None and not self.halted:
            self._next_round = self._loop.call_soon(self._begin_round)

    def serve_queues(self) -> None:
        """Give turns to the clients in the queues, as long as the round has a budget.

        Blocked clients come after them, as long as the journal admits everything. Nothing happens in a turn that has
        been given here: a TLS connection hands input over in its turn, and whoever gets it asks for this again.
        """
        if self.serving or self._has_lost_lease():
            return
        self.serving = True
        turns = self.turns
        slow_turns = self.slow_turns
        blocked = self.blocked
        try:
            while self.budget > 0:
                if turns:
                    self._serve(turns.popleft())
                elif slow_turns:
                    self.slow_served = True
                    self._serve(slow_turns.popleft())
                elif blocked and self.broker.admits == ALL:
                    self._serve_blocked()
                else:
                    return
        finally:
            self.serving = False
        if turns or slow_turns or blocked:
            self.run_pending_soon()

    def _serve(self, runnable: Runnable) -> None:
        runnable.queued = False
        began = 0 if self.slow is None else self.clock()
        cost = runnable.take_turn()  # in a line of its own: the turn itself may spend something
        self.budget -= cost
        if self.slow is not None:
            self.note_turn(runnable, began)

    def _serve_blocked(self) -> None:
        runnable = self.blocked.popleft()
        runnable.blocked = False
        began = 0 if self.slow is None else self.clock()
        cost = runnable.take_turn()
        self.budget -= cost
        if self.slow is not None:
            self.note_turn(runnable, began)

    def note_turn(self, runnable: Runnable, began: int) -> None:
        """Tell how long a turn has taken that began at this moment: for callers that see that somebody is told."""
        if self.slow is not None:
            self.slow.note_turn(runnable, self.clock() - began)

    def _begin_round(self) -> None:
        self._next_round = None
        if self._has_lost_lease():
            return
        self.budget = max(self.quantum + min(self.budget, 0), self.quantum >> 2)
        self.turns.extend(self.next_turns)
        self.next_turns.clear()
        self.slow_served = False
        if self.blocked and self.broker.admits == ALL:
            self._serve_blocked()
        self.run_pending()
        # Behind all others: one turn may cost more than a round has, and then there would never be any left for them.
        if self.slow_turns and not self.slow_served:  # one in each round, however many others there are
            self._serve(self.slow_turns.popleft())
        if self.handshakes:
            self._serve_handshakes()

    def _serve_handshakes(self) -> None:
        """Give a turn to one handshake, and to more while half of the budget is left to those who send something."""
        handshakes = self.handshakes
        left = self.quantum >> 1
        self._serve(handshakes.popleft())
        while handshakes and self.budget > left:
            self._serve(handshakes.popleft())
        if handshakes:
            self.run_pending_soon()

    # Time

    def set_alarm(self) -> None:
        """Set the alarm for the broker's next event."""
        when = self.broker.next_event()
        self.alarm_deadline = when
        if self.slow is not None:
            self.alarm_set = self.clock()
        if self.halted or self._alarm is None:
            return
        if when < END_OF_TIME:
            self._alarm.set(when)
        else:
            self._alarm.cancel()

    def _advance(self) -> None:
        """Let the broker handle what is due, for ADVANCE_TIME; the rest follows in the next round."""
        if self.halted:
            return  # the alarm had gone off already
        broker = self.broker
        now = self.clock()
        if now >= self.lease_end:
            self.lose_lease()
            return
        if self.slow is not None:
            self.slow.note_timer(now - max(self.alarm_deadline, self.alarm_set))  # what is due at once has no deadline
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
            now = self.clock()
            self.budget -= (now - before) // COST_TIME
            if self.turns or self.slow_turns:
                self.serve_queues()
                now = self.clock()
        self.set_alarm()
        self.run_pending()
