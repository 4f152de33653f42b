"""Runs server processes, from the start to the first answer and to the end: this server, beanstalkd, Redis."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from conformance.address import Address

ROOT: Final = Path(__file__).parents[1]

SOURCES: Final = os.pathsep.join([str(ROOT), str(ROOT / "client")])
"""Where Python finds the server and the client, as they are."""

OURS: Final = "ours"
"""This server as installed."""

INTERPRETED: Final = "interpreted"
"""This server from its sources, with nothing compiled."""

COUNTED: Final = "counted"
"""This server as installed, under valgrind, which can count its instructions (`counts_of` says where it writes)."""

BEANSTALKD: Final = "beanstalkd"
REDIS: Final = "redis"
POSTGRES: Final = "postgresql"

PACKAGES: Final = {BEANSTALKD: "beanstalkd", REDIS: "redis-server", COUNTED: "valgrind"}
"""The Debian package, which is also the name of its command."""

START_WITHIN: Final = 60.0
"""Seconds until a server must answer: hundreds of times as long as usual."""

STOP_WITHIN: Final = 60.0
"""Seconds until a server must have ended after it was told to stop."""

RUN_WITHIN: Final = 60.0
"""Seconds until a command that `run` runs must have ended."""

PORTS: Final = random.SystemRandom()
CLAIMS: Final[deque[int]] = deque()
"""Descriptors of datagram sockets at the last ports that were given: other test processes keep away from these."""

MAX_CLAIMS: Final = 200
"""Of one process; a server that is started again at its port must be among them."""

PRECISION: Final = 0.005
"""The precision of the time to the first answer: the share of it that passes between two attempts."""

QUESTIONS: Final = {
    REDIS: (b"PING\r\n", b"+PONG\r\n"),
    POSTGRES: (b"\0\0\0\x08\x04\xd2\x16\x2f", b"N"),  # whether it speaks TLS
}
QUESTION: Final = (b"ping\r\n", b"UNKNOWN_COMMAND\r\n")
"""The first question, and its answer: beanstalk servers neither know nor count this command."""


class ServerError(Exception):
    """A server is not installed, or does not start; the message says why."""


class NotInstalledError(ServerError):
    """A server is not installed."""


class RefusedError(Exception):
    """An engine has answered a question of the harness with an error; the message is its own."""


def find(program: str) -> str | None:
    """The path of a program (one of those above, or a path), or None."""
    return sys.executable if program in (OURS, INTERPRETED) else shutil.which(PACKAGES.get(program, program))


def advice(program: str) -> str:
    """How to get a program that is not installed."""
    return f"Debian: apt-get install {PACKAGES[program]}"


def imported() -> str:
    """Which program the package is that this process imports: OURS or INTERPRETED."""
    import beanstalk_server

    return INTERPRETED if Path(beanstalk_server.__file__).parents[1] == ROOT else OURS


def command(program: str) -> list[str]:
    """The command that runs a program.

    Raises:
        NotInstalledError: it is not installed.
    """
    path = find(program)
    if path is None:
        package = PACKAGES.get(program)
        raise NotInstalledError(f"{package or program} is not installed" + (f" ({advice(program)})" if package else ""))
    own = [sys.executable, "-P", "-m", "beanstalk_server"]
    if program == COUNTED:
        return [path, "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts_of('%p')}", *own]
    return own if program in (OURS, INTERPRETED) else [path]


def counts_of(pid: int | str) -> Path:
    """The file with what valgrind has counted in a process, once that has ended."""
    return Path(tempfile.gettempdir(), f"callgrind.out.{pid}")


def environment_of(program: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process, without settings of this server, and with its sources only for INTERPRETED.

    Output is buffered, as users have it: PYTHONUNBUFFERED hides what fails at the exit.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BEANSTALK_SERVER_")}
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED"):
        kept.pop(name, None)
    return kept | ({"PYTHONPATH": SOURCES} if program == INTERPRETED else {}) | dict(more or {})


def unused_port() -> int:
    """A free port of 127.0.0.1 outside the system's ephemeral range: for a server whose port is named before it
    listens, or that must get its port back. Other test processes draw other ports, although tests may seed `random`
    alike.
    """
    while True:
        address = "127.0.0.1", PORTS.randrange(20_000, 32_000)
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind(address)
            socket.create_server(address).close()
        except OSError:
            claim.close()
        else:
            CLAIMS.append(claim.detach())
            if len(CLAIMS) > MAX_CLAIMS:
                os.close(CLAIMS.popleft())
            return address[1]


def accepts(port: int) -> bool:
    """Whether a server listens on this port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Restartable:
    """A server in a process that may be killed, paused and started again, on the same port of 127.0.0.1.

    Args:
        program: as Process has it.
        line: the whole command line.
        port: where it listens.
        options: more arguments of Process.

    Attributes:
        process: its latest one.

    Raises:
        ServerError: it does not start.
    """

    def __init__(self, program: str, line: Sequence[str], port: int, **options: Any) -> None:
        self.port = port
        self._make_process = partial(Process, program, line, **options)
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
        """Start it, or start it again; return when it answers, or says that it listens."""
        self.process = self._make_process()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()

    def pause(self) -> None:
        """Let it stand still, with its connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Process:
    """A server that runs as a process, and answers.

    Args:
        program: determines its environment, and the question that it is asked first.
        command: the whole command line.
        address: where it will listen; if None, its log says so.
        environment: more variables.
        directory: its working directory.
        within: seconds until its first answer.
        processor: the number of the one processor that it may use.
        pass_fds: file descriptors that it inherits.

    Attributes:
        first_answer: seconds from its start to its first answer, where `address` is given.

    Raises:
        ServerError: it does not start.
    """

    def __init__(
        self,
        program: str,
        command: Sequence[str],
        address: Address | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | Path = "/",
        within: float = START_WITHIN,
        processor: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.program = program
        self.command = command
        self.first_answer = 0.0
        self._given = address
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed by _end()
        self._said: str | None = None
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=self._log,
            env=environment_of(program, environment),
            cwd=directory,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C is for this process, which stops it
        )
        try:
            if processor is not None:
                os.sched_setaffinity(self.pid, {processor})
            self._wait_until_it_answers(within)
        except BaseException:
            self.kill()
            raise

    def _wait_until_it_answers(self, within: float) -> None:
        while not self._answers():
            if self._process.poll() is not None:
                raise ServerError(f"{self.program} did not start: {self.log.strip() or self._process.returncode}")
            passed = time.perf_counter() - self._started
            if passed > within:
                wanted = f"an answer from {self._given}" if self._given else "'listens on' in its log"
                raise ServerError(f"{self.program} did not start: no {wanted} within {within:g} s: {self.log.strip()}")
            time.sleep(max(0.0005, passed * PRECISION))
        self.first_answer = time.perf_counter() - self._started

    def _answers(self) -> bool:
        if self._given is None:
            return "listens on" in self.log
        question, answer = QUESTIONS.get(self.program, QUESTION)
        try:
            with socket.create_connection(self._given, START_WITHIN) as sock:  # type: ignore[arg-type]
                sock.sendall(question)
                return sock.recv(100) == answer and self._process.poll() is None
        except OSError:
            return False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> Address:
        """Where it listens: the first of its addresses."""
        if self._given is not None:
            return self._given
        found = re.search(r"listens on (?:\[(.*?)\]|([^\s:]+)):(\d+)", self.log)
        if found is None:
            raise ServerError(f"{self.program} is not listening on any port: {self.log.strip()}")
        return found[1] or found[2], int(found[3])

    @property
    def log(self) -> str:
        """What it has written so far to standard output and standard error."""
        if self._said is not None:
            return self._said
        return os.pread(self._log.fileno(), 1 << 26, 0).decode(errors="replace")

    @property
    def status(self) -> int | None:
        """Its exit status (minus the number of the signal that ended it), or None while it runs."""
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, within: float = STOP_WITHIN) -> int:
        """Tell it to stop, and kill it if it does not; return its exit status."""
        self.send_signal(number)
        return self.wait(within)

    def wait(self, within: float = STOP_WITHIN) -> int:
        """Wait until it ends by itself, and kill it if it does not; return its exit status."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self._end()

    def kill(self) -> int:
        """End it at once, as a crash would."""
        self._process.kill()
        self._process.wait()
        return self._end()

    def _end(self) -> int:
        if self._said is None:
            self._said = self.log
            self._log.close()
        return self._process.returncode


