"""The engine in Redis or Valkey: a server alone, with replicas, with Sentinel, or a Redis Cluster; also managed ones.

One commit is one script and one WAIT, sent together on the same connection, because WAIT is about what its own
connection has written. Everything is in one database, under keys that begin with {NAME:SHARD} (scripts.py). Must never
know what is in a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.cluster.engine.interface import Answer, Commit, Connector, Engine, File, Lease, lacks, lacks_end
from beanstalk_server.cluster.engine.redis.calls import RedisCalls, Request
from beanstalk_server.cluster.engine.redis.committer import RedisCommitter
from beanstalk_server.cluster.engine.redis.registry import RedisRegistry
from beanstalk_server.cluster.engine.redis.replies import LEASE_FIELDS, answer_of, lease_of
from beanstalk_server.cluster.engine.redis.resp import lists_of, number_of, pack, text_of, understood
from beanstalk_server.cluster.engine.redis.scripts import COMMIT, COMMIT_BEYOND
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
        url: as `url.py` describes it.
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

    def registry(self) -> RedisRegistry:
        """To all leases."""
        return RedisRegistry(self._calls())

    def committer(self) -> RedisCommitter:
        """To all journals."""
        return RedisCommitter(self._calls())

    def _calls(self) -> RedisCalls:
        return RedisCalls(self._url, self._name, self._replicas, self._timeout)


class RedisEngine:
    """A shard of an engine in Redis; see `Engine` for the methods without a docstring here.

    Args:
        calls: used by nobody else.
        shard: its number.
    """

    def __init__(self, calls: RedisCalls, shard: int) -> None:
        self._calls = calls
        self._shard = shard
        self._keys = calls.shards.keys_of(shard)

    def append(self, commit: Commit, *, may_exceed: bool) -> Answer:
        script = COMMIT_BEYOND if may_exceed else COMMIT
        request = Request(self._shard, self._keys.commit(commit, may_exceed), script, waits=True)
        answer = answer_of(self._calls.perform_one(request), commit)
        if answer.position == commit.position and answer.replicas < self._calls.replicas:
            self._calls.look_again(self._shard)
        return answer

    def files(self) -> dict[str, File]:
        reply = self._calls.ask([Request(self._shard, pack(b"HGETALL", self._keys.files))])[0]
        with understood():
            sizes = lists_of(reply)
            names: list[bytes] = list(sizes[::2])
            requests = [Request(self._shard, pack(b"STRLEN", self._keys.file + each)) for each in names]
        lengths = self._calls.ask(requests)
        with understood():
            return {
                name.decode(): File(max(number_of(size), number_of(length)), number_of(length))
                for name, size, length in zip(names, sizes[1::2], lengths, strict=True)
            }

    def damage(self) -> str:
        found = ""
        for _ in range(LOOKS):  # a leader may change it between two questions
            state, there = self._calls.ask(
                [
                    Request(self._shard, pack(b"HMGET", self._keys.state, b"files", b"tail", b"stamp", b"secret")),
                    Request(self._shard, pack(b"HGETALL", self._keys.files)),
                ]
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
                there = self._calls.ask([Request(self._shard, pack(b"STRLEN", self._keys.file + name.encode()))])[0]
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
            questions = [
                pack(b"GETRANGE", key, b"%d" % start, b"%d" % (min(start + READ_CHUNK, end) - 1)) for start in starts
            ]
            replies = self._calls.ask([Request(self._shard, each) for each in questions])
            for start, reply in zip(starts, replies, strict=True):
                piece = reply if isinstance(reply, bytes) else b""
                pieces.append(piece)
                if len(piece) < min(READ_CHUNK, end - start):
                    return b"".join(pieces)
            offset = min(end, starts[-1] + READ_CHUNK)
        return b"".join(pieces)

    def look(self) -> Lease:
        return lease_of(self._calls.ask([Request(self._shard, pack(b"HMGET", self._keys.state, *LEASE_FIELDS))])[0])

    def close(self) -> None:
        self._calls.close()


if TYPE_CHECKING:

    def _is_engine(engine: RedisEngine) -> Engine:
        return engine

    def _is_connector(connector: RedisConnector) -> Connector:
        return connector
