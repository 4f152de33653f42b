"""The clients of a node of a cluster with several shards, and where each of them is served.

    settled    by a Connection of a shard that this node leads, which has all that the client uses, watches and has
               reserved; nothing is in between
    routed     by a RoutedConnection, which has places at the shards that the client asks: at those led here
               (routed.py), and over links at the others

A client is settled at first if the shard of the default tube is led here. It leaves when it asks for something of
another shard: its connection serves it on as one of its places, with all that the client has reserved. It is settled
when a shard that is led here has all that it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

from beanstalk_server.access.user import User
from beanstalk_server.cluster import clients
from beanstalk_server.cluster.branch import Branch, Place
from beanstalk_server.cluster.clients import Clients, RelayedConnection
from beanstalk_server.events import event
from beanstalk_server.link.opening import Opening
from beanstalk_server.server.connection import Connection, Connections, make_session
from beanstalk_server.server.front.entrance import Entrance
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.shards.routed import LocalPlace, RoutedConnection, open_local_place
from beanstalk_server.shards.routing import RoutingSession
from beanstalk_server.shards.settled import Departure, SettledSession
from beanstalk_server.wire.server_info import ServerInfo
from beanstalk_server.wire.session import Session

log = logging.getLogger("beanstalk_server")


class ShardedClients(Clients):
    """The clients of a node with several shards. The arguments are those of Clients."""

    def __init__(
        self,
        shards: int,
        listeners: Listeners,
        hangups: HangupWatch,
        verbosity: int,
        info: ServerInfo,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        super().__init__(shards, listeners, hangups, verbosity, info, clock)
        self.make_relay = RoutingSession
        self._leaving: list[Connection] = []  # settled clients that ask for another shard
        self._departure: asyncio.Handle | None = None

    def make_relayed(self, entrance: Entrance, user: User | None, name: str) -> RelayedConnection:
        return RoutedConnection(self, entrance, user, name)

    # Who leads what

    def lead(self, shard: int, connections: Connections) -> None:
        connections.make_session = partial(self._make_session, shard)
        super().lead(shard, connections)

    def _make_session(self, shard: int, connection: Connection, *arguments: Any) -> Session:
        if connection.entrance.is_link:  # another node routes the client
            return make_session(connection, *arguments)
        return SettledSession(self.places, shard, partial(self._on_unsettled, shard, connection), *arguments)

    async def lose_places(self, connections: Connections, is_clean: bool) -> int:
        found = []
        for connection in connections.open:
            transport: Any = connection.transport
            if isinstance(transport, LocalPlace):
                found.append((transport, is_clean and connection.can_move()))
        closed = 0
        for count, (place, is_clean_there) in enumerate(found, 1):
            client = place.client
            client.begin()
            place.lose(is_clean=is_clean_there)
            client.go_on()
            closed += client.transport.is_closing()
            if count % clients.MOVES == 0:
                await asyncio.sleep(0)
        return closed

    def open_place(self, client: RelayedConnection, branch: Branch, opening: Opening) -> Place | None:
        connections = self.led.get(branch.shard)
        if connections is None:
            return super().open_place(client, branch, opening)
        assert isinstance(client, RoutedConnection), "it is made here"
        connection = Connection(connections, client.entrance, client.relay.user, client.name, True, opening.counted)
        place = open_local_place(client, branch, connection)
        connection.session.restore(opening.used, opening.watched, opening.mode)
        return place

    # When a client is not settled any more

    def _on_unsettled(self, shard: int, connection: Connection) -> None:
        if self.led.get(shard) is connection.connections:  # otherwise its client is about to move
            self._route_soon(connection)

    def _route_soon(self, connection: Connection) -> None:
        self._leaving.append(connection)
        if self._departure is None:
            self._departure = self.loop.call_soon(self._route_all)

    def _route_all(self) -> None:
        """Route those whose next command concerns another shard."""
        self._departure = None
        leaving, self._leaving = self._leaving, []
        for connection in leaving:
            try:
                self._route(connection)
            except Exception:
                log.exception(
                    "%(client)s: a client could not be routed; this is a bug in the server",
                    event("bug-in-routing", client=connection.name),
                )
                connection.transport.abort()

    def _route(self, connection: Connection) -> None:
        """Let a router have a client, and its connection be one of the client's places."""
        if not connection.connected or connection.transport.is_closing():
            return  # it is gone, or has been taken away already
        if connection.uncommitted:
            connection.gate.await_commit(Departure(connection, self._route_soon))
            return
        client = self.take(connection)
        assert isinstance(client, RoutedConnection), "it is made here"
        client.restart(client.adopt(connection))

    async def abort_all(self) -> None:
        await super().abort_all()
        if self._departure is not None:
            self._departure.cancel()
