"""The clients of a node, and where each of them is served.

    shards    this node                  a client is served by
    --------  -------------------------  -----------------------------------------------------------------------------
    one       leads it                   a Connection, as on a single server
              does not lead it           a RoutedConnection, which has a place at the leader, over a link
    several   leads any number of them   a RoutedConnection, which has places at the shards that the client asks: at
                                         those led here, and over links at the others

With one shard, a client changes from one to the other when this node begins or ends to lead it. Each client goes on
when a leader changes, wherever that is. A client is asked who it is here, as on every server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from beanstalk_server.access.rights import User
from beanstalk_server.events import event
from beanstalk_server.link.link import Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.routing.branch import Branch, Place
from beanstalk_server.routing.client import RoutedConnection
from beanstalk_server.routing.local import LocalPlace, log_bug
from beanstalk_server.routing.place import LinkPlace
from beanstalk_server.server.connection import Connection, Connections
from beanstalk_server.server.front.addresses import name_of_peer
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.wire.places import Places
from beanstalk_server.wire.server_info import ServerInfo

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts

MOVES: Final = 64
"""Clients that get another leader of a shard in one round of the event loop."""

log = logging.getLogger("beanstalk_server")


class Clients:
    """The clients of a node.

    Args:
        shards: how many there are.
        listeners: where clients come in, and which count those that are open.
        verbosity: 1: log connections.
        info: what the sessions of all nodes have in common.
        clock: nanoseconds.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        shards: int,
        listeners: Listeners,
        hangups: HangupWatch,
        verbosity: int,
        info: ServerInfo,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.places = Places(shards)  # which tube and which job is in which shard
        self.listeners = listeners
        self.hangups = hangups
        self.verbosity = verbosity
        self.max_job_size = info.max_job_size
        self.dialect = info.dialect
        self.clock = clock
        self.open: dict[RoutedConnection, None] = {}  # the routed ones
        self.closing = False  # the server stops: new clients are refused
        self.first_shard = self.places.of_tube(b"default")  # a new client uses and watches a tube of this shard
        self.led: dict[int, Connections] = {}  # by shard: those led here
        self._links: dict[int, Link] = {}  # by shard: to other leaders
        self._moving: deque[tuple[RoutedConnection, int]] = deque()  # those who get another leader of a shard
        self._mover: asyncio.Handle | None = None
        self._due: list[RoutedConnection] = []  # those who take a turn in the next round
        self._turns: asyncio.Handle | None = None
        self._emptied = asyncio.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve clients in this event loop from now on."""
        self.loop = loop

    def make_client(self, listener_policy: ListenerPolicy, user: User | None = None, name: str = "") -> Any:
        """The protocol of a client that comes in."""
        only = self.only()
        if only is not None:
            return Connection(only, listener_policy, user, name)
        return RoutedConnection(self, listener_policy, user, name)

    def only(self) -> Connections | None:
        """The connections of the only shard, if there is one shard and it is led here."""
        connections = self.led.get(0) if self.places.shards == 1 else None
        return None if connections is None or connections.closing else connections

    def served(self) -> list[Connection]:
        """The clients that came to this node and are not routed."""
        found: list[Connection] = []
        if self.places.shards == 1:
            for connections in self.led.values():
                found.extend(connection for connection in connections.open if self._is_served(connection))
        return found

    def _is_served(self, connection: Connection) -> bool:
        return not (connection.listener_policy.is_link or isinstance(connection, LocalPlace))

    # Who leads what

    def lead(self, shard: int, connections: Connections) -> None:
        """Serve a shard here, in these connections."""
        connections.make_client = self.make_client
        self.led[shard] = connections
        self._move_all(shard)

    async def stop_leading(self, shard: int, is_clean: bool) -> int:
        """Serve a shard here no more; return how many clients had to be disconnected. Those that came by a link stay.

        Nothing is executed there any more, and nothing may be until this returns: the clients go some in each round.

        Args:
            is_clean: all that was executed has been answered: what has no answer may be done by the next leader.
        """
        connections = self.led.pop(shard)
        closed = 0
        staying = []
        places = []
        for connection in list(connections.open):
            if isinstance(connection, LocalPlace):
                connection.prepare_loss()
                places.append(connection)
            elif connection.listener_policy.is_link or self.closing:
                continue  # it stays, or is about to be disconnected
            elif connection.can_move():
                staying.append((connection, connection.session.take_commands(connection.turns.clock())))
            else:
                connection.transport.abort()
                closed += 1
        # Only now, because the jobs of those who leave would be given to others who wait.
        closed += await self._lose_places(places, is_clean)
        for count, (connection, data) in enumerate(staying, 1):
            if connection.connected and not connection.transport.is_closing():
                client = self.take(connection)
                data += connection.session.framer.take_rest()  # has come meanwhile
                connection.let_go()
                client.restart(data)
            if count % MOVES == 0:
                await asyncio.sleep(0)
        return closed

    async def _lose_places(self, places: list[LocalPlace], is_clean: bool) -> int:
        """End places of routed clients; return how many had to be disconnected."""
        closed = 0
        for count, place in enumerate(places, 1):
            if place.branch.local is place:
                place.owner.begin()
                place.lose(is_clean=is_clean)
                place.owner.go_on()
                closed += place.transport.is_closing()
            if count % MOVES == 0:
                await asyncio.sleep(0)
        return closed

    def take(self, connection: Connection) -> RoutedConnection:
        """Relay the client of a connection from now on."""
        user = connection.user and connection.session.user
        name = connection.name or name_of_peer(connection.transport)
        client = RoutedConnection(self, connection.listener_policy, user, name)
        client.take_over(connection)
        self.open[client] = None
        return client

    def follow(self, shard: int, link: Link) -> None:
        """Ask the other end of this link for what concerns a shard."""
        self._links[shard] = link
        self._move_all(shard)

    def lose(self, shard: int, link: Link) -> None:
        """Let clients wait for a shard: this link has ended. The channels of the link notify them."""
        if self._links.get(shard) is link:
            del self._links[shard]

    def _move_all(self, shard: int) -> None:
        """Let all who have a branch there have the new leader."""
        self._moving.extend([(client, shard) for client in self.open if shard in client.router.branches])
        if self._moving and self._mover is None:
            self._mover = self.loop.call_soon(self._move_some)

    def _move_some(self) -> None:
        """Give some clients their new leader, and the next ones in the next round."""
        self._mover = None
        moving = self._moving
        for _ in range(min(MOVES, len(moving))):
            client, shard = moving.popleft()
            if client in self.open:
                try:
                    self._move(client, shard)
                except Exception:
                    log.exception(
                        "%(client)s: a client could not be moved; this is a bug in the server",
                        event("bug-in-move", client=client.name),
                    )
                    client.abort()
        if moving:
            self._mover = self.loop.call_soon(self._move_some)

    def _move(self, client: RoutedConnection, shard: int) -> None:
        branch = client.router.branches.get(shard)
        if branch is None:
            return
        place = branch.place
        if isinstance(place, LinkPlace) and place.link is None:
            place.lose()  # its link is about to tell it, but in one of the next rounds
            if client.router.closed or client.router.branches.get(shard) is not branch:
                return
        if branch.is_led:
            return
        client.begin()
        only = self.only()
        if only is not None and client.router.can_be_handed_over():
            client.hand_over(only)
        else:
            branch.on_leader()
            client.go_on()

    # What routed clients call

    def remove(self, client: RoutedConnection) -> None:
        """Forget a client that is gone, or is served by a connection."""
        self.open.pop(client, None)
        if not self.open:
            self._emptied.set()

    def open_place(self, client: RoutedConnection, branch: Branch, opening: Opening) -> Place | LocalPlace | None:
        """Open a place at the leader of a shard; None if there is none."""
        connections = self.led.get(branch.shard)
        if connections is not None:
            return LocalPlace(branch, connections, client, opening, client.listener_policy, client.transport)
        link = self._links.get(branch.shard)
        if link is None:
            return None
        place = LinkPlace(client, branch, link)
        if link.open(place, opening.encode()):
            return place
        log.warning(
            "%(client)s: cannot be relayed: too many clients, or too many watched tubes",
            event("not-passed-on", client=client.name),
        )
        client.abort()
        return None

    def give_turn_soon(self, client: RoutedConnection) -> None:
        """Let a client take a turn in the next round: one call of the event loop is enough for all who are to."""
        self._due.append(client)
        if self._turns is None:
            self._turns = self.loop.call_soon(self._give_turns)

    def _give_turns(self) -> None:
        self._turns = None
        due, self._due = self._due, []
        for client in due:
            client.is_due = False
            if client in self.open:
                try:
                    client.take_turn()
                except Exception:
                    log_bug(client.name)
                    client.abort()

    # For the whole server

    def judge(self, accounts: Accounts | None) -> int:
        """Give all routed clients the rights that their users have from now on; return how many were disconnected."""
        return sum([not client.judge(accounts) for client in list(self.open)])

    def disconnect_all(self) -> int:
        """Disconnect all clients that came to this node; return how many. They may find another one."""
        found: list[RoutedConnection | Connection] = [*self.open, *self.served()]
        for client in found:
            client.cut_off()
        return len(found)

    async def abort_all(self) -> None:
        """Disconnect all routed clients; return when they are gone."""
        self.closing = True
        while self.open:
            self._emptied.clear()
            for client in list(self.open):
                client.cut_off()
            await self._emptied.wait()
        for handle in (self._mover, self._turns):
            if handle is not None:
                handle.cancel()
