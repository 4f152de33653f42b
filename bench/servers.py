"""The servers that are measured: started on a free port, pinned to a processor, stopped when the work is done.

Knows nothing of the work.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import dialect, process

SOURCES = Path(__file__).parents[1]
SERVER_CPU = 0
GENERATOR_CPU = (os.cpu_count() or 1) - 1
START_TIMEOUT = 120.0  # seconds; a start may read a million jobs


@dataclass(frozen=True)
class Peer:
    """A server as it may be asked for."""

    program: str
    version: tuple[str, ...]  # the command that tells its version
    meaning: str


PEERS = {
    "beanstalkd": Peer("beanstalkd", ("beanstalkd", "-v"), "beanstalkd as installed"),
    "ours": Peer(
        sys.executable, (sys.executable, "-P", "-m", "beanstalk_server", "-v"), "this server, its hot modules compiled"
    ),
    "interpreted": Peer(sys.executable, (), "this server's sources as they are, nothing compiled"),
    "redis": Peer("redis-server", ("redis-server", "-v"), "a delay queue in Redis, which keeps nothing on disk"),
    "redis-always": Peer("redis-server", (), "the same with appendfsync always"),
}
DEFAULT_PEERS = ("beanstalkd", "ours", "redis", "redis-always")


def missing(peer: str) -> str:
    """Why this peer cannot be measured here, or nothing."""
    program = PEERS[peer].program
    return "" if shutil.which(program) else f"{program} is not installed (Debian: apt-get install {_PACKAGES[program]})"


_PACKAGES = {"beanstalkd": "beanstalkd", "redis-server": "redis-server"}


def version(peer: str) -> str:
    """What the peer says of its version."""
    command = PEERS[peer].version
    if not command:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", env=_environment())
    return " ".join(done.stdout.split()[:3])


class ServerError(Exception):
    """A server that does not start, and why."""


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
        self.dialect = "redis" if peer.startswith("redis") else "beanstalk"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._log = tempfile.TemporaryFile("a+")  # noqa: SIM115
        self._said = ""
        self._directory = directory
        self._mover: subprocess.Popen[bytes] | None = None
        command = [*_command(peer, self.port, directory), *options]
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env=_environment(peer == "interpreted"),
            cwd=directory or "/",
            start_new_session=True,  # Ctrl-C is the bench's, which stops the servers itself
            preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CPU}),
        )
        try:
            self.first_answer = self._wait_until_it_answers()
            if self.dialect == "redis":
                with self.connect() as sock:
                    dialect.load_scripts(sock)
                self._mover = subprocess.Popen(
                    [sys.executable, "-m", "bench.dialect", str(self.port)], cwd=SOURCES, start_new_session=True
                )
                os.sched_setaffinity(self._mover.pid, {GENERATOR_CPU})
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def _wait_until_it_answers(self) -> float:
        """Wait; return the seconds from the start of the process to its first answer."""
        question = b"PING\r\n" if self.dialect == "redis" else b"list-tube-used\r\n"
        wanted = b"+PONG" if self.dialect == "redis" else b"USING default\r\n"
        while True:
            with contextlib.suppress(OSError), self.connect() as sock:
                sock.sendall(question)
                if sock.recv(100).startswith(wanted):
                    return time.perf_counter() - self.started
            if self.process.poll() is not None or time.perf_counter() - self.started > START_TIMEOUT:
                said = self.log().strip().rpartition("\n")[2].replace(str(self._directory), "DIR")
                raise ServerError(said or f"exit status {self.process.poll()}")
            time.sleep(0.005)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def log(self) -> str:
        """What it has said so far."""
        if not self._log.closed:
            self._log.seek(0)
            self._said = self._log.read()
        return self._said

    def resident(self) -> int:
        return process.resident(self.pid)

    def stop(self) -> None:
        """Stop it, and wait until it is gone."""
        for child in (self._mover, self.process):
            if child is None:
                continue
            child.terminate()
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.log()
        self._log.close()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def stalls_of(log: str) -> dict[str, float]:
    """The summary of --stalls in a server's log, in milliseconds."""
    found = re.search(
        r"event loop held (\S+) ms at the longest, (\S+) ms of CPU at the most; of (\d+) looks, "
        r"99 % found it held (\S+) ms or less, 99.9 % (\S+) ms or less",
        log,
    )
    if not found:
        raise ServerError(f"no summary of --stalls: {log[-200:]!r}")
    return dict(zip(("longest", "cpu", "looks", "p99", "p999"), map(float, found.groups()), strict=True))


def _command(peer: str, port: int, directory: Path | None) -> list[str]:
    if peer == "beanstalkd":
        keeps = ["-b", str(directory)] if directory else []
        return [shutil.which("beanstalkd") or "beanstalkd", "-l", "127.0.0.1", "-p", str(port), *keeps]
    if peer.startswith("redis"):
        keeps = ["--appendonly", "yes", "--appendfsync", "always"] if directory else ["--appendonly", "no"]
        return ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", *keeps]
    keeps = ["-b", str(directory)] if directory else []
    return [sys.executable, "-P", "-m", "beanstalk_server", "-p", str(port), *keeps]


def _environment(sources: bool = False) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BEANSTALK_SERVER_")}
    kept.pop("PYTHONPATH", None)
    return kept | ({"PYTHONPATH": str(SOURCES)} if sources else {})


@contextlib.contextmanager
def directories(parent: Path) -> Iterator[Path]:
    """A directory on a disk, not in memory, for servers that keep their jobs; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as name:
        yield Path(name)
