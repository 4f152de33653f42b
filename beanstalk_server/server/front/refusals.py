"""The log of clients that are refused, at a bounded rate: nobody fills a disk by trying again and again.

In each interval, the first few are logged one by one, each with its address and the reason, and the others as a count.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from beanstalk_server.events import event
from beanstalk_server.server.bounded import BoundedLog

INTERVAL: Final = 60
"""Seconds."""

ONE_BY_ONE: Final = 10
"""Refusals that have a line of their own in one interval."""

log = logging.getLogger("beanstalk_server")


class Refusals:
    """Logs refusals, from `start` to `stop`."""

    __slots__ = ("_bounded",)

    def __init__(self) -> None:
        self._bounded = BoundedLog(ONE_BY_ONE, INTERVAL, self._tell)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the time by this event loop from now on."""
        self._bounded.start(loop)

    def stop(self) -> None:
        """Log the count of those that have not been logged."""
        self._bounded.stop()

    def note(self, client: str, place: str, reason: str) -> None:
        """Log that a client is refused.

        Args:
            place: where it has connected to.
        """
        if self._bounded.admits():
            log.warning(
                "%(client)s is refused at %(listener)s: %(reason)s",
                event("client-refused", client=client, listener=place, reason=reason),
            )

    def _tell(self, more: int) -> None:
        log.warning(
            "%(count)d more client was refused within %(seconds)d s"
            if more == 1
            else "%(count)d more clients were refused within %(seconds)d s",
            event("clients-refused", count=more, seconds=INTERVAL),
        )
