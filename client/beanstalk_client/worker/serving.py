"""A worker: consumers for its tubes, the threads and the handler that they share, and how all of it ends.

Each group of tubes has slots and connections of its own, so that a flood in one holds up no other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NamedTuple

from beanstalk_client.commands import Duration, seconds_of
from beanstalk_client.consumer import Consumer, look_for_server
from beanstalk_client.consumers import GRACE, Consumers
from beanstalk_client.events import tell
from beanstalk_client.logs import keep_log
from beanstalk_client.tasks.registry import Tasks
from beanstalk_client.tasks.reports import tidied
from beanstalk_client.tasks.runner import Runner
from beanstalk_client.tasks.threads import Threads

log: logging.Logger = logging.getLogger("beanstalk_client.worker")


class Group(NamedTuple):
    """Tubes, and how many of their jobs run at a time."""

    tubes: tuple[str, ...]
    at_once: int


class LifespanError(Exception):
    """The lifespan of the program has failed. Its cause is what the lifespan has raised."""


class _Lifespan:
    """Enters and leaves a lifespan, whose errors are no errors of the server.

    Args:
        make: makes the lifespan.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._make = make
        self._entered: AbstractAsyncContextManager[Any] | None = None

    async def __aenter__(self) -> None:
        try:
            entered = self._make()
            await entered.__aenter__()
        except Exception as error:
            raise LifespanError from error
        self._entered = entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._entered is not None
        try:
            await self._entered.__aexit__(kind, error, traceback)
        except Exception as own:
            if own is error:
                raise
            raise LifespanError from own


class Worker(Consumers):
    """Runs the tasks of a program.

    Args:
        tasks: which.
        groups: the tubes to take jobs from.
        threads: in how many threads plain functions run.
        grace: seconds that jobs may run on when it is told to stop; then they are released.
        weights: of tubes, for `mode`; a tube without one has that of its policy, or 1.
        mode: how the tubes of a group are served: "priority", or by weight, "weighted" (jobs) or "fair" (time).
        all_tracebacks: the log has the traceback of each try that fails, and not of the last one only.
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
    ) -> None:
        super().__init__(log, "worker", "jobs that run", seconds_of(grace, "grace"))
        self._all_tracebacks = all_tracebacks
        self._tasks = tasks
        self._groups = list(groups)
        self._number = threads
        self._weights = dict(weights or {})
        self._mode = mode

    async def run(self) -> None:
        """Work until told to stop, by `stop` or a signal.

        Raises:
            OSError, Error: there is no server to begin with, or it does not let us do this.
            LifespanError: the lifespan of the program has failed.
        """
        await look_for_server(self._tasks.connect_async(), [tube for group in self._groups for tube in group.tubes])
        threads = Threads(self._number)
        runner = Runner(self._tasks, threads, all_tracebacks=self._all_tracebacks)
        consumers = [
            Consumer(
                self._tasks.connect_async,
                group.tubes,
                runner,
                at_once=group.at_once,
                weights=self._weights,
                mode=self._mode,
            )
            for group in self._groups
        ]
        tubes = ", ".join(f"{','.join(group.tubes)}={group.at_once}" for group in self._groups)
        who = f"{socket.gethostname()}:{os.getpid()}"
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(self.on_signals())
                if self._tasks.lifespan is not None:
                    await stack.enter_async_context(_Lifespan(self._tasks.lifespan))
                    keep_log()  # it may have configured logging
                if self._tasks.errors is not None:
                    reports = [tube + self._tasks.errors for group in self._groups for tube in group.tubes]
                    await stack.enter_async_context(tidied(self._tasks.connect_async, reports))
                tell(log, logging.INFO, "worker-started", f"worker {who} takes jobs from {tubes}", tubes=tubes)
                await self.consume(consumers)
        finally:
            threads.close()
            await self._tasks.aclose()
        tell(log, logging.INFO, "worker-stopped", f"worker {who} has stopped")
