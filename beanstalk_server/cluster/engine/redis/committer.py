"""The commits of all shards, in Redis: what comes together leaves in one write for each primary, with one WAIT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from beanstalk_server.cluster.engine.interface import Answer, CommitCall, Committer, EngineError
from beanstalk_server.cluster.engine.redis.calls import Done, RedisCalls, Request
from beanstalk_server.cluster.engine.redis.connection import without_frames
from beanstalk_server.cluster.engine.redis.replies import answer_of
from beanstalk_server.cluster.engine.redis.scripts import COMMIT, COMMIT_BEYOND
from beanstalk_server.cluster.engine.redis.shards import Primary


class RedisCommitter:
    """A committer in Redis.

    Args:
        calls: used by nobody else.
    """

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls

    def append(self, calls: Sequence[CommitCall]) -> list[Answer | EngineError]:
        """Make commits; see `Committer`."""
        with self._calls.lock:
            try:
                return self._append(calls)
            finally:
                self._calls.end()

    def close(self) -> None:
        """Close all connections. Calls in other threads end with an EngineError."""
        self._calls.close()

    def _append(self, calls: Sequence[CommitCall]) -> list[Answer | EngineError]:
        shards = self._calls.shards
        data = [shards.keys_of(shard).commit(commit, may_exceed) for shard, commit, may_exceed in calls]
        primary = self._common_primary(calls)
        if primary is None or not self._calls.wait:
            return self._go_on(calls, _requests(calls, data), range(len(calls)), {})
        data.append(self._calls.wait)
        try:
            primary.connection.send(b"".join(data))
            replies, confirmed = primary.connection.receive_made(len(calls))
        except EngineError as error:
            shards.leave(primary)
            without_frames(error)
            return [error for _ in calls]
        if not replies and isinstance(confirmed, int):  # nearly always
            if confirmed < self._calls.replicas:
                shards.look_again(calls[0].shard)
            return [Answer(commit.position.epoch, commit.position, confirmed) for _, commit, _ in calls]
        requests = _requests(calls, data)
        results: dict[int, Done | EngineError] = {}
        self._calls.sort_out(primary, requests, range(len(calls)), replies, confirmed, results)
        return self._go_on(calls, requests, self._calls.unsettled(results), results)

    def _go_on(
        self,
        calls: Sequence[CommitCall],
        requests: Sequence[Request],
        left: Sequence[int],
        results: dict[int, Done | EngineError],
    ) -> list[Answer | EngineError]:
        """Send the requests with these indexes; return the answers to all calls."""
        if left:
            self._calls.go_on(requests, left, results)
        return [self._answer(results[index], call) for index, call in enumerate(calls)]

    def _answer(self, done: Done | EngineError, call: CommitCall) -> Answer | EngineError:
        if isinstance(done, EngineError):
            return done
        try:
            answer = answer_of(done, call.commit)
        except EngineError as error:
            return without_frames(error)
        if answer.position == call.commit.position and answer.replicas < self._calls.replicas:
            self._calls.shards.look_again(call.shard)
        return answer

    def _common_primary(self, calls: Sequence[CommitCall]) -> Primary | None:
        """The primary that has all the shards, if it is a single one, and connected."""
        shards = self._calls.shards
        primary = shards.known(calls[0].shard)
        if primary is None or not primary.connection.is_open:
            return None
        for call in calls[1:]:
            if shards.known(call.shard) is not primary:
                return None
        return primary


def _requests(calls: Sequence[CommitCall], data: Sequence[bytes]) -> list[Request]:
    return [
        Request(shard, data[index], COMMIT_BEYOND if may_exceed else COMMIT, waits=True)
        for index, (shard, _, may_exceed) in enumerate(calls)
    ]


if TYPE_CHECKING:

    def _is_committer(committer: RedisCommitter) -> Committer:
        return committer
