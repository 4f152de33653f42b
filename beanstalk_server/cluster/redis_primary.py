"""Finds the primary that has the keys of a cluster: at its address, by Sentinel, or among the nodes of Redis Cluster.

A server that is found says itself that it is the primary, because neither a name nor a Sentinel may know of a failover
yet. Must never change anything on any server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from redis.exceptions import ResponseError

from beanstalk_server.cluster.engine import EngineError, EngineRefusedError
from beanstalk_server.cluster.redis_connection import RedisConnection
from beanstalk_server.cluster.resp import lists_of, number_of, pack, text_of, understood
from beanstalk_server.cluster.url import ALONE, CLUSTER, SENTINEL, EngineURL, Host

MOST_HOSTS: Final = 100
"""How many connections are kept to be used again."""

ROLE: Final = pack(b"ROLE")
SLOTS: Final = pack(b"CLUSTER", b"SLOTS")


class Primary:
    """Where the primary is.

    Args:
        url: of the engine.
        slot: of the keys, in Redis Cluster.
        timeout: seconds, for each answer.
    """

    def __init__(self, url: EngineURL, slot: int, timeout: float) -> None:
        self._url = url
        self._slot = slot
        self._timeout = timeout
        self._hosts = list(url.hosts)  # those to ask first come first
        self._moved_to: Host | None = None
        # Used again and again: redis-py leaves cycles behind each that it makes, and a server does not search for them.
        self._connections: dict[tuple[Host, bool], RedisConnection] = {}

    def connect(self, on_connection: Callable[[RedisConnection], object]) -> RedisConnection:
        """A connection to the primary.

        Args:
            on_connection: is told each connection before it is used, so that another thread can abort it.

        Raises:
            EngineError: there is none now, or none can be reached.
        """
        if self._url.form == ALONE:
            return self._connect(self._hosts[0], on_connection)
        if self._moved_to is not None:
            host, self._moved_to = self._moved_to, None
            return self._connect(host, on_connection)
        find = self._by_sentinel if self._url.form == SENTINEL else self._by_slots
        host = find(on_connection)
        try:
            return self._connect(host, on_connection)
        except EngineError:
            self._hosts.append(self._hosts.pop(0))  # whoever told may be cut off from all others: ask another one
            raise

    def moved(self, text: str, host: Host) -> None:
        """Learn from "MOVED SLOT HOST:PORT", which `host` has answered, where to ask next."""
        place = text.split(" ")[-1]
        name, _, port = place.rpartition(":")
        if port.isascii() and port.isdigit():
            self._moved_to = _host(name, int(port), host)

    def connection_to(self, host: Host, *, watches: bool = False) -> RedisConnection:
        """A connection that is closed, to one of the servers, or to a Sentinel that watches them."""
        found = self._connections.get((host, watches))
        if found is None:
            if len(self._connections) >= MOST_HOSTS:
                self._connections.clear()
            user = (self._url.sentinel_user, self._url.sentinel_password) if watches else None
            found = self._connections[host, watches] = RedisConnection(host, self._url, self._timeout, user)
        return found

    def _connect(self, host: Host, on_connection: Callable[[RedisConnection], object]) -> RedisConnection:
        connection = self.connection_to(host)
        on_connection(connection)
        connection.connect()
        if self._url.form == CLUSTER:  # whose replicas send everybody on
            return connection
        role = connection.ask(ROLE)[0]
        if isinstance(role, ResponseError):
            error = connection.error_of(role)
            if str(role).partition(" ")[0] in ("ERR", "NOPERM"):  # a managed engine may not want to say
                return connection
            connection.close()
            raise error
        is_a = text_of(role[0] if isinstance(role, list) and role else None)
        if is_a != "master":
            connection.close()
            if is_a == "sentinel":
                raise EngineRefusedError(f"engine at {host}: it is a Sentinel: must be redis+sentinel://…/service")
            raise EngineError(f"engine at {host}: it is a replica, and not the primary")
        return connection

    def _by_sentinel(self, on_connection: Callable[[RedisConnection], object]) -> Host:
        """What the first Sentinel says that knows the service."""
        question = pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._url.service.encode())
        failures: list[EngineError] = []
        for host in list(self._hosts):
            sentinel = self.connection_to(host, watches=True)
            on_connection(sentinel)
            try:
                sentinel.connect()
                reply = sentinel.ask(question)[0]
            except EngineError as error:
                failures.append(error)
                continue
            finally:
                sentinel.close()
            if isinstance(reply, ResponseError):
                failures.append(
                    EngineRefusedError(f"Sentinel at {host}: it is none: must be redis://…, or where a Sentinel is")
                    if "unknown command" in str(reply)
                    else sentinel.error_of(reply)
                )
                continue
            place = lists_of(reply)
            if len(place) != 2:
                failures.append(EngineError(f"Sentinel at {host}: it does not know {self._url.service!r}"))
                continue
            self._hosts.remove(host)
            self._hosts.insert(0, host)
            with understood():
                return Host(text_of(place[0]), number_of(place[1]))
        try:
            raise _worst(failures)
        finally:
            failures.clear()  # or this frame would have the error that has this frame

    def _by_slots(self, on_connection: Callable[[RedisConnection], object]) -> Host:
        """What the first node says that answers."""
        failures: list[EngineError] = []
        for host in list(self._hosts):
            node = self.connection_to(host)
            on_connection(node)
            try:
                node.connect()
                reply = node.ask(SLOTS)[0]
            except EngineError as error:
                failures.append(error)
                continue
            finally:
                node.close()
            if isinstance(reply, ResponseError):
                if str(reply).startswith("NOPERM"):  # then MOVED will say
                    return host
                failures.append(
                    EngineRefusedError(f"engine at {host}: it is no node of Redis Cluster: must be redis://…")
                    if "cluster support disabled" in str(reply)
                    else node.error_of(reply)
                )
                continue
            found = None
            hosts = [host]
            with understood():
                for first, last, *servers in lists_of(reply):
                    places = [_host(text_of(name), number_of(port), host) for name, port, *_ in servers]
                    hosts += places
                    if first <= self._slot <= last:
                        found = places[0]
            if found is not None:
                self._hosts = list(dict.fromkeys([*hosts, *self._url.hosts]))
                return found
            failures.append(EngineError(f"engine at {host}: no node has slot {self._slot}"))
        try:
            raise _worst(failures)
        finally:
            failures.clear()  # or this frame would have the error that has this frame


def _host(name: str, port: int, told_by: Host) -> Host:
    """A node of Redis Cluster; one that does not know its own name has that of the node which tells."""
    return Host(told_by.name if name in ("", "?") else name, port)


def _worst(failures: list[EngineError]) -> EngineError:
    """The failure to report: one that is not over by itself, or the first."""
    return next((each for each in failures if isinstance(each, EngineRefusedError)), failures[0])


def slot_of(tag: bytes) -> int:
    """The slot of the keys with a hash tag: its CRC-16 (XMODEM), of 16,384."""
    crc = 0
    for byte in tag:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
    return crc & 0x3FFF
