"""The clients of a node: settled at the shard that it leads, or relayed to another leader.

    settled    by a Connection, as on a server alone; nothing is in between
    relayed    event loop ⇄ transport ⇄ RelayedConnection ⇄ Relay ⇄ Branch ⇄ LinkPlace ⇄ its channel on a link

With one shard, all clients of its leader are settled, and all clients of a standby are relayed. Each goes on when the
leader changes, wherever that is (`shards/clients.py` has those of several shards). A client is asked who it is here, as
on every server. Whatever calls into its relay does so between two methods of this module: `begin` and `go_on`, which
sends what the relay has answered and does what follows. So nothing happens in the middle of anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

from beanstalk_server.access.user import User
from beanstalk_server.cluster.branch import Branch, Place
from beanstalk_server.cluster.relay import Relay
from beanstalk_server.events import event
from beanstalk_server.link.link import Channel, Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.server.connection import (
    INPUT_LIMIT,
    OUTPUT_LIMIT,
    CarrierLostError,
    Connection,
    Connections,
    log_connected,
    name_of_peer,
)
from beanstalk_server.server.front.entrance import NONE, TOKEN, Entrance
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.intake import Intake
from beanstalk_server.wire.places import Places
from beanstalk_server.wire.server_info import ServerInfo

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts

MOVES: Final = 64
"""Clients that get another leader of a shard in one round of the event loop."""

log = logging.getLogger("beanstalk_server")


class LinkPlace(Channel):
    """What a relayed client has open at a shard that another node leads.

    Args:
        client: whose place it is.
    """

    __slots__ = ("_client", "_leader", "branch")

    def __init__(self, client: RelayedConnection, branch: Branch, leader: Link) -> None:
        super().__init__()
        self._client = client
        self._leader = leader
        self.branch: Branch | None = branch  # until it is closed or lost

    # What the branch calls, besides the methods of a channel

    def has_nothing(self) -> bool:
        return False  # only the leader knows

    def change_user(self, name: str) -> None:
        self.send_user(name)

    def hang_up(self) -> None:
        self.send_hangup()

    def leave(self) -> None:
        self.branch = None
        if self._client.has_left:
            self.close_channel(at_once=True)
        else:
            self.abandon()

    # What the link calls

    def on_data(self, data: bytes) -> None:
        branch = self.branch
        if branch is not None:
            client = self._client
            client.begin()
            branch.on_data(data)
            client.go_on()

    def on_room(self) -> None:
        branch = self.branch
        if branch is not None:
            client = self._client
            client.begin()
            branch.on_room()
            client.go_on()

    def on_close(self, *, at_once: bool) -> None:
        branch, self.branch = self.branch, None
        if branch is not None:
            client = self._client
            client.begin()
            branch.on_closed(at_once)
            client.go_on()

    def lose(self) -> None:
        """Tell the branch that the link has ended."""
        self.on_lost(is_clean=self._leader.is_clean)

    def on_lost(self, *, is_clean: bool) -> None:
        branch, self.branch = self.branch, None
        if branch is not None:
            client = self._client
            client.begin()
            branch.on_lost(is_clean)
            client.go_on()


class RelayedConnection:
    """One client that is relayed. It has the methods of an asyncio protocol.

    Args:
        entrance: where the client came in.
        user: who it has proved to be; None where nobody is asked.
        name: what the log calls the client; "" for the address that it has connected from.
    """

    __slots__ = (
        "_ended",  # the client has shut down its sending side
        "_hung_up",  # the same, seen while it was not read from
        "_intake",
        "_is_at_work",  # `go_on` is to follow
        "_output_paused",
        "_proved",  # who it was when it came
        "clients",
        "entrance",
        "has_left",  # if the client goes now, it has done so by itself
        "idle_since",  # as in Connection
        "is_due",  # a turn has been promised
        "name",
        "relay",
        "transport",
    )

    relay: Relay
    transport: Any

    def __init__(self, clients: Clients, entrance: Entrance, user: User | None = None, name: str = "") -> None:
        self.clients = clients
        self.entrance = entrance
        self.name = name
        self.has_left = True
        self.idle_since = 0
        self.is_due = False
        self._proved = user
        self._ended = False
        self._hung_up = False
        self._intake = Intake()
        self._is_at_work = False
        self._output_paused = False

    # What the event loop calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        clients = self.clients
        entrance = self.entrance
        settled = clients.settled()
        if settled is not None:  # only since the client was accepted
            connection = Connection(settled, entrance, self._proved, self.name)
            transport.set_protocol(cast(Any, connection))
            connection.connection_made(transport)
            return
        is_refused = clients.closing or entrance.closed or (self._proved is None and entrance.auth != NONE)
        self.name = self.name or ("" if is_refused else name_of_peer(transport))
        self._make_relay("default", ["default"])
        if is_refused:
            transport.abort()
            return
        transport.set_write_buffer_limits(OUTPUT_LIMIT)
        if clients.verbosity:
            log_connected(self.name, self.user)
        clients.open[self] = None
        self.begin()
        self.relay.start()
        self.go_on()

    def data_received(self, data: bytes) -> None:
        self.idle_since = 0
        self._is_at_work = True
        self.relay.receive(data)
        self.go_on()

    def eof_received(self) -> bool:
        self._ended = True
        self.begin()
        self.relay.end_input()
        self.go_on()
        return True  # replies may still have to be sent; `go_on` closes

    def pause_writing(self) -> None:
        self._output_paused = True
        self.relay.pause_output()

    def resume_writing(self) -> None:
        self._output_paused = False
        self.begin()
        self.relay.resume_output()
        self.go_on()

    def connection_lost(self, error: Exception | None) -> None:
        clients = self.clients
        if isinstance(error, CarrierLostError):
            self.has_left = False
        if clients.verbosity:
            log.info("%(client)s disconnected", event("disconnected", client=self.name))
        self.let_go()
        if not self.entrance.carried:
            clients.listeners.connection_closed()

    def on_hangup(self) -> None:
        """Let the client wait for nothing: it has hung up while nothing was read from it."""
        self._hung_up = True
        self.begin()
        self.relay.forbid_waiting()
        self.go_on()

    # What its relay calls

    def open(self, branch: Branch, opening: Opening) -> Place | None:
        """Open a place at a shard; None if nobody leads it now."""
        if self.entrance.user is not None and opening.user is None:
            opening = opening._replace(user=self.entrance.user.name)
        return self.clients.open_place(self, branch, opening)

    def on_output(self) -> None:
        """Look soon at what the relay has to say, unless it is being called just now."""
        if not (self._is_at_work or self.is_due):
            self.is_due = True
            self.clients.give_turn_soon(self)

    # What its owner and its places call

    @property
    def user(self) -> User | None:
        """The client's user; None for nobody, who may do everything."""
        return self.relay.user or self.entrance.user

    def begin(self) -> None:
        """Something is about to call into the relay: `go_on` follows."""
        self._is_at_work = True

    def deliver(self) -> None:
        """Take what places have to say that have waited until the relay was at rest."""

    def go_on(self) -> None:
        """Send what the relay has answered, and do what follows from what it has been told."""
        self.deliver()
        self._is_at_work = False
        relay = self.relay
        replies = relay.take_replies()
        transport = self.transport
        if transport.is_closing():
            return
        if replies:
            transport.write(replies)
        if relay.closed:
            if relay.speaks_http:
                self.clients.listeners.refuse_http(self.entrance, self.name)
            if relay.malformed_puts:
                self.clients.listeners.note_malformed_puts(relay.malformed_puts, self.entrance, self.name)
            self.has_left = self.has_left and not relay.failed
            if relay.aborted:
                transport.abort()
            else:
                transport.close()
            relay.close()
            return
        if self.settles():
            self.settle(relay.movable_to)
            return
        if relay.has_more:
            self.on_output()
        if relay.input_size > INPUT_LIMIT or not self._intake.reading:
            self._regulate()

    def settles(self) -> bool:
        """Whether a connection is to serve the client from now on."""
        return self.relay.movable_to in self.clients.led

    def take_turn(self) -> None:
        """Let the relay do more of what has come, if its last turn was over before that; and `go_on`."""
        self.begin()
        if self.relay.has_more:
            self.relay.run()
        self.go_on()

    def take_over(self, connection: Connection) -> None:
        """Relay a client that a connection has served alone until now. `restart` must follow."""
        session = connection.session
        self.transport = transport = connection.transport
        self._ended = session.input_ended
        self._hung_up = not session.may_wait and not session.input_ended
        self._intake, connection.intake = connection.intake, Intake()
        self._output_paused = session.output_paused
        self._make_relay(session.use.name, session.watch_entries(), session.reserve_mode())
        self._intake.unwatch()
        if not (self._intake.reading or self._ended or self._hung_up):
            self._intake.watch(transport, self._hangups, self.on_hangup)
        transport.set_protocol(cast(Any, self))

    def restart(self, data: bytes) -> None:
        """Go on with a client that was served alone, and what it has sent and not been answered."""
        relay = self.relay
        self.begin()
        relay.start()
        if self._output_paused:
            relay.pause_output()
        if data:
            relay.receive(data)
        if self._ended:
            relay.end_input()
        elif self._hung_up:
            relay.forbid_waiting()
        self.go_on()

    def settle(self, shard: int) -> None:
        """Be served by one connection of a shard that is led here, which has all that the client has."""
        relay = self.relay
        transport = self.transport
        used, watched, user = relay.used, list(relay.watched.names), relay.user
        entries, mode = relay.watch_entries(watched), relay.mode
        data = relay.take_all()
        connection = self.take_connection(shard, watched)
        if connection is None:
            connection = Connection(self.clients.led[shard], self.entrance, user, self.name)
            connection.begin(transport)
            connection.session.restore(used, entries, mode)
        self.let_go()
        transport.set_protocol(cast(Any, connection))
        if not self._intake.reading and not self._ended:
            transport.resume_reading()
        if self._output_paused:
            connection.pause_writing()
        if data:
            connection.data_received(data)
        if transport.is_closing():
            return
        if self._ended:
            connection.eof_received()
        elif self._hung_up:
            connection.on_hangup()

    def take_connection(self, shard: int, watched: list[str]) -> Connection | None:  # noqa: ARG002 there is none yet
        """The connection that has served a place of the client at this shard, which serves the client from now on."""
        return None

    def judge(self, accounts: Accounts | None) -> bool:
        """Let the client be the user of its name from now on; disconnect it, and return False, if there is none."""
        relay = self.relay
        entrance = self.entrance
        if relay.user is not None:
            user = None if accounts is None else accounts.by_name(relay.user.name)
            if user is None:
                self.abort()
                relay.close()  # at once, so that its places led here are not judged, too
                return False
            relay.change_user(user)
        elif not entrance.closed:
            if entrance.auth != NONE:
                self.abort()
                return False
            if entrance.user is not None:
                relay.judge_watched(entrance.user)
                for branch in relay.branches.values():
                    if branch.place is not None:
                        branch.place.change_user(entrance.user.name)
        return True

    def abort(self) -> None:
        """Disconnect the client, whatever is still to be sent."""
        self.transport.abort()

    def is_idle(self) -> bool:
        return self.relay.is_idle() and not self.transport.is_closing()

    def close_idle(self) -> None:
        self.transport.close()

    def cut_off(self) -> None:
        """Disconnect the client, which may find another node: it has not left by itself."""
        self.has_left = False
        self.abort()

    def _make_relay(self, used: str, watched: list[str], mode: int = 0) -> None:
        clients = self.clients
        entrance = self.entrance
        self.relay = clients.make_relay(
            clients.places,
            self,
            clients.clock,
            self.name,
            clients.max_job_size,
            entrance.authenticate if entrance.auth == TOKEN else None,
            self._proved,
            used,
            watched,
            clients.dialect,
            entrance.closes_after_put,
        )
        self.relay.mode = mode
        if self._proved is None and entrance.user is not None:
            self.relay.judge_watched(entrance.user)

    def let_go(self) -> None:
        """Have nothing to do with the client any more."""
        self._intake.unwatch()
        self.relay.close()
        self._is_at_work = False
        self.clients.remove(self)

    # Reading

    def _regulate(self) -> None:
        """Pause or resume reading, as what waits here demands."""
        if not self._ended:
            reading = self.relay.input_size <= INPUT_LIMIT
            self._intake.regulate(reading, self.transport, self._hangups, self.on_hangup)

    @property
    def _hangups(self) -> HangupWatch | None:
        """What watches its socket; None if another process has it."""
        return None if self.entrance.carried else self.clients.hangups


