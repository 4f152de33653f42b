"""One attempt at a job of `beanstalk work`: the command that runs for it, and what its exit status means.

The command gets the body on standard input, and as a file where an argument is `{}`. It is the leader of a process
group of its own: Ctrl-C at the worker is not for it, and when it is ended, so is all that it has started there.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, Final

from beanstalk_client.cli.target import TOKEN_VARIABLE

TEMPORARY_FAILURE: Final = 75
"""EX_TEMPFAIL of sysexits.h: not now. The job is released, however often it has been tried."""

BAD_DATA: Final = 65
"""EX_DATAERR of sysexits.h: no further try can succeed. The job is buried."""

GRACE: Final = 10.0
"""Seconds that a command has between SIGTERM and SIGKILL."""

POLL: Final = 0.05
"""Seconds between two looks at what a command has left behind: nothing tells when a group of processes has ended."""

PLACE: Final = "{}"
"""The argument that stands for the file with the body."""


class Rules:
    """What becomes of jobs whose command fails.

    Attributes:
        backoff: the delay after the first failure, in seconds, doubled with each further one; 0: none.
        backoff_max: the longest delay, in seconds.
        max_tries: after this many failures a job is buried; 0: never.
    """

    __slots__ = ("backoff", "backoff_max", "max_tries")

    def __init__(self, backoff: float, backoff_max: float, max_tries: int) -> None:
        self.backoff: float = backoff
        self.backoff_max: float = backoff_max
        self.max_tries: int = max_tries

    def fate(self, status: int, tries: int) -> tuple[str, float]:
        """What a job's outcome is, and its delay in seconds if it is released.

        Args:
            status: the exit status of the command, or minus the signal that ended it.
            tries: how often the job has been tried, this time included: 1 or more.

        Returns:
            "deleted", "released" or "buried", and the delay.
        """
        if status == 0:
            return "deleted", 0
        if status == BAD_DATA or (status != TEMPORARY_FAILURE and 0 < self.max_tries <= tries):
            return "buried", 0
        return "released", min(self.backoff * 2.0 ** min(tries - 1, 64), self.backoff_max)


class Attempt:
    """A command that runs. `close` must be called when it has ended.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], body: bytes, environment: dict[str, str], stdout: int | None) -> None:
        self._file: IO[bytes] = tempfile.NamedTemporaryFile(prefix="beanstalk-job-")  # noqa: SIM115
        self._ended, self._ends = os.pipe()
        self._kill_at: float | None = None
        self._is_killed = False
        try:
            self._file.write(body)
            self._file.flush()
            self._file.seek(0)
            self._process = subprocess.Popen(
                [self._file.name if argument == PLACE else argument for argument in command],
                stdin=self._file,
                stdout=stdout,
                env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE} | environment,
                process_group=0,
            )
        except BaseException:
            os.close(self._ends)
            self.close()
            raise
        threading.Thread(target=self._wait, name=f"waits for process {self._process.pid}", daemon=True).start()

    def _wait(self) -> None:
        self._process.wait()
        os.close(self._ends)

    def wait(self, until: float, *others: int) -> int | None:
        """Wait until the command has ended, or a moment has come, or one of these can be read from.

        If we have ended it, all that it has started must end as well, or the next attempt would meet it.

        Args:
            until: by the monotonic clock, in seconds.

        Returns:
            its exit status, or minus the signal that ended it; None if it still runs.
        """
        if self._kill_at is not None:
            if time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
                self._is_killed = True
                self._kill_at = time.monotonic() + GRACE
            until = min(until, self._kill_at)
        with selectors.DefaultSelector() as selector:
            for number in (self._ended, *others):
                selector.register(number, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(max(0.0, until - time.monotonic()))]
            if self._ended not in ready:
                return None
            selector.unregister(self._ended)
            while self._has_rest():
                if time.monotonic() >= until or selector.select(POLL):
                    return None
        return self._process.wait()

    def _has_rest(self) -> bool:
        """Whether something that it has started has been told to end, and goes on."""
        if self._kill_at is None or self._is_killed:
            return False
        with contextlib.suppress(ChildProcessError):  # an orphan is ours if we are process 1, as in a container
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def terminate(self) -> None:
        """Tell it to end, once; it is killed if it has not within GRACE."""
        if self._kill_at is None:
            self._signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + GRACE

    def _signal(self, number: int) -> None:
        # It has ended in between; or it is another user's (sudo), and ends when it likes.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        os.close(self._ended)
        self._file.close()
