"""The connections between nodes: a listener that each of them has, and a shard's link to its leader.

Connection ⇄ LinkTransport ⇄ Link ⇄ LinkEnd ⇄ TCP ⇄ LinkEnd ⇄ Link ⇄ a client's channel
└──────────────── leader ─────────────────┘         └──────────── standby ────────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from beanstalk_server.access.rights import User
from beanstalk_server.cluster.engine.interface import Lease
from beanstalk_server.events import Log, event
from beanstalk_server.link.link import NONCE_BYTES, NOT_LEADING, Channel, Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.queue.weights import MODES
from beanstalk_server.server.bounded import BoundedLog
from beanstalk_server.server.connection import Connection, Connections
from beanstalk_server.server.front.listener_policy import LINK, NONE, ListenerPolicy
from beanstalk_server.server.keepalive import set_keepalive
from beanstalk_server.server.link_end import LinkEnd
from beanstalk_server.server.link_transport import LinkTransport
from beanstalk_server.tube_names import is_name
from beanstalk_server.wire.grammar import Arguments, read_watch

CONNECT_WITHIN: Final = 3.0
"""Seconds until a leader must have accepted a connection."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts to reach the leader: none at first, and then each time twice as long."""

EARLY_PAUSE: Final = 0.25
"""The longest of these pauses while the leader has the lease, and still reads the jobs."""

MAX_UNAUTHENTICATED: Final = 64
"""Connections to the listener at a time that have not proved that they know the secret, besides one for each shard: so
many may a node open that starts."""

GOODBYE_WITHIN: Final = 1.0
"""Seconds after a GOODBYE until the other nodes must have closed their links, when the listener stops."""

log = logging.getLogger("beanstalk_server")

COMPLAINTS: Final = 10
"""Maximum number of lines about closed links in COMPLAINTS_INTERVAL: any host may try to open one."""

COMPLAINTS_INTERVAL: Final = 60
"""Seconds."""

Connect = Callable[[Callable[[], Any], str, int], Awaitable[Any]]
"""Opens a connection for the protocol that a function makes, to a host and a port."""


class Led(NamedTuple):
    """A shard that this node leads."""

    lease: Lease
    connections: Connections
    find_user: Callable[[str], User | None]
    log: Log


