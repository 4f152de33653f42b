"""Disconnects clients that have been idle for too long.

A client is idle while it sends nothing, waits for no job and holds none. There is no timer for each client: a sweep
looks at all of them, SWEEPS times in the time that they have, some in each round of the event loop. It notes since when
a client has been idle, and what a client sends erases the note. So a client is closed at most a sweep too late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from beanstalk_server.events import event
from beanstalk_server.queue.units import SECOND

SWEEPS: Final = 4
"""Sweeps in the time after which an idle client is closed."""

SLICE: Final = 64
"""Clients in one round of the event loop: a few microseconds, or half a millisecond if all of them are closed."""

log = logging.getLogger("beanstalk_server")


class Idler(Protocol):
    """A client that may be idle."""

    idle_since: int
    """When a sweep found it idle first, in nanoseconds; 0 if it has sent something since."""

    def is_idle(self) -> bool:
        """Whether it waits for no job and holds none, and has been answered."""

    def close_idle(self) -> None:
        """Disconnect it."""


class IdleSweeps:
    """Sweeps from `start` to `stop`, while there is a timeout.

    Args:
        clients: returns the clients that are served.
        clock: nanoseconds.

    Attributes:
        closed: the number of clients that have been closed.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, clients: Callable[[], list[Idler]], clock: Callable[[], int]) -> None:
        self.closed = 0
        self._clients = clients
        self.clock = clock
        self._timeout = 0  # seconds
        self._handle: asyncio.Handle | None = None  # of the next sweep or slice
        self._left: list[Idler] = []  # clients that this sweep has not looked at
        self._before = 0  # clients that had been closed before this sweep

    def start(self, loop: asyncio.AbstractEventLoop, timeout: int) -> None:
        """Use this event loop from now on."""
        self._loop = loop
        self.change(timeout)

    def change(self, timeout: int) -> None:
        """Close clients that are idle for this many seconds from now on; none if it is 0."""
        self.stop()
        self._timeout = timeout
        if timeout:
            self._handle = self._loop.call_later(timeout / SWEEPS, self.sweep)

    def stop(self) -> None:
        """Close no more clients."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._left = []

    def sweep(self) -> None:
        """Look at all clients."""
        self._left = self._clients()
        self._before = self.closed
        self._go_on()

    def _go_on(self) -> None:
        """Look at some clients, and at the others in the next rounds."""
        now = self.clock()
        since = now - self._timeout * SECOND
        for client in self._left[-SLICE:]:
            if not client.is_idle():
                client.idle_since = 0
            elif not client.idle_since:
                client.idle_since = now
            elif client.idle_since <= since:
                self.closed += 1
                client.close_idle()
        del self._left[-SLICE:]
        if self._left:
            self._handle = self._loop.call_soon(self._go_on)
            return
        self._handle = self._loop.call_later(self._timeout / SWEEPS, self.sweep)
        if self.closed > self._before:
            log.info(
                "closed %(connections)d connections that were idle for %(seconds)d s",
                event("idle-closed", connections=self.closed - self._before, seconds=self._timeout),
            )
