"""The nodes of a cluster, each a process of this server, over an engine that runs already."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from harness.caller import Caller
from harness.engines import CLUSTER, Engine
from harness.servers import RefusedError, Restartable, accepts, command, imported, unused_port
from harness.waiting import eventually

LEADS_WITHIN: Final = 60.0
"""Seconds until one of the nodes must lead: many times the time to live of a lease."""


class Node(Restartable):
    """One node, which starts again on the same ports. It has started when it listens.

    Args:
        url: of the engine, for --cluster.
        options: more options of its command line.
        port: where clients connect; if 0, any that is unused.
        link_port: where other nodes connect; if 0, any that is unused.
        program: OURS or INTERPRETED; by default, the one that this process imports.

    Attributes:
        port: where clients connect.
        link: HOST:PORT, where other nodes connect.

    Raises:
        ServerError: it does not start.
    """

    def __init__(
        self, url: str, options: Sequence[str] = (), *, port: int = 0, link_port: int = 0, program: str = ""
    ) -> None:
        port = port or unused_port()
        self.link_port = link_port or unused_port()
        self.link = f"127.0.0.1:{self.link_port}"
        program = program or imported()
        where = ["-l", "127.0.0.1", "-p", str(port), "--cluster", url, "--advertise", self.link]
        super().__init__(program, [*command(program), *where, *options], port)

    def connect(self) -> Caller:
        return Caller(self.address)

    def stats(self) -> dict[str, str]:
        """What `stats` says, which is what the leader says."""
        with contextlib.closing(self.connect()) as caller:
            return {name: value.strip('"') for name, value in caller.stats().items()}


def lease(engine: Engine, shard: int = 0, name: str = CLUSTER) -> dict[str, str]:
    """Who leads a shard, as the engine has it: epoch, node, address, and so on.

    Args:
        name: of the cluster.

    Raises:
        OSError: the engine does not answer.
        RefusedError: it answers with an error.
    """
    return engine.lease(shard, name)


def leader(engine: Engine, nodes: Sequence[Node], within: float = LEADS_WITHIN, shard: int = 0) -> Node:
    """The node that leads a shard, as soon as one does that runs and takes links."""

    def leads() -> Node | None:
        with contextlib.suppress(OSError, RefusedError):
            address = lease(engine, shard).get("address")
            for node in nodes:
                if node.is_running and node.link == address and accepts(node.link_port):
                    return node
        return None

    found = eventually(leads, f"a node leads shard {shard}", within)
    assert found is not None
    return found


def leaders(engine: Engine, nodes: Sequence[Node], shards: int, within: float = LEADS_WITHIN) -> list[Node]:
    """The node that leads each shard, as soon as all have one."""
    return [leader(engine, nodes, within, shard) for shard in range(shards)]


def spread(engine: Engine, nodes: Sequence[Node], shards: int, within: float = LEADS_WITHIN) -> list[Node]:
    """The same, as soon as each node leads its share."""

    def is_spread() -> list[Node]:
        found = leaders(engine, nodes, shards, within)
        shares = [found.count(node) for node in nodes]
        return found if max(shares) - min(shares) <= 1 else []

    return eventually(is_spread, f"{shards} shards are spread over {len(nodes)} nodes", within)