class LinkListener:
    """Where other nodes open links to the shards that this one leads; for others, they are told that it does not.

    Args:
        node: what other nodes call this one in their logs.
        max_job_size: as the sessions of this node have it.
        shards: how many there are in the cluster.
        keepalive: the value of --keepalive.
    """

    def __init__(self, node: str, max_job_size: int, shards: int = 1, keepalive: int | str = 0) -> None:
        self.node = node
        self._keepalive = keepalive
        self._shards = shards
        self._max_job_size = max_job_size
        self._server: asyncio.Server | None = None
        self._ends: dict[LinkEnd, None] = {}
        self._unauthenticated: dict[LinkEnd, None] = {}  # those whose other end has proved nothing
        self._led: dict[int, Led] = {}  # by shard
        self._emptied = asyncio.Event()
        self._complaints = BoundedLog(COMPLAINTS, COMPLAINTS_INTERVAL, log_more_closed)
        self._listener_policy = ListenerPolicy("link")
        self._listener_policy.is_link = self._listener_policy.carried = True

    @property
    def links(self) -> list[Link]:
        """To the nodes that pass clients on to this one, one for each of its shards."""
        return [end.link for end in self._ends if end.link.is_open and not end.link.closing]

    async def start(self, host: str, port: int) -> int:
        """Listen at an address; return the port, which the system chooses if 0 is given.

        Raises:
            OSError: it is taken, or none of this machine.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(cast(Any, self.make_end), host, port, start_serving=False)
        for sock in self._server.sockets:
            set_keepalive(sock, self._keepalive)
        await self._server.start_serving()
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def ask_for_users(self, asks: bool) -> None:
        """Require a user of the clients of other nodes, if all listeners of this node require one."""
        self._listener_policy.auth = LINK if asks else NONE

    def lead(
        self,
        shard: int,
        lease: Lease,
        connections: Connections,
        find_user: Callable[[str], User | None],
        log: Log = log,
    ) -> None:
        """Take links to a shard from now on, of nodes that know the secret of its lease, and serve their clients.

        Args:
            connections: what serves them.
            find_user: finds the user of a name.
            log: takes lines about this shard.
        """
        self._led[shard] = Led(lease, connections, find_user, log)

    def stand_by(self, shard: int, why: str, *, is_clean: bool = False) -> None:
        """Take no more links to a shard, and end those that there are. The other nodes are told why.

        Args:
            is_clean: promise that all executed commands of their clients have been answered. Nothing more may be
                executed there, and all that was executed must be committed. Clients that have not been answered all
                the same are disconnected.
        """
        self._led.pop(shard, None)
        for end in list(self._ends):
            if end.link.shard == shard:
                end.say_goodbye(why, is_clean=is_clean)

    async def stop(self) -> None:
        """Close the socket and all links; return when they are gone."""
        for shard in list(self._led):
            self.stand_by(shard, "the node is stopping")
        if self._server is not None:
            # asyncio loses who has been accepted and has no protocol yet, which follows in the next round.
            for sock in self._server.sockets:
                asyncio.get_running_loop().remove_reader(sock.fileno())
            await asyncio.sleep(0)
            self._server.close()
        for end in list(self._unauthenticated):
            end.close("the node is stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_WITHIN):
                await self._wait_until_empty()
        for end in list(self._ends):
            end.close("the node is stopping")
        await self._wait_until_empty()
        self._complaints.stop()

    async def _wait_until_empty(self) -> None:
        while self._ends:
            self._emptied.clear()
            await self._emptied.wait()

    def make_end(self) -> LinkEnd:
        """The protocol of a connection that another node has opened."""
        loop = asyncio.get_running_loop()
        self._complaints.start(loop)
        end = LinkEnd(loop, self._forget, complains=True, complaints=self._complaints)
        end.begin(
            Link(
                dials=False,
                find=self._find,
                node=self.node,
                nonce=os.urandom(NONCE_BYTES),
                on_output=end.output,
                on_open=functools.partial(self._on_open, end),
                accept=functools.partial(self._accept, end),
                max_job_size=self._max_job_size,
            )
        )
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED + self._shards:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.close(f"evicted: {MAX_UNAUTHENTICATED + self._shards} unauthenticated links")
        self._ends[end] = self._unauthenticated[end] = None
        return end

    def _find(self, shard: int) -> tuple[str, int] | None:
        led = self._led.get(shard)
        return None if led is None else (led.lease.secret, led.lease.epoch)

    def _accept(self, end: LinkEnd, payload: bytes) -> Channel:
        """Serve a client of another node."""
        opening = Opening.decode(payload)
        led = self._led[end.link.shard]
        user = None if opening.user is None else led.find_user(opening.user)
        name = f"{opening.name} at {end.link.peer}"
        connections = led.connections
        dialect = connections.server_info.linked_dialect
        connection = Connection(connections, self._listener_policy, user, name, dialect, opening.counted)
        is_known = self._listener_policy.auth == NONE if opening.user is None else user is not None
        if not is_known:
            log_unknown_user(name, opening.user)
        begin = functools.partial(self._begin, opening, is_known=is_known)
        return LinkTransport(end.loop, connection, begin, self._change_user)

    def _begin(self, opening: Opening, transport: LinkTransport, *, is_known: bool) -> None:
        """Go on where the client was before it came here."""
        connection = transport.get_protocol()
        if not is_known:
            transport.abort()
        elif not (_are_tubes(opening) and 0 <= opening.mode < len(MODES)):
            log.warning("%(client)s: invalid tube name; disconnected", event("bad-tube", client=connection.name))
            transport.abort()
        else:
            connection.session.restore(opening.used, opening.watched, opening.mode, opening.client_name)

    def _change_user(self, transport: LinkTransport, name: str) -> None:
        assert transport.link is not None, "its link calls this"
        user = self._led[transport.link.shard].find_user(name)
        connection = transport.get_protocol()
        if user is None:
            log_unknown_user(connection.name, name)
            transport.abort()
        else:
            connection.change_user(user)

    def _on_open(self, end: LinkEnd, link: Link) -> None:
        self._unauthenticated.pop(end, None)
        self._led[link.shard].log.info(
            "node %(node)s is a standby and relays its clients", event("node-stands-by", node=link.peer)
        )

    def _forget(self, end: LinkEnd, why: str) -> None:
        self._ends.pop(end, None)
        self._unauthenticated.pop(end, None)
        if not self._ends:
            self._emptied.set()
        led = self._led.get(end.link.shard)
        if led is not None and end.link.is_open:
            led.log.info("node %(node)s disconnected: %(reason)s", event("node-gone", node=end.link.peer, reason=why))


def log_unknown_user(client: str, user: str | None) -> None:
    """Log that a client is disconnected, because its node has let it in, and this one would not."""
    log.warning(
        "%(client)s: this node has no user %(user)r; disconnected"
        if user is not None
        else "%(client)s: not authenticated, but every listener of this node requires it; disconnected",
        event("unknown-user", client=client, user=user),
    )


def log_more_closed(count: int) -> None:
    """Log how many links have been closed about which nothing was said."""
    log.warning(
        "%(count)d more link was closed within %(seconds)d s"
        if count == 1
        else "%(count)d more links were closed within %(seconds)d s",
        event("links-closed", count=count, seconds=COMPLAINTS_INTERVAL),
    )


class LeaderLink:
    """The link of a node to the leader of a shard.

    Args:
        node: what the leader calls this one in its log.
        on_link: called with a link to the leader that is open.
        on_link_lost: called with the same link when it is not any more, before any of its clients is told.
        on_gone: called with an epoch and a node when the process that leads there is gone: its address refuses. Also
            with whether it was reached there before; if not, another program may be the one that refuses.
        on_farewell: called when the leader has said that it leads no more.
        connect: opens connections; None for those of the event loop.
        log: takes lines about this shard.
        keepalive: the value of --keepalive.
    """

    def __init__(
        self,
        shard: int,
        node: str,
        on_link: Callable[[Link], None],
        on_link_lost: Callable[[Link], None],
        on_gone: Callable[[int, str, bool], None],
        on_farewell: Callable[[], None],
        connect: Connect | None = None,
        log: Log = log,
        keepalive: int | str = 0,
    ) -> None:
        self.shard = shard
        self._keepalive = keepalive
        self._node = node
        self._on_link = on_link
        self._on_link_lost = on_link_lost
        self._on_gone = on_gone
        self._on_farewell = on_farewell
        self._connect = connect
        self._log = log
        self._lease: Lease | None = None  # of the leader that is followed
        self._was_reached = False
        self._task: asyncio.Task[None] | None = None
        self._end: LinkEnd | None = None
        self._has_left = False  # the leader has said that it leads no more
        self._is_early = False  # it has said that it does not lead yet
        self._complaint = ""  # what the log has been told last

    @property
    def is_open(self) -> bool:
        """Whether there is a link to the leader."""
        return self._end is not None and self._end.link.is_open

    def follow(self, lease: Lease) -> None:
        """Open a link to the holder of this lease; none, if there is no holder."""
        before = self._lease or Lease()
        same = (before.epoch, before.address, before.secret) == (lease.epoch, lease.address, lease.secret)
        if same and lease.node:
            return
        self.close()
        if lease.node and lease.address and lease.secret:
            self._lease = lease
            self._was_reached = False
            self._task = asyncio.get_running_loop().create_task(self._follow(lease))

    def close(self) -> None:
        """Close the link, and open no other one before `follow`."""
        self._lease = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        end, self._end = self._end, None
        if end is not None:
            end.close("the leader has changed")

    async def stop(self) -> None:
        """Do the same; return when nothing is under way any more."""
        task = self._task
        self.close()
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
                if self._has_left:
                    self._has_left = False
                    pause = LONGEST_PAUSE  # by then another lease is followed
                elif self._is_early:
                    self._is_early = False
                    pause = min(pause, EARLY_PAUSE)
                elif why != self._complaint:
                    self._complaint = why
                    self._log.warning(
                        "cannot reach the leader at %(leader)s: %(reason)s",
                        event("leader-unreachable", leader=lease.address, reason=why),
                    )
                await asyncio.sleep(pause)
                pause = min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        except Exception:
            self._log.exception("follower task crashed; this is a bug in the server", event("bug-in-following"))

    async def _pass(self, lease: Lease) -> str:
        """Open a link, and wait until it ends; return why it ended, or could not be opened."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        end = LinkEnd(loop, lambda _, why: None if ended.done() else ended.set_result(why), on_lost=self._note_lost)
        end.begin(
            Link(
                dials=True,
                shard=self.shard,
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
            end.close("the leader has changed")
        self._is_early = end.link.farewell == NOT_LEADING
        if end.link.is_open and end.link.farewell is not None:
            self._has_left = True
            self._log.info(
                "the leader at %(leader)s has stepped down: %(reason)s",
                event("leader-left", leader=lease.address, reason=why),
            )
            self._on_farewell()
        return why

    async def _dial(self, lease: Lease, end: LinkEnd) -> str:
        """Connect to the leader; return why that has failed, or ""."""
        host, _, port = lease.address.rpartition(":")
        connect = self._connect or asyncio.get_running_loop().create_connection
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                await connect(cast(Any, lambda: end), host.strip("[]"), int(port))
            if self._connect is None:
                set_keepalive(end.transport.get_extra_info("socket"), self._keepalive)
        except ConnectionRefusedError:
            self._on_gone(lease.epoch, lease.node, self._was_reached)
            return "connection refused"
        except TimeoutError:
            return f"no answer within {CONNECT_WITHIN:g} s"
        except (OSError, ValueError) as error:
            return str(error) or type(error).__name__
        self._was_reached = True
        return ""

    def _on_open(self, link: Link) -> None:
        assert self._lease is not None, "it is being followed"
        self._complaint = ""
        self._log.info(
            "relaying clients to the leader at %(leader)s", event("leader-followed", leader=self._lease.address)
        )
        self._on_link(link)

    def _note_lost(self, link: Link) -> None:
        if link.is_open:
            self._on_link_lost(link)


def _are_tubes(opening: Opening) -> bool:
    """Whether what it uses and watches has the names of tubes."""
    if opening.used and not is_name(opening.used):
        return False
    return all(read_watch(entry.encode("latin-1", "replace"), _ARGUMENTS) for entry in opening.watched)


_ARGUMENTS: Final = Arguments()
