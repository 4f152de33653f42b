"""Accepts connections: PROXY header, TLS handshake and authentication, until the client is admitted.

    PROXY header ─→ TLS handshake ─→ auth line, certificate, or peer ─→ Connection
         │               │                        │
         └───────────────┴────────────────────────┴─→ refused, with a line in the log

Each listener requires some of these steps (`ListenerPolicy`), in this order. The connection that takes over gets all
bytes that followed. A pending connection has bounds:

    what                          bound                          beyond it
    ----------------------------  -----------------------------  ---------------------------------------------
    pending connections           MAX_PENDING, and half of the   the oldest is evicted; while it waits for its
                                  connections allowed            turn, none is accepted from half of that on
    time for all steps            TIME_LIMIT                     closed
    a header, a line              LONGEST_HEADER, LINE_LIMIT     refused
    bytes that wait for a turn    one read                       reading is paused
    work                          the round's budget             waits for its turn
    bytes after a refusal         LINGER_LIMIT                   closed, even while the client sends

A refused client gets a reply and the end of the output. Its further input is read and dropped until it hangs up: a
socket that is closed with unread input sends a reset, which overtakes the reply. (After a failed handshake, the TLS
transport closes at once: a client that sends tens of KiB without waiting may then miss the alert.)
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, cast

from beanstalk_server.access.rights import User
from beanstalk_server.events import event
from beanstalk_server.queue.units import SECOND
from beanstalk_server.server.bounded import Refusals
from beanstalk_server.server.front.addresses import is_unix, name_of_peer
from beanstalk_server.server.front.listener_policy import CERTIFICATE, PEER, TOKEN, ListenerPolicy
from beanstalk_server.server.turns import Runnable, Turns
from beanstalk_server.wire import replies
from beanstalk_server.wire.framing import LINE_LIMIT
from beanstalk_server.wire.grammar import parse_auth

MAX_PENDING: Final = 1024
"""PendingConnections at a time."""

TIME_LIMIT: Final = 10 * SECOND
"""Nanoseconds that a pending connection has to become known."""

LINGER_LIMIT: Final = 1 << 18
"""Bytes that are read from a refused client, and dropped, before it is cut off."""

READ_COST: Final = 4
"""The cost of a read, in the unit of SESSION_QUANTUM."""

STEP_COST: Final = 8
"""The cost of a header that is read, or of a client that is recognized."""

CLOSE_COST: Final = 12
"""The cost of refusing a client: two system calls, and the end of the connection."""

QUIT: Final = b"quit"
CREDENTIALS: Final = "=iII"  # struct ucred of unix(7): process, user and group
CREDENTIALS_SIZE: Final = 12

# What a pending connection waits for
HEADER: Final = 0
HANDSHAKE: Final = 1
LINE: Final = 2
HANG_UP: Final = 3  # it has been refused
NOTHING: Final = 4  # a connection has taken over, or the client is gone

log = logging.getLogger("beanstalk_server")


class PendingConnection(Runnable):
    """One client before it is admitted.

    It has the methods of an asyncio protocol, and does not inherit from one, as `Connection` does not.
    """

    def __init__(self, pending: PendingConnections, listener_policy: ListenerPolicy) -> None:
        super().__init__()
        self.deadline = 0  # nanoseconds
        self.listener_policy = listener_policy  # where it has come
        self._pending = pending
        self._transport: asyncio.Transport | None = None  # the plain one
        self._channel: asyncio.Transport | None = None  # speaks with the client: the plain transport, or TLS above it
        self._stage = NOTHING
        self._data = b""  # has come, and is not done
        self._dropped = 0  # bytes that have come after a refusal
        self._ended = False  # the client has shut down its sending side
        self._paused = False  # nothing is read until its turn
        self._is_local = False  # a proxy speaks for itself
        self._names: list[str] = []  # in the client's certificate
        self._name = ""  # what the log calls it: the address that it has connected from, or that a proxy speaks for

    @property
    def waits(self) -> bool:
        """Whether it has sent something, and waits for its turn."""
        return self.queued or (self._stage == HANDSHAKE and cast(Any, self._channel).queued)

    # What the event loop or TLS calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        self._transport = plain
        self._channel = plain
        self._name = name_of_peer(plain)
        listener_policy = self.listener_policy
        self._pending.add(self)
        if listener_policy.closed or self._pending.turns.stopped:
            plain.abort()
        elif listener_policy.wants_header:
            peer = plain.get_extra_info("peername")
            if is_unix(plain) or (isinstance(peer, tuple) and listener_policy.trusts(peer[0])):
                self._stage = HEADER
            elif peer is None:
                plain.abort()  # it is gone, so its address is unknown: its input must not be read
            else:
                self._refuse("not a trusted proxy", b"")
        else:
            self._secure()

    def data_received(self, data: bytes) -> None:
        turns = self._pending.turns
        turns.spend(READ_COST)
        if self._stage == HANG_UP:
            self._dropped += len(data)
            if self._dropped > LINGER_LIMIT:
                self.abort()
            return
        self._data = self._data + data if self._data else data
        if self.queued:
            return
        if turns.budget <= 0:
            channel = self._channel
            if channel is not None:
                channel.pause_reading()
                self._paused = True
            turns.enqueue(self)
        else:
            turns.spend(self._advance())
        turns.run_pending()

    def eof_received(self) -> bool:
        self._ended = True
        return self.queued  # else what it has sent is not enough, and no more will come

    def pause_writing(self) -> None:
        """Close: replies to a pending connection are short, but TLS answers every change of keys."""
        if self.expire("does not read replies"):
            self.listener_policy.failures += 1

    def resume_writing(self) -> None:
        """Do nothing."""

    def connection_lost(self, _: Exception | None) -> None:
        if self._stage != NOTHING or self._transport is not None:
            self._detach()
            self._pending.on_closed()

    def take_turn(self) -> int:
        try:
            channel = self._channel
            if channel is None or channel.is_closing():
                return 0
            self._resume()
            cost = self._advance()
            if self._ended and self._stage in (HEADER, LINE):
                channel.close()  # what it has sent is not enough
            return cost
        except Exception:
            log.exception(
                "%(client)s: accepting a client failed; this is a bug in the server",
                event("bug-in-arrival", client=self._name),
            )
            self.abort()
            return STEP_COST

    def is_slow(self) -> bool:
        return False

    def label(self) -> str:
        return self._name

    # The steps

    def _advance(self) -> int:
        """Do what the bytes that have come allow; return the cost."""
        if self._stage == HEADER:
            return self._read_header()
        if self._stage == LINE:
            return self._read_line()
        return 0

    def _read_header(self) -> int:
        from beanstalk_server.server.front.proxy_header import ProxyHeader, read_header

        header = read_header(self._data)
        if header is None:
            return 0
        if not isinstance(header, ProxyHeader):
            self._refuse(header, b"")
            return CLOSE_COST
        self._data = self._data[header.size :]
        self._is_local = header.is_local
        self._name = header.source or self._name
        if header.certificate_name:
            self._names.append(header.certificate_name)
        self._secure()
        return STEP_COST

    def _secure(self) -> None:
        """Begin the handshake, if there is to be one."""
        context = self.listener_policy.context
        plain = self._transport
        assert plain is not None, "it is connected"
        if context is None:
            self._identify()
            return
        from beanstalk_server.server.front.tls import TlsTransport

        self._stage = HANDSHAKE
        tls: Any = TlsTransport(context, self._pending.turns, self._on_secure, self._on_failure)
        data = self._data
        self._data = b""
        plain.set_protocol(tls)
        tls.connection_made(plain)
        self._channel = tls
        if data:
            tls.data_received(data)
        if self._ended:
            tls.eof_received()

    def _on_secure(self, tls: Any) -> None:
        """Go on after the handshake."""
        tls.set_protocol(self)  # in any case: it reports the end of the connection
        if self._stage == HANDSHAKE:
            self._names = tls.names()
            self._identify()

    def _on_failure(self, tls: Any, reason: str) -> None:
        """Note that there will be no handshake: TLS has closed the connection, or has seen it close."""
        tls.set_protocol(self)  # it reports the end of the connection: only then is there room for another one
        from beanstalk_server.server.front.tls import NO_FAILURES

        if self._stage == HANDSHAKE and reason not in NO_FAILURES:
            self.listener_policy.failures += 1
            self._note(reason)
        self._stage = HANG_UP

    def _identify(self) -> None:
        """Find the user of the client, unless a command or an HTTP request names it later."""
        policy = self.listener_policy
        user = None
        reason = ""
        if policy.auth == CERTIFICATE:
            user = policy.user_of_certificate(self._names)
            names = " or ".join(map(ascii, self._names))
            reason = f"no user has the name in the certificate: {names}" if names else "no certificate"
        elif policy.auth == PEER:
            uid = self._uid()
            user = policy.user_of_uid(uid)
            reason = f"no user has the uid {uid}"
        if user is not None or policy.is_http or policy.auth not in (TOKEN, CERTIFICATE, PEER):
            self._admit(user)
        elif policy.auth == TOKEN:
            self._stage = LINE
            if self._data:
                self._read_line()
        elif policy.auth == CERTIFICATE and self._is_local:
            self._hang_up(replies.UNAUTHORIZED)  # a health check of the proxy
        else:
            self._refuse(reason)

    def _uid(self) -> int:
        """Which user of the system runs the process at the other end of a UNIX socket."""
        transport = self._transport
        assert transport is not None, "it is connected"
        sock = transport.get_extra_info("socket")
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS_SIZE)
        uid: int = struct.unpack(CREDENTIALS, found)[1]
        return uid

    def _read_line(self) -> int:
        """Take the command that says who the client is."""
        data = self._data
        end = data.find(b"\r\n", 0, LINE_LIMIT)
        if end < 0:
            if len(data) < LINE_LIMIT:
                return 0
            self._refuse("line too long")
            return CLOSE_COST
        line = data[:end]
        if line == QUIT:
            self._hang_up(b"")
            return CLOSE_COST
        token = parse_auth(line)
        if not token:
            self._refuse("expected an auth command")
            return CLOSE_COST
        user = self.listener_policy.user_of_token(token)
        if user is None:
            self._refuse("unknown token")
            return CLOSE_COST
        channel = self._channel
        assert channel is not None, "it is connected"
        self._data = data[end + 2 :]
        channel.write(replies.AUTHENTICATED)
        self._admit(user)
        return STEP_COST

    # The end of a pending connection

    def _admit(self, user: User | None) -> None:
        """Let a connection take over, with what has come and is not done."""
        channel = self._channel
        assert channel is not None, "it is connected"
        connection = self._pending.make_client(self.listener_policy, user, self._name)
        data = self._data
        self._detach()
        channel.set_protocol(connection)
        connection.connection_made(channel)
        if channel.is_closing():
            return  # the server stops, or does not serve it
        if data:
            connection.data_received(data)
        if self._ended and not channel.is_closing():
            connection.eof_received()

    def _refuse(self, reason: str, reply: bytes = replies.UNAUTHORIZED) -> None:
        self.listener_policy.failures += 1
        self._note(reason)
        self._hang_up(reply)

    def _note(self, reason: str) -> None:
        self._pending.refusals.note(self._name, self.listener_policy.place, reason)

    def _hang_up(self, reply: bytes) -> None:
        """Send a last reply, and then read until the client hangs up too."""
        self._stage = HANG_UP
        self._data = b""
        channel = self._channel
        assert channel is not None, "it is connected"
        if reply:
            channel.write(reply)
        if self._ended:
            channel.close()
        else:
            self._resume()
            channel.write_eof()

    def expire(self, reason: str) -> bool:
        """Close: its time is over, or it has to make room. Return whether it had not been refused before."""
        is_new = self._stage != HANG_UP
        if is_new:
            self._note(reason)
            self._stage = HANG_UP
        self.abort()
        return is_new

    def abort(self) -> None:
        """Close at once."""
        channel = self._channel
        if channel is not None:
            channel.abort()

    def _resume(self) -> None:
        if self._paused and self._channel is not None:
            self._paused = False
            self._channel.resume_reading()

    def _detach(self) -> None:
        """Be no connection any more, and let go of everything."""
        self._stage = NOTHING
        self._transport = None
        self._channel = None
        self._data = b""
        self._pending.remove(self)


class PendingConnections:
    """All pending connections, oldest first.

    Args:
        turns: those in which they are looked at.
        make_client: makes the protocol of an admitted client, from its listener_policy, user and name.
        allowed: returns the maximum number of connections.
        on_closed: called when one has been closed before it was admitted.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        turns: Turns,
        make_client: Callable[..., Any],
        allowed: Callable[[], int],
        on_closed: Callable[[], object],
    ) -> None:
        self.turns = turns
        self.make_client = make_client
        self.allowed = allowed
        self.on_closed = on_closed
        self.refusals = Refusals()
        self.displaced = 0  # how many have been closed to make room for others
        self.timeouts = 0  # how many, because they were not known in time
        self._all: dict[PendingConnection, None] = {}
        self._timer: asyncio.Handle | None = None  # for the oldest
        self._emptied = asyncio.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use the timers of this event loop from now on."""
        self._loop = loop
        self.refusals.start(loop)

    async def stop(self) -> None:
        """Close all of them at once; return when they are gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._all:
            self._emptied.clear()
            self.abort(list(self._all))
            await self._emptied.wait()
        self.refusals.stop()

    def __len__(self) -> int:
        return len(self._all)

    def at(self, listener_policy: ListenerPolicy) -> list[PendingConnection]:
        """The pending connections of one listener."""
        return [connection for connection in self._all if connection.listener_policy is listener_policy]

    def abort(self, pending: list[PendingConnection]) -> None:
        """Close some of them at once."""
        for connection in pending:
            connection.abort()

    def add(self, connection: PendingConnection) -> None:
        """Add a connection. If there are too many, evict the oldest."""
        limit = self._limit()
        if len(self._all) >= limit:
            oldest = next(iter(self._all))
            del self._all[oldest]  # now, because its transport reports its end later
            if oldest.expire(f"evicted: {limit} unauthenticated connections"):
                self.displaced += 1
        connection.deadline = self.turns.clock() + TIME_LIMIT
        self._all[connection] = None
        if self._timer is None:
            self._set_timer()

    def _limit(self) -> int:
        return min(MAX_PENDING, max(self.allowed() >> 1, 1))

    def is_crowded(self) -> bool:
        """Whether those who have come wait for the server: one more might cost one of them its place."""
        limit = self._limit()
        if len(self._all) <= limit >> 1:
            return False
        return next(iter(self._all)).waits or len(self.turns.handshakes) > limit >> 2

    def remove(self, connection: PendingConnection) -> None:
        """Forget one that has been let in, or is gone."""
        self._all.pop(connection, None)
        if not self._all:
            self._emptied.set()

    def _set_timer(self) -> None:
        oldest = next(iter(self._all))
        left = max(oldest.deadline - self.turns.clock(), 0)
        self._timer = self._loop.call_later(left / SECOND, self.expire)

    def expire(self) -> None:
        """Close those whose time is over."""
        self._timer = None
        now = self.turns.clock()
        for connection in list(self._all):
            if connection.deadline > now:
                break
            del self._all[connection]  # now, because its transport reports its end later
            if connection.expire(f"not authenticated within {TIME_LIMIT // SECOND} s"):
                self.timeouts += 1
        if self._all:
            self._set_timer()
