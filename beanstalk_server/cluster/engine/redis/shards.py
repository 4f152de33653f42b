"""Which connection reaches the keys of a shard: one for each primary, made when it is needed.

A connection is used only after its server has said that the user may do all that is needed there.
"""

from __future__ import annotations

import time
from typing import Final

from beanstalk_server.cluster.engine.interface import EngineError, EngineRefusedError
from beanstalk_server.cluster.engine.redis import scripts
from beanstalk_server.cluster.engine.redis.commit_requests import ShardKeys
from beanstalk_server.cluster.engine.redis.connection import RedisConnection, without_frames
from beanstalk_server.cluster.engine.redis.primaries import ASKS, KEEPS, Primaries, slot_of
from beanstalk_server.cluster.engine.redis.resp import ResponseError, lists_of, pack, text_of, understood
from beanstalk_server.settings.engine_url import ALONE, CLUSTER, EngineURL, Host

LOOK_AGAIN: Final = 1.0
"""Seconds after which a primary without enough replicas may be another one."""


class MovedError(EngineError):
    """Nothing has happened, because another server has the keys, which is asked next."""


class Primary:
    """A primary that is connected."""

    __slots__ = ("connection", "found_at")

    def __init__(self, connection: RedisConnection) -> None:
        self.connection = connection
        self.found_at = time.monotonic()


class Shards:
    """The primaries of all shards. One thread at a time; only `abort` may come in between.

    Args:
        url: of the engine.
        name: of the cluster.
        timeout: seconds to connect, and for a part of an answer (`resp.TIMEOUTS`).
    """

    def __init__(self, url: EngineURL, name: str, timeout: float) -> None:
        self._url = url
        self._name = name
        self._primaries = Primaries(url, timeout)
        self._keys: dict[int, ShardKeys] = {}
        self._slots: dict[int, int] = {}
        self._by_host: dict[Host, Primary] = {}
        self._by_shard: dict[int, Primary] = {}
        self._failed: dict[Host | None, EngineError] = {}  # what cannot be reached in this round; None for anything
        self._is_closed = False

    def keys_of(self, shard: int) -> ShardKeys:
        """The names of the keys of a shard."""
        keys = self._keys.get(shard)
        if keys is None:
            keys = self._keys[shard] = ShardKeys(self._name, shard)
        return keys

    def known(self, shard: int) -> Primary | None:
        """The primary that has a shard, if that is known."""
        return self._by_shard.get(shard)

    def begin(self) -> None:
        """Begin a round of `find`: what cannot be reached is tried again, once."""
        if self._failed:
            self._failed.clear()
            self._primaries.forget()

    def find(self, shard: int) -> Primary:
        """The primary that has a shard; it is connected if it is not yet.

        Raises:
            MovedError: it is another one than it seemed.
            EngineError: there is none now.
        """
        primary = self._by_shard.get(shard)
        if primary is not None:
            if primary.connection.is_open:
                return primary
            self.leave(primary)
        host = self._locate(shard)
        primary = self._by_host.get(host)
        if primary is None or not primary.connection.is_open:
            primary = self._by_host[host] = self._connect(host, shard)
        self._by_shard[shard] = primary
        return primary

    def _locate(self, shard: int) -> Host:
        if None in self._failed:
            raise self._failed[None]
        try:
            self._primaries.locate(self._note)
        except EngineError as error:
            self._failed[None] = without_frames(error)
            raise
        return self._primaries.host_of(self._slot_of(shard))

    def _connect(self, host: Host, shard: int) -> Primary:
        if host in self._failed:
            raise self._failed[host]
        connection = self._primaries.connection_to(host, KEEPS)
        try:
            self._primaries.connect(host, self._note)
            self._must_be_allowed(connection, shard)
        except MovedError:
            raise  # the connection may be good for others
        except BaseException as error:
            connection.close()
            if isinstance(error, EngineError):
                self._failed[host] = without_frames(error)
            raise
        return Primary(connection)

    def leave(self, primary: Primary) -> None:
        """Close a connection, and find out anew where the primaries are."""
        primary.connection.close()
        self._by_host = {host: each for host, each in self._by_host.items() if each is not primary}
        self._by_shard = {shard: each for shard, each in self._by_shard.items() if each is not primary}
        self._primaries.forget()

    def look_again(self, shard: int) -> None:
        """Leave the primary of a shard, unless it is new: too few replicas confirm what it does."""
        primary = self._by_shard.get(shard)
        if primary is not None and self._url.form != ALONE and time.monotonic() - primary.found_at > LOOK_AGAIN:
            self.leave(primary)

    def follow(self, connection: RedisConnection, shard: int, reply: ResponseError) -> None:
        """Learn where another server has the keys, if that is why this one has answered with an error.

        Raises:
            MovedError: it is so.
            EngineRefusedError: it is so, and should not be.
        """
        text = str(reply)
        if not text.startswith("MOVED "):
            return
        if self._url.form != CLUSTER:
            raise EngineRefusedError(
                f"engine at {connection.host}: {reply}: it is a node of Redis Cluster: must be redis+cluster://…"
            )
        self._by_shard.pop(shard, None)
        self._primaries.moved(self._slot_of(shard), text, connection.host)
        raise MovedError("engine: its nodes do not agree which of them has the keys")

    def connection_to(self, host: Host) -> RedisConnection:
        """A connection to any server, which is closed when it has been asked something."""
        connection = self._primaries.connection_to(host, ASKS)
        self._note(connection)
        return connection

    def abort(self) -> None:
        """Have everything that another thread does here end with an EngineError."""
        self._is_closed = True
        self._primaries.abort()

    def close(self) -> None:
        """Close all connections, for good."""
        self._is_closed = True
        self._primaries.close()

    def _note(self, connection: RedisConnection) -> None:  # noqa: ARG002  # the one that is about to be used
        if self._is_closed:
            raise EngineError("engine: it is closed")

    def _slot_of(self, shard: int) -> int:
        slot = self._slots.get(shard)
        if slot is None:
            slot = self._slots[shard] = slot_of(self.keys_of(shard).tag)
        return slot

    def _must_be_allowed(self, connection: RedisConnection, shard: int) -> None:
        """Make sure that the user may do all that is needed, so that nothing fails half-way."""
        keys = self.keys_of(shard)
        names = (keys.state, keys.files, keys.file + b"a", keys.prefix + b"nodes")
        reply = connection.ask(pack(b"EVAL", scripts.RIGHTS.text, b"4", *names))[0]
        if isinstance(reply, ResponseError):
            self.follow(connection, shard, reply)
            raise connection.error_of(reply)
        with understood():
            missing = ", ".join(sorted({text_of(each) for each in lists_of(reply)}))
        if missing:
            raise EngineRefusedError(
                f"engine at {connection.host}: user {self._url.user or 'default'!r} may not {missing}: "
                f"must have ~{keys.prefix.decode()}* and these commands"
            )
