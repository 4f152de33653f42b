"""The nodes of a cluster, each a process of this server, over an engine that runs already."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from typing import Final

from harness.caller import Caller
from harness.engines import KEY, Alone, RefusedError
from harness.servers import Process, accepts, command, imported, unused_port
from harness.waiting import eventually

LEADS_WITHIN: Final = 60.0
"""Seconds until one of the nodes must lead: many times the time to live of a lease."""


class Node:
    """One node, which may be killed, paused and started again, on the same ports.

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
        self.port = port or unused_port()
        self.link_port = link_port or unused_port()
        self.link = f"127.0.0.1:{self.link_port}"
        self._program = program or imported()
        where = ["-l", "127.0.0.1", "-p", str(self.port), "--cluster", url, "--advertise", self.link]
        self._line = [*command(self._program), *where, *options]
        self.start()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.status is None

    def start(self) -> None:
        """Start it, or start it again; return when it listens."""
        self.process = Process(self._program, self._line)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()

    def pause(self) -> None:
        """Let it stand still, with its connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

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
