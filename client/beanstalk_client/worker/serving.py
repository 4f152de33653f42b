"""A worker: consumers for its tubes, the threads and the handler that they share, and how all of it ends.

Each group of tubes has slots and connections of its own, so that a flood in one holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Sequence
from typing import NamedTuple

from beanstalk_client.commands import Duration, seconds_of
from beanstalk_client.consumer import Consumer, look_for_server
from beanstalk_client.events import tell
from beanstalk_client.tasks.registry import Tasks
from beanstalk_client.tasks.reports import tidied
from beanstalk_client.tasks.runner import Runner
from beanstalk_client.tasks.threads import Threads

GRACE = 30.0
"""Seconds that jobs may run on when the worker is told to stop."""

LAST_GRACE = 3.0
"""Seconds for the release of the jobs that are left then."""

log = logging.getLogger("beanstalk_client.worker")


class Group(NamedTuple):
    """Tubes, and how many of their jobs run at a time."""

    tubes: tuple[str, ...]
    at_once: int


class Worker:
    """Runs the tasks of a program.

    Args:
        tasks: which.
        groups: the tubes to take jobs from.
        threads: in how many threads plain functions run.
        grace: seconds that jobs may run on when it is told to stop; then they are released.
        all_tracebacks: the log has the traceback of each try that fails, and not of the last one only.
    """

    def __init__(
        self,
        tasks: Tasks,
        groups: Sequence[Group],
        *,
        threads: int,
        grace: Duration = GRACE,
        all_tracebacks: bool = False,
    ) -> None:
        self._all_tracebacks = all_tracebacks
        self._tasks = tasks
        self._groups = list(groups)
        self._number = threads
        self._grace = seconds_of(grace, "grace")
        self._consumers: list[Consumer] = []
        self._told = 0  # how often to stop
        self._over: asyncio.Event | None = None  # nothing that still runs is waited for

    async def run(self) -> None:
        """Work until told to stop, by `stop` or a signal.

        Raises:
            OSError, Error: there is no server to begin with, or it does not let us do this.
        """
        loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        await look_for_server(self._tasks.connect_async(), [tube for group in self._groups for tube in group.tubes])
        threads = Threads(self._number)
        runner = Runner(self._tasks, threads, all_tracebacks=self._all_tracebacks)
        self._consumers = [
            Consumer(self._tasks.connect_async, group.tubes, runner, at_once=group.at_once) for group in self._groups
        ]
        signals = []
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor in a thread
                loop.add_signal_handler(number, self.stop)
                signals.append(number)
        tubes = ", ".join(f"{','.join(group.tubes)}={group.at_once}" for group in self._groups)
        who = f"{socket.gethostname()}:{os.getpid()}"
        try:
            async with contextlib.AsyncExitStack() as stack:
                if self._tasks.lifespan is not None:
                    await stack.enter_async_context(self._tasks.lifespan())
                if self._tasks.errors is not None:
                    reports = [tube + self._tasks.errors for group in self._groups for tube in group.tubes]
                    await stack.enter_async_context(tidied(self._tasks.connect_async, reports))
                tell(log, logging.INFO, "worker-started", f"worker {who} takes jobs from {tubes}", tubes=tubes)
                await self._consume()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            threads.close()
            await self._tasks.aclose()
        tell(log, logging.INFO, "worker-stopped", f"worker {who} has stopped")

    def stop(self) -> None:
        """Take no more jobs, and end when those that run do, after `grace` seconds at the latest. Once more: at once.

        To be called on the event loop.
        """
        self._told += 1
        running = sum(consumer.running for consumer in self._consumers)
        if self._told == 1:
            message = f"told to stop: jobs that run, {running}, may run on for {self._grace:g} s"
            tell(log, logging.INFO, "worker-stopping", message, running=running, grace=self._grace)
            for consumer in self._consumers:
                consumer.stop()
            asyncio.get_running_loop().call_later(self._grace, self._end)
        elif self._told == 2:
            self._end()

    def _end(self) -> None:
        """Release what still runs."""
        running = sum(consumer.running for consumer in self._consumers)
        if running:
            message = f"jobs that still run, {running}, are cancelled and released"
            tell(log, logging.WARNING, "worker-grace-over", message, running=running)
        for consumer in self._consumers:
            consumer.end()
        if self._over is not None:
            asyncio.get_running_loop().call_later(LAST_GRACE, self._over.set)

    async def _consume(self) -> None:
        """Let the consumers run until all have ended; the first that fails ends the others."""
        assert self._over is not None
        loop = asyncio.get_running_loop()
        runs = [loop.create_task(consumer.run()) for consumer in self._consumers]
        if self._told:  # while it began
            for consumer in self._consumers:
                consumer.stop()
        over = loop.create_task(self._over.wait())
        try:
            while not over.done() and not all(run.done() for run in runs):
                await asyncio.wait(
                    [over, *(run for run in runs if not run.done())], return_when=asyncio.FIRST_COMPLETED
                )
                if any(run.done() and run.exception() for run in runs):
                    for consumer in self._consumers:
                        consumer.stop()
        finally:
            for task in [over, *runs]:
                task.cancel()
            results = await asyncio.gather(*runs, over, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
