"""Runs several worker processes, or restarts one when a file changes: both run the same command line again.

ended without a stop signal    logged as an error, with any status; another one takes its place after a pause
ended at its limit             after --max-jobs or --max-memory: another one takes its place at once
hangs after a stop signal      killed
this process is killed         the others notice that their socket to it is closed, and stop
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from beanstalk_client import signals
from beanstalk_client.consumers import FORCE_AFTER, GRACE
from beanstalk_client.events import tell

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 10.0
"""Seconds until another process takes the place of one that has ended: doubled each time, until one runs for STEADY."""

STEADY: Final = 10.0
"""Seconds that a process runs if it did not fail at its start."""

KILL_AFTER: Final = FORCE_AFTER + 0.5
"""Seconds from the end of the grace period until a process is killed that has not ended by itself."""

BELOW: Final = "BEANSTALK_WORKER_BELOW"
"""The variable that tells a process what it was started for: "reload", or "processes" and a file descriptor."""

RECYCLED: Final = b"r"
"""What a process writes to its parent before it ends at its limit."""

log: logging.Logger = logging.getLogger("beanstalk_client.worker")


def command_line(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "beanstalk_client.worker", *arguments]


class Ended(NamedTuple):
    """How a process has ended.

    Attributes:
        status: of its exit, or minus the signal that killed it.
        recycled: it has reached its limit.
    """

    pid: int
    status: int
    recycled: bool

    def __str__(self) -> str:
        how = f"exited with status {self.status}" if self.status >= 0 else f"was killed by signal {-self.status}"
        return f"worker process {self.pid} {how}"


class Processes:
    """Runs a command line several times at once.

    Args:
        line: the command line.
        number: of processes.
        grace: seconds for the end of a process after SIGTERM, without KILL_AFTER.
    """

    def __init__(self, line: Sequence[str], number: int, grace: float = GRACE) -> None:
        self._line = list(line)
        self._number = number
        self._grace = grace
        self._running: set[asyncio.subprocess.Process] = set()
        self._signals = 0
        self._stopping: asyncio.Event | None = None

    async def run(self) -> int:
        """Run until a stop signal; return the exit status, which is 0 if all processes have ended with 0."""
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, self.stop)
        try:
            return max(await asyncio.gather(*(self._keep(self._stopping) for _ in range(self._number))))
        finally:
            for number, former in before.items():
                loop.remove_signal_handler(number)
                signals.unhandle(number, former)

    def stop(self) -> None:
        """Tell all to stop; told once more, they give back their jobs; a third time, they are killed."""
        self._signals += 1
        assert self._stopping is not None
        self._stopping.set()
        for process in self._running:
            _signal(process, signal.SIGTERM)
        if self._signals > 2:
            self._kill()
        else:
            delay = KILL_AFTER + (self._grace if self._signals == 1 else 0)
            asyncio.get_running_loop().call_later(delay, self._kill)

    def _kill(self) -> None:
        while self._running:
            process = self._running.pop()
            message = f"worker process {process.pid} did not exit in time: killed"
            tell(log, logging.ERROR, "process-hung", message, pid=process.pid)
            _signal(process, signal.SIGKILL)

    async def _keep(self, stopping: asyncio.Event) -> int:
        """Keep one running; return its exit status after a stop signal."""
        pause = FIRST_PAUSE
        while not stopping.is_set():
            began = time.monotonic()
            try:
                ended = await self._run_one(stopping)
            except OSError as error:  # too many processes, say
                message = f"cannot start a worker process: {error}; retrying in {pause:g} s"
                tell(log, logging.ERROR, "process-not-started", message)
            else:
                if stopping.is_set():
                    has_begun = ended.status != -signal.SIGTERM
                    return (ended.status if ended.status >= 0 else signals.FORCED) if has_begun else 0
                if ended.recycled:
                    message = f"{ended} after reaching --max-jobs or --max-memory"
                    tell(log, logging.INFO, "process-recycled", message, pid=ended.pid)
                    pause = FIRST_PAUSE
                    continue
                if time.monotonic() - began >= STEADY:
                    pause = FIRST_PAUSE
                message = f"{ended} without a stop signal; restarting in {pause:g} s"
                tell(log, logging.ERROR, "process-ended", message, pid=ended.pid, status=ended.status)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stopping.wait(), pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return 0

    async def _run_one(self, stopping: asyncio.Event) -> Ended:
        """Run one to its end."""
        ours, its = socket.socketpair()
        with ours, its:
            # In a session of its own, so that Ctrl-C reaches this process only, and each worker gets one signal.
            process = await asyncio.create_subprocess_exec(
                *self._line,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, BELOW: f"processes {its.fileno()}"},
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
            its.close()
            self._running.add(process)
            if stopping.is_set():  # meanwhile
                _signal(process, signal.SIGTERM)
            status = await process.wait()
            self._running.discard(process)
            ours.setblocking(False)
            recycled = b""
            with contextlib.suppress(OSError):  # a process that it has forked may have the socket still open
                recycled = ours.recv(1)
        return Ended(process.pid, status, recycled == RECYCLED and status == 0)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """Send a signal. `process.terminate` first looks whether it has ended: then the loop would not learn its status."""
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(process.pid, number)


class Parent:
    """The process that has started this one.

    Args:
        below: the value of BELOW.
    """

    def __init__(self, below: str) -> None:
        self._socket = socket.socket(fileno=int(below.split()[1]))
        self._socket.set_inheritable(False)  # not for commands that tasks run

    def stop_with_it(self) -> None:
        """Send this process SIGTERM when the parent ends."""
        threading.Thread(target=self._wait, name="parent", daemon=True).start()

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    def announce_recycling(self) -> None:
        """Say that this process ends because it has reached its limit."""
        with contextlib.suppress(OSError):  # the parent has ended
            self._socket.send(RECYCLED)


def run_reloaded(arguments: Sequence[str]) -> None:
    """Run a worker, and another one in its place whenever a file of Python changes in the working directory.

    Raises:
        ImportError: watchfiles is not installed.
    """
    try:
        import watchfiles
    except ImportError:
        raise ImportError(
            "--reload needs watchfiles: pip install './client[reload]' in a clone of beanstalk-server"
        ) from None
    os.environ[BELOW] = "reload"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which watchfiles relies on
    line = shlex.join(command_line(arguments))
    watchfiles.run_process(".", target=line, target_type="command", watch_filter=watchfiles.PythonFilter())
