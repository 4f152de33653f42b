"""The leases of all shards in Redis: many calls in one write for each primary.

Most calls are looks at leases of others, in which nothing has changed but the count of renewals. So a look asks for
what changes, and for the rest only if there is another leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from beanstalk_server.cluster.engine.interface import (
    MARK,
    OBSERVE,
    RELEASE,
    RENEW,
    START,
    TAKE,
    EngineError,
    EngineRefusedError,
    Lease,
    LeaseCall,
    Load,
    Member,
    Position,
    Report,
)
from beanstalk_server.cluster.engine.redis import scripts
from beanstalk_server.cluster.engine.redis.calls import Done, RedisCalls, Request, script_call
from beanstalk_server.cluster.engine.redis.connection import without_frames
from beanstalk_server.cluster.engine.redis.resp import Reply, lists_of, number_of, pack, text_of, understood
from beanstalk_server.cluster.engine.redis.servers import Condition, condition_of, faults
from beanstalk_server.settings.engine_url import CLUSTER

GLANCED: Final = (b"epoch", b"node", b"renewals", b"successor")
"""The fields that a look asks for. As long as epoch and node are the same, so are all others."""

LEASE_FIELDS: Final = tuple([each.encode() for each in scripts.FIELDS])
"""The fields of the state that a lease is made of."""

LOOK: Final = "look"
"""A call like OBSERVE, with all fields in its answer."""

REMEMBERED: Final = 60
"""Seconds for which a node that does not report is a member."""


class RedisLeaseRegistry:
    """A registry in Redis; see `LeaseRegistry` for the methods without a docstring here.

    Args:
        calls: used by this object alone.
    """

    def __init__(self, calls: RedisCalls) -> None:
        self._calls = calls
        self._shards = 0  # how many there are; 0 if it does not know
        self._glances: dict[int, bytes] = {}  # by shard: the request
        self._seen: dict[int, Lease] = {}  # by shard, as it was asked for as a whole

    def shards(self, wanted: int) -> int:
        request = self._script(0, scripts.SHARDS, [wanted, scripts.version_of(wanted)])
        (done,) = self._calls.ask([request])
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
        results = self._calls.perform(requests)[: len(calls)]
        leases = [self._lease(call, done) for call, done in zip(calls, results, strict=True)]
        unknown = [index for index, lease in enumerate(leases) if lease is None]
        if unknown:
            looks = [calls[index]._replace(what=LOOK) for index in unknown]
            results = self._calls.perform([self._request(look) for look in looks])
            for index, look, done in zip(unknown, looks, results, strict=True):
                leases[index] = self._lease(look, done)
        return [lease for lease in leases if lease is not None]

    def members(self) -> list[Member]:
        nodes = self._calls.topology.keys_of(0).prefix + b"nodes"
        reports, moment = self._calls.ask([Request(0, pack(b"HGETALL", nodes)), Request(0, pack(b"TIME"))])
        return members_of(reports.reply, moment.reply)

    def request_move(self, shard: int, node: str) -> Lease:
        (done,) = self._calls.ask([self._script(shard, scripts.MOVE, [node], waits=False)])
        return lease_of(done.reply, self._shards)

    def check(self) -> list[str]:
        calls = self._calls
        asking, in_cluster = calls.topology.asking, calls.url.form == CLUSTER
        found = calls.of_primaries(
            range(self._shards or 1),
            lambda primary: faults(primary, calls.replicas, asking, in_cluster=in_cluster),
        )
        return [fault for each in found for fault in each]

    def inspect(self) -> list[Condition]:
        """How the servers are that have any shard, and their replicas.

        Raises:
            EngineError: one of them does not say.
        """
        return self._calls.of_primaries(range(self._shards or 1), condition_of)

    def close(self) -> None:
        self._calls.close()

    # Requests

    def _request(self, call: LeaseCall) -> Request:
        what, shard, lease, seen, successor, restores = call
        if what == OBSERVE:
            data = self._glances.get(shard)
            if data is None:
                data = self._glances[shard] = pack(b"HMGET", self._calls.topology.keys_of(shard).state, *GLANCED)
            return Request(shard, data)
        if what == LOOK:
            return Request(shard, pack(b"HMGET", self._calls.topology.keys_of(shard).state, *LEASE_FIELDS))
        if what == MARK:
            return self._script(shard, scripts.MARK, [lease.renewals], waits=False)
        own: list[str | int] = [lease.epoch, lease.stamp]
        if what == RELEASE:
            return self._script(shard, scripts.RELEASE, [*own, successor])
        engine: list[str | int] = [scripts.version_of(self._shards), self._shards or ""]
        rest: list[str | int] = [lease.node, lease.address, lease.secret, lease.ttl, lease.lineage]
        if what == TAKE:
            found: list[str | int] = [seen.epoch, seen.stamp, seen.renewals]
            return self._script(shard, scripts.TAKE, [*own, *engine, lease.renewals, *rest, *found])
        assert what == RENEW, what
        return self._script(shard, scripts.RENEW, [*own, *engine, lease.renewals + 1, *rest, int(restores)])

    def _report(self, report: Report) -> Request:
        nodes = self._calls.topology.keys_of(0).prefix + b"nodes"
        shards, jobs, size = report.load
        said = f"{report.address} {shards} {jobs} {size} {int(report.takes)}"
        return Request(0, script_call(scripts.REPORT.sha, [nodes], [report.node, said]))

    def _script(
        self, shard: int, script: scripts.Script, arguments: Sequence[str | int], *, waits: bool = True
    ) -> Request:
        """Run a script on the state of a shard."""
        state = self._calls.topology.keys_of(shard).state
        return Request(shard, script_call(script.sha, [state], arguments), waits)

    # Results

    def _lease(self, call: LeaseCall, done: Done | EngineError) -> Lease | EngineError | None:
        """The lease after a call; None if more has to be asked."""
        if isinstance(done, EngineError):
            return done
        what, shard, own, *_ = call
        try:
            if what == OBSERVE:
                return self._glanced(shard, done.reply)
            lease = self._seen[shard] = lease_of(done.reply, self._shards)
            if what in (TAKE, RENEW) and lease.is_same(own):
                self._must_be_enough(shard, done.replicas, "the lease")
        except EngineError as error:
            return without_frames(error)
        return lease

    def _glanced(self, shard: int, reply: Reply) -> Lease | None:
        seen = self._seen.get(shard)
        with understood():
            epoch, node, renewals, successor = lists_of(reply)
            if seen is None or number_of(epoch) != seen.epoch or text_of(node) != seen.node:
                return None
            return seen._replace(renewals=number_of(renewals), successor=text_of(successor))

    def _must_be_enough(self, shard: int, confirmed: int, what: str) -> None:
        if confirmed < self._calls.replicas:
            self._calls.look_again(shard)
            raise EngineError(f"engine: {confirmed} replicas have confirmed {what}: must be {self._calls.replicas}")


def lease_of(reply: Reply, shards: int = 0) -> Lease:
    """The lease of the fields of the state.

    Args:
        shards: how many there are, as far as this node knows; 0 if it does not.

    Raises:
        EngineRefusedError: a later release has written it, or nodes with another number of shards.
        EngineError: it is something else.
    """
    with understood():
        version, epoch, renewals, node, address, secret, last, ttl, successor, lineage, held = lists_of(reply)
        if version is not None and text_of(version) not in scripts.VERSIONS:
            raise EngineRefusedError(
                f"the journal in the engine has version {text_of(version)}, and this server knows version "
                f"{scripts.VERSIONS[-1]}: must be a server of a later release"
            )
        if shards and held is not None and number_of(held) != shards:
            raise EngineRefusedError(f"the engine has {number_of(held)} shards, and this node {shards}")
        return Lease(
            number_of(epoch),
            number_of(renewals),
            text_of(node),
            text_of(address),
            text_of(secret),
            position_of(last),
            number_of(ttl),
            text_of(successor),
            text_of(lineage),
        )


def position_of(reply: object) -> Position:
    """A position as it is kept: "EPOCH.NUMBER".

    Raises:
        ValueError: it is something else.
    """
    epoch, dot, number = text_of(reply).partition(".")
    return Position(int(epoch), int(number)) if dot else START


def members_of(reports: Reply, moment: Reply) -> list[Member]:
    """The nodes that have reported within the last minute.

    Args:
        moment: the time of the engine.

    Raises:
        EngineError: it is something else.
    """
    with understood():
        seconds, micros = lists_of(moment)
        now = number_of(seconds) + number_of(micros) / 1e6
        fields = lists_of(reports)
        found = []
        for node, report in zip(fields[::2], fields[1::2], strict=True):
            address, *load, reported = text_of(report).split(" ")
            seen = now - float(reported)
            if seen <= REMEMBERED:
                shards, jobs, size, takes = map(int, load or (0, 0, 0, 1))
                found.append(Member(text_of(node), address, max(seen, 0.0), Load(shards, jobs, size), bool(takes)))
        return found