class Clients:
    """The clients of a node.

    Args:
        shards: how many there are.
        listeners: where clients come in; they are told when one has gone.
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
        self.make_relay: Callable[..., Relay] = Relay
        self.open: dict[RelayedConnection, None] = {}  # the relayed ones
        self.closing = False  # the server stops: new clients are refused
        self.first_shard = self.places.of_tube(b"default")  # a new client uses and watches a tube of this shard
        self.led: dict[int, Connections] = {}  # by shard: those led here
        self._links: dict[int, Link] = {}  # by shard: to other leaders
        self._moving: deque[tuple[RelayedConnection, int]] = deque()  # those who get another leader of a shard
        self._mover: asyncio.Handle | None = None
        self._due: list[RelayedConnection] = []  # those who take a turn in the next round
        self._turns: asyncio.Handle | None = None
        self._emptied = asyncio.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve clients in this event loop from now on."""
        self.loop = loop

    def make_client(self, entrance: Entrance, user: User | None = None, name: str = "") -> Any:
        """The protocol of a client that comes in."""
        settled = self.settled()
        if settled is not None:
            return Connection(settled, entrance, user, name)
        return self.make_relayed(entrance, user, name)

    def make_relayed(self, entrance: Entrance, user: User | None, name: str) -> RelayedConnection:
        return RelayedConnection(self, entrance, user, name)

    def settled(self) -> Connections | None:
        """What serves a client that comes in now, if that is here."""
        connections = self.led.get(self.first_shard)
        return None if connections is None or connections.closing else connections

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
        for connection in list(connections.open):
            if connection.entrance.is_link or connection.is_place or self.closing:
                continue  # it stays, or is about to be disconnected
            if connection.can_move():
                staying.append((connection, connection.session.take_commands(connection.turns.clock())))
            else:
                connection.transport.abort()
                closed += 1
        # Only now, because the jobs of those who leave would be given to others who wait.
        closed += await self.lose_places(connections, is_clean)
        for count, (connection, data) in enumerate(staying, 1):
            if connection.connected and not connection.transport.is_closing():
                client = self.take(connection)
                data += connection.session.framer.take_rest()  # has come meanwhile
                connection.let_go()
                client.restart(data)
            if count % MOVES == 0:
                await asyncio.sleep(0)
        return closed

    async def lose_places(self, connections: Connections, is_clean: bool) -> int:  # noqa: ARG002 there are none
        """End the places that relayed clients have in these connections; return how many had to be disconnected."""
        return 0

    def take(self, connection: Connection) -> RelayedConnection:
        """Relay the client of a connection from now on."""
        user = connection.user and connection.session.user
        name = connection.name or name_of_peer(connection.transport)
        client = self.make_relayed(connection.entrance, user, name)
        client.take_over(connection)
        self.open[client] = None
        return client

    def follow(self, shard: int, link: Link) -> None:
        """Ask the other end of this link for what concerns a shard."""
        self._links[shard] = link
        self._move_all(shard)

    def lose(self, shard: int, link: Link) -> None:
        """Let clients wait for a shard: this link has ended. Each of them is told by its channel."""
        if self._links.get(shard) is link:
            del self._links[shard]

    def _move_all(self, shard: int) -> None:
        """Let all who have a branch there have the new leader."""
        self._moving.extend([(client, shard) for client in self.open if shard in client.relay.branches])
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

    def _move(self, client: RelayedConnection, shard: int) -> None:
        branch = client.relay.branches.get(shard)
        if branch is None:
            return
        place = branch.place
        if isinstance(place, LinkPlace) and place.link is None:
            place.lose()  # its link is about to tell it, but in one of the next rounds
            if client.relay.closed or client.relay.branches.get(shard) is not branch:
                return
        if branch.place is not None:
            return
        client.begin()
        if shard in self.led and client.relay.movable_to == shard:
            client.settle(shard)
        else:
            branch.on_leader()
            client.go_on()

    # What relayed clients call

    def remove(self, client: RelayedConnection) -> None:
        """Forget a client that is gone, or settled."""
        self.open.pop(client, None)
        if not self.open:
            self._emptied.set()

    def open_place(self, client: RelayedConnection, branch: Branch, opening: Opening) -> Place | None:
        """Open a place at the leader of a shard; None if there is none."""
        link = self._links.get(branch.shard)
        if link is None:
            return None
        place = LinkPlace(client, branch, link)
        if link.open(place, opening.encode()):
            return place
        log.warning(
            "%(client)s: cannot be passed on: there are too many clients, or it watches too many tubes",
            event("not-passed-on", client=client.name),
        )
        client.abort()
        return None

    def give_turn_soon(self, client: RelayedConnection) -> None:
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
                    log.exception(
                        "%(client)s: a client failed; this is a bug in the server",
                        event("bug-in-routed-client", client=client.name),
                    )
                    client.abort()

    # For the whole server

    def judge(self, accounts: Accounts | None) -> int:
        """Give all relayed clients the rights that their users have from now on; return how many were disconnected."""
        return sum([not client.judge(accounts) for client in list(self.open)])

    def disconnect_all(self) -> int:
        """Disconnect all clients that came to this node; return how many. They may find another one."""
        found: list[RelayedConnection | Connection] = list(self.open)
        for connections in self.led.values():
            found.extend(each for each in connections.open if not each.is_place)
        for client in found:
            client.cut_off()
        return len(found)

    async def abort_all(self) -> None:
        """Disconnect all relayed clients; return when they are gone."""
        self.closing = True
        while self.open:
            self._emptied.clear()
            for client in list(self.open):
                client.cut_off()
            await self._emptied.wait()
        for handle in (self._mover, self._turns):
            if handle is not None:
                handle.cancel()
