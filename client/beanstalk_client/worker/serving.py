"""Runs a worker: consumers for its tubes, the threads and the task runner that they share, and its end.

Each group of tubes has slots and connections of its own, so that a flood in one holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from beanstalk_client import signals
from beanstalk_client.commands import Duration, seconds_of
from beanstalk_client.consumer import Consumer, Delivery, Outcome, look_for_server
from beanstalk_client.consumers import FORCE_AFTER, GRACE, Consumers, StoppedError
from beanstalk_client.events import tell
from beanstalk_client.logs import keep_log
from beanstalk_client.program import ProgramError
from beanstalk_client.tasks.failure import UNKNOWN_TASK_GRACE
from beanstalk_client.tasks.message import UnreadableError, read
from beanstalk_client.tasks.reports import tidied
from beanstalk_client.tasks.runner import TaskRunner
from beanstalk_client.tasks.tasks import Tasks
from beanstalk_client.tasks.threads import Threads

RECYCLE_GRACE = 3600.0
"""Seconds that jobs may run on when a worker ends because of `max_jobs` or `max_memory`: no one waits for its end."""

log: logging.Logger = logging.getLogger("beanstalk_client.worker")


class Group(NamedTuple):
    """Tubes, and how many of their jobs run at a time."""

    tubes: tuple[str, ...]
    at_once: int


class ThreadsHangError(ProgramError):
    """A worker has ended because all its threads hang."""


class LifespanError(Exception):
    """The lifespan of the program has failed. Its cause is what the lifespan has raised."""


@contextlib.asynccontextmanager
async def _lived(
    make: Callable[[], AbstractAsyncContextManager[Any]], may_be_cancelled: Callable[[], bool]
) -> AsyncIterator[None]:
    """Enter and leave a lifespan, whose errors are no errors of the server.

    Args:
        make: makes the lifespan.
        may_be_cancelled: whether the worker may have cancelled its begin.
    """
    try:
        entered = make()
        await entered.__aenter__()
    except BaseException as failure:
        if isinstance(failure, asyncio.CancelledError) and may_be_cancelled():
            raise
        raise LifespanError from failure
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        try:
            await entered.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as own:
            if own is error:
                raise
            raise LifespanError from own


class Worker(Consumers):
    """Runs the tasks of a program.

    Args:
        tasks: which.
        groups: the tubes to take jobs from.
        threads: in how many threads plain functions run.
        grace: seconds for running jobs after a stop signal; then they are given back.
        weights: of tubes, for `mode`; a tube without one has that of its policy, or 1.
        mode: how the tubes of a group are served: "priority", or by weight, "weighted" (jobs) or "fair" (time).
        all_tracebacks: the log has the traceback of each try that fails, and not of the last one only.
        unknown_task_grace: time until a job is buried whose task is unknown; until then, it is released.
        max_jobs: the worker ends after this many jobs; 0: no limit.
        max_memory: it ends when it has more bytes of resident memory after a job; 0: no limit.
        burst: it ends when no job is ready and none runs.

    Attributes:
        begun: number of jobs that it has begun; counted with one of the last three arguments.
        is_recycled: it ends because of one of the limits.
    """

    def __init__(
        self,
        tasks: Tasks,
        groups: Sequence[Group],
        *,
        threads: int,
        grace: Duration = GRACE,
        weights: Mapping[str, int] | None = None,
        mode: str = "",
        all_tracebacks: bool = False,
        unknown_task_grace: Duration = UNKNOWN_TASK_GRACE,
        max_jobs: int = 0,
        max_memory: int = 0,
        burst: bool = False,
    ) -> None:
        super().__init__(log, "worker", "running jobs", seconds_of(grace, "grace"))
        self._hangs = False
        self.is_recycled: bool = False
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._burst = burst
        self._idle: set[int] = set()  # indexes of groups that have had no job since the last one ended
        self.begun: int = 0
        self._all_tracebacks = all_tracebacks
        self._unknown_task_grace = seconds_of(unknown_task_grace, "unknown_task_grace")
        self._tasks = tasks
        self._groups = list(groups)
        self._tubes = [tube for group in groups for tube in group.tubes]
        self._number = threads
        self._weights = dict(weights or {})
        self._mode = mode

    async def run(self) -> None:
        """Work until `stop` or a signal.

        Raises:
            OSError, Error: there is no server to begin with, or it does not let us do this.
            ThreadsHangError: all threads hang. The other jobs have ended: another process must take its place.
            LifespanError: the lifespan of the program has failed.
        """
        await look_for_server(self._tasks.connect_async(), self._tubes)
        threads = Threads(self._number, on_room=self._resume, on_hang=self._tell_hang)
        runner = TaskRunner(
            self._tasks,
            threads,
            all_tracebacks=self._all_tracebacks,
            unknown_task_grace=self._unknown_task_grace,
        )
        consumers = [
            Consumer(
                self._tasks.connect_async,
                group.tubes,
                self._counted(runner) if self._max_jobs or self._max_memory or self._burst else runner,
                at_once=group.at_once,
                weights=self._weights,
                mode=self._mode,
                idle=functools.partial(self._note_idle, number) if self._burst else None,
                room=self._room(threads if self._tasks._have_plain(group.tubes) else None),
            )
            for number, group in enumerate(self._groups)
        ]
        tubes = ", ".join(f"{','.join(group.tubes)}={group.at_once}" for group in self._groups)
        who = f"{socket.gethostname()}:{os.getpid()}"
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(self.on_signals())
                if self._tasks.lifespan is not None:
                    async with self.starting():
                        await stack.enter_async_context(_lived(self._tasks.lifespan, lambda: self.is_stopping))
                    keep_log()  # it may have configured logging
                if self._tasks.errors is not None:
                    await stack.enter_async_context(
                        tidied(self._tasks.connect_async, self._tubes, self._tasks.errors, self._name_of)
                    )
                tell(log, logging.INFO, "worker-started", f"worker {who} takes jobs from {tubes}", tubes=tubes)
                await self.consume(consumers)
                signals.end_within(self._grace + FORCE_AFTER)  # the end of the lifespan has no more
        except StoppedError:
            pass
        finally:
            threads.close()
            await self._tasks.aclose()
        tell(log, logging.INFO, "worker-stopped", f"worker {who} has stopped")
        if self._hangs:
            raise ThreadsHangError("all threads hang in functions that exceeded their timeout")

    def _room(self, threads: Threads | None) -> Callable[[], int] | None:
        """The number of further jobs that a consumer may begin, if there is a limit."""
        if not self._max_jobs:
            return None if threads is None else threads.room

        def room() -> int:
            left = self._max_jobs - self.begun
            return left if threads is None else min(left, threads.room())

        return room

    def _tell_hang(self) -> None:
        """Stop, as no thread can run a job any more."""
        self._hangs = True
        message = f"all {self._number} threads hang in functions that exceeded their timeout: the worker stops"
        tell(log, logging.ERROR, "threads-hang", message, threads=self._number)
        if not self.is_stopping:
            self._finish("all threads hang", self._grace)

    def _name_of(self, body: bytes) -> str:
        """The name of the task in the body of a job; "" if it cannot be read."""
        try:
            return read(body, self._tasks.serializer).task
        except UnreadableError:
            return ""

    def _note_idle(self, number: int) -> None:
        """End if each group has been idle since the last job, which may have put another one, has ended."""
        self._idle.add(number)
        if len(self._idle) == len(self._groups) and not self.is_stopping:
            self._finish("no job is left", self._grace)

    def _counted(self, runner: TaskRunner) -> Callable[[Delivery], Awaitable[Outcome]]:
        """A handler that ends the worker when it has reached its limit of jobs or memory."""

        async def handle(delivery: Delivery) -> Outcome:
            self.begun += 1
            if self.begun == self._max_jobs:
                self._recycle(f"--max-jobs: {self.begun} jobs")
            try:
                return await runner(delivery)
            finally:
                self._idle.clear()
                if self._max_memory and (memory := resident_memory()) > self._max_memory:
                    self._recycle(f"--max-memory: {memory} bytes")

        return handle

    def _recycle(self, why: str) -> None:
        if not (self.is_recycled or self._stops):
            self.is_recycled = True
            self._finish(why, max(self._grace, RECYCLE_GRACE))


def resident_memory() -> int:
    """Bytes of memory that this process has; where the system does not tell, the most that it has had.

    Raises:
        OSError: the system tells neither.
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        raise OSError("this system does not report the memory of a process") from None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
