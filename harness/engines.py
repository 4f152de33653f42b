"""Redis as the engine of a cluster: alone with replicas, with Sentinel, or as Redis Cluster, each server a process.

Everything listens on 127.0.0.1, on ports that stay the same when a server is killed and started again.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from harness.postgres import Postgres, PromotingPostgres
from harness.servers import REDIS, RefusedError, Restartable, command, unused_port
from harness.waiting import eventually

Reply = bytes | int | list["Reply"] | None
"""An answer of Redis."""

ASK_WITHIN: Final = 5.0
"""Seconds until a server must have answered a question of the harness."""

SETTLE_WITHIN: Final = 60.0
"""Seconds until the servers must have found each other, elected, and copied everything."""

NODE_TIMEOUT: Final = 1500
"""Milliseconds until Redis Cluster and Sentinel take a server for dead: a tenth of their default, or less."""

SERVICE: Final = "queue"
"""The name of the primary in Sentinel."""

SAFE: Final = ("--save", "", "--appendonly", "yes", "--repl-diskless-sync-delay", "0", "--repl-backlog-size", "64mb")
"""The options of every server that keeps something: what docs/cluster.md asks for, and no pause before a copy."""


CLUSTER: Final = "beanstalk"
"""The name of a cluster that has been given none."""


def key(shard: int = 0, name: str = CLUSTER) -> str:
    """What the names of all keys of a shard begin with, and what decides where Redis Cluster keeps its journal."""
    return f"{{{name}:{shard}}}"


class RedisServer(Restartable):
    """One process of Redis, which starts again with what it has on its disk. One that is loading counts as started.

    Args:
        directory: of its own; it is made.
        options: of its command line, besides its address and directory.
        sentinel: whether it is a Sentinel, whose only option is its configuration file.

    Raises:
        ServerError: it is not installed, or does not start.
    """

    def __init__(self, directory: Path, options: Sequence[str] = (), *, sentinel: str = "") -> None:
        port = unused_port()
        self.directory = directory
        directory.mkdir(parents=True)
        address = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory)]
        line = [*command(REDIS), *address, *options]
        if sentinel:
            (directory / "sentinel.conf").write_text(f"bind 127.0.0.1\nport {port}\ndir {directory}\n{sentinel}")
            line = [*command(REDIS), str(directory / "sentinel.conf"), "--sentinel"]
        super().__init__(REDIS, line, port, address=("127.0.0.1", port), directory=directory)

    def wipe(self) -> None:
        """Remove what it has on its disk, when it is not running."""
        for path in self.directory.glob("appendonlydir/*"):
            path.unlink()

    def ask(self, *words: bytes | str | int) -> Reply:
        """Give one command on a connection of its own.

        Raises:
            RefusedError: the answer is an error.
            OSError: there is no answer.
        """
        encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        data = b"*%d\r\n" % len(encoded) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded])
        with socket.create_connection(self.address, ASK_WITHIN) as sock:
            sock.sendall(data)
            with sock.makefile("rb") as file:
                return _read(file)

    def text(self, *words: str | int) -> str:
        """The same, if the answer is a string."""
        reply = self.ask(*words)
        assert isinstance(reply, bytes), reply
        return reply.decode()

    def pairs(self, *words: str | int) -> dict[str, str]:
        """The same, if the answer is a list of names and values."""
        reply = self.ask(*words)
        assert isinstance(reply, list), reply
        found = [word.decode() for word in reply if isinstance(word, bytes)]
        return dict(zip(found[::2], found[1::2], strict=True))

    @property
    def is_primary(self) -> bool:
        return self.info("replication")["role"] == "master"

    def info(self, section: str) -> dict[str, str]:
        """What INFO says."""
        lines = self.text("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


def _read(file: BinaryIO) -> Reply:
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("Redis has closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise RefusedError(rest.decode())
    if kind == b"+":
        return rest
    size = int(rest)
    if kind == b":":
        return size
    if size < 0:
        return None
    if kind == b"*":
        return [_read(file) for _ in range(size)]
    data = file.read(size + 2)
    if len(data) < size + 2:
        raise ConnectionError("Redis has closed the connection")
    return data[:-2]


class Alone:
    """One primary with replicas that are never promoted.

    Args:
        directory: where the servers keep what they keep.
        replicas: how many.
        options: more options of each server.

    Attributes:
        servers: all that keep the journal: the first primary, then its replicas.
        url: for --cluster.
        promotes: whether a replica takes the primary's place when that is gone.
    """

    promotes = False

    def __init__(self, directory: Path, replicas: int = 2, options: Sequence[str] = ()) -> None:
        self.directory = directory
        self.options = [*SAFE, *options]
        self.servers: list[RedisServer] = []
        self.others: list[RedisServer] = []
        try:
            self._begin(replicas)
            self.settle()
        except BaseException:
            self.close()
            raise

    def _begin(self, replicas: int) -> None:
        first = self._add()
        for _ in range(replicas):
            self._add("--replicaof", f"127.0.0.1 {first.port}")

    def _add(self, *options: str) -> RedisServer:
        server = RedisServer(self.directory / f"redis-{len(self.servers)}", [*self.options, *options])
        self.servers.append(server)
        return server

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.servers[0].port}"

    def url_at(self, port: int) -> str:
        """The same, by a relay at a port."""
        return f"redis://127.0.0.1:{port}"

    def primary(self, shard: int = 0) -> RedisServer:  # noqa: ARG002 the override below needs it
        """The server that keeps the journal of a shard now.

        Raises:
            OSError: no server knows at the moment.
        """
        return self.servers[0]

    def replicas(self, shard: int = 0) -> list[RedisServer]:
        """Those that copy it and run."""
        ports = {replica["port"] for replica in _replicas_of(self.primary(shard))}
        return [server for server in self.servers if str(server.port) in ports]

    def lease(self, shard: int, name: str) -> dict[str, str]:
        """What the primary has of a shard's lease, by field."""
        return self.primary(shard).pairs("HGETALL", f"{key(shard, name)}:state")

    def wipe(self) -> None:
        """Lose everything, at all servers."""
        for server in self.servers:
            server.kill()
            server.wipe()
        for server in self.servers:
            server.start()

    def settle(self) -> None:
        """Wait until all servers run, one is the primary, and the others have everything that it has."""
        eventually(self._has_settled, "Redis has a primary, and its replicas are in sync", SETTLE_WITHIN)

    def _has_settled(self) -> bool:
        with contextlib.suppress(OSError, RefusedError):
            return all(self._has_copies(primary) for primary in self._primaries())
        return False

    def _primaries(self) -> list[RedisServer]:
        return [self.primary()]

    def _has_copies(self, primary: RedisServer) -> bool:
        found = primary.info("replication")
        offset = int(found["master_repl_offset"])
        copies = [one for one in _replicas_of(primary) if one["state"] == "online" and int(one["offset"]) >= offset]
        return found["role"] == "master" and len(copies) >= self._copies

    @property
    def _copies(self) -> int:
        """How many replicas a primary must have."""
        return len(self.servers) - 1

    def restart(self) -> None:
        """Start each server that is not running, and resume each one that was paused."""
        for server in [*self.servers, *self.others]:
            if server.is_running:
                server.resume()
            else:
                server.start()

    def close(self) -> None:
        """End all processes."""
        for server in [*self.others, *self.servers]:
            server.kill()


