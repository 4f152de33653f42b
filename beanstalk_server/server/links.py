"""The connections between nodes: a listener that leaders and standbys have, and the link of a standby to the leader.

    Connection ⇄ LinkTransport ⇄ Link ⇄ LinkEnd ⇄ TCP ⇄ LinkEnd ⇄ Link ⇄ PassedConnection
    └──────────────── leader ─────────────────┘         └─────────── standby ───────────┘

Must never know what clients say, or when a node leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from beanstalk_server.access.user import User
from beanstalk_server.cluster.engine import Lease
from beanstalk_server.cluster.link import NONCE_BYTES, TICK, Channel, Link, LinkError, Opening
from beanstalk_server.server.connection import Connection, Connections, name_of_peer
from beanstalk_server.server.entrance import Entrance
from beanstalk_server.server.standby import Standby
from beanstalk_server.wire.grammar import is_name

CLOGGED: Final = 1 << 20
"""Bytes that may wait in this process for the system to take them, before nothing more is sent on a link."""

CONNECT_WITHIN: Final = 3.0
"""Seconds until a leader must have accepted a connection."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts to reach the leader: none at first, and then each time twice as long."""

LOSSES: Final = 64
"""Clients that learn in one round of the event loop that their link is gone."""

FRAMES: Final = 128
"""Frames of a link that are done in one round of the event loop. A link carries the input of thousands of clients, and
those who are connected to this node must not wait for all of it."""

MOST_STRANGERS: Final = 64
"""Connections to the listener at a time that have not proved that they know the secret."""

log = logging.getLogger("beanstalk_server")

Connect = Callable[[Callable[[], Any], str, int], Awaitable[Any]]
"""Opens a connection for the protocol that a function makes, to a host and a port."""


class LinkTransport(Channel):
    """A client that has come through another node, as a transport for its plain connection.

    Args:
        opening: who it is, and what it has told the leader before.
        user: who it is; None for nobody.
    """

    __slots__ = (
        "_closing",
        "_connection",
        "_end",
        "_ended",
        "_high",
        "_input",
        "_lost",
        "_low",
        "_opening",
        "_output",
        "_output_size",
        "_position",
        "_protocol_paused",
        "_reading",
        "_user_is_known",
    )

    def __init__(self, end: LinkEnd, opening: Opening, entrance: Entrance, user: User | None) -> None:
        super().__init__()
        assert end.connections is not None, "this node leads"
        self._end = end
        self._opening = opening
        self._user_is_known = opening.user is None or user is not None
        self._connection: Any = Connection(end.connections, entrance, user, f"{opening.name} at {end.link.peer}")
        self._closing = False  # nothing more is read
        self._lost = False  # the connection has been told, or is about to be
        self._ended = False  # the client has shut down its sending side, and the connection is to be told
        self._reading = True
        self._input: deque[bytes] = deque()  # while the connection does not read
        self._output: deque[bytes] = deque()  # what the standby has no room for
        self._output_size = 0
        self._position = 0  # where in the first piece of the output begins what has not been sent
        self._high = 1 << 16
        self._low = 1 << 14
        self._protocol_paused = False

    # What the link calls

    def on_open(self) -> None:
        connection = self._connection
        connection.connection_made(self)
        if self._closing:
            return
        opening = self._opening
        if not self._user_is_known:
            log.warning("%s: there is no user %r here; disconnected", connection.name, opening.user)
            self.abort()
        elif not all(map(is_name, (opening.used, *opening.watched))):
            log.warning("%s: uses or watches what is no tube; disconnected", connection.name)
            self.abort()
        else:
            connection.session.restore(opening.used, opening.watched)

    def on_data(self, data: bytes) -> None:
        if self._closing:
            return
        if self._reading and not self._input:
            self.consumed(len(data))
            self._connection.data_received(data)
        else:
            self._input.append(data)

    def on_hangup(self) -> None:
        if not self._closing:
            self._connection.on_hangup()

    def on_end(self) -> None:
        if self._closing:
            return
        self._ended = True
        if self._reading and not self._input:
            self._deliver()
        else:
            self._connection.on_hangup()

    def on_user(self, name: str) -> None:
        if self._closing:
            return
        user = self._end.find_user(name)
        connection = self._connection
        if user is None:
            log.warning("%s: there is no user %r here; disconnected", connection.name, name)
            self.abort()
        else:
            connection.user = user
            connection.session.change_user(user)

    def on_room(self) -> None:
        """Send what waits, as far as there is room."""
        output = self._output
        while output and (room := self.room()):
            first = output[0]
            start = self._position
            if len(first) - start <= room:
                output.popleft()
                self._position = 0
                piece = first[start:] if start else first
            else:
                self._position = start + room
                piece = first[start : start + room]
            self._output_size -= len(piece)
            self.send(piece)
        if self._protocol_paused and self._output_size <= self._low:
            self._protocol_paused = False
            self._connection.resume_writing()
        if self._closing and not output:
            self._end_channel()

    def on_close(self, *, at_once: bool) -> None:  # noqa: ARG002 nothing more can be sent to it in any case
        self._lose()

    def on_lost(self) -> None:
        self._lose()

    # What the connection calls

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        if not self._output:
            room = self.room()
            if len(data) <= room:
                self.send(data)
                return
        self._output.append(data)
        self._output_size += len(data)
        self.on_room()
        if self._output_size > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._connection.pause_writing()

    def close(self) -> None:
        """Read no more, send what has been written, and then disconnect the client."""
        if self._closing:
            return
        self._closing = True
        self._input.clear()
        if not self._output:
            self._end_channel()

    def abort(self) -> None:
        """Disconnect the client at once."""
        if self._lost:
            return
        self.close_channel(at_once=True)
        self._lose()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._input or self._ended:
            self._end.loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high >> 2 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._output_size

    def get_extra_info(self, _: str, default: Any = None) -> Any:
        return default

    def set_protocol(self, protocol: Any) -> None:
        self._connection = protocol

    def get_protocol(self) -> Any:
        return self._connection

    def _deliver(self) -> None:
        """Hand over what has come while the connection did not read."""
        while self._input and self._reading and not self._closing:
            data = self._input.popleft()
            self.consumed(len(data))
            self._connection.data_received(data)
        if self._ended and self._reading and not self._input and not self._closing:
            self._ended = False
            self._connection.eof_received()

    def _end_channel(self) -> None:
        """Close when all has been sent."""
        self.close_channel(at_once=False)
        self._lose()

    def _lose(self) -> None:
        """Tell the connection soon that its client is gone."""
        self._closing = True
        self._input.clear()
        self._output.clear()
        self._output_size = 0
        if not self._lost:
            self._lost = True
            self._end.loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._connection.connection_lost(None)
        self._connection = None  # each has referred to the other, and the collector may be off


