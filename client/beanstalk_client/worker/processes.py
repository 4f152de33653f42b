"""Several worker processes, and one that begins anew when a file changes: both run the same command line once more.

killed, by the kernel for want of memory say   another one takes its place
ended by itself, with an error                 the others are told to stop, and all end with its status
this process is killed                         the others notice that their standard input ends, and stop
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

from beanstalk_client.events import tell

PAUSE: Final = 1.0
"""Seconds until another process takes the place of one that was killed."""

BELOW: Final = "BEANSTALK_WORKER_BELOW"
"""The variable that tells a process what it was started for: "reload" or "processes"."""

log: logging.Logger = logging.getLogger("beanstalk_client.worker")


def command_line(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "beanstalk_client.worker", *arguments]


class Processes:
    """Runs a command line several times at once.

    Args:
        line: the command line.
        number: of processes.
    """

    def __init__(self, line: Sequence[str], number: int) -> None:
        self._line = list(line)
        self._number = number
        self._running: set[asyncio.subprocess.Process] = set()
        self._told = False

    async def run(self) -> int:
        """Run until all have ended; return the exit status, which is 0 if none has failed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # on Windows
                loop.add_signal_handler(number, self.stop)
        return max(await asyncio.gather(*(self._keep() for _ in range(self._number))))

    def stop(self) -> None:
        """Tell all to stop; told once more, they stop at once."""
        self._told = True
        for process in self._running:
            _terminate(process)

    async def _keep(self) -> int:
        """Keep one running; return the status with which it has ended."""
        while not self._told:
            pid, status = await self._run_one()
            if status >= 0:
                return status
            message = f"worker process {pid} was killed by signal {-status}"
            tell(log, logging.ERROR, "process-killed", message, pid=pid, signal=-status)
            await asyncio.sleep(PAUSE)
        return 0

    async def _run_one(self) -> tuple[int, int]:
        """Run one; return its process id, and its status: below 0, the signal that has killed it."""
        # In a session of its own, so that Ctrl-C reaches this process only, and each worker is told once.
        process = await asyncio.create_subprocess_exec(
            *self._line,
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, BELOW: "processes"},
            start_new_session=True,
        )
        self._running.add(process)
        if self._told:  # meanwhile
            _terminate(process)
        status = await process.wait()
        self._running.discard(process)
        if self._told:
            if status == -signal.SIGTERM:
                status = 0  # it had not begun
        elif status > 0:
            self.stop()
        return process.pid, status


def _terminate(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM. `process.terminate` first looks whether it has ended: then the loop would not learn its status."""
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(process.pid, signal.SIGTERM)


def stop_with_parent() -> None:
    """Let this process be told to stop when the one ends that has started it."""

    def wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def run_reloaded(arguments: Sequence[str]) -> None:
    """Run a worker, and another one in its place whenever a file of Python changes in the working directory.

    Raises:
        ImportError: watchfiles is not installed.
    """
    try:
        import watchfiles
    except ImportError:
        raise ImportError("--reload needs watchfiles: pip install './client[reload]'") from None
    os.environ[BELOW] = "reload"
    line = shlex.join(command_line(arguments))
    watchfiles.run_process(".", target=line, target_type="command", watch_filter=watchfiles.PythonFilter())
