"""One client's connection: passes bytes from its transport to its session, and replies back.

The replies of one turn are written in one piece, when the changes that they report are durable. While replies pile up
for a client that does not read them, its session pauses, and nothing is read from the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from beanstalk_server.access.rights import User
from beanstalk_server.events import event
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.costs import TRANSFER_SHIFT
from beanstalk_server.queue.wheel import END_OF_TIME
from beanstalk_server.server.commits import CommitGate, CommitWaiter, UncommittedReplies
from beanstalk_server.server.front.addresses import name_of_peer
from beanstalk_server.server.front.listener_policy import NONE, TOKEN, ListenerPolicy
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.intake import Intake
from beanstalk_server.server.turns import Turns
from beanstalk_server.wire.commands import Dialect
from beanstalk_server.wire.listings import ClientList, ListedClient
from beanstalk_server.wire.server_info import ServerInfo
from beanstalk_server.wire.session import ADMISSION, NOTHING, ROUND, SESSION_QUANTUM, Session

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts

INPUT_LIMIT: Final = 1 << 16
"""Bytes of commands that may pile up behind one that waits, before reading pauses."""

OUTPUT_LIMIT: Final = 1 << 18
"""Bytes of replies that may pile up for a client, before reading pauses."""

UNCOMMITTED_LIMIT: Final = 1 << 17
"""Bytes of replies that may wait for a commit, together with their commands, before reading pauses: a put of 64 KiB is
answered in 12 bytes. Other clients wait for a commit with all of them: with half as many bytes, one client that puts
1,000 bytes at a time is slowed down by a quarter; with twice as many, all others wait 1.5 times as long."""

IO_COST: Final = 4
"""The cost of reading and writing once, of any size: system calls cost more than a command."""

READ_COST: Final = 1
"""The cost of reading what no turn can follow for yet."""

CLOSE_COST: Final = 12
"""The cost of closing a connection."""

SLOW: Final = 512
"""A client that watches more tubes than this waits in a queue of its own, so that its reserves do not keep others
waiting."""

log = logging.getLogger("beanstalk_server")


class CarrierLostError(Exception):
    """A client is gone because its carrier is, or carries its bytes no more. It has not left by itself: what it has
    reserved is ready, and has not failed."""


def log_connected(client: str, user: User | None) -> None:
    """Log that a client has come in, and who it is, if that is known."""
    if user is None:
        log.info("%(client)s connected", event("connected", client=client))
    else:
        log.info("%(client)s connected as %(user)s", event("connected", client=client, user=user.name))


class Connection(CommitWaiter):
    """One client's transport, and the session behind it.

    Args:
        listener_policy: where the client came in.
        user: who it has proved to be; None where clients are not asked.
        name: what the log calls the client; "" for the address that it has connected from.
        dialect: the commands that a node gives on behalf of the client; None if the client gives them itself.
        counted: whether the statistics count it.

    It has the methods of an asyncio protocol, but does not inherit from one: a compiled class that inherits from an
    interpreted one is as slow as if it were interpreted too.
    """

    session: Session
    transport: asyncio.Transport
    _write_to_transport: Callable[[bytes], None]
    """The `write` of the transport, looked up once instead of for each reply."""

    def __init__(
        self,
        connections: Connections,
        listener_policy: ListenerPolicy,
        user: User | None = None,
        name: str = "",
        dialect: Dialect | None = None,
        counted: bool = True,
    ) -> None:
        super().__init__()
        self.connections = connections
        self.listener_policy = listener_policy
        self.user = user
        self.turns = connections.turns
        self.gate = connections.gate
        self.connected = False  # the session has begun, and has not been disconnected
        self.intake = Intake()
        self.uncommitted: UncommittedReplies | None = None  # the first replies that wait for a commit
        self._last_uncommitted: UncommittedReplies | None = None
        self.uncommitted_size = 0  # the sum of the weights: the bytes of the replies and of their commands
        self.name = name
        self.dialect = dialect
        self.counted = counted
        self.since = 0  # when it has begun to serve its client, in nanoseconds
        self.idle_since = 0  # when a sweep found it idle first, in nanoseconds; 0 if it has sent something since

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        connections = self.connections
        listener_policy = self.listener_policy
        user = self.user
        # A client that comes by a link will have another leader soon.
        is_late = connections.closing and not listener_policy.is_link
        if is_late and connections.make_client is not None:
            client = connections.make_client(listener_policy, user, self.name)
            self.transport.set_protocol(client)
            client.connection_made(transport)
            return
        if is_late or listener_policy.closed or (user is None and listener_policy.auth != NONE):
            self.transport.abort()  # it was accepted before the sockets were closed, or before a reload
            return
        self.transport.set_write_buffer_limits(OUTPUT_LIMIT)
        if connections.verbosity or self.turns.slow is not None:
            self.name = self.name or name_of_peer(self.transport)
        if connections.verbosity:
            log_connected(self.name, user or listener_policy.user)
        self.begin(self.transport)

    def begin(self, transport: asyncio.Transport) -> None:
        """Serve the client behind this transport: it is to come in."""
        self.transport = transport
        self._write_to_transport = transport.write
        connections = self.connections
        listener_policy = self.listener_policy
        user = listener_policy.user if self.user is None else self.user
        self.since = self.turns.clock()
        self.session = Session(
            connections.queue,
            connections.server_info,
            self.on_answer,
            self.name,
            connections.verbosity > 1,  # whether commands are logged
            user,
            listener_policy.authenticate if listener_policy.auth == TOKEN and self.dialect is None else None,
            self.dialect,
            self.counted,
            listener_policy.closes_after_put,
        )
        self.connected = True
        connections.open.add(self)

    def data_received(self, data: bytes) -> None:
        self.idle_since = 0
        turns = self.turns
        session = self.session
        if self.queued or turns.budget <= 0:
            self._queue_input(data)
            return
        now = turns.clock()
        if now >= turns.lease_end:
            turns.lose_lease()
            self._queue_input(data)
            return
        session.sees_hangups = False
        session.receive(data, now)
        turns.budget -= SESSION_QUANTUM - session.budget + IO_COST + (len(data) >> TRANSFER_SHIFT)
        if session.has_replies:
            self._send()
        if (
            len(session.framer.data) > 0
            or session.closed
            or session.malformed_puts
            or self.uncommitted_size > UNCOMMITTED_LIMIT
        ):
            self._regulate()
        if turns.slow is not None:
            turns.note_turn(self, now)
        turns.run_pending()

    def _queue_input(self, data: bytes) -> None:
        """Leave what has come to a later turn."""
        self.turns.budget -= READ_COST + (len(data) >> TRANSFER_SHIFT)
        session = self.session
        if session.wait != ROUND:
            session.sees_hangups = False
        session.queue_input(data)
        self.turns.enqueue(self)
        self._regulate()
        self.turns.run_pending()

    def eof_received(self) -> bool:
        self.session.end_input()
        self.turns.enqueue(self)
        self.turns.run_pending_soon()  # a thousand may hang up at the same time, and each is to be closed
        return True  # replies may still have to be sent; `_regulate` closes

    def pause_writing(self) -> None:
        self.session.pause_output()
        self._regulate()

    def resume_writing(self) -> None:
        self.session.resume_output()
        self.turns.enqueue(self)
        self.turns.run_pending_soon()

    def connection_lost(self, error: Exception | None) -> None:
        connections = self.connections
        if connections.verbosity:
            log.info("%(client)s disconnected", event("disconnected", client=self.session.name))
        self.drop_uncommitted()
        self.intake.unwatch()
        self.turns.unblock(self)
        if not connections.closing:
            self._disconnect(not isinstance(error, CarrierLostError))
        connections.remove(self)
        if not connections.closing:
            self.turns.run_pending()

    # What the session, the turns, the gate and the hang-up watch call

    def on_answer(self) -> None:
        """Take a turn soon: the session's pending command has been answered."""
        self.turns.enqueue(self)

    def take_turn(self) -> int:
        """Do the rest of the input, as far as one turn goes, and send the replies."""
        session = self.session
        try:
            if not self.connected or self.transport.is_closing():
                return 0
            if session.wait == ROUND:
                session.sees_hangups = True  # by the event loop, between that turn and this one
            session.run(self.turns.clock())
            if session.has_replies:
                self._send()
            self._regulate()
        except Exception:
            log.exception(
                "%(client)s: a connection failed; this is a bug in the server",
                event("bug-in-connection", client=self.name),
            )
            self.transport.abort()
        return session.cost + IO_COST

    def is_slow(self) -> bool:
        return len(self.session.watched) > SLOW

    def label(self) -> str:
        return self.name or "a client"  # its transport may be closed by now, and tell nothing any more

    def on_commit(self) -> bool:
        """Send the replies whose commit has returned."""
        durable_lsn = self.gate.durable_lsn
        first = self.uncommitted
        while first is not None and first.lsn <= durable_lsn:
            self.uncommitted = first.next
            if first.next is None:
                self._last_uncommitted = None
            self.uncommitted_size -= first.weight
            self._write(first.data)
            first = self.uncommitted  # which a write may have emptied
        if not self.intake.reading or self.session.closed or self.session.has_more:
            self._regulate()
        return self.uncommitted is not None

    def drop_uncommitted(self) -> None:
        """Send no reply that waits for a commit: the commit may still call."""
        self.uncommitted = self._last_uncommitted = None

    def abort(self) -> None:
        self.transport.abort()

    def on_hangup(self) -> None:
        """Let the session wait for nothing: its client has hung up while nothing was read from it."""
        self.session.forbid_waiting()
        self.turns.enqueue(self)
        self.turns.run_pending_soon()

    def change_user(self, user: User) -> None:
        """Let the client be this user from now on."""
        self.user = user
        self.session.change_user(user)
        self.turns.run_pending_soon()  # it may have answered a reserve that waits

    def stop_waiting(self) -> None:
        """Answer TIMED_OUT if the client waits for a job."""
        self.session.stop_waiting()
        self.turns.run_pending_soon()

    def has_nothing(self) -> bool:
        """As `Session.has_nothing`, also as far as the lease and commits are concerned."""
        turns = self.turns
        if turns.halted or self.queued or self.uncommitted is not None or not self.connected:
            return False
        if turns.lease_end != END_OF_TIME and turns.clock() >= turns.lease_end:
            return False
        return self.session.has_nothing()

    # What sweeps call

    def is_idle(self) -> bool:
        """Whether the client waits for no job and holds none, and has been answered."""
        session = self.session
        if session.wait != NOTHING or session.output_paused:
            return False
        if self.queued or self.uncommitted is not None or len(session.reserved):
            return False
        return self.connected and not self.transport.is_closing()

    def close_idle(self) -> None:
        """Disconnect the client."""
        self._disconnect()
        self.transport.close()

    # What a reload calls

    def judge(self, accounts: Accounts | None) -> bool:
        """Give the client the rights that its user has from now on; close it, and return False, if it has none.

        A client that has proved its name is the user of that name. All others are the user of that listener_policy.
        """
        user = self._user_from_now_on(accounts)
        if user is not None:
            self.session.change_user(user)
        elif self.session.user is not None or self.listener_policy.auth != NONE:
            self.transport.abort()
            return False
        return True

    def _user_from_now_on(self, accounts: Accounts | None) -> User | None:
        listener_policy = self.listener_policy
        if self.user is None and not listener_policy.closed:
            if listener_policy.auth != NONE:
                return None
            if listener_policy.user is not None:
                return listener_policy.user
        user = self.session.user
        return None if user is None or accounts is None else accounts.by_name(user.name)

    # What a node calls whose clients are served by another node from now on

    def can_move(self) -> bool:
        """Whether the next leader can go on with the client."""
        return (
            self.connected and not self.transport.is_closing() and self.uncommitted is None and self.session.can_move()
        )

    def send_replies(self) -> None:
        """Send what waits for a turn to be sent, when no turn is given any more."""
        if self.connected and self.session.has_replies and not self.transport.is_closing():
            self._send()

    def let_go(self, *, has_left: bool = True) -> None:
        """Serve the client no more: its transport has another protocol.

        Args:
            has_left: as in Broker.
        """
        self.intake.unwatch()
        self.turns.unblock(self)
        self._disconnect(has_left)
        self.connections.forget(self)

    # Replies, reading and the end

    def _send(self) -> None:
        """Send the replies in one write, now or after a commit."""
        session = self.session
        consumed = session.consumed
        data = session.take_replies()
        gate = self.gate
        if gate.is_open or (self.uncommitted is None and session.reply_lsn <= gate.durable_lsn):
            self._write(data)
        else:
            weight = len(data) + consumed
            added = UncommittedReplies(session.reply_lsn, data, weight)
            last = self._last_uncommitted
            if last is None:
                gate.await_commit(self)
                self.uncommitted = added
            else:
                last.next = added
            self._last_uncommitted = added
            self.uncommitted_size += weight
            if gate.commits is not None:
                gate.note_reply(session.reply_lsn)

    def _write(self, data: bytes) -> None:
        """Send replies."""
        self._write_to_transport(data)

    def _note_malformed_puts(self) -> None:
        session = self.session
        self.connections.listeners.note_malformed_puts(
            session.malformed_puts, self.listener_policy, self.name or name_of_peer(self.transport)
        )
        session.malformed_puts = 0

    def _regulate(self) -> None:
        """Close, ask for another turn, and pause or resume reading, as the session's state demands."""
        session = self.session
        if session.malformed_puts:
            self._note_malformed_puts()
        if session.closed:
            if not self.transport.is_closing():
                if session.speaks_http:
                    self.connections.listeners.refuse_http(
                        self.listener_policy, self.name or name_of_peer(self.transport)
                    )
                self._disconnect()
                if self.uncommitted is None:
                    self.transport.close()
                    self.turns.budget -= CLOSE_COST
                elif not session.input_ended:
                    self._read(False)  # what comes after a quit is not read
            return
        self._ask_for_turn()
        reading = (
            not session.output_paused
            and session.input_size <= INPUT_LIMIT
            and self.uncommitted_size <= UNCOMMITTED_LIMIT
        )
        if reading is not self.intake.reading and not session.input_ended:
            self._read(reading)

    def _ask_for_turn(self) -> bool:
        """Ask for the turn that the session waits for, if it does; return whether `run_pending` must follow."""
        session = self.session
        if session.wait == ADMISSION:
            self.turns.block(self)
        if not session.has_more or session.output_paused or self.uncommitted_size > UNCOMMITTED_LIMIT:
            return False
        if session.wait == ROUND and not self.queued:
            self.turns.enqueue_next_round(self)
            return False
        self.turns.enqueue(self)
        return True

    def _read(self, reading: bool) -> None:
        """Read from the client from now on, or read no more."""
        # the process that has its socket watches it
        hangups = None if self.listener_policy.carried else self.connections.hangups
        self.intake.regulate(reading, self.transport, hangups, self.on_hangup)

    def cut_off(self) -> None:
        """Disconnect the client, which may find another node: it has not left by itself."""
        self._disconnect(has_left=False)
        self.transport.abort()

    def _disconnect(self, has_left: bool = True) -> None:
        """Release what the client holds, once only."""
        if self.connected:
            self.connected = False
            self.session.disconnect(self.turns.clock(), has_left)


