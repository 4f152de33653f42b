"""Measures, if the options ask for it: the durations of jobs, of commits, and of the event loop.

They are those of the whole process: of all services that it has and will have, so that no count goes down because a
shard has moved. What is not asked for costs the test of one attribute where it would be counted. `Server.measure` turns
all of it on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.histogram import Histogram
from beanstalk_server.queue.units import MILLISECOND
from beanstalk_server.server.alarm import Alarm, AlarmMaker, finest_alarm

INTERVAL: Final = 50 * MILLISECOND
"""Nanoseconds from one sample to the next."""


class Measurements:
    """All of them. Read them in the thread of the event loop.

    Attributes:
        durations: of jobs: `waited`, `ran` and `lateness`.
        commits: how long replies waited for their commits; empty without a journal.
        held: how long the event loop was held, at the moments of samples.
    """

    def __init__(self) -> None:
        self.durations = Durations()
        self.commits = Histogram()
        self.held = Histogram()
        self._samples = HeldSamples(self.held)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sample this event loop from now on."""
        self._samples.start(loop)

    def stop(self) -> None:
        """Sample it no more."""
        self._samples.stop()


class HeldSamples:
    """Samples how long the event loop is held, in which no client is served, from `start` to `stop`.

    Twenty times a second an alarm goes off, and how late the loop comes to it is how long a client that comes at that
    moment waits. So the longer a stretch in which the loop is held, the more likely it is seen: surely from 50 ms on,
    and then it counts once, by what is left of it at the sample. An idle loop is late by what the system takes to wake
    it. Those who look for the longest stretch have `--slow-ms 1`, which looks a thousand times a second (`slow.py`);
    this is cheap enough to stay on.

    Args:
        held: counts the samples.
    """

    def __init__(
        self, held: Histogram, clock: Callable[[], int] = monotonic_ns, make_alarm: AlarmMaker = finest_alarm
    ) -> None:
        self._held = held
        self._clock = clock
        self._make_alarm = make_alarm
        self._alarm: Alarm | None = None  # from `start` to `stop`
        self._due = 0  # the next sample, by the clock

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sample from now on. To be called in the loop's thread."""
        self._alarm = self._make_alarm(loop, self._clock, self._look)
        self._due = self._clock() + INTERVAL
        self._alarm.set(self._due)

    def stop(self) -> None:
        """Sample no more."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _look(self) -> None:
        if self._alarm is None:
            return  # it had gone off already
        now = self._clock()
        if now >= self._due:
            self._held.add(now - self._due)
            self._due = now + INTERVAL
        self._alarm.set(self._due)