def _replicas_of(primary: RedisServer) -> list[dict[str, str]]:
    """What a primary says of each of its replicas: ip, port, state, offset, lag."""
    found = primary.info("replication")
    lines = [found[f"slave{number}"] for number in range(int(found["connected_slaves"]))]
    return [dict(part.split("=", 1) for part in line.split(",")) for line in lines]


class WithSentinel(Alone):
    """A primary and its replicas, watched by three Sentinels, which promote a replica when the primary is gone."""

    promotes = True

    def _begin(self, replicas: int) -> None:
        super()._begin(replicas)
        configuration = (
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0].port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {NODE_TIMEOUT}\n"
            f"sentinel failover-timeout {SERVICE} 5000\n"
            f"sentinel parallel-syncs {SERVICE} 2\n"
        )
        for number in range(3):
            self.others.append(RedisServer(self.directory / f"sentinel-{number}", sentinel=configuration))

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in self.others)}/{SERVICE}"

    def primary(self, shard: int = 0) -> RedisServer:  # noqa: ARG002 it keeps all of them
        found = self.others[0].ask("SENTINEL", "get-master-addr-by-name", SERVICE)
        assert isinstance(found, list), found
        return next(server for server in self.servers if found[1] == b"%d" % server.port)

    def _has_settled(self) -> bool:
        with contextlib.suppress(OSError, RefusedError):
            knows = [sentinel.pairs("SENTINEL", "master", SERVICE) for sentinel in self.others]
            return (
                all(one["flags"] == "master" and int(one["num-other-sentinels"]) == 2 for one in knows)
                and all(int(one["num-slaves"]) >= len(self.servers) - 1 for one in knows)
                and len({one["port"] for one in knows}) == 1
                and self.primary().info("replication")["role"] == "master"
                and super()._has_settled()
            )
        return False