class LinkEnd:
    """One end of a link over TCP. It has the methods of an asyncio protocol.

    Args:
        connections: of the leader; None at the other end.
        find_user: finds the user of a name; at the leader.
        on_end: called once, with this end and why, when the connection is gone.
    """

    link: Link
    transport: asyncio.Transport

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[LinkEnd, str], None],
        connections: Connections | None = None,
        find_user: Callable[[str], User | None] = lambda _: None,
    ) -> None:
        self.loop = loop
        self.connections = connections
        self.find_user = find_user
        self._on_end = on_end
        self._entrance = Entrance("link")
        self._entrance.is_link = True
        self._why = ""  # it ends
        self._flush_is_due = False
        self._has_more = False  # frames have come that are not done: nothing is read before they are
        self._timer: asyncio.TimerHandle | None = None
        self._name = ""
        self._connected = False

    def begin(self, link: Link) -> None:
        """Use this link, whose `on_output` is `output`, and whose `accept` is `accept`."""
        self.link = link

    def output(self) -> None:
        """Send soon what the link has to send."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self.loop.call_soon(self._flush)

    def accept(self, opening: Opening) -> Channel:
        """Serve a client of the node at the other end."""
        user = None if opening.user is None else self.find_user(opening.user)
        return LinkTransport(self, opening, self._entrance, user)

    def close(self, why: str) -> None:
        """End at once."""
        self._why = self._why or why
        if self._connected:
            self.transport.abort()
        self._lose(deque(self.link.take_channels()))  # at once, because what they send from now on would be lost
        self.link.let_go()

    def say_goodbye(self, why: str) -> None:
        """Let the clients of the other node go, tell it why, and end."""
        self._why = self._why or why
        channels = self.link.take_channels()
        if self._connected and not self.link.closing:
            self.link.say_goodbye(why)
            self._flush()
        for channel in channels:
            channel.on_lost()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connected = True
        self._name = name_of_peer(self.transport)
        self.transport.set_write_buffer_limits(CLOGGED)
        self._timer = self.loop.call_later(TICK, self._tick)
        if self._why:
            self.transport.abort()
        else:
            self._flush()

    def data_received(self, data: bytes) -> None:
        """Do the frames that have come, some in each round."""
        if self._why or not self._connected:
            return
        try:
            has_more = self.link.receive(data, FRAMES)
        except LinkError as error:
            self._complain(str(error))
            self.close(str(error))
        except Exception:
            log.exception("link with %s failed; this is a bug in the server", self._name)
            self.close("it has failed")
        else:
            if self.link.farewell is not None:
                self.close(self.link.farewell)
            self._flush()
            self._read_later(has_more)

    def _read_later(self, has_more: bool) -> None:
        """Read nothing while there are frames to be done, which are in the next round."""
        if has_more is not self._has_more and not self.transport.is_closing():
            self._has_more = has_more
            if has_more:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        if has_more:
            self.loop.call_soon(self.data_received, b"")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.link.clog()

    def resume_writing(self) -> None:
        self.link.unclog()

    def connection_lost(self, error: Exception | None) -> None:
        self._connected = False
        if self._timer is not None:
            self._timer.cancel()
        self._on_end(self, self._why or (str(error) if error else "the other end has closed it"))
        self._lose(deque(self.link.take_channels()))
        self.link.let_go()

    def _lose(self, channels: deque[Channel]) -> None:
        """Tell the clients, some in each round. Those that have another link by now have been told."""
        for _ in range(min(LOSSES, len(channels))):
            channel = channels.popleft()
            if channel.link is None:
                channel.on_lost()
        if channels:
            self.loop.call_soon(self._lose, channels)

    def _flush(self) -> None:
        self._flush_is_due = False
        if not self._connected or self.transport.is_closing():
            return
        data = self.link.take_output()
        if data:
            self.transport.write(data)
        if self.link.closing:
            self.transport.close()

    def _complain(self, why: str) -> None:
        """Tell the log why the link is closed, unless whoever has opened it does so."""
        if self.connections is not None:
            log.warning("link with %s: %s; closed", self._name, why)

    def _tick(self) -> None:
        if not self.link.tick():
            why = "it is silent" if self.link.is_open else "it does not prove in time that it knows the secret"
            self._complain(why)
            self.close(why)
            return
        self._timer = self.loop.call_later(TICK, self._tick)


class LinkListener:
    """Where other nodes open links to this one, while it leads; otherwise they are told that it does not.

    Args:
        node: what other nodes call this one in their logs.
        max_job_size: as the sessions of this node have it.
    """

    def __init__(self, node: str, max_job_size: int) -> None:
        self.node = node
        self._max_job_size = max_job_size
        self._server: asyncio.AbstractServer | None = None
        self._ends: dict[LinkEnd, None] = {}
        self._lease: Lease | None = None  # while this node leads
        self._connections: Connections | None = None
        self._find_user: Callable[[str], User | None] = _find_nobody

    @property
    def links(self) -> list[Link]:
        """To the nodes that stand by."""
        return [end.link for end in self._ends if end.link.is_open]

    async def start(self, host: str, port: int) -> int:
        """Listen at an address; return the port, which the system chooses if 0 is given.

        Raises:
            OSError: it is taken, or none of this machine.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(cast(Any, self.make_end), host, port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def lead(self, lease: Lease, connections: Connections, find_user: Callable[[str], User | None]) -> None:
        """Take links from now on, of nodes that know the secret of this lease, and serve their clients.

        Args:
            connections: what serves them.
            find_user: finds the user of a name.
        """
        self._lease = lease
        self._connections = connections
        self._find_user = find_user

    def stand_by(self, why: str) -> None:
        """Take no more links, and close those that there are. The other nodes are told why, and their clients go on."""
        self._lease = None
        self._connections = None
        for end in list(self._ends):
            end.say_goodbye(why)

    async def stop(self) -> None:
        """Close the socket and all links."""
        self.stand_by("the node stops")
        if self._server is not None:
            self._server.close()
        for end in list(self._ends):
            end.close("the node stops")

    def make_end(self) -> LinkEnd:
        """The protocol of a connection that another node has opened."""
        lease = self._lease
        end = LinkEnd(asyncio.get_running_loop(), self._forget, self._connections, self._user)
        link = Link(
            dials=False,
            secret=os.urandom(NONCE_BYTES).hex() if lease is None else lease.secret,
            epoch=0 if lease is None else lease.epoch,
            node=self.node,
            nonce=os.urandom(NONCE_BYTES),
            on_output=end.output,
            on_open=self._on_open,
            accept=end.accept,
            max_job_size=self._max_job_size,
        )
        end.begin(link)
        strangers = [each for each in self._ends if not each.link.is_open]
        if len(strangers) >= MOST_STRANGERS:
            strangers[0].close("it gives way to a newer one")
        self._ends[end] = None
        if lease is None:
            link.say_goodbye("it does not lead")
        return end

    def _user(self, name: str) -> User | None:
        return self._find_user(name)

    def _on_open(self, link: Link) -> None:
        log.info("node %s stands by, and passes its clients on", link.peer)

    def _forget(self, end: LinkEnd, why: str) -> None:
        self._ends.pop(end, None)
        if end.link.is_open:
            log.info("node %s has gone: %s", end.link.peer, why)


class LeaderLink:
    """The link of a standby to whoever leads.

    Args:
        standby: its clients.
        node: what the leader calls this node in its log.
        on_gone: called with an epoch and a node when the process that leads there is gone: its address refuses. Also
            with whether it was reached there before; if not, somebody else may be the one that refuses.
        on_farewell: called when the leader has said that it leads no more.
        connect: opens connections; None for those of the event loop.
    """

    def __init__(
        self,
        standby: Standby,
        node: str,
        on_gone: Callable[[int, str, bool], None],
        on_farewell: Callable[[], None],
        connect: Connect | None = None,
    ) -> None:
        self._standby = standby
        self._node = node
        self._on_gone = on_gone
        self._on_farewell = on_farewell
        self._connect = connect
        self._lease: Lease | None = None  # of the leader that is followed
        self._was_reached = False
        self._task: asyncio.Task[None] | None = None
        self._end: LinkEnd | None = None
        self._ended: asyncio.Future[str] | None = None  # of the present link: why it has ended
        self._complaint = ""  # what the log has been told last

    @property
    def is_open(self) -> bool:
        """Whether clients are passed on."""
        return self._end is not None and self._end.link.is_open

    def follow(self, lease: Lease) -> None:
        """Pass the clients to the holder of this lease; to nobody, if it has none."""
        before = self._lease or Lease()
        same = (before.epoch, before.address, before.secret) == (lease.epoch, lease.address, lease.secret)
        if same and lease.node:
            return
        self.leave()
        if lease.node and lease.address and lease.secret:
            self._lease = lease
            self._was_reached = False
            self._task = asyncio.get_running_loop().create_task(self._follow(lease))

    def leave(self) -> None:
        """Close the link, and open no other one before `follow`."""
        self._lease = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        end, self._end = self._end, None
        if end is not None:
            self._standby.lose(end.link)
            end.close("another node leads, or this one")

    async def stop(self) -> None:
        """Do the same; return when nothing is under way any more."""
        task = self._task
        self.leave()
        if task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self, lease: Lease) -> None:
        """Open a link to the leader, again and again."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        try:
            while True:
                began = loop.time()
                why = await self._pass(lease)
                if loop.time() - began > LONGEST_PAUSE:
                    pause = 0.0  # the link has been open for a while
                if why != self._complaint:
                    self._complaint = why
                    log.warning("the leader at %s cannot be reached: %s", lease.address, why)
                await asyncio.sleep(pause)
                pause = min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        except Exception:
            log.exception("the leader is followed no more; this is a bug in the server")

    async def _pass(self, lease: Lease) -> str:
        """Open a link, and pass the clients on until it ends; return why it ended, or could not be opened."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        end = LinkEnd(loop, lambda _, why: None if ended.done() else ended.set_result(why))
        end.begin(
            Link(
                dials=True,
                secret=lease.secret,
                epoch=lease.epoch,
                node=self._node,
                nonce=os.urandom(NONCE_BYTES),
                on_output=end.output,
                on_open=self._on_open,
            )
        )
        try:
            why = await self._dial(lease, end)
            if why:
                return why
            self._end = end
            why = await ended
        finally:
            if self._end is end:
                self._end = None
            self._standby.lose(end.link)
            end.close("another node leads, or this one")
        if end.link.is_open and end.link.farewell is not None:
            self._on_farewell()
        return why

    async def _dial(self, lease: Lease, end: LinkEnd) -> str:
        """Connect to the leader; return why that has failed, or ""."""
        host, _, port = lease.address.rpartition(":")
        connect = self._connect or asyncio.get_running_loop().create_connection
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                await connect(cast(Any, lambda: end), host.strip("[]"), int(port))
        except ConnectionRefusedError:
            self._on_gone(lease.epoch, lease.node, self._was_reached)
            return "the connection is refused"
        except TimeoutError:
            return f"no answer within {CONNECT_WITHIN:g} s"
        except (OSError, ValueError) as error:
            return str(error) or type(error).__name__
        self._was_reached = True
        return ""

    def _on_open(self, link: Link) -> None:
        assert self._lease is not None, "it is being followed"
        self._complaint = ""
        log.info("passes its clients to the leader at %s", self._lease.address)
        self._standby.follow(link)


def _find_nobody(_: str) -> User | None:
    return None
