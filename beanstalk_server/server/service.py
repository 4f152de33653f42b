"""What serves clients: a broker and its journal, whose turn it is, when replies may leave, and the connections.

A server has one service for life, and a node of a cluster a new one each time it leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from beanstalk_server.events import event
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import Journal, JournalError
from beanstalk_server.queue.policy import PolicyOf, no_policies
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.server.commits import CommitGate, Gathering
from beanstalk_server.server.connection import Connections
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.start_error import StartError
from beanstalk_server.server.timers import Timers
from beanstalk_server.server.turns import Turns
from beanstalk_server.settings.options import Config
from beanstalk_server.wire.server_info import ServerInfo

if TYPE_CHECKING:
    from beanstalk_server.access.policies import Policies
    from beanstalk_server.server.measurements import Measurements
    from beanstalk_server.server.slow import SlowLog

JOURNALED_HEADROOM: Final = 32
"""File descriptors that no connection gets where there is a journal: if it could open no file, it would fail."""

log = logging.getLogger("beanstalk_server")


class Service:
    """Serves the connections that are made in it, from `start` to `stop`.

    Args:
        journal: keeps the jobs.
        info: what its sessions share.
        listeners: where clients come in; they are told when one has gone.
        on_failure: called once, when the journal has failed.
        now: the present moment, in nanoseconds.
        stride, offset: of the ids, as in Broker.
        gathering: of all services in the event loop; one of its own, if there is no other service.
        policy_of: as in Broker.
        slow: logs what takes long; None if that is not logged.
        turns: those of its clients, if others take them, too.
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
        stride: int = 1,
        offset: int = 0,
        gathering: Gathering | None = None,
        policy_of: PolicyOf = no_policies,
        slow: SlowLog | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.config = config
        self.journal = journal
        self.broker = Broker(
            journal, now, round(config.tick * MILLISECOND), config.max_memory, stride, offset, policy_of
        )
        self.broker.groups.ttl = config.group_ttl * SECOND
        self.turns = turns or Turns()
        self.timers = Timers(self.broker, self.turns)
        self.gate = CommitGate(journal, self.broker, self.turns, on_failure, gathering or Gathering())
        self.turns.slow = self.timers.slow = self.gate.slow = slow
        self.connections = Connections(self.broker, info, self.turns, self.gate, hangups, listeners, config.verbosity)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give turns and commit in this event loop from now on."""
        self.turns.start(loop)
        self.timers.start(loop)
        self.gate.start(loop)

    def measure(self, measurements: Measurements) -> None:
        """Count in these how long jobs wait and run, how late they are, and how long replies wait for commits."""
        self.broker.durations = measurements.durations
        self.gate.commits = measurements.commits

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
            setting = f"{self.config.place('binlog')} " if self.config.binlog else ""
            raise StartError(f"{setting}{error}", error.status) from error
        text = "recovered %(jobs)d job" if count == 1 else "recovered %(jobs)d jobs"
        log.info(text, event("recovered", jobs=count))

    async def catch_up(self) -> None:
        """Handle what came due while no server ran; must follow `start` and `restore`, and come before clients.

        Otherwise, a worker could get a job that has expired. The commits that this needs are those of the gate. If they
        make no room for a second, the rest is left for later.
        """
        broker, clock = self.broker, self.turns.clock
        now = clock()
        end = now + SECOND
        while True:
            if broker.next_event() <= now:
                try:
                    broker.advance(now)
                except Exception:
                    log.exception("a timer failed; this is a bug in the server", event("bug-in-timer"))
                    return
                end = clock() + SECOND
                await asyncio.sleep(0)
            elif broker.has_suspended() and clock() < end:
                await asyncio.sleep(0.001)
            else:
                return

    def change_policies(self, policy_of: PolicyOf) -> None:
        """Let tubes and their jobs be under other policies from now on, unless these are what they are under."""
        if policy_of != self.broker.policy_of:
            self.broker.change_policies(policy_of, self.turns.clock())
            self.turns.run_pending_soon()  # of clients that have got a job; and something may be due sooner

    async def give_up(self) -> None:
        """Let go of everything: no one has been served yet."""
        self.end_turns()
        await self.journal.close()
        await self.drop_jobs()

    async def drop_jobs(self) -> None:
        """Free the jobs, after `stop`; others are served meanwhile."""
        for _ in self.broker.drop_jobs():
            await asyncio.sleep(0)

    def halt(self) -> None:
        """Do nothing more for any client; `stop` must follow."""
        self.end_turns()
        self.broker.halt()
        self.connections.closing = True

    def end_turns(self) -> None:
        """Give no more turns, and let nothing come due any more."""
        self.turns.stop()
        self.timers.stop()

    async def stop(self) -> None:
        """Close every connection, commit, and close the journal. The jobs stay until `drop_jobs`."""
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


def policies_of(config: Config, old: Policies | None = None) -> Policies | None:
    """The policies of the settings, in place of old ones, which stay if they say the same; None if there never were
    any."""
    if not config.tubes and old is None:
        return None
    if old is not None and old.tubes == config.tubes:
        return old
    from beanstalk_server.access.policies import Policies  # most servers have none

    return Policies(config.tubes, old)
