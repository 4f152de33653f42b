"""The servers that conversations are held with: which one each is, and how much memory it may take."""

from __future__ import annotations

import contextlib
import re
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from harness import servers
from harness.caller import Address, Caller
from harness.servers import OURS, ServerError
from harness.waiting import eventually

MIB: Final = 1 << 20

CLOSES_WITHIN: Final = 1.0
"""Seconds until a server should have noticed that a client is gone."""


def parse_address(given: str) -> Address:
    """Parse an address from the command line: HOST:PORT, PORT, or unix:PATH.

    Raises:
        ServerError: it is not an address.
    """
    if given.startswith("unix:"):
        return given.removeprefix("unix:")
    host, _, port = given.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ServerError(f"{given!r} is not an address: must be HOST:PORT or unix:PATH")
    return host.strip("[]") or "127.0.0.1", int(port)


class Server:
    """A server that listens on an address.

    Attributes:
        ours: whether it is this project's.
        version: the version of beanstalkd that it is, or answers as.
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
        """Its answer to `stats`, by key.

        Raises:
            ServerError: it is not a beanstalk server.
        """
        with contextlib.closing(Caller(self.address)) as caller:
            try:
                return caller.stats()
            except ValueError as error:
                raise ServerError(f"{self.address}: {error}") from None

    @contextlib.contextmanager
    def closing(self, count: int = 1) -> Iterator[None]:  # noqa: ARG002 the override below needs it
        """Close `count` connections inside; on exit, the server has closed them, too, if that can be observed."""
        yield


class Process(Server):
    """A server that this process has started.

    Args:
        memory: how many MiB it may take beyond those it takes after its start; 0: no limit.
    """

    def __init__(self, process: servers.Process, memory: int = 0) -> None:
        self.process = process
        super().__init__(process.address)
        caller = Caller(self.address)
        eventually(lambda: caller.stats()["current-connections"] == "1", "there is one connection only")
        with self.closing():
            caller.close()
        if memory:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + memory * MIB
            resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))

    def log(self) -> str:
        """What it has written so far."""
        return self.process.log

    def sockets(self) -> int:
        """The number of open sockets of the server and its I/O processes, those it listens on included; 0 if the
        system does not show them.
        """
        pid = str(self.process.pid)
        found = 0
        with contextlib.suppress(FileNotFoundError, PermissionError):
            for each in (pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                for name in Path(f"/proc/{each}/fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):  # closed just now
                        found += str(name.readlink()).startswith("socket:")
        return found

    @contextlib.contextmanager
    def closing(self, count: int = 1) -> Iterator[None]:
        """Do the same, by counting its open sockets.

        A server may need several events to notice that a waiting client is gone, and it sends no reply to that. If it
        does not read from the client at the moment, it does not notice at all: then this gives up.
        """
        before = self.sockets()
        yield
        if before:
            with contextlib.suppress(AssertionError):
                eventually(lambda: self.sockets() <= before - count, "the server has closed them", CLOSES_WITHIN)

    def drain(self) -> None:
        """Put it into drain mode, and wait until it is: a signal may be handled after what a client sends later."""
        self.process.send_signal(signal.SIGUSR1)
        eventually(lambda: self.stats()["draining"] == "true", "the server drains")


@contextlib.contextmanager
def started(program: str, options: Sequence[str] = (), memory: int = 0) -> Iterator[Process]:
    """Start a server, which is always stopped at the end.

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
