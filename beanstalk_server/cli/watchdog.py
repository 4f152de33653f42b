"""Notifies systemd's watchdog regularly that the event loop turns (WatchdogSec= of systemd.service(5)).

A timer of the event loop sends the message, and not a thread: if the loop hangs and serves no client, the message fails
to come, and systemd restarts the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final

from beanstalk_server.server.start_error import StartError

SHARE: Final = 3
"""Messages within the time that systemd gives: one may be late, and one may be lost."""

ALIVE: Final = "WATCHDOG=1"


class Watchdog:
    """Calls `notify` each `interval` seconds from `start` to `stop`, as long as the event loop turns."""

    def __init__(self, interval: float, notify: Callable[[str], None]) -> None:
        self._interval = interval
        self._notify = notify
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.Handle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send messages from now on. To be called in the loop's thread."""
        self._loop = loop
        self._send()

    def stop(self) -> None:
        """Send no more messages."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._notify(ALIVE)
        self._timer = self._loop.call_later(self._interval, self._send)


def watchdog_of(environment: Mapping[str, str], notify: Callable[[str], None]) -> Watchdog | None:
    """The watchdog that systemd asks for, as sd_watchdog_enabled(3) does, or None.

    Raises:
        StartError: its interval is not a number.
    """
    given = environment.get("WATCHDOG_USEC", "")
    if not given or environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    if not (given.isascii() and given.isdecimal() and int(given) > 0):
        raise StartError(f"WATCHDOG_USEC: {given!r} is not a number of microseconds")
    return Watchdog(int(given) / 1e6 / SHARE, notify)
