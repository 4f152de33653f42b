"""The clients of a node that does not lead: each is passed on to the leader, or waits until there is one.

    event loop ⇄ transport ⇄ PassedConnection ⇄ its channel on the link ⇄ leader

A client that comes to a standby is asked who it is there, as on every server. When the standby itself becomes the
leader, its clients become plain connections where they are; when a leader leads no more, its connections become passed
ones, unless they wait for a change.

Must never know how the leader is found, or what a frame of the link looks like.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from beanstalk_server.access.user import User
from beanstalk_server.cluster.passing import PassingSession
from beanstalk_server.link.link import Channel, Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.server.connection import INPUT_LIMIT, OUTPUT_LIMIT, Connection, Connections, name_of_peer
from beanstalk_server.server.entrance import NONE, TOKEN, Entrance
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.listeners import Listeners

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts

MOVES: Final = 64
"""Clients that get another leader in one round of the event loop."""

log = logging.getLogger("beanstalk_server")


class PassedConnection(Channel):
    """One client that is passed on. It has the methods of an asyncio protocol.

    Args:
        entrance: where the client came in.
        user: who it has proved to be; None where nobody is asked.
        name: what the log calls the client; "" for the address that it has connected from.
    """

    __slots__ = (
        "_end_sent",  # the leader knows that nothing more will come
        "_ended",  # the client has shut down its sending side
        "_hangup_fd",  # the file descriptor that is watched for a hang-up; -1 when none is
        "_hung_up",  # the same, seen while it was not read from
        "_kept",  # bytes that it has been sent and has not taken, for which the leader gets no credit
        "_output_paused",
        "_reading",
        "_standby",
        "_transport",
        "_was_passed",  # a leader has been told of it
        "entrance",
        "name",
        "session",
    )

    _transport: asyncio.Transport

    def __init__(
        self,
        standby: Standby,
        entrance: Entrance,
        user: User | None = None,
        name: str = "",
        used: str = "default",
        watched: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.entrance = entrance
        self.name = name
        authenticate = entrance.authenticate if entrance.auth == TOKEN else None
        self.session = PassingSession(authenticate, user, used, watched)
        if user is None and entrance.user is not None:
            self.session.judge_watched(entrance.user)
        self._standby = standby
        self._ended = False
        self._end_sent = False
        self._hung_up = False
        self._hangup_fd = -1
        self._kept = 0
        self._output_paused = False
        self._reading = True
        self._was_passed = False

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        standby = self._standby
        entrance = self.entrance
        if standby.closing or entrance.closed or (self.session.user is None and entrance.auth != NONE):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(OUTPUT_LIMIT)
        self.name = self.name or name_of_peer(self._transport)
        if standby.verbosity:
            user = self.user_name()
            log.info("%s connected%s", self.name, "" if user is None else f" as {user}")
        standby.add(self)

    def data_received(self, data: bytes) -> None:
        self.session.receive(data)
        self.go_on()

    def eof_received(self) -> bool:
        self._ended = True
        self.session.end_input()
        self.go_on()
        if not self._end_sent:
            self.send_hangup()
        return self.link is not None or not self.session.is_done  # else nobody is there who would close

    def pause_writing(self) -> None:
        self._output_paused = True

    def resume_writing(self) -> None:
        self._output_paused = False
        kept, self._kept = self._kept, 0
        self.consumed(kept)

    def connection_lost(self, _: Exception | None) -> None:
        standby = self._standby
        if standby.verbosity:
            log.info("%s disconnected", self.name)
        self._unwatch_hangup()
        self.close_channel(at_once=True)
        standby.remove(self)
        if not self.entrance.carried:
            standby.listeners.connection_closed()

    # What the standby calls

    def user_name(self) -> str | None:
        """The name of the client's user; None for nobody."""
        user = self.session.user or self.entrance.user
        return None if user is None else user.name

    def pass_to(self, link: Link) -> None:
        """Be passed on to the leader at the other end of a link."""
        self.on_lost()
        if self._transport.is_closing():
            return
        session = self.session
        opening = Opening(self.name, self.user_name(), session.used, session.watched.names)
        if not link.open(self, opening.encode()):
            log.warning("%s: cannot be passed on: there are too many clients, or it watches too many tubes", self.name)
            self._transport.abort()
            return
        self._was_passed = True
        self._end_sent = False
        self._kept = 0  # what another leader has sent is none of this one's credit
        session.begin(link.max_job_size)
        self.go_on()
        if (self._hung_up or self._ended) and not self._end_sent:
            self.send_hangup()

    def become(self, connections: Connections) -> None:
        """Be a plain connection from now on: this node leads."""
        self.on_lost()
        transport = self._transport
        if transport.is_closing():
            return
        self._unwatch_hangup()
        self._standby.remove(self)
        session = self.session
        connection = Connection(connections, self.entrance, session.user, self.name)
        transport.set_protocol(cast(Any, connection))
        connection.connection_made(transport)
        if transport.is_closing():
            return  # it may not come in any more
        connection.session.restore(session.used, session.watched.names)
        if not self._reading and not self._ended:
            transport.resume_reading()
        if self._output_paused:
            connection.pause_writing()
        data = session.take_all()
        if data:
            connection.data_received(data)
        if transport.is_closing():
            return
        if self._ended:
            connection.eof_received()
        elif self._hung_up:
            connection.on_hangup()

    def take_the_place_of(self, connection: Connection, data: bytes) -> None:
        """Pass on a client that has been served here, with what it has sent."""
        self._transport = connection.transport
        self._ended = connection.session.input_ended
        self._hung_up = not connection.session.may_wait
        self._reading = connection.reading
        self._output_paused = connection.session.output_paused
        if self._ended:
            self.session.end_input()
        if data:
            self.session.receive(data)
        if not (self._reading or self._ended or self._hung_up):
            self._watch_hangup()
        self._transport.set_protocol(cast(Any, self))
        self._standby.add(self)
        self._regulate()

    def judge(self, accounts: Accounts | None) -> bool:
        """Let the client be the user of its name from now on; disconnect it, and return False, if there is none."""
        session = self.session
        entrance = self.entrance
        if session.user is not None:
            user = None if accounts is None else accounts.by_name(session.user.name)
            if user is None:
                self.abort()
                return False
            session.user = user
        elif not entrance.closed:
            if entrance.auth != NONE:
                self.abort()
                return False
            if entrance.user is not None:
                self.send_user(entrance.user.name)
        return True

    def abort(self) -> None:
        """Disconnect the client, whatever is still to be sent."""
        self._transport.abort()

    # What the link calls

    def on_data(self, data: bytes) -> None:
        self.session.note_replies(data)
        self._transport.write(data)
        if self._output_paused:
            self._kept += len(data)
        else:
            self.consumed(len(data))
        if self.session.has_more:
            self.go_on()

    def on_room(self) -> None:
        self.go_on()

    def on_close(self, *, at_once: bool) -> None:
        if at_once:
            self._transport.abort()
        else:
            self._transport.close()

    def on_lost(self) -> None:
        """Wait for another leader, unless this one has taken something along."""
        if not self._was_passed:
            return
        self._was_passed = False
        self.link = None
        if not self.session.lose_leader() or (self._ended and self.session.is_done):
            self._transport.close()

    def go_on(self) -> None:
        """Pass on what the leader has room for."""
        session = self.session
        while room := self.room():
            data = session.take_commands(room)
            reply = session.take_replies()
            if reply:
                self._transport.write(reply)
            if session.user_has_changed:
                session.user_has_changed = False
                assert session.user is not None, "it has proved to be somebody"
                self.send_user(session.user.name)
                continue
            if session.closed:
                self.close_channel(at_once=True)
                self._transport.close()
                return
            if not data:
                break
            self.send(data)
        if self._ended and not self._end_sent and self.link is not None and session.has_ended:
            self._end_sent = True
            self.send_end()
        self._regulate()

    # Reading

    def _regulate(self) -> None:
        """Pause or resume reading, as what waits here demands."""
        reading = self.session.input_size <= INPUT_LIMIT
        if reading is self._reading or self._ended or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._unwatch_hangup()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
            self._watch_hangup()

    def _watch_hangup(self) -> None:
        if self.entrance.carried:
            return  # whoever has its socket watches it
        descriptor = self._transport.get_extra_info("socket").fileno()
        if self._standby.hangups.watch(descriptor, self.on_hangup):
            self._hangup_fd = descriptor

    def on_hangup(self) -> None:
        """Tell the leader that the client has hung up while nothing was read from it."""
        self._hangup_fd = -1
        self._hung_up = True
        self.send_hangup()

    def _unwatch_hangup(self) -> None:
        if self._hangup_fd >= 0:
            self._standby.hangups.unwatch(self._hangup_fd)
            self._hangup_fd = -1