def start(
    program: str,
    options: Sequence[str] = (),
    *,
    directory: str | Path = "/",
    within: float = START_WITHIN,
    processor: int | None = None,
) -> Process:
    """Start a server on a free port of 127.0.0.1.

    Args:
        program: OURS, INTERPRETED, BEANSTALKD, REDIS, or the path of a beanstalkd.
        options: of its command line, besides its address.

    Raises:
        ServerError: it is not installed, or does not start.
    """
    path = command(program)
    where = ("--bind", "127.0.0.1", "--port") if program == REDIS else ("-l", "127.0.0.1", "-p")
    while True:
        port = unused_port()
        line = [*path, *where, str(port), *options]
        try:
            return Process(program, line, ("127.0.0.1", port), directory=directory, within=within, processor=processor)
        except ServerError as error:
            if "in use" not in str(error):  # otherwise another process took the port in between
                raise


def launch(
    *options: str,
    line: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start the server that this process imports, with just these options; its log says where it listens.

    Args:
        line: the whole command line, instead of the options.
    """
    program = imported()
    return Process(program, line or [*command(program), *options], environment=environment, pass_fds=pass_fds)


def run(
    line: Sequence[str], environment: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with the package that this process imports; return its status, output and errors."""
    return subprocess.run(
        line,
        env=environment_of(imported(), environment),
        cwd="/",
        pass_fds=pass_fds,
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN,
        check=False,
    )


def run_to_end(*options: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run the server that this process imports when it must not start; return its status, output and errors."""
    done = run([*command(imported()), *options], environment)
    return done.returncode, done.stdout, done.stderr
