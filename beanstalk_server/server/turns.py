"""Gives turns, so that no client waits for long because of another's load.

A client does one turn of work at a time, and a round of the event loop has a budget of several turns. Clients that have
more to do wait in a queue, first come, first served. The broker's own work, for timers that are due, spends from the
same budget (timers.py).

    what                        bound                          what is left
    --------------------------  -----------------------------  -------------------------------------
    one client's commands       SESSION_QUANTUM                waits in a queue
    one round of all clients    ROUND_QUANTUM                  the next round, after the event loop
                                                               has looked for input
    handshakes in one round     half of it, but at least one   waits in a queue of its own

So the event loop is held for a few milliseconds at most. What a round spends beyond its budget, to read what many
clients have sent at once, the next one has less, but never less than a quarter.

Time comes from a clock that its owner may replace, in nanoseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.wheel import END_OF_TIME, Wheel
from beanstalk_server.wire.session import SESSION_QUANTUM

if TYPE_CHECKING:
    from beanstalk_server.server.slow import SlowLog

ROUND_QUANTUM: Final = 6 * SESSION_QUANTUM
"""The budget of one round of the event loop, in the unit of SESSION_QUANTUM: one to two milliseconds."""

LEAST_QUANTUM: Final = SESSION_QUANTUM >> 2
"""The least that a round may spend, however many services share an event loop: below, a round costs more than what is
done in it."""

COST_TIME: Final = 2_000
"""Nanoseconds: what one unit of the budget is good for."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Runnable:
    """Anything that takes turns. Both flags belong to `Turns`."""

    def __init__(self) -> None:
        self.queued = False  # in one of the queues
        self.blocked = False  # waits until the journal admits its next command

    def take_turn(self) -> int:
        """Do one turn of work; return its cost. Must not raise."""
        return 0

    def is_slow(self) -> bool:
        """Whether the next turn may cost a whole round."""
        return False

    def label(self) -> str:
        """What the log calls it."""
        return "a client"


