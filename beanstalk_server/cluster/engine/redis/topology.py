"""Finds the server that has the keys of a shard, and keeps one connection to each primary, opened on demand.

The primary is the server of the URL, the one that a Sentinel names, or in Redis Cluster that which has the slot. It is
asked itself whether it is the primary, because neither a name nor a Sentinel may know of a failover yet. A connection
is used only after its server has said that the user may do all that is needed there, and has loaded the scripts.
"""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from beanstalk_server.cluster.engine.interface import EngineError, EngineRefusedError
from beanstalk_server.cluster.engine.redis import resp, scripts
from beanstalk_server.cluster.engine.redis.commit_requests import ShardKeys
from beanstalk_server.cluster.engine.redis.connection import RedisConnection, without_frames
from beanstalk_server.settings.engine_url import ALONE, CLUSTER, SENTINEL, EngineURL, Host

T = TypeVar("T")

LOOK_AGAIN: Final = 1.0
"""Seconds after which a primary without enough replicas may be another one."""

LAST_SLOT: Final = 0x3FFF

ROLE: Final = resp.pack(b"ROLE")
SLOTS: Final = resp.pack(b"CLUSTER", b"SLOTS")
LOAD: Final = b"".join([resp.pack(b"SCRIPT", b"LOAD", each.text) for each in scripts.ALL])

LEFT: Final = frozenset(("READONLY", "ASK", "MASTERDOWN", "UNBLOCKED", "CLUSTERDOWN", "NOSCRIPT"))
"""Error codes after which a server is left: it may not be the primary any more, or has not the scripts any more."""


class RetryError(EngineError):
    """Nothing has happened, and the next attempt may succeed: at another server, or on another connection."""


