"""The engine in Redis or Valkey: a server alone, with replicas, with Sentinel, or a Redis Cluster; also managed ones.

One commit is one script and one WAIT, sent together on the same connection, because WAIT is about what its own
connection has written. Everything is in one database, under keys that begin with {NAME:SHARD} (scripts.py). Must never
know what is in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from beanstalk_server.cluster.engine.interface import (
    Answer,
    Commit,
    CommitCall,
    EngineError,
    File,
    Lease,
    lacks,
    lacks_end,
    made,
)
from beanstalk_server.cluster.engine.redis.calls import UNSENT, Done, RedisCalls, Request
from beanstalk_server.cluster.engine.redis.connection import RedisConnection, without_frames
from beanstalk_server.cluster.engine.redis.registry import LEASE_FIELDS, RedisLeaseRegistry, lease_of, position_of
from beanstalk_server.cluster.engine.redis.resp import Reply, lists_of, number_of, pack, text_of, understood
from beanstalk_server.cluster.engine.redis.topology import Topology
from beanstalk_server.settings.engine_url import read_url

READ_CHUNK: Final = 1 << 20
"""Bytes that one command reads, which holds up all others on the server."""

LOOKS: Final = 10
"""How often what is missing must be missing."""

READ_AHEAD: Final = 8
"""Commands that are sent before the answer to the first one is read."""


class RedisConnector:
    """Makes connections to the engine behind a URL.

    Args:
        url: as settings/engine_url.py describes it.
        name: of the cluster.
        replicas: how many replicas must confirm what is durable.
        timeout: seconds to connect, and for a part of an answer (`resp.TIMEOUTS`).

    Raises:
        ValueError: the URL is bad.
    """

    def __init__(self, url: str, name: str, replicas: int, *, timeout: float = 2.0) -> None:
        self._url = read_url(url)
        self._name = name
        self._replicas = replicas
        self._timeout = timeout

    def engine(self, shard: int) -> RedisEngine:
        """To one shard."""
        return RedisEngine(self._calls(), shard)

    def registry(self) -> RedisLeaseRegistry:
        """To all leases."""
        return RedisLeaseRegistry(self._calls())

    def committer(self) -> RedisCommitter:
        """To all journals."""
        return RedisCommitter(self._calls())

    def _calls(self) -> RedisCalls:
        return RedisCalls(self._url, self._name, self._replicas, self._timeout)


class RedisCommitter:
    """The commits of all shards: what comes together leaves in one write for each primary, with one WAIT.

    Args:
        calls: used by this object alone.
    """

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls

    def append(self, calls: Sequence[CommitCall]) -> list[Answer | EngineError]:
        """Make commits; see `Committer`."""
        with self._calls as topology:
            data = [topology.keys_of(shard).commit(commit, may_exceed) for shard, commit, may_exceed in calls]
            requests: list[Request] = []
            results: list[Done | EngineError] | None = None
            connection = _common(topology, calls) if self._calls.wait else None
            if connection is not None:
                try:
                    connection.send(b"".join([*data, self._calls.wait]))
                    replies, confirmed = connection.receive_made(len(calls))
                except EngineError as error:
                    topology.drop(connection)
                    without_frames(error)
                    return [error for _ in calls]
                if not replies and isinstance(confirmed, int):  # nearly always
                    if confirmed < self._calls.replicas:
                        topology.look_again(calls[0].shard)
                    return [Answer(commit.position.epoch, commit.position, confirmed) for _, commit, _ in calls]
                requests = _requests(calls, data)
                results = [UNSENT for _ in calls]
                self._calls.sort_out(connection, requests, range(len(calls)), replies, confirmed, results)
            results = self._calls.perform(requests or _requests(calls, data), results)
            return [self._answer(topology, done, call) for done, call in zip(results, calls, strict=True)]

    def close(self) -> None:
        """Close all connections. Calls in other threads end with an EngineError."""
        self._calls.close()

    def _answer(self, topology: Topology, done: Done | EngineError, call: CommitCall) -> Answer | EngineError:
        if isinstance(done, EngineError):
            return done
        position = call.commit.position
        if done.reply == 1:
            if done.replicas < self._calls.replicas:
                topology.look_again(call.shard)
            return Answer(position.epoch, position, done.replicas)
        try:
            with understood():
                epoch, *last = lists_of(done.reply)
                return Answer(number_of(epoch), position_of(last[0]) if last else None, 0)
        except EngineError as error:
            return without_frames(error)


def _common(topology: Topology, calls: Sequence[CommitCall]) -> RedisConnection | None:
    """The connection to the primary that has all the shards, if it is a single one, and connected."""
    connection = topology.known(calls[0].shard)
    for call in calls[1:]:
        if topology.known(call.shard) is not connection:
            return None
    return connection


def _requests(calls: Sequence[CommitCall], data: Sequence[bytes]) -> list[Request]:
    return [Request(call.shard, each, waits=True) for call, each in zip(calls, data, strict=True)]


class RedisEngine:
    """A shard of an engine in Redis; see `Engine` for the methods without a docstring here.

    Args:
        calls: used by this object alone.
        shard: its number.
    """

    def __init__(self, calls: RedisCalls, shard: int) -> None:
        self._calls = calls
        self._shard = shard
        self._keys = calls.topology.keys_of(shard)

    def append(self, commit: Commit, *, may_exceed: bool) -> Answer:
        return made(RedisCommitter(self._calls).append([CommitCall(self._shard, commit, may_exceed)])[0])

    def files(self) -> dict[str, File]:
        (reply,) = self._ask(pack(b"HGETALL", self._keys.files))
        with understood():
            sizes = lists_of(reply)
            names: list[bytes] = list(sizes[::2])
            requests = [pack(b"STRLEN", self._keys.file + each) for each in names]
        lengths = self._ask(*requests)
        with understood():
            return {
                name.decode(): File(max(number_of(size), number_of(length)), number_of(length))
                for name, size, length in zip(names, sizes[1::2], lengths, strict=True)
            }

    def damage(self) -> str:
        found = ""
        for _ in range(LOOKS):  # a leader may change it between two questions
            state, there = self._ask(
                pack(b"HMGET", self._keys.state, b"files", b"tail", b"stamp", b"secret"),
                pack(b"HGETALL", self._keys.files),
            )
            with understood():
                files, tail, stamp, secret = lists_of(state)
                if text_of(stamp) != Lease(secret=text_of(secret)).stamp:
                    return ""  # an earlier release leads, or has led last
                count = len(lists_of(there)) // 2
                name, _, size = text_of(tail).rpartition(" ")
                length = int(size or 0)
                found = "" if files is None else lacks(number_of(files), count)
            if not found and length:
                (there,) = self._ask(pack(b"STRLEN", self._keys.file + name.encode()))
                with understood():
                    found = lacks_end(name, length, number_of(there))
            if not found:
                break
        return found

    def read(self, name: str, offset: int, size: int) -> bytes:
        key = self._keys.file + name.encode()
        end = offset + size
        pieces: list[bytes] = []
        while offset < end:
            starts = range(offset, min(end, offset + READ_AHEAD * READ_CHUNK), READ_CHUNK)
            ends = [min(start + READ_CHUNK, end) for start in starts]
            replies = self._ask(
                *[
                    pack(b"GETRANGE", key, b"%d" % start, b"%d" % (stop - 1))
                    for start, stop in zip(starts, ends, strict=True)
                ]
            )
            for start, stop, reply in zip(starts, ends, replies, strict=True):
                piece = reply if isinstance(reply, bytes) else b""
                pieces.append(piece)
                if len(piece) < stop - start:
                    return b"".join(pieces)
            offset = ends[-1]
        return b"".join(pieces)

    def look(self) -> Lease:
        (reply,) = self._ask(pack(b"HMGET", self._keys.state, *LEASE_FIELDS))
        return lease_of(reply)

    def close(self) -> None:
        self._calls.close()

    def _ask(self, *requests: bytes) -> list[Reply]:
        """The replies to requests that change nothing."""
        return [done.reply for done in self._calls.ask([Request(self._shard, each) for each in requests])]
