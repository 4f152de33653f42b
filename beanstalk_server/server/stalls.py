"""Measures stalls of the event loop, during which no client is served.

A timer looks at the clock every millisecond. A look that is late shows a stall of that length, give or take the
millisecond. The log also gives the CPU time that the loop's thread spent meanwhile. If that is much less, the server's
own work was not the cause: another process had the processor, or another thread had the interpreter's lock.

Must never know what the server does. Two clocks come in as arguments, in nanoseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Final

from beanstalk_server.events import event
from beanstalk_server.queue.units import MILLISECOND

INTERVAL: Final = 1_000_000
"""Nanoseconds between two looks; the event loop counts in milliseconds."""

WORTH_LOGGING: Final = 1_000_000
"""Nanoseconds: a stall up to this long is within the error of the measurement, and not logged."""

STEP: Final = 100_000  # the precision of the shares, in nanoseconds

log = logging.getLogger("beanstalk_server.stalls")


class Stalls:
    """Measures the event loop from `start` to `stop`, and logs each stall that is longer than all before it."""

    def __init__(self, clock: Callable[[], int] = monotonic_ns, cpu_clock: Callable[[], int] = thread_time_ns) -> None:
        self.clock = clock
        self.cpu_clock = cpu_clock
        self.longest = 0  # nanoseconds
        self.most_cpu = 0  # nanoseconds: the most CPU time in one stall, not necessarily the longest
        self.counts: Counter[int] = Counter()  # of looks, by how many steps they were late
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.Handle | None = None
        self._looked_at = 0  # the last look, by `clock`
        self._cpu_then = 0  # by `cpu_clock`

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure from now on. To be called in the loop's thread."""
        self._loop = loop
        self._wait()

    def stop(self) -> None:
        """Measure no more, and log a summary."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        log.info(
            "%(summary)s",
            event("stalls", summary=self.summary(), milliseconds=self.longest / MILLISECOND, looks=self.counts.total()),
        )

    def summary(self) -> str:
        """One line: the longest stall, and how late 99 % and 99.9 % of the looks were at most."""
        return (
            f"event loop stalled for at most {self.longest / MILLISECOND:.1f} ms, "
            f"with at most {self.most_cpu / MILLISECOND:.1f} ms of CPU; of {self.counts.total()} looks at the clock, "
            f"99 % were at most {self.share(0.99):.1f} ms late, 99.9 % at most {self.share(0.999):.1f} ms"
        )

    def share(self, part: float) -> float:
        """How late this share of the looks was at most, in milliseconds, rounded up to a tenth."""
        left = part * self.counts.total()
        for steps, count in sorted(self.counts.items()):
            left -= count
            if left <= 0:
                return steps * STEP / MILLISECOND
        return 0.0

    def _wait(self) -> None:
        self._looked_at = self.clock()
        self._cpu_then = self.cpu_clock()
        self._timer = self._loop.call_later(INTERVAL / 1e9, self._look)

    def _look(self) -> None:
        stall = max(self.clock() - self._looked_at - INTERVAL, 0)
        cpu = min(self.cpu_clock() - self._cpu_then, stall)
        self.counts[-(-stall // STEP)] += 1
        if stall > self.longest or cpu > self.most_cpu:
            self.longest = max(stall, self.longest)
            self.most_cpu = max(cpu, self.most_cpu)
            if stall > WORTH_LOGGING:
                log.info(
                    "event loop stalled for %(milliseconds).1f ms (%(cpu_milliseconds).1f ms of CPU)",
                    event("stall", milliseconds=stall / MILLISECOND, cpu_milliseconds=cpu / MILLISECOND),
                )
        self._wait()