class Topology:
    """The primaries of all shards. One thread at a time; only `abort` may come in between.

    Args:
        url: of the engine.
        name: of the cluster.
        timeout: seconds to connect, and for a part of an answer (`resp.TIMEOUTS`).
    """

    def __init__(self, url: EngineURL, name: str, timeout: float) -> None:
        self._url = url
        self._name = name
        self._timeout = timeout
        self._keys: dict[int, ShardKeys] = {}
        self._hosts = list(url.hosts)  # those to ask first come first
        self._ranges: list[tuple[int, int, Host]] = []  # the first and the last slot of each; empty if it is not known
        self._moved: dict[int, Host] = {}  # by slot: what has been learned since
        self._connections: dict[Host, RedisConnection] = {}  # to primaries
        self._by_shard: dict[int, RedisConnection] = {}
        self._asked: RedisConnection | None = None  # that of `asking`
        self._failed: dict[Host | None, EngineError] = {}  # what cannot be reached in this round; None for anything
        self._is_closed = False

    def keys_of(self, shard: int) -> ShardKeys:
        """The names of the keys of a shard."""
        keys = self._keys.get(shard)
        if keys is None:
            keys = self._keys[shard] = ShardKeys(self._name, shard)
        return keys

    def known(self, shard: int) -> RedisConnection | None:
        """The connection to the primary that has a shard, if it is known and connected."""
        connection = self._by_shard.get(shard)
        return connection if connection is not None and connection.is_open else None

    def begin(self) -> None:
        """Begin a round of `find`: what cannot be reached is tried again, once."""
        if self._failed:
            self._failed.clear()
            self._forget()

    def find(self, shard: int) -> RedisConnection:
        """The connection to the primary that has a shard; it is made if it is not open.

        Raises:
            RetryError: it is another one than it seemed.
            EngineError: there is none now.
        """
        connection = self._by_shard.get(shard)
        if connection is not None:
            if connection.is_open:
                return connection
            self.drop(connection)
        host = self._host_of(shard)
        connection = self._connections.get(host)
        if connection is None or not connection.is_open:
            connection = self._connect(host, shard)
        self._by_shard[shard] = connection
        return connection

    def drop(self, connection: RedisConnection) -> None:
        """Close a connection, and find out anew where the primaries are."""
        connection.close()
        self._connections = {host: each for host, each in self._connections.items() if each is not connection}
        self._by_shard = {shard: each for shard, each in self._by_shard.items() if each is not connection}
        self._forget()

    def look_again(self, shard: int) -> None:
        """Leave the primary of a shard, unless it is new: too few replicas confirm what it does."""
        connection = self._by_shard.get(shard)
        if connection is not None and self._url.form != ALONE and time.monotonic() - connection.opened_at > LOOK_AGAIN:
            self.drop(connection)

    def meaning(self, connection: RedisConnection, shard: int, reply: resp.ResponseError) -> EngineError:
        """What an error means that a primary has answered with. The next one to ask may be another."""
        text = str(reply)
        code = text.partition(" ")[0]
        if code == "MOVED":
            if self._url.form != CLUSTER:
                return EngineRefusedError(
                    f"engine at {connection.host}: {reply}: this is a node of Redis Cluster: use a redis+cluster:// URL"
                )
            self._by_shard.pop(shard, None)
            name, _, port = text.split(" ")[-1].rpartition(":")
            if port.isascii() and port.isdigit() and len(port) < 6:
                self._moved[self._slot_of(shard)] = _host(name, int(port), connection.host)
            return RetryError("engine: the nodes of the Redis Cluster disagree about which one has the slot")
        if code in LEFT:
            self.drop(connection)
        return RetryError(f"engine: {reply}") if code == "NOSCRIPT" else connection.error_of(reply)

    @contextmanager
    def asking(self, host: Host, user: tuple[str, str] | None = None) -> Iterator[RedisConnection]:
        """Connect to any server, for as long as it is asked.

        Args:
            user: at a Sentinel, with its password.

        Raises:
            EngineError: it cannot be reached.
        """
        self._must_be_open()
        connection = self._asked = RedisConnection(host, self._url, self._timeout, user)
        try:
            connection.connect()
            yield connection
        finally:
            connection.close()
            self._asked = None

    def abort(self) -> None:
        """Have everything that another thread does here end with an EngineError."""
        self._is_closed = True
        for each in [*self._connections.values(), self._asked]:
            if each is not None:
                each.abort()

    def close(self) -> None:
        """Close all connections, for good."""
        self._is_closed = True
        for each in self._connections.values():
            each.close()

    def _must_be_open(self) -> None:
        if self._is_closed:
            raise EngineError("engine: connection closed")

    # Connecting

    def _connect(self, host: Host, shard: int) -> RedisConnection:
        if host in self._failed:
            raise self._failed[host]
        self._must_be_open()
        connection = self._connections[host] = RedisConnection(host, self._url, self._timeout)
        try:
            connection.connect()
            self._must_be_primary(connection)
            self._must_be_allowed(connection, shard)
        except BaseException as error:
            connection.close()
            self._connections.pop(host, None)
            if isinstance(error, EngineError) and not isinstance(error, RetryError):
                self._failed[host] = without_frames(error)
                if self._url.form != ALONE:
                    self._hosts.append(self._hosts.pop(0))  # it may be cut off from all others: ask another one
            raise
        return connection

    def _must_be_primary(self, connection: RedisConnection) -> None:
        if self._url.form == CLUSTER:  # whose replicas redirect clients
            return
        role = connection.ask(ROLE)[0]
        if isinstance(role, resp.ResponseError):
            if str(role).partition(" ")[0] in ("ERR", "NOPERM"):  # a managed engine may not want to say
                return
            raise connection.error_of(role)
        with resp.understood():
            is_a = resp.text_of(resp.lists_of(role)[0])
        if is_a == "sentinel":
            raise EngineRefusedError(
                f"engine at {connection.host}: this is a Sentinel: use a redis+sentinel://…/service URL"
            )
        if is_a != "master":
            raise EngineError(f"engine at {connection.host}: this is a replica, not the primary")

    def _must_be_allowed(self, connection: RedisConnection, shard: int) -> None:
        """Make sure that the user may do all that is needed, so that nothing fails half-way; load the scripts."""
        keys = self.keys_of(shard)
        names = (keys.state, keys.files, keys.file + b"a", keys.prefix + b"nodes")
        asked = resp.pack(b"EVAL", scripts.RIGHTS.text, b"4", *names)
        replies = connection.ask(asked + LOAD, 1 + len(scripts.ALL))
        for reply in replies:
            if isinstance(reply, resp.ResponseError):
                raise self.meaning(connection, shard, reply)
        with resp.understood():
            missing = ", ".join(sorted({resp.text_of(each) for each in resp.lists_of(replies[0])}))
        if missing:
            raise EngineRefusedError(
                f"engine at {connection.host}: user {self._url.user or 'default'!r} lacks permission for {missing}: "
                f"grant it these commands and the key pattern ~{keys.prefix.decode()}*"
            )

    # Where the primaries are

    def _forget(self) -> None:
        """Find out anew where the primaries are before the next connection is made."""
        self._ranges = []
        self._moved.clear()

    def _slot_of(self, shard: int) -> int:
        return slot_of(self.keys_of(shard).tag)

    def _host_of(self, shard: int) -> Host:
        """The primary that has a shard."""
        if None in self._failed:
            raise self._failed[None]
        if not self._ranges:
            try:
                self._ranges = self._locate()
            except EngineError as error:
                self._failed[None] = without_frames(error)
                raise
        slot = self._slot_of(shard)
        if slot in self._moved:
            return self._moved[slot]
        for first, last, host in self._ranges:
            if first <= slot <= last:
                return host
        self._forget()
        raise EngineError(f"engine: no node has slot {slot}")

    def _locate(self) -> list[tuple[int, int, Host]]:
        """Find out which primary has each range of slots.

        Raises:
            EngineError: no reachable server knows.
        """
        url = self._url
        if url.form == ALONE:
            return [(0, LAST_SLOT, self._hosts[0])]
        if url.form == SENTINEL:
            question = resp.pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", url.service.encode())
            return self._ask_around(question, self._of_sentinel, (url.sentinel_user, url.sentinel_password))
        return self._ask_around(SLOTS, self._of_node, None)

    def _ask_around(
        self, question: bytes, read: Callable[[RedisConnection, resp.Reply], T], user: tuple[str, str] | None
    ) -> T:
        """What the first server says that has an answer; it is asked first the next time."""
        failures: list[EngineError] = []
        for host in list(self._hosts):
            try:
                with self.asking(host, user) as connection:
                    found = read(connection, connection.ask(question)[0])
            except EngineError as error:
                failures.append(without_frames(error))
                continue
            self._hosts.remove(host)
            self._hosts.insert(0, host)
            return found
        try:  # to report one that is not over by itself, or the first
            raise next((each for each in failures if isinstance(each, EngineRefusedError)), failures[0])
        finally:
            failures.clear()  # or this frame would have the error that has this frame

    def _of_sentinel(self, sentinel: RedisConnection, reply: resp.Reply) -> list[tuple[int, int, Host]]:
        if isinstance(reply, resp.ResponseError):
            if "unknown command" in str(reply):
                raise EngineRefusedError(
                    f"{sentinel.place}: not a Sentinel: use a redis:// URL, or the address of a Sentinel"
                )
            raise sentinel.error_of(reply)
        if reply is None:
            raise EngineError(f"{sentinel.place}: unknown service {self._url.service!r}")
        with resp.understood():
            name, port = resp.lists_of(reply)
            return [(0, LAST_SLOT, Host(resp.text_of(name), resp.number_of(port)))]

    def _of_node(self, node: RedisConnection, reply: resp.Reply) -> list[tuple[int, int, Host]]:
        if isinstance(reply, resp.ResponseError):
            if str(reply).startswith("NOPERM"):  # then MOVED will say
                return [(0, LAST_SLOT, node.host)]
            if "cluster support disabled" in str(reply):
                raise EngineRefusedError(f"{node.place}: not a node of Redis Cluster: use a redis:// URL")
            raise node.error_of(reply)
        found = []
        hosts = [node.host]
        with resp.understood():
            for first, last, *servers in resp.lists_of(reply):
                places = [_host(resp.text_of(name), resp.number_of(port), node.host) for name, port, *_ in servers]
                hosts += places
                found.append((resp.number_of(first), resp.number_of(last), places[0]))
        if not found:
            raise EngineError(f"{node.place}: no node has slots")
        self._hosts = list(dict.fromkeys([*hosts, *self._url.hosts]))
        return found


def _host(name: str, port: int, told_by: Host) -> Host:
    """A node of Redis Cluster; one that does not know its own name has that of the node which tells."""
    return Host(told_by.name if name in ("", "?") else name, port)


def slot_of(tag: bytes) -> int:
    """The slot of the keys with a hash tag: its CRC-16 (XMODEM), of 16,384."""
    return crc_hqx(tag, 0) & LAST_SLOT
