"""Notices when a client hangs up while nothing is read from it, which the event loop cannot see.

What such a client has sent is still to be read; but if it waits for a job, it must not get one any more. On Linux, a
separate epoll reports when a client shuts down its sending side. Elsewhere, a hang-up is noticed when the client is
read from again.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable

from beanstalk_server.events import event

log = logging.getLogger("beanstalk_server")


class HangupWatch:
    """Watches sockets for a hang-up, from `start` to `stop`."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}  # by file descriptor
        self._epoll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report hang-ups in this event loop from now on."""
        self._loop = loop
        if hasattr(select, "epoll"):
            self._epoll = select.epoll()
            loop.add_reader(self._epoll.fileno(), self.report)

    def stop(self) -> None:
        """Report nothing any more."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def watch(self, descriptor: int, on_hangup: Callable[[], None]) -> bool:
        """Call `on_hangup` once, when the client on this socket hangs up. False if that cannot be seen."""
        if self._epoll is None:
            return False
        try:
            self._epoll.register(descriptor, select.EPOLLRDHUP)
        except OSError as error:
            log.warning(
                "cannot monitor a client's socket, so its disconnect will be detected late: %(error)s",
                event("hangup-unseen", error=error.strerror),
            )
            return False
        self._callbacks[descriptor] = on_hangup
        return True

    def unwatch(self, descriptor: int) -> None:
        """Undo a `watch` that returned True, unless the hang-up has been reported."""
        if self._callbacks.pop(descriptor, None) is not None and self._epoll is not None:
            self._epoll.unregister(descriptor)

    def report(self) -> None:
        """Report the hang-ups since the last call."""
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            on_hangup = self._callbacks[descriptor]
            self.unwatch(descriptor)
            on_hangup()
