"""The servers that conversations are held with: found, started on a free port, told apart, stopped.

Knows nothing of conversations.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

OURS: Final = "ours"
BEANSTALKD: Final = "beanstalkd"

START_TIMEOUT: Final = 20.0
"""Seconds until a server must listen: a hundred times what it takes."""

STOP_TIMEOUT: Final = 10.0

MIB: Final = 1 << 20

Address = tuple[str, int] | str


class ServerError(Exception):
    """A server cannot be found, does not start, or is none."""


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


def connect(address: Address) -> socket.socket:
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
        return sock
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Server:
    """A server that listens on an address; `version` is None when it is this project's."""

    def __init__(self, address: Address) -> None:
        self.address = address
        stats = self.stats()
        self.ours = "cmd-clear-tube" in stats
        version = stats["version"].strip('"')
        self.version: tuple[int, ...] | None = (
            None if self.ours else tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        )
        self.name = OURS if self.ours else f"beanstalkd {version.split('+')[0]}"

    def answers_to(self, guard: str) -> bool:
        """Whether a line with this guard (`conversation.GUARDS`, or none) is meant for this server."""
        old = self.version is not None and self.version < (1, 13)
        return {"": True, "ours": self.ours, "beanstalkd": not self.ours, "before 1.13": old, "since 1.13": not old}[
            guard
        ]

    def stats(self) -> dict[str, str]:
        """What it answers to `stats`.

        Raises:
            ServerError: that is no answer to `stats`.
        """
        with connect(self.address) as sock, sock.makefile("rb") as file:
            sock.settimeout(START_TIMEOUT)
            sock.sendall(b"stats\r\n")
            reply = file.readline()
            if not re.fullmatch(rb"OK \d+\r\n", reply):
                raise ServerError(f"{self.address} does not answer as a beanstalk server: {reply!r}")
            lines = file.read(int(reply[3:])).decode().split("\n")
        return dict(line.split(": ", 1) for line in lines if ": " in line)


class Process(Server):
    """A server that has been started here, and is stopped here."""

    def __init__(self, program: str, options: Sequence[str] = (), memory: int = 0) -> None:
        """
        Args:
            program: OURS, BEANSTALKD, or the path of a beanstalkd.
            options: for its command line, besides its address.
            memory: how many MiB it may take besides what it has when it has started; 0: no limit.

        Raises:
            ServerError: it does not start.
        """
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed by stop()
        self.process, address = self._start(program, options)
        super().__init__(address)
        if memory:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + memory * MIB
            resource.prlimit(self.process.pid, resource.RLIMIT_AS, (limit, limit))

    def _start(self, program: str, options: Sequence[str]) -> tuple[subprocess.Popen[bytes], tuple[str, int]]:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port: int = probe.getsockname()[1]
            command = [*_command(program), "-l", "127.0.0.1", "-p", str(port), *options]
            process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=_environment(), cwd="/")
            while process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    if process.poll() is None:
                        return process, ("127.0.0.1", port)
                time.sleep(0.01)
            process.kill()
            process.wait()
            if "in use" not in self.log():  # somebody took the port in between: try another
                break
        raise ServerError(f"{program} does not start: {self.log().strip()}")

    def log(self) -> str:
        """What it has written so far."""
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def drain(self) -> None:
        """Put it into drain mode."""
        self.process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """Stop it, by force if it hangs."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


def find(program: str) -> str | None:
    """Where a program is (OURS, BEANSTALKD or a path), or None."""
    return sys.executable if program == OURS else shutil.which(program)


def _command(program: str) -> list[str]:
    path = find(program)
    if path is None:
        raise ServerError(f"{program} is not installed (Debian: apt-get install beanstalkd)")
    return [path, "-P", "-m", "beanstalk_server"] if program == OURS else [path]


def _environment() -> dict[str, str]:
    """This environment without any setting of this server, and without its sources: the installed package is meant."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("BEANSTALK_SERVER_") and name != "PYTHONPATH"
    }


@contextlib.contextmanager
def started(program: str, options: Sequence[str] = (), memory: int = 0) -> Iterator[Process]:
    """A server that is stopped at the end, whatever happens."""
    server = Process(program, options, memory)
    try:
        yield server
    finally:
        server.stop()
