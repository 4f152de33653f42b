"""The leases of all shards in Redis: many calls in one write for each primary.

Most calls are looks at leases of others, in which nothing has changed but the count of renewals. So a look asks for
what changes, and for the rest only if there is another leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from beanstalk_server.cluster.engine.interface import (
    OBSERVE,
    RELEASE,
    RENEW,
    TAKE,
    EngineError,
    Lease,
    LeaseCall,
    Member,
    Registry,
    Report,
)
from beanstalk_server.cluster.engine.redis import scripts
from beanstalk_server.cluster.engine.redis.calls import Done, RedisCalls, Request, script_call
from beanstalk_server.cluster.engine.redis.connection import without_frames
from beanstalk_server.cluster.engine.redis.replies import LEASE_FIELDS, lease_of, members_of
from beanstalk_server.cluster.engine.redis.resp import lists_of, number_of, pack, text_of, understood
from beanstalk_server.cluster.engine.redis.servers import Condition

GLANCED: Final = (b"epoch", b"node", b"renewals", b"successor")
"""The fields that a look asks for. As long as epoch and node are the same, so are all others."""


class RedisRegistry:
    """A registry in Redis; see `Registry` for the methods without a docstring here.

    Args:
        calls: used by nobody else.
    """

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls
        self._shards = 0  # how many there are; 0 if it does not know
        self._glances: dict[int, bytes] = {}  # by shard: the request
        self._seen: dict[int, Lease] = {}  # by shard, as it was asked for as a whole

    def shards(self, wanted: int) -> int:
        keys = self._calls.shards.keys_of(0)
        request = script_call(scripts.SHARDS, [keys.state], [wanted, scripts.version_of(wanted)])
        done = self._calls.perform_one(Request(0, request, scripts.SHARDS, waits=True))
        with understood():
            found = number_of(done.reply)
        if found == wanted != 0:
            self._must_be_enough(0, done.replicas, "the number of shards")
        self._shards = found
        return found

    def perform(self, calls: Sequence[LeaseCall], report: Report | None = None) -> list[Lease | EngineError]:
        requests = [self._request(call) for call in calls]
        if report is not None:
            requests.append(self._report(report))
        results = self._calls.perform(requests)
        leases = [self._result(call, done) for call, done in zip(calls, results, strict=False)]
        unknown = [index for index, lease in enumerate(leases) if lease is None]
        if unknown:
            for index, done in zip(
                unknown, self._calls.perform([self._look(calls[each].shard) for each in unknown]), strict=True
            ):
                leases[index] = self._lease(calls[index].shard, done)
        return [lease for lease in leases if lease is not None]

    def members(self) -> list[Member]:
        keys = self._calls.shards.keys_of(0)
        reports, moment = self._calls.ask(
            [Request(0, pack(b"HGETALL", keys.prefix + b"nodes")), Request(0, pack(b"TIME"))]
        )
        return members_of(reports, moment)

    def request_move(self, shard: int, node: str) -> Lease:
        keys = self._calls.shards.keys_of(shard)
        request = script_call(scripts.MOVE, [keys.state], [node])
        return lease_of(self._calls.perform_one(Request(shard, request, scripts.MOVE)).reply, self._shards)

    def check(self) -> list[str]:
        return self._calls.check(range(self._shards or 1))

    def inspect(self) -> list[Condition]:
        """How the servers are that have any shard, and their replicas.

        Raises:
            EngineError: one of them does not say.
        """
        return self._calls.inspect(range(self._shards or 1))

    def close(self) -> None:
        self._calls.close()

    # Requests

    def _request(self, call: LeaseCall) -> Request:
        what, shard, lease, seen, successor, restores = call
        if what == OBSERVE:
            return self._glance(shard)
        keys = self._calls.shards.keys_of(shard)
        own: list[str | int] = [lease.epoch, lease.stamp]
        engine: list[str | int] = [scripts.version_of(self._shards), self._shards or ""]
        rest: list[str | int] = [lease.node, lease.address, lease.secret, lease.ttl, lease.lineage]
        if what == TAKE:
            script = scripts.TAKE
            arguments = [*own, *engine, lease.renewals, *rest, seen.epoch, seen.stamp, seen.renewals]
        elif what == RENEW:
            script = scripts.RENEW
            arguments = [*own, *engine, lease.renewals + 1, *rest, int(restores)]
        else:
            assert what == RELEASE, what
            script = scripts.RELEASE
            arguments = [*own, successor]
        return Request(shard, script_call(script, [keys.state], arguments), script, waits=True)

    def _glance(self, shard: int) -> Request:
        data = self._glances.get(shard)
        if data is None:
            data = self._glances[shard] = pack(b"HMGET", self._calls.shards.keys_of(shard).state, *GLANCED)
        return Request(shard, data)

    def _look(self, shard: int) -> Request:
        return Request(shard, pack(b"HMGET", self._calls.shards.keys_of(shard).state, *LEASE_FIELDS))

    def _report(self, report: Report) -> Request:
        nodes = self._calls.shards.keys_of(0).prefix + b"nodes"
        shards, jobs, size = report.load
        said = f"{report.address} {shards} {jobs} {size} {int(report.takes)}"
        return Request(0, script_call(scripts.REPORT, [nodes], [report.node, said]), scripts.REPORT)

    # Results

    def _result(self, call: LeaseCall, done: Done | EngineError) -> Lease | EngineError | None:
        """The lease after a call; None if more has to be asked."""
        if call.what == OBSERVE:
            return self._glanced(call.shard, done)
        lease = self._lease(call.shard, done)
        if isinstance(done, Done) and isinstance(lease, Lease) and call.what in (TAKE, RENEW):
            own = call.lease
            if (lease.epoch, lease.node, lease.secret) == (own.epoch, own.node, own.secret):
                try:
                    self._must_be_enough(call.shard, done.replicas, "the lease")
                except EngineError as error:
                    return without_frames(error)
        return lease

    def _glanced(self, shard: int, done: Done | EngineError) -> Lease | EngineError | None:
        if isinstance(done, EngineError):
            return done
        seen = self._seen.get(shard)
        try:
            with understood():
                epoch, node, renewals, successor = lists_of(done.reply)
                if seen is None or number_of(epoch) != seen.epoch or text_of(node) != seen.node:
                    return None
                return seen._replace(renewals=number_of(renewals), successor=text_of(successor))
        except EngineError as error:
            return without_frames(error)

    def _lease(self, shard: int, done: Done | EngineError) -> Lease | EngineError:
        if isinstance(done, EngineError):
            return done
        try:
            lease = self._seen[shard] = lease_of(done.reply, self._shards)
        except EngineError as error:
            return without_frames(error)
        return lease

    def _must_be_enough(self, shard: int, confirmed: int, what: str) -> None:
        if confirmed < self._calls.replicas:
            self._calls.look_again(shard)
            raise EngineError(f"engine: {confirmed} replicas have confirmed {what}: must be {self._calls.replicas}")


if TYPE_CHECKING:

    def _is_registry(registry: RedisRegistry) -> Registry:
        return registry
