"""Sends requests to the primaries that have the keys, many at once, and says what the replies mean.

What is asked at the same time leaves in one write for each primary, with one WAIT behind it, because WAIT is about all
that its own connection has written.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from beanstalk_server.cluster.engine.interface import EngineError, EngineFullError, EngineRefusedError
from beanstalk_server.cluster.engine.redis.connection import MISPLACED, RedisConnection, ReplyError, without_frames
from beanstalk_server.cluster.engine.redis.resp import Reply, ResponseError, pack
from beanstalk_server.cluster.engine.redis.scripts import Script
from beanstalk_server.cluster.engine.redis.servers import Condition, condition_of, losing
from beanstalk_server.cluster.engine.redis.shards import MovedError, Primary, Shards
from beanstalk_server.settings.engine_url import CLUSTER, EngineURL

ATTEMPTS: Final = 3
"""How often a request is sent that nothing has become of."""


class Request(NamedTuple):
    """One command about the keys of a shard."""

    shard: int
    data: bytes
    """As it is sent."""
    script: Script | None = None
    """That it runs."""
    waits: bool = False
    """It changes something that replicas must confirm."""


class Done(NamedTuple):
    """What has become of a request."""

    reply: Reply
    """No error."""
    replicas: int
    """How many have confirmed it; 0 if it does not wait."""


class NotLoadedError(EngineError):
    """Nothing has happened, because the server had not loaded the script."""


class RedisCalls:
    """Calls to an engine in Redis. It is not connected before the first one.

    Args:
        url: of the engine.
        name: of the cluster.
        replicas: how many replicas must confirm what is durable.
        timeout: seconds to connect, and for a part of an answer (`resp.TIMEOUTS`).
    """

    def __init__(self, url: EngineURL, name: str, replicas: int, timeout: float) -> None:
        self.url = url
        self.replicas = replicas
        self.shards = Shards(url, name, timeout)
        self.wait = pack(b"WAIT", b"%d" % replicas, b"%d" % int(timeout * 500)) if replicas else b""
        self.lock = threading.Lock()
        """Held by the call that is under way."""
        self._is_closed = False

    def close(self) -> None:
        """Close all connections. Calls in other threads end with an EngineError."""
        self._is_closed = True
        if self.lock.acquire(blocking=False):
            self.shards.close()
            self.lock.release()
        else:
            self.shards.abort()  # and the call that is under way closes them

    def end(self) -> None:
        """The holder of the lock has made its call."""
        if self._is_closed:
            self.shards.close()

    def perform(self, requests: Sequence[Request]) -> list[Done | EngineError]:
        """Send requests; return what has become of each."""
        results: dict[int, Done | EngineError] = {}
        with self.lock:
            try:
                self.go_on(requests, range(len(requests)), results)
            finally:
                self.end()
        return [results[index] for index in range(len(requests))]

    def perform_one(self, request: Request) -> Done:
        """Send one request.

        Raises:
            EngineError: it has failed.
        """
        return sure(self.perform([request]))[0]

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Send requests that change nothing; return the replies.

        Raises:
            EngineError: one of them has failed.
        """
        return [done.reply for done in sure(self.perform(requests))]

    def look_again(self, shard: int) -> None:
        """Have the next call find the primary anew: too few replicas confirm what this one does."""
        with self.lock:
            self.shards.look_again(shard)

    def connected(self, shards: Iterable[int]) -> list[Primary]:
        """The primaries that have these shards. The caller has the lock.

        Raises:
            EngineError: one of them has none now.
        """
        self.shards.begin()
        found: dict[Primary, None] = {}
        for shard in shards:
            for attempt in range(ATTEMPTS):
                try:
                    found[self.shards.find(shard)] = None
                    break
                except MovedError:
                    if attempt == ATTEMPTS - 1:
                        raise
        return list(found)

    def check(self, shards: Iterable[int]) -> list[str]:
        """What in the settings of the servers that have these shards would lose jobs, as `Registry.check`."""
        in_cluster = self.url.form == CLUSTER
        with self.lock:
            try:
                found = []
                for primary in self.connected(shards):
                    connection_to = self.shards.connection_to
                    found += losing(primary.connection, self.replicas, connection_to, in_cluster=in_cluster)
                return found
            finally:
                self.end()

    def inspect(self, shards: Iterable[int]) -> list[Condition]:
        """How the servers are that have these shards, and their replicas.

        Raises:
            EngineError: one of them does not say.
        """
        with self.lock:
            try:
                return [condition_of(primary.connection) for primary in self.connected(shards)]
            finally:
                self.end()

    def unsettled(self, results: dict[int, Done | EngineError]) -> list[int]:
        """The indexes of the requests that nothing has become of."""
        return [index for index, each in results.items() if isinstance(each, (MovedError, NotLoadedError))]

    def go_on(self, requests: Sequence[Request], left: Iterable[int], results: dict[int, Done | EngineError]) -> None:
        """Send the requests with these indexes; again, if nothing has become of them. The caller has the lock."""
        for _ in range(ATTEMPTS):
            for primary, indexes in self._send(requests, left, results):
                self._receive(primary, requests, indexes, results)
            left = self.unsettled(results)
            if not left:
                return

    def _send(
        self, requests: Sequence[Request], indexes: Iterable[int], results: dict[int, Done | EngineError]
    ) -> list[tuple[Primary, list[int]]]:
        """Send requests, each to where its shard is; return who has been sent which of them."""
        self.shards.begin()
        groups: dict[Primary, list[int]] = {}
        for index in indexes:
            try:
                groups.setdefault(self.shards.find(requests[index].shard), []).append(index)
            except EngineError as error:
                results[index] = without_frames(error)
        sent = []
        for primary, group in groups.items():
            data = [requests[index].data for index in group]
            if any(requests[index].waits for index in group):
                data.append(self.wait)
            try:
                primary.connection.send(b"".join(data))
                sent.append((primary, group))
            except EngineError as error:
                self._fail(primary, group, error, results)
        return sent

    def _receive(
        self, primary: Primary, requests: Sequence[Request], indexes: list[int], results: dict[int, Done | EngineError]
    ) -> None:
        """Take the replies of one primary."""
        waits = bool(self.wait) and any(requests[index].waits for index in indexes)
        try:
            replies = primary.connection.receive(len(indexes) + waits)
        except EngineError as error:
            self._fail(primary, indexes, error, results)
            return
        confirmed = replies.pop() if waits else 0
        self.sort_out(primary, requests, indexes, replies, confirmed, results)

    def _fail(
        self, primary: Primary, indexes: list[int], error: EngineError, results: dict[int, Done | EngineError]
    ) -> None:
        """Note that a connection has broken under these requests."""
        self.shards.leave(primary)
        without_frames(error)
        for index in indexes:
            results[index] = error

    def sort_out(
        self,
        primary: Primary,
        requests: Sequence[Request],
        indexes: Iterable[int],
        replies: Sequence[Reply],
        confirmed: Reply,
        results: dict[int, Done | EngineError],
    ) -> None:
        """Find out what the replies of one primary mean. The caller has the lock.

        Args:
            confirmed: the reply to the WAIT.
        """
        connection = primary.connection
        missing: dict[Script, list[int]] = {}
        unsure = connection.unexpected(confirmed) if not isinstance(confirmed, int) else None
        must_leave = unsure is not None
        for index, reply in zip(indexes, replies, strict=True):
            request = requests[index]
            if not isinstance(reply, ResponseError):
                replicas = confirmed if request.waits and isinstance(confirmed, int) else 0
                results[index] = unsure if unsure is not None and request.waits else Done(reply, replicas)
            elif request.script is not None and str(reply).startswith("NOSCRIPT"):
                missing.setdefault(request.script, []).append(index)
                results[index] = NotLoadedError(f"engine: {reply}")
            else:
                error = self._meaning(connection, request.shard, reply)
                must_leave = must_leave or is_misplaced(error)
                results[index] = error
        for script, group in missing.items():
            try:
                loaded = connection.ask(pack(b"SCRIPT", b"LOAD", script.text))[0]
                if isinstance(loaded, ResponseError):
                    raise connection.error_of(loaded)
            except EngineError as error:
                must_leave = must_leave or is_misplaced(error)
                without_frames(error)
                for index in group:
                    results[index] = error
        if must_leave:
            self.shards.leave(primary)

    def _meaning(self, connection: RedisConnection, shard: int, reply: ResponseError) -> EngineError:
        try:
            self.shards.follow(connection, shard, reply)
        except EngineError as error:
            return without_frames(error)
        return connection.error_of(reply)


def script_call(script: Script, keys: Sequence[bytes], arguments: Sequence[str | int]) -> bytes:
    """The command that runs a script."""
    encoded = [str(each).encode() for each in arguments]
    return pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *encoded)


def is_misplaced(error: EngineError) -> bool:
    """Whether another server may be the one to ask."""
    if isinstance(error, (EngineFullError, EngineRefusedError, MovedError, NotLoadedError)):
        return False
    return not isinstance(error, ReplyError) or error.code in MISPLACED


def sure(results: list[Done | EngineError]) -> list[Done]:
    """What has become of requests that must all succeed.

    Raises:
        EngineError: one of them has failed.
    """
    failed = next((each for each in results if isinstance(each, EngineError)), None)
    try:
        if failed is not None:
            raise failed
        return [each for each in results if isinstance(each, Done)]
    finally:
        results.clear()  # or this frame would have the error that has this frame
        del failed
