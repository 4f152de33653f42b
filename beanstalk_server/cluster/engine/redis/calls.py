"""Sends requests to the primaries that have the keys, many at once, and interprets the replies.

What is asked at the same time leaves in one write for each primary, with one WAIT behind it, because WAIT is about all
that its own connection has written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from beanstalk_server.cluster.engine.interface import EngineError
from beanstalk_server.cluster.engine.redis.connection import RedisConnection, without_frames
from beanstalk_server.cluster.engine.redis.resp import Reply, ResponseError, pack
from beanstalk_server.cluster.engine.redis.topology import RetryError, Topology
from beanstalk_server.settings.engine_url import EngineURL

T = TypeVar("T")

ATTEMPTS: Final = 3
"""Maximum number of attempts for a request that had no effect."""

UNSENT: Final = RetryError("engine: request not sent")
"""The result of a request before it is sent."""


class Request(NamedTuple):
    """One command about the keys of a shard."""

    shard: int
    data: bytes
    """As it is sent."""
    waits: bool = False
    """It changes something that replicas must confirm."""


class Done(NamedTuple):
    """The result of a request."""

    reply: Reply
    """No error."""
    replicas: int
    """How many have confirmed it; 0 if it does not wait."""


class RedisCalls:
    """Calls to an engine in Redis. It is not connected before the first one. Each call is made within `with`.

    Args:
        url: of the engine.
        name: of the cluster.
        replicas: how many replicas must confirm what is durable.
        timeout: seconds to connect, and for a part of an answer (`resp.TIMEOUTS`).
    """

    def __init__(self, url: EngineURL, name: str, replicas: int, timeout: float) -> None:
        self.url = url
        self.replicas = replicas
        self.topology = Topology(url, name, timeout)
        self.wait = pack(b"WAIT", b"%d" % replicas, b"%d" % int(timeout * 500)) if replicas else b""
        self._lock = threading.RLock()  # held by the call that is under way
        self._is_closed = False

    def __enter__(self) -> Topology:
        self._lock.acquire()
        return self.topology

    def __exit__(self, *_: object) -> None:
        if self._is_closed:
            self.topology.close()
        self._lock.release()

    def close(self) -> None:
        """Close all connections. Calls in other threads end with an EngineError."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self.topology.close()
            self._lock.release()
        else:
            self.topology.abort()  # and the call that is under way closes them

    def perform(
        self, requests: Sequence[Request], results: list[Done | EngineError] | None = None
    ) -> list[Done | EngineError]:
        """Send requests; return what has become of each.

        Args:
            results: what has become of each already. Those with a RetryError are sent, and again if they get another.
        """
        if results is None:
            results = [UNSENT for _ in requests]
        with self:
            for _ in range(ATTEMPTS):
                left = [index for index, each in enumerate(results) if isinstance(each, RetryError)]
                if not left:
                    break
                for connection, indexes in self._send(requests, left, results):
                    self._receive(connection, requests, indexes, results)
        return results

    def ask(self, requests: Sequence[Request]) -> list[Done]:
        """Send requests; return what has become of each.

        Raises:
            EngineError: one of them has failed.
        """
        results = self.perform(requests)
        failed = next((each for each in results if isinstance(each, EngineError)), None)
        try:
            if failed is not None:
                raise failed
            return [each for each in results if isinstance(each, Done)]
        finally:
            results.clear()  # or this frame would have the error that has this frame
            del failed

    def of_primaries(self, shards: Iterable[int], ask: Callable[[RedisConnection], T]) -> list[T]:
        """What `ask` finds at each server that has any of these shards.

        Raises:
            EngineError: a shard has none now, or `ask` has raised it.
        """
        with self as topology:
            topology.begin()
            found: dict[RedisConnection, None] = {}
            for shard in shards:
                for attempt in range(ATTEMPTS):
                    try:
                        found[topology.find(shard)] = None
                        break
                    except RetryError:
                        if attempt == ATTEMPTS - 1:
                            raise
            return [ask(connection) for connection in found]

    def look_again(self, shard: int) -> None:
        """Have the next call find the primary anew: too few replicas confirm what this one does."""
        with self as topology:
            topology.look_again(shard)

    def _send(
        self, requests: Sequence[Request], indexes: Iterable[int], results: list[Done | EngineError]
    ) -> list[tuple[RedisConnection, list[int]]]:
        """Send requests, each to where its shard is; return who has been sent which of them."""
        self.topology.begin()
        groups: dict[RedisConnection, list[int]] = {}
        for index in indexes:
            try:
                groups.setdefault(self.topology.find(requests[index].shard), []).append(index)
            except EngineError as error:
                results[index] = without_frames(error)
        sent = []
        for connection, group in groups.items():
            data = [requests[index].data for index in group]
            if any(requests[index].waits for index in group):
                data.append(self.wait)
            try:
                connection.send(b"".join(data))
                sent.append((connection, group))
            except EngineError as error:
                self._fail(connection, group, error, results)
        return sent

    def _receive(
        self,
        connection: RedisConnection,
        requests: Sequence[Request],
        indexes: list[int],
        results: list[Done | EngineError],
    ) -> None:
        """Take the replies of one primary."""
        waits = bool(self.wait) and any(requests[index].waits for index in indexes)
        try:
            replies = connection.receive(len(indexes) + waits)
        except EngineError as error:
            self._fail(connection, indexes, error, results)
            return
        confirmed = replies.pop() if waits else 0
        self.sort_out(connection, requests, indexes, replies, confirmed, results)

    def _fail(
        self, connection: RedisConnection, indexes: list[int], error: EngineError, results: list[Done | EngineError]
    ) -> None:
        """Note that a connection has broken under these requests."""
        self.topology.drop(connection)
        without_frames(error)
        for index in indexes:
            results[index] = error

    def sort_out(
        self,
        connection: RedisConnection,
        requests: Sequence[Request],
        indexes: Iterable[int],
        replies: Sequence[Reply],
        confirmed: Reply,
        results: list[Done | EngineError],
    ) -> None:
        """Find out what the replies of one primary mean.

        Args:
            confirmed: the reply to the WAIT.
        """
        for index, reply in zip(indexes, replies, strict=True):
            shard, _, waits = requests[index]
            if isinstance(reply, ResponseError):
                results[index] = self.topology.meaning(connection, shard, reply)
            elif isinstance(confirmed, int) or not waits:
                results[index] = Done(reply, confirmed if waits and isinstance(confirmed, int) else 0)
            else:
                results[index] = connection.error_of(confirmed)
        if not isinstance(confirmed, int):  # the server may be a replica by now
            self.topology.drop(connection)


def script_call(sha: bytes, keys: Sequence[bytes], arguments: Sequence[str | int]) -> bytes:
    """The command that runs a script."""
    encoded = [str(each).encode() for each in arguments]
    return pack(b"EVALSHA", sha, b"%d" % len(keys), *keys, *encoded)
