"""Looks at the clock and does nothing else: what a machine takes from a busy process by itself, as --stalls sees it.

    python -m bench.spinning 0 3.0      # on this processor, for so many seconds; prints the summary of --stalls

A hypervisor that gives the processor to another machine, and an interrupt, count as CPU time of whoever had it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import cast

from beanstalk_server.server.stalls import Stalls
from bench.loads import pin


class SpinningLoop:
    """As much of an event loop as `Stalls` needs. It never sleeps."""

    def __init__(self) -> None:
        self.due = 0  # nanoseconds
        self.callback: Callable[[], None] = lambda: None

    def call_later(self, delay: float, callback: Callable[[], None]) -> SpinningLoop:
        self.due = monotonic_ns() + round(delay * 1e9)
        self.callback = callback
        return self

    def cancel(self) -> None:
        self.callback = lambda: None

    def spin(self, seconds: float) -> None:
        """Call what is due, for so many seconds."""
        end = monotonic_ns() + round(seconds * 1e9)
        now = 0
        while now < end:
            now = monotonic_ns()
            if now >= self.due:
                self.callback()


def main() -> None:
    pin(int(sys.argv[1]))
    loop = SpinningLoop()
    stalls = Stalls()
    stalls.start(cast(asyncio.AbstractEventLoop, loop))
    loop.spin(float(sys.argv[2]))
    print(stalls.summary())


if __name__ == "__main__":
    main()
