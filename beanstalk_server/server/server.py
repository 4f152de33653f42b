"""The server of most: one service for life, and where its clients come in."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final

from beanstalk_server.events import event
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import ALL, Journal
from beanstalk_server.server.alarm import finest_alarm
from beanstalk_server.server.commits import CommitGate
from beanstalk_server.server.connection import Connection, Connections
from beanstalk_server.server.host import Host, MakeIo, log
from beanstalk_server.server.service import JOURNALED_HEADROOM, Service, journal_of
from beanstalk_server.settings.options import Config

HEADROOM: Final = 8
"""File descriptors that no connection gets, because the process may need them."""

REFINE_AFTER: Final = 0.1
"""Seconds after the start when the server takes the finest alarm that there is. To find it takes two milliseconds, for
which neither a start nor its first clients should wait."""


class Server(Host):
    """A server that listens from `start` to `stop`; as an asynchronous context manager, in between.

    Args:
        config: its settings.
        make_io: as in Host.
        _journal: for tests: keeps the jobs in place of the config's binlog.

    When the journal fails to commit, the server stops by itself; `failed` is set, and `failure` says why.
    """

    def __init__(
        self, config: Config | None = None, *, make_io: MakeIo | None = None, _journal: Journal | None = None
    ) -> None:
        super().__init__(config or Config(), make_io)
        self.service = Service(
            self.config,
            _journal or journal_of(self.config),
            self.info,
            self.listeners,
            self.hangups,
            self._on_failure,
            self.info.started_at,
            policy_of=self.policy_of(),
            slow=self.slow,
            turns=self.turns,
        )
        self.info.clients = self.connections.client_list

    @property
    def journal(self) -> Journal:
        """What keeps the jobs."""
        return self.service.journal

    @property
    def broker(self) -> Broker:
        """The jobs."""
        return self.service.broker

    @property
    def gate(self) -> CommitGate:
        """What replies to changes wait for."""
        return self.service.gate

    @property
    def connections(self) -> Connections:
        """The clients that are served."""
        return self.service.connections

    async def start(self) -> None:
        await super().start()
        asyncio.get_running_loop().call_later(REFINE_AFTER, self.service.timers.use_alarm, finest_alarm)

    def _on_failure(self) -> None:
        error = self.gate.failure
        assert error is not None, "the journal has failed"
        self.fail(error)

    def services(self) -> list[Service]:
        return [self.service]

    def interrupt(self) -> None:
        self.journal.interrupted = True

    def drain(self) -> None:
        self.broker.drain()
        log.info("draining: new jobs are refused", event("draining"))

    def _client_maker(self) -> Callable[..., Any]:
        return functools.partial(Connection, self.connections)

    def _headroom(self) -> int:
        return JOURNALED_HEADROOM if self.journal.keeps else HEADROOM

    async def _prepare(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bring back the jobs, and serve from then on. Those who ask over HTTP meanwhile are answered, so a thread does
        it then; without them, there is no client to hold up."""
        service = self.service
        if self._http is None:
            service.start(loop)
            service.restore()
            await service.catch_up()
            return
        work = loop.run_in_executor(None, service.restore)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self.interrupt()
            await asyncio.wait([work])
            raise
        service.start(loop)
        admits = service.journal.admits  # on_admission was not called in the thread
        if admits != ALL:
            service.gate.on_admission(admits)
        await service.catch_up()

    async def _give_up(self) -> None:
        await self.service.give_up()

    def _halt(self) -> None:
        self.service.halt()

    async def _end(self) -> None:
        await self.service.stop()
