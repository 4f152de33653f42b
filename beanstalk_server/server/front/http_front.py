"""The HTTP server for operators: its listeners, connections and pages.

It runs from before the jobs are recovered until after the last commit. Its turns are its own and serve only its
handshakes, so clients of the queue do not delay it. Its connections do not count among theirs: a server without a free
connection still answers health checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from beanstalk_server.access.rights import User
from beanstalk_server.admin.http import MAX_CONNECTIONS, HttpConnection, HttpConnections
from beanstalk_server.admin.scrapes import Scrapes
from beanstalk_server.admin.site import Site
from beanstalk_server.server.bounded import Refusals
from beanstalk_server.server.figures import HostFigures, Shown
from beanstalk_server.server.front.addresses import name_of_peer
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.server.front.listeners import Listener, Listeners
from beanstalk_server.server.turns import Turns

DESCRIPTORS: Final = 3 * MAX_CONNECTIONS
"""Maximum number of connections, with those that are pending and those that are being closed."""


class HttpFront:
    """Serves HTTP, from `start` to `stop`."""

    descriptors = DESCRIPTORS

    def __init__(self, host: Shown) -> None:
        self.listeners = Listeners()
        self._turns = Turns()
        self.listeners.serve(self._turns, lambda: self._make_connection)
        figures = HostFigures(host, self.listeners)
        tubes = host.config.http_tubes
        self.scrapes = Scrapes(figures, tubes)
        self.site = figures.site = Site(self.scrapes, host.condition, tubes, self._note)
        self.connections = HttpConnections(self.site, name_of_peer, self.listeners.connection_closed)
        self._refusals = Refusals()

    def _make_connection(self, listener_policy: ListenerPolicy, user: User | None = None, name: str = "") -> Any:
        """The protocol of a client."""
        return HttpConnection(self.connections, listener_policy, user, name)

    def _note(self, name: str, reason: str) -> None:
        self._refusals.note(name, "HTTP", reason)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer from now on; the sockets are open."""
        self._turns.start(loop)
        self.scrapes.start(loop.call_soon)
        self.connections.start(loop)
        self._refusals.start(loop)
        self.listeners.listen()
        self.listeners.start(loop, 0)
        self.listeners.limit = DESCRIPTORS

    def change(self, opened: Sequence[tuple[Listener, ListenerPolicy]]) -> None:
        """As in Listeners."""
        self.listeners.change(opened)
        self.listeners.limit = DESCRIPTORS

    async def stop(self) -> None:
        """Close the sockets and every connection."""
        self.connections.is_closing = True
        await self.listeners.stop()
        if self.listeners.pending is not None:
            await self.listeners.pending.stop()
        await self.connections.stop()
        self._refusals.stop()
        self._turns.stop()
        self.listeners.remove_paths()
