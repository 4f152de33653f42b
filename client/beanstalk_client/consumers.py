"""Several consumers as one program: it runs until it is told to stop, and then ends within a grace period.

stop, SIGTERM or SIGINT       no more jobs are taken; those that run may run on for `grace` seconds
the same once more            the jobs that still run are cancelled and released
LAST_GRACE seconds later      nothing is waited for any more
a consumer fails              the others stop, and its error is raised
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from beanstalk_client.consumer import Consumer
from beanstalk_client.events import tell

GRACE = 30.0
"""Seconds that jobs may run on when the program is told to stop."""

LAST_GRACE = 3.0
"""Seconds for the release of the jobs that are left then."""


class Consumers:
    """Consumers that run and end together.

    Args:
        log: is told when they stop.
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
        self._told = 0  # how often to stop
        self._over: asyncio.Event | None = None  # nothing that still runs is waited for

    def running(self) -> int:
        """How many jobs run."""
        return sum(consumer.running for consumer in self._consumers)

    @contextlib.contextmanager
    def on_signals(self, others: Mapping[int, Callable[[], None]] | None = None) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT, and call these for other signals."""
        loop = asyncio.get_running_loop()
        numbers = []
        for number, act in {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, **(others or {})}.items():
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor in a thread
                loop.add_signal_handler(number, act)
                numbers.append(number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def consume(self, consumers: Sequence[Consumer]) -> None:
        """Let consumers run until all have ended.

        Raises:
            Error, OSError: what one of them has raised.
        """
        loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._consumers = list(consumers)
        if self._told:  # while it began
            self._stop_all()
        runs = [loop.create_task(consumer.run()) for consumer in self._consumers]
        over = loop.create_task(self._over.wait())
        try:
            while not over.done() and not all(run.done() for run in runs):
                await asyncio.wait(
                    [over, *(run for run in runs if not run.done())], return_when=asyncio.FIRST_COMPLETED
                )
                if any(run.done() and run.exception() for run in runs):
                    self._stop_all()
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
        self._told += 1
        if self._told == 1:
            running = self.running()
            message = f"told to stop: {self._jobs}, {running}, may run on for {self._grace:g} s"
            tell(self._log, logging.INFO, f"{self._name}-stopping", message, running=running, grace=self._grace)
            self._stop_all()
            asyncio.get_running_loop().call_later(self._grace, self._end)
        elif self._told == 2:
            self._end()

    @property
    def is_told(self) -> bool:
        """Whether it has been told to stop."""
        return self._told > 0

    def _resume(self) -> None:
        """Let consumers ask for jobs again that had no room for them."""
        for consumer in self._consumers:
            consumer.resume()

    def _stop_all(self) -> None:
        for consumer in self._consumers:
            consumer.stop()

    def _end(self) -> None:
        """Release what still runs."""
        if running := self.running():
            message = f"{self._jobs} that are left, {running}, are cancelled and released"
            tell(self._log, logging.WARNING, f"{self._name}-grace-over", message, running=running)
        for consumer in self._consumers:
            consumer.end()
        if self._over is not None:
            asyncio.get_running_loop().call_later(LAST_GRACE, self._over.set)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a program's coroutine in an event loop, uvloop's where it is installed; no library may choose the loop.

    asyncio lets SystemExit and KeyboardInterrupt of any asyncio task end the loop. Here, it goes on: the exception is
    that of the handler which waits for the task. Only before and after signals are handled, Ctrl-C raises one itself.
    """
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        program = loop.create_task(main)
        while not program.done():
            try:
                loop.run_until_complete(program)
            except (SystemExit, KeyboardInterrupt):
                if program.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    raise
        program.result()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