class OpenConnections(ClientList):
    """The clients of the open connections, each at the connection that counts it."""

    def __init__(self, connections: Connections) -> None:
        self._left = list(connections.open)

    def is_over(self) -> bool:
        return not self._left

    def take(self, count: int) -> list[ListedClient]:
        left = self._left
        found = []
        for connection in left[-count:]:
            session = connection.session
            if connection.connected and session.counted and not connection.transport.is_closing():
                name = connection.name or name_of_peer(connection.transport)
                found.append(ListedClient(session, name, connection.since, connection.uncommitted is not None))
        del left[-count:]
        return found


class Connections:
    """The open connections, and what they share."""

    def __init__(
        self,
        queue: Broker,
        server_info: ServerInfo,
        turns: Turns,
        gate: CommitGate,
        hangups: HangupWatch,
        listeners: Listeners,
        verbosity: int,
    ) -> None:
        self.queue = queue
        self.server_info = server_info
        self.turns = turns
        self.gate = gate
        self.hangups = hangups
        self.listeners = listeners
        server_info.note_forbidden = listeners.note_forbidden
        self.verbosity = verbosity  # 1: log connections, 2: and commands
        self.make_client: Callable[..., Any] | None = None  # takes those who come too late to be served here
        self.open: set[Connection] = set()
        self.closing = False  # the server stops: new connections are refused
        self._emptied = asyncio.Event()

    def client_list(self) -> ClientList:
        """All who are served now."""
        return OpenConnections(self)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        if not connection.listener_policy.carried:
            self.listeners.connection_closed()
        self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """Forget a connection whose client is not served here any more."""
        self.open.discard(connection)
        if not self.open:
            self._emptied.set()

    def send_replies(self) -> None:
        """Send all replies that wait for a turn: the node hands over, and no turn is given any more. The last commit
        must follow, for those that wait for it."""
        for connection in list(self.open):
            connection.send_replies()

    async def abort_all(self) -> None:
        """Close all connections, and drop what is still to be sent; return when they are gone."""
        while self.open:
            self._emptied.clear()
            for connection in list(self.open):
                connection.transport.abort()
            await self._emptied.wait()
