"""Runs the command of `beanstalk work` for one job, and maps its exit status to an outcome.

The command gets the body on standard input, and as a file where an argument is `{}`. It is the leader of a process
group of its own: Ctrl-C at the worker is not for it, and when it is ended, so is all that it has started there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Sequence
from typing import Final, NamedTuple

from beanstalk_client.cli.target import TOKEN_VARIABLE
from beanstalk_client.consumer import DONE, Bury, Outcome, Release

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

KILLED: Final = "stopped by a second signal"


class Rules(NamedTuple):
    """What becomes of jobs whose command fails.

    Attributes:
        backoff: the delay after the first failure, in seconds, doubled with each further one; 0: none.
        backoff_max: the longest delay, in seconds.
        max_tries: after this many failures a job is buried; 0: never.
    """

    backoff: float
    backoff_max: float
    max_tries: int

    def fate(self, status: int, tries: int) -> Outcome:
        """What becomes of a job.

        Args:
            status: the exit status of the command, or minus the signal that ended it.
            tries: how often the job has been tried, this time included: 1 or more.
        """
        if status == 0:
            return DONE
        if status == BAD_DATA or (status != TEMPORARY_FAILURE and 0 < self.max_tries <= tries):
            return Bury()
        return self.later(tries)

    def later(self, tries: int) -> Release:
        """Another try, after the delay that is due."""
        return Release(min(self.backoff * 2.0 ** min(tries - 1, 64), self.backoff_max))


async def run(
    command: Sequence[str],
    body: bytes,
    environment: dict[str, str],
    stdout: int | None,
    timeout: float | None,
    killed: asyncio.Event,
) -> tuple[int, str]:
    """Run a command for a job; end it after `timeout` seconds, or when it must be killed.

    If we have ended it, all that it has started must end as well, or the next attempt would meet it.

    Returns:
        its exit status, or minus the signal that ended it; and why we have ended it, if we have.

    Raises:
        OSError: it cannot be started.
    """
    with tempfile.NamedTemporaryFile(prefix="beanstalk-job-") as file:
        file.write(body)
        file.flush()
        file.seek(0)
        process = await asyncio.create_subprocess_exec(
            *(file.name if argument == PLACE else argument for argument in command),
            stdin=file,
            stdout=stdout,
            env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE} | environment,
            process_group=0,
        )
        ended, told = asyncio.ensure_future(process.wait()), asyncio.ensure_future(killed.wait())
        try:
            await asyncio.wait([ended, told], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result(), ""
            why = KILLED if told.done() else f"timed out after {timeout:g} s"
            _signal(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await asyncio.shield(ended)
                    while _is_there(process.pid):
                        await asyncio.sleep(POLL)
            _signal(process.pid, signal.SIGKILL)
            return await ended, why
        finally:
            told.cancel()


def _is_there(group: int) -> bool:
    """Whether a process of a group is left that has not ended."""
    with contextlib.suppress(ChildProcessError):  # an orphan is ours if we are process 1, as in a container
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal(group: int, number: int) -> None:
    # It has ended in between; or it is another user's (sudo), and ends when it likes.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