class Turns:
    """Gives turns to those that have something to do.

    Args:
        clock: returns the present, in nanoseconds.
    """

    wheel: Wheel
    """Of the broker: turns may set a timer that is due before the others."""
    _loop: asyncio.AbstractEventLoop

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self.full_quantum = ROUND_QUANTUM  # what a round may spend, unless no turns are given
        self.quantum = ROUND_QUANTUM
        self.clock = clock
        self.budget = ROUND_QUANTUM  # what this round of the event loop may still spend
        self.queue: deque[Runnable] = deque()  # clients with more to do, or with an answer to send
        self.slow_turns: deque[Runnable] = deque()  # those whose next turn may cost a whole round
        self.blocked: deque[Runnable] = deque()  # clients whose next command the journal does not admit yet
        self.handshakes: deque[Runnable] = deque()  # TLS connections whose handshake can go on
        self.admits_all = True  # the journal does
        self.alarm_at = END_OF_TIME  # nanoseconds: the moment that the broker's alarm is set for
        self.set_alarm: Callable[[], None] | None = None  # sets it anew; None until there is an alarm, and a wheel
        # `queue`, `slow_turns` or `blocked` may have members: one flag, because it is read for each read of a client
        self._promised = False
        self.serving = False  # turns are being given from the queues
        self.slow: SlowLog | None = None  # is told how long turns take
        self.slow_served = False  # one of the slow has had a turn in this round
        self.next_turns: list[Runnable] = []  # clients that enter the queue when the next round begins
        self.stopped = False
        self.halted = False  # stopped, or suspended
        self.lease_end = END_OF_TIME  # from this moment on no turn is given; a node of a cluster sets it
        self.on_lease_end: Callable[[], None] | None = None  # called then: must call `suspend`
        self.next_round: asyncio.Handle | None = None  # gives the next turns

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give turns in this event loop from now on."""
        self._loop = loop

    def stop(self) -> None:
        """Give no more turns."""
        self.stopped = True
        self.halted = True
        if self.next_round is not None:
            self.next_round.cancel()
            self.next_round = None
        for runnable in self.blocked:
            runnable.blocked = False
        self.queue.clear()
        self.next_turns.clear()
        self.slow_turns.clear()
        self.handshakes.clear()
        self.blocked.clear()

    def suspend(self) -> None:
        """Give no turns until `resume`. What is promised meanwhile is kept.

        There is no budget, so all input waits in its connection.
        """
        self.halted = True
        self.quantum = 0
        self.budget = min(self.budget, 0)
        if self.next_round is not None:
            self.next_round.cancel()
            self.next_round = None

    def resume(self) -> None:
        """Undo `suspend`."""
        if self.stopped or not self.halted:
            return
        self.halted = False
        self.quantum = self.full_quantum
        self.budget = self.full_quantum
        self.run_pending_soon()

    def share_rounds(self, count: int) -> None:
        """Spend in a round what is left to one of this many services in an event loop, which all have turns to give."""
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
            self._promised = True
            if runnable.is_slow():
                self.slow_turns.append(runnable)
            else:
                self.queue.append(runnable)

    def enqueue_next_round(self, runnable: Runnable) -> None:
        """Promise a turn in the next round, when the event loop has reported all the input of this one."""
        runnable.queued = True
        self.next_turns.append(runnable)
        self.run_pending_soon()

    def enqueue_handshake(self, runnable: Runnable) -> None:
        """Promise a turn that costs about as much as a whole round, for a client that is not admitted yet."""
        runnable.queued = True
        self.handshakes.append(runnable)
        self.run_pending_soon()

    def block(self, runnable: Runnable) -> None:
        """Promise a turn as soon as the journal admits everything; `run_pending` must follow."""
        if not runnable.blocked:
            runnable.blocked = True
            self._promised = True
            self.blocked.append(runnable)

    def unblock(self, runnable: Runnable) -> None:
        """Undo `block`: the client is gone."""
        if runnable.blocked:
            runnable.blocked = False
            self.blocked.remove(runnable)

    def on_admission(self, admits: int) -> None:
        """Let blocked clients go on as far as the journal admits it from now on. The broker must know first."""
        self.admits_all = admits == ALL
        if admits == DELETIONS:
            for runnable in self.blocked:  # their next command may be a deletion
                runnable.blocked = False
                self.enqueue(runnable)
            self.blocked.clear()
        if admits != NONE:
            self.run_pending_soon()

    def run_pending(self) -> None:
        """Give the turns that have been promised."""
        if self._promised:
            self.serve_queues()
        set_alarm = self.set_alarm
        if set_alarm is not None and self.wheel.next_event < self.alarm_at:
            set_alarm()

    def run_pending_soon(self) -> None:
        """Call `run_pending` in a new round: for callers that must do nothing more in this one."""
        if self.next_round is None and not self.halted:
            self.next_round = self._loop.call_soon(self._begin_round)

    def serve_queues(self) -> None:
        """Give turns to the clients in the queues, as long as the round has a budget.

        Blocked clients come after them, as long as the journal admits everything. Nothing happens in a turn that has
        been given here: a TLS connection hands input over in its turn, and its receiver asks for this again.
        """
        if self.serving or self._has_lost_lease():
            return
        self.serving = True
        queue = self.queue
        slow_turns = self.slow_turns
        blocked = self.blocked
        try:
            while self.budget > 0:
                if queue:
                    self._serve(queue.popleft())
                elif slow_turns:
                    self.slow_served = True
                    self._serve(slow_turns.popleft())
                elif blocked and self.admits_all:
                    self._serve_blocked()
                else:
                    self._promised = bool(blocked)
                    return
        finally:
            self.serving = False
        self._promised = bool(queue or slow_turns or blocked)
        if self._promised:
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
        """Tell how long a turn has taken that began at this moment: for callers that see that it is logged."""
        slow = self.slow
        if slow is not None and (took := self.clock() - began) > slow.threshold:
            slow.note_turn(runnable.label(), took)

    def _begin_round(self) -> None:
        self.next_round = None
        if self._has_lost_lease():
            return
        self.budget = max(self.quantum + min(self.budget, 0), self.quantum >> 2)
        if self.next_turns:
            self._promised = True
            self.queue.extend(self.next_turns)
            self.next_turns.clear()
        self.slow_served = False
        if self.blocked and self.admits_all:
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
