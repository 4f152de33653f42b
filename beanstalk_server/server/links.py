"""The connections between nodes: a listener that leaders and standbys have, and the link of a standby to the leader.

    Connection ⇄ LinkTransport ⇄ Link ⇄ LinkEnd ⇄ TCP ⇄ LinkEnd ⇄ Link ⇄ PassedConnection
    └──────────────── leader ─────────────────┘         └─────────── standby ───────────┘

Must never know what clients say, or when a node leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from beanstalk_server.access.user import User
from beanstalk_server.cluster.engine import Lease
from beanstalk_server.link.link import NONCE_BYTES, Channel, Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.server.connection import Connection, Connections
from beanstalk_server.server.entrance import Entrance
from beanstalk_server.server.link_end import LinkEnd
from beanstalk_server.server.link_transport import LinkTransport
from beanstalk_server.server.standby import Standby
from beanstalk_server.wire.grammar import is_name

CONNECT_WITHIN: Final = 3.0
"""Seconds until a leader must have accepted a connection."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts to reach the leader: none at first, and then each time twice as long."""

MOST_STRANGERS: Final = 64
"""Connections to the listener at a time that have not proved that they know the secret."""

log = logging.getLogger("beanstalk_server")

Connect = Callable[[Callable[[], Any], str, int], Awaitable[Any]]
"""Opens a connection for the protocol that a function makes, to a host and a port."""


class LinkListener:
    """Where other nodes open links to this one, while it leads; otherwise they are told that it does not.

    Args:
        node: what other nodes call this one in their logs.
        max_job_size: as the sessions of this node have it.
    """

    def __init__(self, node: str, max_job_size: int) -> None:
        self.node = node
        self._max_job_size = max_job_size
        self._server: asyncio.Server | None = None
        self._ends: dict[LinkEnd, None] = {}
        self._lease: Lease | None = None  # while this node leads
        self._connections: Connections | None = None
        self._find_user: Callable[[str], User | None] = _find_nobody
        self._emptied = asyncio.Event()
        self._entrance = Entrance("link")
        self._entrance.is_link = self._entrance.carried = True

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
        """Close the socket and all links; return when they are gone."""
        self.stand_by("the node stops")
        if self._server is not None:
            # asyncio loses who has been accepted and has no protocol yet, which follows in the next round.
            for sock in self._server.sockets:
                asyncio.get_running_loop().remove_reader(sock.fileno())
            await asyncio.sleep(0)
            self._server.close()
        while self._ends:
            self._emptied.clear()
            for end in list(self._ends):
                end.close("the node stops")
            await self._emptied.wait()

    def make_end(self) -> LinkEnd:
        """The protocol of a connection that another node has opened."""
        lease = self._lease
        end = LinkEnd(asyncio.get_running_loop(), self._forget, complains=lease is not None)
        link = Link(
            dials=False,
            secret=os.urandom(NONCE_BYTES).hex() if lease is None else lease.secret,
            epoch=0 if lease is None else lease.epoch,
            node=self.node,
            nonce=os.urandom(NONCE_BYTES),
            on_output=end.output,
            on_open=self._on_open,
            accept=functools.partial(self._accept, end),
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

    def _accept(self, end: LinkEnd, payload: bytes) -> Channel:
        """Serve a client of another node."""
        opening = Opening.decode(payload)
        assert self._connections is not None, "this node leads"
        user = None if opening.user is None else self._find_user(opening.user)
        connection = Connection(self._connections, self._entrance, user, f"{opening.name} at {end.link.peer}")
        begin = functools.partial(self._begin, opening, is_known=opening.user is None or user is not None)
        return LinkTransport(end.loop, connection, begin, self._change_user)

    def _begin(self, opening: Opening, transport: LinkTransport, *, is_known: bool) -> None:
        """Go on where the client was before it came here."""
        connection = transport.get_protocol()
        if not is_known:
            log.warning("%s: there is no user %r here; disconnected", connection.name, opening.user)
            transport.abort()
        elif not all(map(is_name, (opening.used, *opening.watched))):
            log.warning("%s: uses or watches what is no tube; disconnected", connection.name)
            transport.abort()
        else:
            connection.session.restore(opening.used, opening.watched)

    def _change_user(self, transport: LinkTransport, name: str) -> None:
        user = self._find_user(name)
        connection = transport.get_protocol()
        if user is None:
            log.warning("%s: there is no user %r here; disconnected", connection.name, name)
            transport.abort()
        else:
            connection.user = user
            connection.session.change_user(user)

    def _on_open(self, link: Link) -> None:
        log.info("node %s stands by, and passes its clients on", link.peer)

    def _forget(self, end: LinkEnd, why: str) -> None:
        self._ends.pop(end, None)
        if not self._ends:
            self._emptied.set()
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
