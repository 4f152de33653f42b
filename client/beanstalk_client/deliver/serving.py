"""The sender as a process: its consumer, its sender of requests, its reports, and how all of it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from beanstalk_client.consumer import Consumer, look_for_server
from beanstalk_client.deliver.deliveries import Deliveries
from beanstalk_client.deliver.sending import Sender
from beanstalk_client.deliver.signatures import Secrets
from beanstalk_client.deliver.turns import Turns
from beanstalk_client.deliver.verdicts import Rules
from beanstalk_client.events import tell
from beanstalk_client.tasks.failure import ERRORS
from beanstalk_client.tasks.reports import Reports, tidied

if TYPE_CHECKING:
    from beanstalk_client.asynchronous import AsyncClient

LAST_GRACE: Final = 3.0
"""Seconds for the release of the jobs that are left when the grace is over."""

log = logging.getLogger("beanstalk_client.deliver")


class Deliverer:
    """Sends what is due, until it is told to stop.

    Args:
        connect: makes a client of the job server that is not connected yet.
        tubes: from which jobs are taken.
        make_sender: makes what sends requests, on the event loop.
        turns: how many at once.
        rules: what becomes of those that fail.
        read_secrets: reads the secrets anew on SIGHUP; None: there are none.
        grace: seconds that requests may go on when it is told to stop.
    """

    def __init__(
        self,
        connect: Callable[[], AsyncClient[bytes]],
        tubes: Sequence[str],
        make_sender: Callable[[], Sender],
        turns: Turns,
        rules: Rules,
        *,
        read_secrets: Callable[[], Secrets] | None = None,
        grace: float = 30.0,
    ) -> None:
        self._connect = connect
        self._tubes = tuple(tubes)
        self._make_sender = make_sender
        self._turns = turns
        self._rules = rules
        self._read_secrets = read_secrets
        self._grace = grace
        self._consumers: list[Consumer] = []
        self._sender: Sender | None = None
        self._told = 0  # how often to stop
        self._over: asyncio.Event | None = None  # nothing that is still on its way is waited for

    async def run(self) -> None:
        """Send until told to stop, by `stop` or a signal.

        Raises:
            OSError, Error: there is no job server to begin with, or it does not let us do this.
        """
        loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        for tube in await look_for_server(self._connect(), self._tubes):
            message = f"there is no tube {tube} yet: is that its name? Its jobs are taken when there are any"
            tell(log, logging.WARNING, "tube-missing", message, tube=tube)
        reports = Reports(self._connect)
        self._sender = self._make_sender()
        handler = Deliveries(self._sender, self._turns, self._rules, reports)
        # One for each tube: so its jobs need not wait for those of another that came before. Turns are for all of them.
        self._consumers = [Consumer(self._connect, [tube], handler, at_once=self._turns.places) for tube in self._tubes]
        signals = []
        handlers = [(signal.SIGTERM, self.stop), (signal.SIGINT, self.stop)]
        if self._read_secrets is not None and hasattr(signal, "SIGHUP"):
            handlers.append((signal.SIGHUP, self.reload))
        for number, act in handlers:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor in a thread
                loop.add_signal_handler(number, act)
                signals.append(number)
        who = f"{socket.gethostname()}:{os.getpid()}"
        tubes = ", ".join(self._tubes)
        message = f"{who} sends the requests of {tubes} to {self._sender.reach}"
        tell(log, logging.INFO, "deliverer-started", message, tubes=tubes)
        try:
            async with tidied(self._connect, [tube + ERRORS for tube in self._tubes]):
                await self._consume()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self._sender.close()
            await reports.close()
        tell(log, logging.INFO, "deliverer-stopped", f"{who} has stopped")

    def stop(self) -> None:
        """Take no more jobs, give back those that wait for their turn, and end when all requests have, after `grace`
        seconds at the latest. Once more: at once. To be called on the event loop.
        """
        self._told += 1
        if self._told == 1:
            message = f"told to stop: requests on their way, {self._turns.busy}, may go on for {self._grace:g} s"
            tell(log, logging.INFO, "deliverer-stopping", message, running=self._turns.busy, grace=self._grace)
            for consumer in self._consumers:
                consumer.stop()
            self._turns.stop()
            asyncio.get_running_loop().call_later(self._grace, self._end)
        elif self._told == 2:
            self._end()

    def reload(self) -> None:
        """Read the secrets anew; if they are bad, those that there are stay."""
        if self._read_secrets is None or self._sender is None:
            return
        try:
            self._sender.secrets = self._read_secrets()
        except (OSError, ValueError) as error:
            tell(log, logging.ERROR, "secrets-refused", f"the secrets stay as they are: {error}")
        else:
            tell(log, logging.INFO, "secrets-read", "the secrets have been read anew")

    def _end(self) -> None:
        """Give back what is still on its way."""
        if self._turns.busy:
            message = f"requests that are still on their way, {self._turns.busy}, are cut off and tried again"
            tell(log, logging.WARNING, "deliverer-grace-over", message, running=self._turns.busy)
        for consumer in self._consumers:
            consumer.end()
        if self._over is not None:
            asyncio.get_running_loop().call_later(LAST_GRACE, self._over.set)

    async def _consume(self) -> None:
        """Let the consumers run until all have ended; one that fails ends the others."""
        assert self._over is not None
        loop = asyncio.get_running_loop()
        runs = [loop.create_task(consumer.run()) for consumer in self._consumers]
        if self._told:  # while it began
            for consumer in self._consumers:
                consumer.stop()
        over = loop.create_task(self._over.wait())
        waited: set[asyncio.Task[Any]] = {over, *runs}
        try:
            while waited > {over} and over in waited:
                done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if any(task.exception() is not None for task in done) and not self._told:
                    self.stop()
        finally:
            for task in (over, *runs):
                task.cancel()
            results = await asyncio.gather(*runs, over, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
