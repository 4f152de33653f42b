"""Finds the primaries: the server of the URL, the one that a Sentinel names, or those of Redis Cluster, by their slots.

A server that is found says itself that it is the primary, because neither a name nor a Sentinel may know of a failover
yet. Must never change anything on any server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.cluster.engine.interface import EngineError, EngineRefusedError
from beanstalk_server.cluster.engine.redis.connection import RedisConnection
from beanstalk_server.cluster.engine.redis.resp import ResponseError, lists_of, number_of, pack, text_of, understood
from beanstalk_server.settings.engine_url import ALONE, CLUSTER, SENTINEL, EngineURL, Host

MOST_HOSTS: Final = 100
"""How many connections are kept to be used again."""

LAST_SLOT: Final = 0x3FFF

ROLE: Final = pack(b"ROLE")
SLOTS: Final = pack(b"CLUSTER", b"SLOTS")

# What a connection is for: one that asks is closed again, while another one to the same server goes on.
KEEPS: Final = 0
ASKS: Final = 1
WATCHES: Final = 2

OnConnection = Callable[[RedisConnection], object]
"""Is told each connection before it is used."""


class Primaries:
    """Where the primaries are.

    Args:
        url: of the engine.
        timeout: seconds, for each answer.
    """

    def __init__(self, url: EngineURL, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self._hosts = list(url.hosts)  # those to ask first come first
        self._found: list[tuple[int, int, Host]] = []  # the first and the last slot of each; empty if it is not known
        self._moved: dict[int, Host] = {}  # by slot: what has been learned since
        self._connections: dict[tuple[Host, int], RedisConnection] = {}

    def locate(self, on_connection: OnConnection) -> None:
        """Find out where the primaries are, if that is not known.

        Raises:
            EngineError: nobody knows, or nobody can be reached who might.
        """
        if self._found:
            return
        if self._url.form == ALONE:
            self._found = [(0, LAST_SLOT, self._hosts[0])]
        elif self._url.form == SENTINEL:
            self._found = [(0, LAST_SLOT, self._by_sentinel(on_connection))]
        else:
            self._found = self._by_slots(on_connection)

    def forget(self) -> None:
        """Find out anew where the primaries are before the next connection is made."""
        self._found = []
        self._moved.clear()

    def host_of(self, slot: int) -> Host:
        """The primary that has a slot, as far as it is known.

        Raises:
            EngineError: none has it.
        """
        host = self._moved.get(slot)
        if host is not None:
            return host
        for first, last, host in self._found:
            if first <= slot <= last:
                return host
        self.forget()
        raise EngineError(f"engine: no node has slot {slot}")

    def connect(self, host: Host, on_connection: OnConnection) -> RedisConnection:
        """The connection to a primary, which is made if it is not open.

        Raises:
            EngineError: it cannot be reached, or is not the primary.
        """
        connection = self.connection_to(host, KEEPS)
        if connection.is_open:
            return connection
        on_connection(connection)
        try:
            connection.connect()
            self._must_be_primary(connection)
        except EngineError:
            connection.close()
            if self._url.form != ALONE:
                self._hosts.append(self._hosts.pop(0))  # this one may be cut off from all others: ask another one
            raise
        return connection

    def moved(self, slot: int, text: str, host: Host) -> None:
        """Learn from "MOVED SLOT HOST:PORT", which `host` has answered, where to ask next."""
        place = text.split(" ")[-1]
        name, _, port = place.rpartition(":")
        if port.isascii() and port.isdigit() and len(port) < 6:
            self._moved[slot] = _host(name, int(port), host)

    def connection_to(self, host: Host, purpose: int) -> RedisConnection:
        """The connection to one of the servers that KEEPS or ASKS, or to a Sentinel that WATCHES them; open or not."""
        found = self._connections.get((host, purpose))
        if found is None:
            if len(self._connections) >= MOST_HOSTS:
                self._connections = {key: each for key, each in self._connections.items() if each.is_open}
            user = (self._url.sentinel_user, self._url.sentinel_password) if purpose == WATCHES else None
            found = self._connections[host, purpose] = RedisConnection(host, self._url, self._timeout, user)
        return found

    def abort(self) -> None:
        """End what another thread does on any connection: it gets an EngineError."""
        for each in list(self._connections.values()):
            each.abort()

    def close(self) -> None:
        """Close all connections."""
        for each in self._connections.values():
            each.close()

    def _must_be_primary(self, connection: RedisConnection) -> None:
        if self._url.form == CLUSTER:  # whose replicas send everybody on
            return
        role = connection.ask(ROLE)[0]
        if isinstance(role, ResponseError):
            if str(role).partition(" ")[0] in ("ERR", "NOPERM"):  # a managed engine may not want to say
                return
            raise connection.error_of(role)
        with understood():
            is_a = text_of(lists_of(role)[0])
        if is_a == "sentinel":
            raise EngineRefusedError(
                f"engine at {connection.host}: it is a Sentinel: must be redis+sentinel://…/service"
            )
        if is_a != "master":
            raise EngineError(f"engine at {connection.host}: it is a replica, and not the primary")

    def _by_sentinel(self, on_connection: OnConnection) -> Host:
        """What the first Sentinel says that knows the service."""
        question = pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._url.service.encode())
        failures: list[EngineError] = []
        for host in list(self._hosts):
            sentinel = self.connection_to(host, WATCHES)
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
            if reply is None:
                failures.append(EngineError(f"Sentinel at {host}: it does not know {self._url.service!r}"))
                continue
            self._hosts.remove(host)
            self._hosts.insert(0, host)
            with understood():
                name, port = lists_of(reply)
                return Host(text_of(name), number_of(port))
        try:
            raise _worst(failures)
        finally:
            failures.clear()  # or this frame would have the error that has this frame

    def _by_slots(self, on_connection: OnConnection) -> list[tuple[int, int, Host]]:
        """What the first node says that answers: the primary of each range of slots."""
        failures: list[EngineError] = []
        for host in list(self._hosts):
            node = self.connection_to(host, ASKS)
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
                    return [(0, LAST_SLOT, host)]
                failures.append(
                    EngineRefusedError(f"engine at {host}: it is no node of Redis Cluster: must be redis://…")
                    if "cluster support disabled" in str(reply)
                    else node.error_of(reply)
                )
                continue
            found = []
            hosts = [host]
            with understood():
                for first, last, *servers in lists_of(reply):
                    places = [_host(text_of(name), number_of(port), host) for name, port, *_ in servers]
                    hosts += places
                    found.append((number_of(first), number_of(last), places[0]))
            if found:
                self._hosts = list(dict.fromkeys([*hosts, *self._url.hosts]))
                return found
            failures.append(EngineError(f"engine at {host}: no node has any slot"))
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
    return crc & LAST_SLOT
