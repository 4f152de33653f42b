"""The log of clients that are refused, at a bounded rate: nobody fills a disk by trying again and again.

In each interval, the first few are logged one by one, each with its address and the reason, and the others as a count.

Must never know sockets, or what was given as a proof: reasons have nothing secret.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

INTERVAL: Final = 60
"""Seconds."""

ONE_BY_ONE: Final = 10
"""Refusals that have a line of their own in one interval."""

log = logging.getLogger("beanstalk_server")


class Refusals:
    """Logs refusals, from `start` to `stop`."""

    __slots__ = ("_count", "_loop", "_timer")

    _loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self._count = 0  # in this interval
        self._timer: asyncio.Handle | None = None  # the end of the interval, if one has begun

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the time by this event loop from now on."""
        self._loop = loop

    def stop(self) -> None:
        """Log the count of those that have not been logged."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_interval()

    def note(self, client: str, place: str, reason: str) -> None:
        """Log that a client is refused.

        Args:
            place: where it has connected to.
        """
        self._count += 1
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL, self._end_interval)
        if self._count <= ONE_BY_ONE:
            log.warning("%s is refused at %s: %s", client, place, reason)

    def _end_interval(self) -> None:
        self._timer = None
        more = self._count - ONE_BY_ONE
        self._count = 0
        if more > 0:
            log.warning("%d more client%s refused within %d s", more, " was" if more == 1 else "s were", INTERVAL)