class AsCluster(Alone):
    """Redis Cluster: three primaries with this many replicas each, which promote one when a primary is gone."""

    promotes = True
    PRIMARIES: Final = 3
    SLOTS: Final = 16384

    def _begin(self, replicas: int) -> None:
        for _ in range(self.PRIMARIES * (1 + replicas)):
            self._add(
                *("--cluster-enabled", "yes", "--cluster-port", str(unused_port())),
                *("--cluster-node-timeout", str(NODE_TIMEOUT), "--cluster-replica-validity-factor", "0"),
                *("--cluster-allow-replica-migration", "no"),  # each primary keeps as many replicas as it has
            )
        first, *others = self.servers
        for number, server in enumerate(self.servers):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in others:
            first.ask(
                "CLUSTER",
                "MEET",
                "127.0.0.1",
                server.port,
                server.pairs("CONFIG", "GET", "cluster-port")["cluster-port"],
            )
        eventually(self._all_have_met, "each node of the Redis Cluster lists all nodes", SETTLE_WITHIN)
        primaries = self.servers[: self.PRIMARIES]
        for number, primary in enumerate(primaries):
            begin, end = (self.SLOTS * each // self.PRIMARIES for each in (number, number + 1))
            primary.ask("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
        for number, server in enumerate(self.servers[self.PRIMARIES :]):
            server.ask("CLUSTER", "REPLICATE", primaries[number % self.PRIMARIES].text("CLUSTER", "MYID"))

    def _all_have_met(self) -> bool:
        return all(len(server.text("CLUSTER", "NODES").splitlines()) == len(self.servers) for server in self.servers)

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in self.servers)}"

    def primary(self, shard: int = 0) -> RedisServer:
        told: list[OSError] = []
        for server in self._running():
            try:
                return self._primary_as_told_by(server, shard)
            except OSError as error:
                told.append(error)
        raise ConnectionError(f"no node of the Redis Cluster answers: {told}")

    def _running(self) -> Iterator[RedisServer]:
        return (server for server in self.servers if server.is_running)

    def _primary_as_told_by(self, server: RedisServer, shard: int = 0) -> RedisServer:
        slot = server.ask("CLUSTER", "KEYSLOT", key(shard))
        assert isinstance(slot, int), slot
        for line in server.text("CLUSTER", "NODES").splitlines():
            _, address, flags, _, _, _, _, state, *ranges = line.split()
            if "master" in flags and "fail" not in flags and state == "connected":
                for begin, _, end in (each.partition("-") for each in ranges):
                    if begin.isdigit() and int(begin) <= slot <= int(end or begin):
                        port = int(address.partition("@")[0].rpartition(":")[2])
                        return next(one for one in self.servers if one.port == port)
        raise ConnectionError("Redis Cluster has no primary for the journal")

    @property
    def _copies(self) -> int:
        return len(self.servers) // self.PRIMARIES - 1

    def _primaries(self) -> list[RedisServer]:
        return [server for server in self.servers if server.info("replication")["role"] == "master"]

    def _has_settled(self) -> bool:
        with contextlib.suppress(OSError, RefusedError):
            return (
                all("cluster_state:ok" in server.text("CLUSTER", "INFO") for server in self.servers)
                and len({self._primary_as_told_by(server).port for server in self.servers}) == 1
                and len(self._primaries()) == self.PRIMARIES
                and super()._has_settled()
            )
        return False


Engine = Alone | Postgres

KINDS: Final = {
    "alone": Alone,
    "sentinel": WithSentinel,
    "cluster": AsCluster,
    "postgresql": Postgres,
    "promoting-postgresql": PromotingPostgres,
}
"""By the names that tests and the runner have for them."""
