"""The servers that are measured: pinned to a processor, each with what its peer needs beside it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import protocols
from bench.generator import SPAWNED
from bench.subject import Subject
from harness import servers
from harness.servers import BEANSTALKD, COUNTED, INTERPRETED, OURS, REDIS, ServerError

SERVER_CPU = 0
GENERATOR_CPU = (os.cpu_count() or 1) - 1
START_WITHIN = 120.0  # seconds; a start may read a million jobs
VERSION_WITHIN = 10.0  # seconds
TEMPORARY = Path("/tmp")


@dataclass(frozen=True)
class Peer:
    """A kind of server that can be measured.

    Args:
        program: of harness.servers, or a path.
        options: of its command line, always.
        own: whether it is this server, perhaps of another checkout.
        named: whether the user of the bench has named it.
    """

    program: str
    options: tuple[str, ...] = ()
    protocol: str = "beanstalk"
    own: bool = False
    named: bool = False

    @property
    def policy(self) -> str:
        """The sync policy that its own options say, such as "-D", or "" if they say none."""
        return next(filter(is_policy, self.options), "")


PEERS = {
    "beanstalkd": Peer(BEANSTALKD),
    "ours": Peer(OURS, own=True),
    "interpreted": Peer(INTERPRETED, own=True),  # this server's sources as they are, nothing compiled
    "counted": Peer(COUNTED, own=True),  # this server under valgrind: for its instructions, not for times
    "redis": Peer(REDIS, protocol="redis"),  # a delay queue in Redis, which keeps nothing on disk
    "redis-always": Peer(REDIS, protocol="redis"),  # the same with appendfsync always
}
DEFAULT_PEERS = ("beanstalkd", "ours", "redis", "redis-always")

SYNCED = ("-f0", "-D")
"""The sync policies under which each acknowledgement is synced; the second is that of a fork of beanstalkd."""


def parse_peer(asked: str, taken: Container[str] = ()) -> tuple[str, Peer]:
    """A peer that the user names, as NAME=PROGRAM[,OPTION…]: any server that speaks the beanstalk protocol.

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
        raise ValueError(f"the name {name!r} must consist of letters, digits, dots, dashes and underscores")
    if name in PEERS or name in taken:
        raise ValueError(f"the name {name!r} is taken")
    if "-f" in options:
        raise ValueError("-f and its milliseconds must be one word, such as -f50")
    program = shutil.which(path)
    if program is None:
        raise ValueError(f"{path} is not an executable file")
    return name, Peer(os.path.abspath(program), tuple(filter(None, options)), named=True)


def beside(checkout: Path) -> Peer:
    """This server as another checkout has it installed.

    Raises:
        ValueError: it is not installed there.
    """
    program = checkout.absolute() / ".venv" / "bin" / "beanstalk-server"
    if not program.exists():
        raise ValueError(f"{program} does not exist: `make` in that checkout installs it")
    return Peer(str(program), own=True, named=True)


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


def described(peer: str) -> str:
    """The version of a peer, as it reports it; of one that was named, also its name and options."""
    asked = PEERS[peer]
    told = "" if asked.named else "unknown version"
    with contextlib.suppress(subprocess.SubprocessError, OSError, UnicodeDecodeError):
        done = subprocess.run(
            [*servers.command(asked.program), "-v"],
            capture_output=True, text=True, check=True, cwd="/", env=servers.environment_of(asked.program),
            stdin=subprocess.DEVNULL, timeout=VERSION_WITHIN,
        )  # fmt: skip
        told = " ".join(done.stdout.split()[:3])
    return f"{peer}: {' '.join([told or 'unknown version', *asked.options])}" if asked.named else told


@contextlib.contextmanager
def started(
    peer: str, options: Sequence[str] = (), *, name: str = "", directory: Path | None = None
) -> Iterator[Subject]:
    """Run a server.

    Args:
        peer: which of `PEERS`.
        options: more of its command line. A sync policy among them takes the place of the peer's own.
        name: in the results; by default that of the peer.
        directory: where a server that keeps its jobs keeps them.

    Raises:
        ServerError: it does not start.
    """
    asked = PEERS[peer]
    with contextlib.ExitStack() as stack:
        try:
            running = servers.start(
                asked.program,
                [*_keeping(asked, directory), *_own(asked, options, directory), *options],
                directory=directory or "/",
                within=START_WITHIN,
                processor=SERVER_CPU,
            )
        except ServerError as error:
            raise ServerError(str(error).rpartition("\n")[2].replace(str(directory), "DIR")) from None
        stack.callback(running.stop)
        port = int(running.address[1])
        subject = Subject(name or peer, port, running.pid, peer, asked.protocol, directory=directory, running=running)
        if asked.protocol == "redis":
            with subject.connect() as sock:
                protocols.load_scripts(sock)
            mover = SPAWNED.Process(target=protocols.move_once_a_second, args=(port,), daemon=True)
            mover.start()
            stack.callback(mover.kill)
            os.sched_setaffinity(mover.pid or 0, {GENERATOR_CPU})
        yield subject


def _own(peer: Peer, options: Sequence[str], directory: Path | None) -> list[str]:
    """The peer's own options; without its sync policy if `options` say another, or if it keeps no jobs: without -b, a
    server may take it for an error.
    """
    if directory and not any(map(is_policy, options)):
        return list(peer.options)
    return [option for option in peer.options if not is_policy(option)]


def _keeping(peer: Peer, directory: Path | None) -> list[str]:
    """The options with which it keeps its jobs in a directory, or keeps none."""
    if peer.protocol == "redis":
        kept = ["--appendonly", "yes", "--appendfsync", "always"] if directory else ["--appendonly", "no"]
        return ["--save", "", *kept]
    return ["-b", str(directory)] if directory else []


@contextlib.contextmanager
def directories(parent: Path) -> Iterator[Path]:
    """A directory on a disk, not in memory, for servers that keep their jobs; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as name:
        yield Path(name)
