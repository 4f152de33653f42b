"""The servers that are measured: pinned to a processor, each with what its peer needs beside it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterator, Sequence
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

    program: str  # of harness.servers, or a path
    version: tuple[str, ...]  # the options that make it print its version
    meaning: str
    options: tuple[str, ...] = ()  # of its command line, always
    protocol: str = "beanstalk"
    named: bool = False  # by the user of the bench

    @property
    def policy(self) -> str:
        """The sync policy that its own options say, such as "-D", or "" if they say none."""
        return next(filter(is_policy, self.options), "")


PEERS = {
    "beanstalkd": Peer(BEANSTALKD, ("-v",), "beanstalkd as installed"),
    "ours": Peer(OURS, ("-v",), "this server, its hot modules compiled"),
    "interpreted": Peer(INTERPRETED, (), "this server's sources as they are, nothing compiled"),
    "redis": Peer(REDIS, ("-v",), "a delay queue in Redis, which keeps nothing on disk", protocol="redis"),
    "redis-always": Peer(REDIS, (), "the same with appendfsync always", protocol="redis"),
}
DEFAULT_PEERS = ("beanstalkd", "ours", "redis", "redis-always")


SYNCED = ("-f0", "-D")
"""The sync policies under which each acknowledgement is synced; the second is that of a fork of beanstalkd."""

VERSION_WITHIN = 10.0  # seconds


def parse_peer(asked: str, taken: Container[str] = ()) -> tuple[str, Peer]:
    """A peer that somebody names, as NAME=PROGRAM[,OPTION…]: any server that speaks the beanstalk protocol.

    Args:
        taken: names that it cannot have, besides those of `PEERS`.

    Raises:
        ValueError: it cannot be one; the message says why.
    """
    name, equals, line = asked.partition("=")
    path, *options = line.split(",")
    if not equals or not path:
        raise ValueError(f"{asked!r} must be NAME=PROGRAM[,OPTION…]")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"the name {name!r} must be of letters, digits, dots, dashes and underscores")
    if name in PEERS or name in taken:
        raise ValueError(f"the name {name!r} is taken")
    if "-f" in options:
        raise ValueError("-f and its milliseconds must be one word, such as -f50")
    program = shutil.which(path)
    if program is None:
        raise ValueError(f"{path} is not a program that can be run")
    return name, Peer(os.path.abspath(program), ("-v",), f"{path} as built", tuple(filter(None, options)), named=True)


def is_policy(option: str) -> bool:
    """Whether an option says the sync policy: -D, -F, or -f with its milliseconds."""
    return re.fullmatch(r"-D|-F|-f\d+", option) is not None


def missing(peer: str) -> str:
    """Why this peer cannot be measured here, or ""."""
    try:
        servers.command(PEERS[peer].program)
    except ServerError as error:
        return str(error)
    return ""


def version(peer: str) -> str:
    """The version of the peer, as it reports it, or "" if it reports none."""
    asked = PEERS[peer]
    if not asked.version:
        return ""
    command = [*servers.command(asked.program), *asked.version]
    environment = servers.environment_of(asked.program)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=VERSION_WITHIN,
        )
    except (subprocess.SubprocessError, OSError, UnicodeDecodeError):
        return ""
    return " ".join(done.stdout.split()[:3])


def described(peer: str) -> str:
    """What was measured: the version of the peer, and of one that was named its name and options too."""
    asked = PEERS[peer]
    if not asked.named:
        return version(peer)
    return f"{peer}: {' '.join([version(peer) or 'unknown version', *asked.options])}"


class Server:
    """A running server.

    Args:
        peer: which of `PEERS`.
        options: more of its command line. A sync policy among them takes the place of the peer's own, which counts
            only where jobs are kept: without -b, a server may take it for an error.
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
        self.directory = directory
        self.protocol = PEERS[peer].protocol
        self._mover: subprocess.Popen[bytes] | None = None
        try:
            self.process = servers.start(
                PEERS[peer].program,
                [*_keeping(peer, directory), *_own(peer, options, directory), *options],
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

    def size_on_disk(self) -> int:
        """Bytes of all files in which it keeps its jobs."""
        found = 0
        if self.directory is not None:
            for file in os.scandir(self.directory):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found += file.stat().st_size
        return found

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        if self._mover is not None:
            self._mover.kill()
            self._mover.wait()
        self.process.stop(within=STOP_WITHIN)


def stalls_of(log: str) -> dict[str, float]:
    """The longest stall, and the most CPU time in one, that the log of a server with --slow-ms 1 has, in milliseconds.

    A server that logs none has none of a millisecond: both are 0 then.
    """
    found = re.findall(
        r"(?:the event loop stalled for|more of loop-held within .*, at most) (\S+) ms \((\S+) ms of CPU\)", log
    )
    return {
        "longest": max((float(held) for held, _ in found), default=0.0),
        "cpu": max((float(cpu) for _, cpu in found), default=0.0),
    }


def stalls_of_nothing(seconds: float) -> dict[str, float]:
    """The same of a process that only looks at the clock, on the processor of the servers: what the machine adds."""
    command = [sys.executable, "-m", "bench.spinning", str(SERVER_CPU), str(seconds)]
    within = seconds + START_WITHIN
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=within)
    return stalls_of(done.stdout)


def _own(peer: str, options: Sequence[str], directory: Path | None) -> list[str]:
    """The peer's own options, without its sync policy if it keeps no jobs, or if `options` say another."""
    if directory and not any(is_policy(option) for option in options):
        return list(PEERS[peer].options)
    return [option for option in PEERS[peer].options if not is_policy(option)]


def _keeping(peer: str, directory: Path | None) -> list[str]:
    """The options with which it keeps its jobs in a directory, or keeps none."""
    if PEERS[peer].protocol == "redis":
        kept = ["--appendonly", "yes", "--appendfsync", "always"] if directory else ["--appendonly", "no"]
        return ["--save", "", *kept]
    return ["-b", str(directory)] if directory else []


@contextlib.contextmanager
def directories(parent: Path) -> Iterator[Path]:
    """A directory on a disk, not in memory, for servers that keep their jobs; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as name:
        yield Path(name)
