"""What serves clients: a broker and its journal, whose turn it is, when replies may leave, and the connections.

A server has one service for life, and a node of a cluster a new one each time it leads. Must never know where clients
come from, or who they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic_ns

from beanstalk_server.config import Config, option
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import Journal, JournalError
from beanstalk_server.queue.units import MILLISECOND
from beanstalk_server.server.commits import CommitGate
from beanstalk_server.server.connection import Connections
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.listeners import Listeners
from beanstalk_server.server.scheduler import Scheduler
from beanstalk_server.server.start_error import StartError
from beanstalk_server.wire.server_info import ServerInfo

log = logging.getLogger("beanstalk_server")


class Service:
    """Serves the connections that are made in it, from `start` to `stop`.

    Args:
        journal: keeps the jobs.
        info: what its sessions share.
        listeners: where clients come in; they are told when one has gone.
        on_failure: called once, when the journal has failed.
        now: the present moment, in nanoseconds.
        scheduler: gives the turns; if not given, one of its own.
    """

    def __init__(
        self,
        config: Config,
        journal: Journal,
        info: ServerInfo,
        listeners: Listeners,
        hangups: HangupWatch,
        on_failure: Callable[[], None],
        now: int,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.config = config
        self.journal = journal
        self.broker = Broker(journal, now, round(config.tick * MILLISECOND), config.max_memory)
        self.scheduler = scheduler or Scheduler(self.broker)
        self.gate = CommitGate(journal, self.broker, self.scheduler, on_failure)
        self.connections = Connections(
            self.broker, info, self.scheduler, self.gate, hangups, listeners, config.verbosity
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give turns and commit in this event loop from now on."""
        self.scheduler.start(loop)
        self.gate.start(loop)

    def restore(self) -> None:
        """Bring back the jobs that the journal has kept.

        Raises:
            StartError: the journal cannot be used.
            RestoreInterruptedError: the server is to stop.
        """
        if not self.journal.keeps:
            return
        try:
            count = self.broker.restore(self.journal.clock_offset(), monotonic_ns())
        except JournalError as error:
            setting = f"{option('binlog')} " if self.config.binlog else ""
            raise StartError(f"{setting}{error}", error.status) from error
        log.info("recovered %d job%s", count, "" if count == 1 else "s")

    async def give_up(self) -> None:
        """Let go of everything: nobody has been served yet."""
        self.scheduler.stop()
        await self.journal.close()
        self.broker.drop_jobs()

    def halt(self) -> None:
        """Do nothing more for any client; `stop` must follow."""
        self.scheduler.stop()
        self.connections.closing = True

    async def stop(self) -> None:
        """Close every connection, commit, and close the journal. The jobs stay until `Broker.drop_jobs`."""
        await self.connections.abort_all()
        await self.gate.commit_rest()
        await self.journal.close()


def journal_of(config: Config) -> Journal:
    """The binlog that the settings ask for, or the journal that keeps nothing."""
    if not config.binlog:
        return Journal()
    # Imported here, so that a start without a binlog is faster.
    from beanstalk_server.storage.binlog import NO_SYNC, Binlog
    from beanstalk_server.storage.disk import RealDirectory

    interval = config.sync_interval
    return Binlog(
        RealDirectory(config.binlog),
        segment_size=config.segment_size,
        sync_interval=NO_SYNC if isinstance(interval, str) else interval,
        salvage=config.salvage,
        body_threshold=config.body_threshold,
        body_cache=config.body_cache,
    )
