"""Starts the servers that conversations are run against, and limits their memory."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from conformance.conversation import Conversation
from conformance.servers import Server
from harness import servers
from harness.caller import Caller
from harness.servers import OURS
from harness.waiting import eventually

MIB: Final = 1 << 20

CLOSES_WITHIN: Final = 1.0
"""Seconds until a server should have noticed that a client is gone."""


class Process(Server):
    """A server that this process has started.

    Args:
        memory: how many MiB it may take beyond those it takes after its start; 0: no limit.
    """

    def __init__(self, process: servers.Process, memory: int = 0) -> None:
        self.process = process
        super().__init__(process.address)
        name = f"beanstalkd {self.version.split('+')[0]}"
        self.name = name if not self.ours else f"{OURS} as {name}" if self.old else OURS
        caller = Caller(self.address)
        eventually(lambda: caller.stats()["current-connections"] == "1", "there is only one connection")
        with self.closing():
            caller.close()
        if memory:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + memory * MIB
            resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))

    def has_extensions(self, stats: dict[str, str]) -> bool:
        """Whether it is this server; list-extensions would be counted."""
        return "cmd-list-extensions" in stats

    def reason_against(self, conversation: Conversation) -> str:
        """Why a conversation is not for this server; it has been started as the conversation needs it."""
        return "" if self.answers_to(conversation.only) else f"the conversation has `only: {conversation.only}`"

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
        eventually(lambda: self.stats()["draining"] == "true", "the server is in drain mode")

    def restart(self) -> None:
        """Kill it, and start it again with the same command line."""
        self.process.kill()
        self.process = servers.Process(self.process.program, self.process.command, self.process.address)


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
        server = Process(process, memory)
    except BaseException:
        process.stop()
        raise
    try:
        yield server
    finally:
        server.process.stop()
