"""Runs several consumers until a stop signal, and then ends them within a grace period.

stop, SIGTERM or SIGINT       no more jobs are taken; those that run may run on for `grace` seconds
the same once more            the jobs that still run are cancelled and given back
LAST_GRACE seconds later      nothing is waited for any more
FORCE_AFTER seconds later     the process is ended by force, if it is a program (`run`)
a third signal                the process is ended by force at once
a consumer fails              the others stop in the same way, and its error is raised
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from beanstalk_client import signals
from beanstalk_client.consumer import Consumer, start
from beanstalk_client.events import tell

GRACE = 30.0
"""Seconds for running jobs after a stop signal."""

LAST_GRACE = 2.0
"""Seconds for the release of the jobs that are left then."""

FORCE_AFTER = 3.0
"""Seconds from the end of the grace period until the process is ended by force: LAST_GRACE, and some for cleaning up.
"""


class StoppedError(Exception):
    """`stop` was called before the program had started."""


class Consumers:
    """Consumers that run and end together.

    Args:
        log: for the events of their end.
        name: what events begin with: "worker" for "worker-stopping" and "worker-grace-over".
        jobs: what the log calls jobs that run.
        grace: seconds.
    """

    def __init__(self, log: logging.Logger, name: str, jobs: str, grace: float) -> None:
        self._log = log
        self._name = name
        self._jobs = jobs
        self._grace = grace
        self._consumers: list[Consumer] = []
        self._stops = 0  # number of calls of `stop`
        self._signals = 0
        self._over: asyncio.Event | None = None  # nothing that still runs is waited for
        self._starting: asyncio.Task[Any] | None = None  # which `stop` cancels
        self._timer: asyncio.TimerHandle | None = None  # the end of the grace period

    def running(self) -> int:
        """How many jobs run."""
        return sum(consumer.running for consumer in self._consumers)

    @contextlib.contextmanager
    def on_signals(self, others: Mapping[int, Callable[[], None]] | None = None) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT, and call these for other signals."""
        loop = asyncio.get_running_loop()
        stops: dict[int, Callable[[], None]] = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop}
        before: dict[int, Any] = {}
        for number, act in {**stops, **(others or {})}.items():
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor in a thread
                former = signal.getsignal(number)
                loop.add_signal_handler(number, act)
                before[number] = former
                # The loop acts on its wake-up descriptor. Its handler of Python does nothing, and is replaced.
                signals.handle(number, self._count_signal if number in stops else lambda *_: None)
        try:
            yield
        finally:
            for number, former in before.items():
                loop.remove_signal_handler(number)
                signals.unhandle(number, former)

    def _count_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Set the deadline, also while a task blocks the loop."""
        self._signals += 1
        signals.end_within((self._grace + FORCE_AFTER, FORCE_AFTER, 0)[min(self._signals, 3) - 1])

    async def consume(self, consumers: Sequence[Consumer]) -> None:
        """Let consumers run until all have ended.

        Raises:
            Error, OSError: what one of them has raised.
        """
        loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._consumers = list(consumers)
        if self._stops:  # while it began
            self._stop_all()
        runs = [start(consumer.run(), loop) for consumer in self._consumers]
        over = start(self._over.wait(), loop)
        try:
            while not over.done() and not all(run.done() for run in runs):
                await asyncio.wait(
                    [over, *(run for run in runs if not run.done())], return_when=asyncio.FIRST_COMPLETED
                )
                if any(run.done() and run.exception() for run in runs) and self._timer is None:
                    self._finish("a consumer failed", self._grace)
        finally:
            for task in [over, *runs]:
                task.cancel()
            results = await asyncio.gather(*runs, over, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """Take no more jobs, and end when those that run do, after `grace` seconds at the latest. Once more: at once.

        To be called on the event loop.
        """
        self._stops += 1
        if self._stops == 1:
            self._finish("stopping", self._grace)
            if self._starting is not None:
                self._starting.cancel()
        elif self._stops == 2:
            self._end()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stops > 0

    def _resume(self) -> None:
        """Let consumers ask for jobs again that had no room for them."""
        for consumer in self._consumers:
            consumer.resume()

    def _finish(self, why: str, grace: float) -> None:
        """Take no more jobs, and end when those that run do, after this many seconds at the latest."""
        running = self.running()
        message = f"{why}: {running} {self._jobs} have {grace:g} s to finish"
        tell(self._log, logging.INFO, f"{self._name}-stopping", message, running=running, grace=grace)
        self._stop_all()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(grace, self._end)
        signals.end_within(grace + FORCE_AFTER)

    @contextlib.asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Let `stop` cancel what is in the block: it runs before any job does.

        Raises:
            StoppedError: it was cancelled.
        """
        task = self._starting = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self._stops:
                raise
            if task is not None and hasattr(task, "uncancel"):  # from Python 3.11 on
                task.uncancel()
            raise StoppedError from None
        finally:
            self._starting = None

    def _stop_all(self) -> None:
        for consumer in self._consumers:
            consumer.stop()

    def _end(self) -> None:
        """Release what still runs."""
        signals.end_within(FORCE_AFTER)
        if running := self.running():
            message = f"grace period over: {running} {self._jobs} are cancelled and given back"
            tell(self._log, logging.WARNING, f"{self._name}-grace-over", message, running=running)
        for consumer in self._consumers:
            consumer.end()
        if self._over is not None:
            asyncio.get_running_loop().call_later(LAST_GRACE, self._over.set)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a program's coroutine in an event loop, uvloop's where it is installed; no library may choose the loop.

    asyncio lets SystemExit and KeyboardInterrupt of any asyncio task end the loop. Here, it goes on: the exception is
    that of the handler which waits for the task. Where no handler is set, Ctrl-C raises one itself.
    """
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    with signals.deadlines_kept():
        try:
            asyncio.set_event_loop(loop)
            program = start(main, loop)
            while not program.done():
                try:
                    loop.run_until_complete(program)
                except (SystemExit, KeyboardInterrupt):
                    if program.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                        raise
                except RuntimeError:  # `loop.stop()` of a task
                    if program.done():
                        raise
            program.result()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
