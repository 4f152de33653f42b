"""The engine in Redis or Valkey: a server alone, with replicas, with Sentinel, or a Redis Cluster; also managed ones.

One commit is one script and one WAIT, sent together on the same connection, because WAIT is about what its own
connection has written. Everything is in one database, under keys that begin with {NAME:SHARD} (scripts.py). Must never
know what is in a file.

Most calls about leases are looks at those of others, in which nothing has changed but the count of renewals. So a look
asks for what changes, and for the rest only if there is another leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from beanstalk_server.cluster.engine.interface import (
    MOVE,
    OBSERVE,
    RELEASE,
    RENEW,
    TAKE,
    Answer,
    CommitCall,
    Condition,
    EngineError,
    File,
    Lease,
    LeaseCall,
    Member,
    Report,
    lacks,
    lacks_end,
)
from beanstalk_server.cluster.engine.redis import scripts
from beanstalk_server.cluster.engine.redis.calls import UNSENT, Done, RedisCalls, Request, script_call
from beanstalk_server.cluster.engine.redis.connection import RedisConnection, without_frames
from beanstalk_server.cluster.engine.redis.replies import lease_of, members_of, position_of
from beanstalk_server.cluster.engine.redis.resp import Reply, lists_of, number_of, pack, text_of, understood
from beanstalk_server.cluster.engine.redis.servers import condition_of, faults
from beanstalk_server.cluster.engine.redis.topology import Topology
from beanstalk_server.settings.engine_url import CLUSTER, EngineURL

READ_CHUNK: Final = 1 << 20
"""Bytes that one command reads, which holds up all others on the server."""

LOOKS: Final = 10
"""How often what is missing must be missing."""

READ_AHEAD: Final = 8
"""Commands that are sent before the answer to the first one is read."""

GLANCED: Final = (b"epoch", b"node", b"renewals", b"successor")
"""The fields that a look asks for. As long as epoch and node are the same, so are all others."""

LEASE_FIELDS: Final = tuple([each.encode() for each in scripts.FIELDS])
"""The fields of the state that a lease is made of."""

LOOK: Final = "look"
"""A call like OBSERVE, with all fields in its answer."""

MARK: Final = "mark"
"""The same, of an engine that gets a number if it has none."""


class RedisEngine:
    """A connection to an engine in Redis; see `Engine` for the methods without a docstring here.

    Args:
        url: of the engine.
        name: of the cluster.
        replicas: how many replicas must confirm what is durable.
        timeout: seconds to connect, and for a part of an answer (`resp.TIMEOUTS`).
    """

    def __init__(self, url: EngineURL, name: str, replicas: int, *, timeout: float = 2.0) -> None:
        self._calls = RedisCalls(url, name, replicas, timeout)
        self._shards = 0  # how many there are; 0 if it does not know
        self._glances: dict[int, bytes] = {}  # by shard: the request
        self._seen: dict[int, Lease] = {}  # by shard, as it was asked for as a whole

    def close(self) -> None:
        self._calls.close()

    def shards(self, wanted: int) -> int:
        request = self._script(0, scripts.SHARDS, [wanted, scripts.version_of(wanted)])
        (done,) = self._calls.ask([request])
        with understood():
            found = number_of(done.reply)
        if found == wanted != 0:
            self._must_be_enough(0, done.replicas, "the number of shards")
        self._shards = found
        return found

    def members(self) -> list[Member]:
        nodes = self._calls.topology.keys_of(0).prefix + b"nodes"
        reports, moment = self._calls.ask([Request(0, pack(b"HGETALL", nodes)), Request(0, pack(b"TIME"))])
        return members_of(reports.reply, moment.reply)

    def check(self) -> list[str]:
        calls = self._calls
        asking, in_cluster = calls.topology.asking, calls.url.form == CLUSTER
        found = calls.of_primaries(
            range(self._shards or 1),
            lambda primary: faults(primary, calls.replicas, asking, in_cluster=in_cluster),
        )
        return [fault for each in found for fault in each]

    def inspect(self) -> list[Condition]:
        return self._calls.of_primaries(range(self._shards or 1), condition_of)

    # Leases

    def perform(self, calls: Sequence[LeaseCall], report: Report | None = None) -> list[Lease | EngineError]:
        requests = [self._request(call) for call in calls]
        if report is not None:
            requests.append(self._report(report))
        results = self._calls.perform(requests)[: len(calls)]
        leases = [self._lease(call, done) for call, done in zip(calls, results, strict=True)]
        unknown = [index for index, lease in enumerate(leases) if lease is None]
        if unknown:
            looks = [calls[index]._replace(what=MARK if calls[index].lease.renewals else LOOK) for index in unknown]
            results = self._calls.perform([self._request(look) for look in looks])
            for index, look, done in zip(unknown, looks, results, strict=True):
                leases[index] = self._lease(look, done)
        return [lease for lease in leases if lease is not None]

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
        if what == MOVE:
            return self._script(shard, scripts.MOVE, [successor], waits=False)
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

    def _lease(self, call: LeaseCall, done: Done | EngineError) -> Lease | EngineError | None:
        """The lease after a call; None if more has to be asked."""
        if isinstance(done, EngineError):
            return done
        what, shard, own, *_ = call
        try:
            if what == OBSERVE:
                return self._glanced(call, done.reply)
            lease = self._seen[shard] = lease_of(done.reply, self._shards)
            if what in (TAKE, RENEW) and lease.is_same(own):
                self._must_be_enough(shard, done.replicas, "the lease")
        except EngineError as error:
            return without_frames(error)
        return lease

    def _glanced(self, call: LeaseCall, reply: Reply) -> Lease | None:
        seen = self._seen.get(call.shard)
        with understood():
            epoch, node, renewals, successor = lists_of(reply)
            if seen is None or number_of(epoch) != seen.epoch or text_of(node) != seen.node:
                return None
            if call.lease.renewals and not (seen.epoch or number_of(renewals)):
                return None
            return seen._replace(renewals=number_of(renewals), successor=text_of(successor))

    def _must_be_enough(self, shard: int, confirmed: int, what: str) -> None:
        if confirmed < self._calls.replicas:
            self._calls.look_again(shard)
            raise EngineError(f"engine: only {confirmed} of {self._calls.replicas} replicas have confirmed {what}")

    # Commits

    def append(self, calls: Sequence[CommitCall]) -> list[Answer | EngineError]:
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

    # Files

    def files(self, shard: int) -> dict[str, File]:
        keys = self._calls.topology.keys_of(shard)
        (reply,) = self._ask(shard, pack(b"HGETALL", keys.files))
        with understood():
            sizes = lists_of(reply)
            names: list[bytes] = list(sizes[::2])
            requests = [pack(b"STRLEN", keys.file + each) for each in names]
        lengths = self._ask(shard, *requests)
        with understood():
            return {
                name.decode(): File(max(number_of(size), number_of(length)), number_of(length))
                for name, size, length in zip(names, sizes[1::2], lengths, strict=True)
            }

    def damage(self, shard: int) -> str:
        keys = self._calls.topology.keys_of(shard)
        found = ""
        for _ in range(LOOKS):  # a leader may change it between two questions
            state, there = self._ask(
                shard,
                pack(b"HMGET", keys.state, b"files", b"tail", b"stamp", b"secret"),
                pack(b"HGETALL", keys.files),
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
                (there,) = self._ask(shard, pack(b"STRLEN", keys.file + name.encode()))
                with understood():
                    found = lacks_end(name, length, number_of(there))
            if not found:
                break
        return found

    def read(self, shard: int, name: str, offset: int, size: int) -> bytes:
        key = self._calls.topology.keys_of(shard).file + name.encode()
        end = offset + size
        pieces: list[bytes] = []
        while offset < end:
            starts = range(offset, min(end, offset + READ_AHEAD * READ_CHUNK), READ_CHUNK)
            ends = [min(start + READ_CHUNK, end) for start in starts]
            replies = self._ask(
                shard,
                *[
                    pack(b"GETRANGE", key, b"%d" % start, b"%d" % (stop - 1))
                    for start, stop in zip(starts, ends, strict=True)
                ],
            )
            for start, stop, reply in zip(starts, ends, replies, strict=True):
                piece = reply if isinstance(reply, bytes) else b""
                pieces.append(piece)
                if len(piece) < stop - start:
                    return b"".join(pieces)
            offset = ends[-1]
        return b"".join(pieces)

    def _ask(self, shard: int, *requests: bytes) -> list[Reply]:
        """The replies to requests that change nothing."""
        return [done.reply for done in self._calls.ask([Request(shard, each) for each in requests])]


def _common(topology: Topology, calls: Sequence[CommitCall]) -> RedisConnection | None:
    """The connection to the primary that has all the shards, if it is a single one, and connected."""
    connection = topology.known(calls[0].shard)
    for call in calls[1:]:
        if topology.known(call.shard) is not connection:
            return None
    return connection


def _requests(calls: Sequence[CommitCall], data: Sequence[bytes]) -> list[Request]:
    return [Request(call.shard, each, waits=True) for call, each in zip(calls, data, strict=True)]