class Standby:
    """The clients of a node while it does not lead.

    Args:
        listeners: where clients come in; they are told when one has gone.
        verbosity: 1: log connections.
    """

    def __init__(self, listeners: Listeners, hangups: HangupWatch, verbosity: int) -> None:
        self.listeners = listeners
        self.hangups = hangups
        self.verbosity = verbosity
        self.open: dict[PassedConnection, None] = {}
        self.closing = False  # the server stops: new connections are refused
        self._link: Link | None = None  # to the leader, once both have proved who they are
        self._connections: Connections | None = None  # of this node, while it leads
        self._moving: deque[PassedConnection] = deque()  # those that get another leader
        self._move: asyncio.Handle | None = None
        self._emptied = asyncio.Event()

    def make_client(self, entrance: Entrance, user: User | None = None, name: str = "") -> PassedConnection:
        """The protocol of a client that comes in."""
        return PassedConnection(self, entrance, user, name)

    def add(self, client: PassedConnection) -> None:
        """Pass on a client, or let it wait."""
        self.open[client] = None
        if self._connections is not None:
            client.become(self._connections)
        elif self._link is not None:
            client.pass_to(self._link)

    def remove(self, client: PassedConnection) -> None:
        """Forget a client that is gone, or is served here."""
        self.open.pop(client, None)
        if not self.open:
            self._emptied.set()

    def follow(self, link: Link) -> None:
        """Pass all clients to the leader at the other end of this link."""
        self._link = link
        self._moving.clear()
        self._move_all()

    def lose(self, link: Link) -> None:
        """Let clients wait: this link has ended. Each of them is told by its channel."""
        if self._link is link:
            self._link = None
            self._moving.clear()

    def lead(self, connections: Connections | None) -> None:
        """Serve all clients here, in these connections; None to pass on those who come from now on."""
        self._connections = connections
        self._moving.clear()
        if connections is not None:
            self._move_all()

    def take(self, connections: Connections) -> int:
        """Pass on the clients that were served here, when the node leads no more.

        Those that wait for a change are disconnected; returns how many. Those that have come by a link are left alone.
        """
        staying = []
        closed = 0
        for connection in list(connections.open):
            if connection.entrance.is_link:
                continue
            if connection.can_move():
                staying.append((connection, connection.session.take_commands(connection.scheduler.clock())))
            else:
                connection.transport.abort()
                closed += 1
        # Only now, because the jobs of those who leave would be given to others who wait.
        for connection, data in staying:
            session = connection.session
            watched = [tube.name for tube in session.watched]
            user = connection.user and session.user
            client = PassedConnection(self, connection.entrance, user, connection.name, session.use.name, watched)
            client.name = client.name or name_of_peer(connection.transport)
            connection.let_go()
            client.take_the_place_of(connection, data)
        return closed

    def judge(self, accounts: Accounts | None) -> int:
        """Give all clients the rights that their users have from now on; return how many were disconnected."""
        return sum([not client.judge(accounts) for client in list(self.open)])

    async def abort_all(self) -> None:
        """Disconnect all clients; return when they are gone."""
        self.closing = True
        while self.open:
            self._emptied.clear()
            for client in list(self.open):
                client.abort()
            await self._emptied.wait()
        if self._move is not None:
            self._move.cancel()

    def _move_all(self) -> None:
        self._moving.extend(self.open)
        if self._move is None:
            self._move_some()

    def _move_some(self) -> None:
        """Give some clients their new leader, and the next ones in the next round."""
        self._move = None
        moving = self._moving
        for _ in range(min(MOVES, len(moving))):
            client = moving.popleft()
            if client not in self.open:
                continue
            try:
                if self._connections is not None:
                    client.become(self._connections)
                elif self._link is not None:
                    client.pass_to(self._link)
            except Exception:
                log.exception("%s: a client could not be moved; this is a bug in the server", client.name)
                client.abort()
        if moving:
            self._move = asyncio.get_running_loop().call_soon(self._move_some)
