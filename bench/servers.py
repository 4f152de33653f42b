"""The servers that are measured: pinned to a processor, each with what its peer needs beside it.

Must never know the work.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import process, protocols
from harness import servers
from harness.servers import BEANSTALKD, INTERPRETED, OURS, REDIS, ROOT, ServerError

SERVER_CPU = 0
STOP_WITHIN = 60.0  # seconds; the last sync may be long
GENERATOR_CPU = (os.cpu_count() or 1) - 1
START_WITHIN = 120.0  # seconds; a start may read a million jobs


@dataclass(frozen=True)
class Peer:
    """A kind of server that can be measured."""

    program: str  # of harness.servers
    version: tuple[str, ...]  # the options that make it print its version
    meaning: str


PEERS = {
    "beanstalkd": Peer(BEANSTALKD, ("-v",), "beanstalkd as installed"),
    "ours": Peer(OURS, ("-v",), "this server, its hot modules compiled"),
    "interpreted": Peer(INTERPRETED, (), "this server's sources as they are, nothing compiled"),
    "redis": Peer(REDIS, ("-v",), "a delay queue in Redis, which keeps nothing on disk"),
    "redis-always": Peer(REDIS, (), "the same with appendfsync always"),
}
DEFAULT_PEERS = ("beanstalkd", "ours", "redis", "redis-always")


def missing(peer: str) -> str:
    """Why this peer cannot be measured here, or ""."""
    try:
        servers.command(PEERS[peer].program)
    except ServerError as error:
        return str(error)
    return ""


def version(peer: str) -> str:
    """The version of the peer, as it reports it."""
    asked = PEERS[peer]
    if not asked.version:
        return ""
    command = [*servers.command(asked.program), *asked.version]
    environment = servers.environment_of(asked.program)
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", env=environment)
    return " ".join(done.stdout.split()[:3])


class Server:
    """A running server.

    Args:
        peer: which of `PEERS`.
        options: more of its command line.
        name: what to call it in the results; otherwise, by its peer.
        directory: where a server that keeps its jobs keeps them.

    Raises:
        ServerError: it does not start.
    """

    def __init__(
        self,
        peer: str,
        options: Sequence[str] = (),
        *,
        name: str = "",
        directory: Path | None = None,
    ) -> None:
        self.peer = peer
        self.name = name or peer
        self.protocol = "redis" if peer.startswith("redis") else "beanstalk"
        self._mover: subprocess.Popen[bytes] | None = None
        try:
            self.process = servers.start(
                PEERS[peer].program,
                [*_keeping(peer, directory), *options],
                directory=directory or "/",
                within=START_WITHIN,
                processor=SERVER_CPU,
            )
        except ServerError as error:
            raise ServerError(str(error).rpartition("\n")[2].replace(str(directory), "DIR")) from None
        try:
            if self.protocol == "redis":
                with self.connect() as sock:
                    protocols.load_scripts(sock)
                self._mover = subprocess.Popen(
                    [sys.executable, "-m", "bench.protocols", str(self.port)], cwd=ROOT, start_new_session=True
                )
                os.sched_setaffinity(self._mover.pid, {GENERATOR_CPU})
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.process.address[1])

    @property
    def first_answer(self) -> float:
        """Seconds from the start of the process to its first answer."""
        return self.process.first_answer

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def log(self) -> str:
        """What it has logged so far."""
        return self.process.log

    def resident(self) -> int:
        return process.resident(self.pid)

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        if self._mover is not None:
            self._mover.kill()
            self._mover.wait()
        self.process.stop(within=STOP_WITHIN)


def stalls_of(log: str) -> dict[str, float]:
    """The summary of --stalls in a server's log, in milliseconds."""
    found = re.search(
        r"event loop stalled for at most (\S+) ms, with at most (\S+) ms of CPU; of (\d+) looks at the clock, "
        r"99 % were at most (\S+) ms late, 99.9 % at most (\S+) ms",
        log,
    )
    if not found:
        raise ServerError(f"no summary of --stalls: {log[-200:]!r}")
    return dict(zip(("longest", "cpu", "looks", "p99", "p999"), map(float, found.groups()), strict=True))


def _keeping(peer: str, directory: Path | None) -> list[str]:
    """The options with which it keeps its jobs in a directory, or keeps none."""
    if peer.startswith("redis"):
        kept = ["--appendonly", "yes", "--appendfsync", "always"] if directory else ["--appendonly", "no"]
        return ["--save", "", *kept]
    return ["-b", str(directory)] if directory else []


@contextlib.contextmanager
def directories(parent: Path) -> Iterator[Path]:
    """A directory on a disk, not in memory, for servers that keep their jobs; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as name:
        yield Path(name)
