"""The servers that conversations are held with: told apart, and limited in their memory.

Knows nothing of conversations.
"""

from __future__ import annotations

import contextlib
import re
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from harness import servers
from harness.caller import Address, connect
from harness.servers import OURS, START_WITHIN, ServerError

MIB: Final = 1 << 20


def parse_address(given: str) -> Address:
    """An address as it is given on the command line: HOST:PORT, PORT, or unix:PATH.

    Raises:
        ServerError: it is none of them.
    """
    if given.startswith("unix:"):
        return given.removeprefix("unix:")
    host, _, port = given.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ServerError(f"{given!r} is no address: expected HOST:PORT or unix:PATH")
    return host.strip("[]") or "127.0.0.1", int(port)


class Server:
    """A server that listens on an address.

    Attributes:
        ours: it is this project's.
        version: of beanstalkd, which it is or answers as.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        stats = self.stats()
        self.ours = "cmd-clear-tube" in stats
        version = stats["version"].strip('"')
        self.version = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        name = f"beanstalkd {version.split('+')[0]}"
        self.name = name if not self.ours else OURS if self.version >= (1, 13) else f"{OURS} as {name}"

    def answers_to(self, guard: str) -> bool:
        """Whether a line with this guard (`conversation.GUARDS`, or none) is meant for this server."""
        old = self.version < (1, 13)
        return {"": True, "ours": self.ours, "beanstalkd": not self.ours, "before 1.13": old, "since 1.13": not old}[
            guard
        ]

    def stats(self) -> dict[str, str]:
        """What it answers to `stats`.

        Raises:
            ServerError: that is no answer to `stats`.
        """
        with connect(self.address) as sock, sock.makefile("rb") as file:
            sock.settimeout(START_WITHIN)
            sock.sendall(b"stats\r\n")
            reply = file.readline()
            if not re.fullmatch(rb"OK \d+\r\n", reply):
                raise ServerError(f"{self.address} does not answer as a beanstalk server: {reply!r}")
            lines = file.read(int(reply[3:])).decode().split("\n")
        return dict(line.split(": ", 1) for line in lines if ": " in line)


class Process(Server):
    """A server that has been started here.

    Args:
        memory: how many MiB it may take besides what it has when it has started; 0: no limit.
    """

    def __init__(self, process: servers.Process, memory: int = 0) -> None:
        self.process = process
        super().__init__(process.address)
        if memory:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + memory * MIB
            resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))

    def log(self) -> str:
        """What it has written so far."""
        return self.process.log

    def drain(self) -> None:
        """Put it into drain mode."""
        self.process.send_signal(signal.SIGUSR1)


@contextlib.contextmanager
def started(program: str, options: Sequence[str] = (), memory: int = 0) -> Iterator[Process]:
    """A server that is stopped at the end, whatever happens.

    Args:
        program: OURS, INTERPRETED, BEANSTALKD, or the path of a beanstalkd.
        options: for its command line, besides its address.

    Raises:
        ServerError: it does not start.
    """
    process = servers.start(program, options)
    try:
        yield Process(process, memory)
    finally:
        process.stop()
