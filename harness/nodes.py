"""The nodes of a cluster, each a process of this server, over an engine that runs already."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from harness.caller import Caller
from harness.engines import KEY, Alone, RefusedError
from harness.servers import Restartable, accepts, command, imported, unused_port
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
        caller = self.connect()
        try:
            size = int(caller.ask(b"stats\r\n").split()[1])
            text = caller.read(size + 2).decode()
        finally:
            caller.close()
        return {name: value.strip('"') for name, _, value in (line.partition(": ") for line in text.splitlines())}


def lease(engine: Alone) -> dict[str, str]:
    """Who leads, as the engine has it: epoch, node, address, and so on.

    Raises:
        OSError: the engine does not answer.
        RefusedError: it answers with an error.
    """
    found = engine.primary().ask("HGETALL", f"{KEY.decode()}:state")
    assert isinstance(found, list), found
    words = [word.decode() for word in found if isinstance(word, bytes)]
    return dict(zip(words[::2], words[1::2], strict=True))


def leader(engine: Alone, nodes: Sequence[Node], within: float = LEADS_WITHIN) -> Node:
    """The node that leads, as soon as one does that runs and takes links."""

    def leads() -> Node | None:
        with contextlib.suppress(OSError, RefusedError):
            address = lease(engine).get("address")
            for node in nodes:
                if node.is_running and node.link == address and accepts(node.link_port):
                    return node
        return None

    found = eventually(leads, "a node leads", within)
    assert found is not None
    return found
