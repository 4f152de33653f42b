"""Tells what takes too long, at a bounded rate: a turn, a commit, a timer that is late, an event loop that is held.

    what         measured                                            finds
    -----------  --------------------------------------------------  -----------------------------------
    slow-turn    from the beginning of a client's turn to its end    whose commands take long
    slow-commit  from the beginning of a commit until it is durable  a slow disk, or engine
    late-timer   from when the timers wanted to wake the loop        what holds do to delays and timeouts
    loop-held    by a timer that looks at the clock                  anything else, and other processes

A server that is not asked has none of this, and reads no clock for it: `slow` of its turns, timers and gates is None.
Each kind has a line in ten seconds, and then one about those that were left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Final

from beanstalk_server.events import event
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.server.bounded import BoundedLog

INTERVAL: Final = 10
"""Seconds in which each kind has one line."""

LOOKS: Final = 4
"""How many looks at the clock in the time that is too long: a loop that is held for a quarter longer is always seen."""

log = logging.getLogger("beanstalk_server")


class SlowKind:
    """What is left out of one kind."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._longest = 0  # of those left out, in nanoseconds
        self._most_cpu = 0  # likewise, of the thread; 0 if that is not measured
        self.bounded = BoundedLog(1, INTERVAL, self._tell)

    def admits(self, took: int, cpu: int = 0) -> bool:
        """Whether this one has a line of its own."""
        if self.bounded.admits():
            return True
        self._longest = max(self._longest, took)
        self._most_cpu = max(self._most_cpu, cpu)
        return False

    def _tell(self, count: int) -> None:
        log.warning(
            (
                "%(kind)s: %(count)d more within %(seconds)d s, at most %(milliseconds).1f ms "
                "(%(cpu_milliseconds).1f ms of CPU)"
            )
            if self._most_cpu
            else "%(kind)s: %(count)d more within %(seconds)d s, at most %(milliseconds).1f ms",
            event(
                "slow-left-out",
                count=count,
                kind=self._name,
                seconds=INTERVAL,
                milliseconds=milliseconds(self._longest),
                cpu_milliseconds=milliseconds(self._most_cpu),
            ),
        )
        self._longest = self._most_cpu = 0


class SlowLog:
    """Tells what takes longer than `threshold` nanoseconds, from `start` to `stop`.

    Args:
        clock: of the time that passes, in nanoseconds.
        cpu_clock: of the time that the thread has worked.
    """

    def __init__(
        self,
        threshold: int,
        clock: Callable[[], int] = monotonic_ns,
        cpu_clock: Callable[[], int] = thread_time_ns,
    ) -> None:
        self.threshold = threshold
        self._interval = max(
            threshold // LOOKS, MILLISECOND
        )  # between two looks; the event loop counts in milliseconds
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._turns = SlowKind("slow-turn")
        self._commits = SlowKind("slow-commit")
        self._timers = SlowKind("late-timer")
        self._holds = SlowKind("loop-held")
        self._loop: asyncio.AbstractEventLoop
        self._look_timer: asyncio.Handle | None = None
        self._looked_at = 0  # by `clock`
        self._cpu_then = 0  # by `cpu_clock`

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the time by this event loop from now on."""
        self._loop = loop
        for kind in self._kinds():
            kind.bounded.start(loop)

    def watch(self) -> None:
        """See whether the loop is held, too, from now on: when a start that takes long is over."""
        self._looked_at = self._clock()
        self._cpu_then = self._cpu_clock()
        self._look_timer = self._loop.call_later(self._interval / SECOND, self._look)

    def stop(self) -> None:
        """Tell what has been left out."""
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        for kind in self._kinds():
            kind.bounded.stop()

    def _kinds(self) -> tuple[SlowKind, ...]:
        return self._turns, self._commits, self._timers, self._holds

    def note_turn(self, client: str, took: int) -> None:
        """Note that a turn is over that took this many nanoseconds, which is more than `threshold`."""
        if self._turns.admits(took):
            log.warning(
                "%(client)s: one turn took %(milliseconds).0f ms",
                event("slow-turn", client=client, milliseconds=milliseconds(took)),
            )

    def note_commit(self, changes: int, took: int) -> None:
        """Note that a commit of this many changes is durable, and how many nanoseconds it took."""
        if took > self.threshold and self._commits.admits(took):
            log.warning(
                "a commit of %(changes)d changes took %(milliseconds).0f ms",
                event("slow-commit", changes=changes, milliseconds=milliseconds(took)),
            )

    def note_timer(self, late: int) -> None:
        """Note by how many nanoseconds an alarm is late. What is due may be less late: the wheel also asks for an alarm
        when timers that are far away come nearer."""
        if late > self.threshold and self._timers.admits(late):
            log.warning(
                "timer fired %(milliseconds).0f ms late",
                event("late-timer", milliseconds=milliseconds(late)),
            )

    def _look(self) -> None:
        held = self._clock() - self._looked_at - self._interval
        if held > self.threshold:
            cpu = min(self._cpu_clock() - self._cpu_then, held)
            if self._holds.admits(held, cpu):
                log.warning(
                    "the event loop stalled for %(milliseconds).1f ms (%(cpu_milliseconds).1f ms of CPU)",
                    event("loop-held", milliseconds=milliseconds(held), cpu_milliseconds=milliseconds(cpu)),
                )
        self.watch()


def milliseconds(nanoseconds: int) -> float:
    """As a log shows them: to a microsecond."""
    return round(nanoseconds / MILLISECOND, 3)
