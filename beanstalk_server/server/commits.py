"""The commit gate: no reply leaves before the change that it reports is durable.

Every change has a log sequence number (LSN): the broker counts the changes that it records in the journal. A connection
with a reply to a change above `durable_lsn` waits here for a commit. Commits run one at a time, each for all the
changes that came during the one before. After a commit that fails, there is none.

Must never know sockets, or what the journal writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import ALL, Journal
from beanstalk_server.server.scheduler import Runnable, Scheduler

log = logging.getLogger("beanstalk_server")


class CommitWaiter(Runnable):
    """Anything that may wait for a commit."""

    __slots__ = ()

    def on_commit(self) -> bool:
        """Send what `durable_lsn` allows by now; return whether more waits for a commit."""
        raise NotImplementedError


class CommitGate:
    """Commits what replies wait for, and passes on what the journal admits.

    Args:
        on_failure: called once, when the journal has failed: recorded changes may be lost. `failure` says why.
    """

    __slots__ = (
        "_committing",
        "_loop",
        "_on_failure",
        "_scheduler",
        "_waiting",
        "broker",
        "durable_lsn",
        "failed",
        "failure",
        "is_open",
        "journal",
    )

    _loop: asyncio.AbstractEventLoop

    def __init__(self, journal: Journal, broker: Broker, scheduler: Scheduler, on_failure: Callable[[], None]) -> None:
        self.journal = journal
        self.broker = broker
        self.is_open = not journal.keeps  # no reply ever waits
        self.durable_lsn = 0  # the changes up to this one are durable
        self.failure: Exception | None = None  # why the journal failed
        self.failed = asyncio.Event()  # set with `failure`
        self._scheduler = scheduler
        self._on_failure = on_failure
        self._committing: asyncio.Task[None] | None = None  # a commit is under way, or has failed
        self._waiting: set[CommitWaiter] = set()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the journal, and commit in this event loop from now on."""
        self._loop = loop
        self.journal.on_failure = self.fail
        self.journal.on_admission = self.on_admission
        self.journal.on_fetches_done = self._scheduler.run_pending_soon

    async def commit_rest(self) -> None:
        """Commit the last changes, unless the journal has failed: the server is about to stop."""
        if not self.is_open and self.failure is None:
            await (self._committing or self._commit_all())

    def await_commit(self, waiter: CommitWaiter) -> None:
        """Call `on_commit` after the next commit."""
        self._waiting.add(waiter)
        if self._committing is None:
            self._committing = self._loop.create_task(self._commit_all())

    def forget(self, waiter: CommitWaiter) -> None:
        """Undo `await_commit`: the client is gone."""
        self._waiting.discard(waiter)

    def on_admission(self, admits: int) -> None:
        """Pass on what the journal admits from now on. If that is not everything, a commit makes room."""
        if self._scheduler.stopped:
            return
        self.broker.set_admission(admits)
        self._scheduler.on_admission(admits)
        if admits != ALL and self._committing is None:
            self._committing = self._loop.create_task(self._commit_all())

    async def _commit_all(self) -> None:
        """Commit until everything is durable."""
        while True:
            lsn = self.broker.last_lsn
            try:
                await self.journal.commit()
            except Exception as error:
                self.fail(error)
                return
            self.durable_lsn = lsn
            waiting = self._waiting
            self._waiting = set()
            for waiter in waiting:
                if waiter.on_commit():
                    self._waiting.add(waiter)
            self._scheduler.run_pending()
            if self.broker.last_lsn == lsn:
                break
        self._committing = None

    def fail(self, error: Exception) -> None:
        """Acknowledge nothing more, and stop the server: recorded changes may be lost."""
        if self.failure is not None:
            return
        log.critical(
            "the journal failed; the server acknowledges nothing more, and stops: %s",
            error,
            exc_info=None if isinstance(error, OSError) else error,
        )
        self.failure = error
        self.failed.set()
        self._on_failure()
