"""Runs the deliverer: its consumers, its request sender, its reports, and its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from beanstalk_client.consumer import Consumer, look_for_server
from beanstalk_client.consumers import GRACE, Consumers
from beanstalk_client.deliver.deliveries import Deliveries
from beanstalk_client.deliver.sending import RequestSender
from beanstalk_client.deliver.signatures import Secrets
from beanstalk_client.deliver.slots import DeliverySlots
from beanstalk_client.deliver.verdicts import Rules
from beanstalk_client.events import tell
from beanstalk_client.program import ProgramError
from beanstalk_client.tasks.reports import Reports, tidied

if TYPE_CHECKING:
    from beanstalk_client.asynchronous import AsyncClient

log: logging.Logger = logging.getLogger("beanstalk_client.deliver")


class Deliverer(Consumers):
    """Sends requests that are due, until it is stopped.

    Args:
        connect: makes a client of the job server that is not connected yet.
        tubes: from which jobs are taken.
        make_sender: makes the request sender, on the event loop.
        slots: limit the requests at once.
        rules: for failed attempts.
        read_secrets: reads the secrets again on SIGHUP; None: there are none.
        grace: seconds for running requests after a stop signal.
    """

    def __init__(
        self,
        connect: Callable[[], AsyncClient[bytes]],
        tubes: Sequence[str],
        make_sender: Callable[[], RequestSender],
        slots: DeliverySlots,
        rules: Rules,
        *,
        read_secrets: Callable[[], Secrets] | None = None,
        grace: float = GRACE,
    ) -> None:
        super().__init__(log, "deliverer", "running requests", grace)
        self._connect = connect
        self._tubes = tuple(tubes)
        self._make_sender = make_sender
        self._slots = slots
        self._rules = rules
        self._read_secrets = read_secrets
        self._sender: RequestSender | None = None

    async def run(self) -> None:
        """Send until `stop` or a signal.

        Raises:
            OSError, Error: there is no job server to begin with, or it does not let us do this.
        """
        for tube in await look_for_server(self._connect(), self._tubes):
            message = f"tube {tube} does not exist yet; check the name"
            tell(log, logging.WARNING, "tube-missing", message, tube=tube)
        reports = Reports(self._connect)
        self._sender = self._make_sender()
        handler = Deliveries(self._sender, self._slots, self._rules, reports)
        # One for each tube: its jobs need not wait for earlier ones of another tube. All share the slots.
        consumers = [Consumer(self._connect, [tube], handler, at_once=self._slots.places) for tube in self._tubes]
        who = f"{socket.gethostname()}:{os.getpid()}"
        tubes = ", ".join(self._tubes)
        message = f"{who} sends the requests of {tubes} to {self._sender.reach}"
        tell(log, logging.INFO, "deliverer-started", message, tubes=tubes)
        reloads = self._read_secrets is not None and hasattr(signal, "SIGHUP")
        try:
            with self.on_signals({signal.SIGHUP: self.reload} if reloads else {}):
                async with tidied(self._connect, self._tubes):
                    await self.consume(consumers)
        finally:
            await self._sender.close()
            await reports.close()
        tell(log, logging.INFO, "deliverer-stopped", f"{who} has stopped")

    def running(self) -> int:
        return self._slots.busy

    def stop(self) -> None:
        """As in Consumers; jobs that wait for a slot are released."""
        super().stop()
        self._slots.stop()

    def reload(self) -> None:
        """Read the secrets anew; if they are bad, those that there are stay."""
        if self._read_secrets is None or self._sender is None:
            return
        try:
            self._sender.secrets = self._read_secrets()
        except (ProgramError, OSError, ValueError) as error:
            tell(log, logging.ERROR, "secrets-refused", f"cannot read the secrets, keeping the old ones: {error}")
        else:
            tell(log, logging.INFO, "secrets-read", "secrets reloaded")
