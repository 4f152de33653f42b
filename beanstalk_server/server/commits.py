"""The commit gate: no reply leaves before the change that it reports is durable.

Every change has a log sequence number (LSN): the broker counts the changes that it records in the journal. A connection
with a reply to a change above `durable_lsn` waits here for a commit. Commits run one at a time, each for all the
changes that came during the one before. After a commit that fails, there is none.

A commit costs the same for one change as for a hundred. So an event loop that has nothing else to do gathers changes
first: the commit begins when a round of the loop has brought no more of them, or when there are enough. Then the
journal may also make the loop wait for the disk. While there is something else to do, a commit begins at once, and goes
on beside it.

Must never know sockets, or what the journal writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import ALL, Journal
from beanstalk_server.server.scheduler import Runnable, Scheduler

ENOUGH: Final = 512
"""A commit of so many changes gathers no more: they have taken one or two milliseconds."""

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
        "_closing",
        "_committing",
        "_gathered_lsn",
        "_is_scheduled",
        "_loop",
        "_lsn",
        "_on_end",
        "_on_failure",
        "_scheduler",
        "_task",
        "_waiting",
        "broker",
        "durable_lsn",
        "failed",
        "failure",
        "is_open",
        "journal",
        "logs_failure",
    )

    _loop: asyncio.AbstractEventLoop

    def __init__(self, journal: Journal, broker: Broker, scheduler: Scheduler, on_failure: Callable[[], None]) -> None:
        self.journal = journal
        self.broker = broker
        self.is_open = not journal.keeps  # no reply ever waits
        self.logs_failure = True  # else whoever is called does
        self.durable_lsn = 0  # the changes up to this one are durable
        self.failure: Exception | None = None  # why the journal failed
        self.failed = asyncio.Event()  # set with `failure`
        self._scheduler = scheduler
        self._on_failure = on_failure
        self._waiting: list[CommitWaiter] = []  # in the order in which they came
        self._is_scheduled = False  # `_gather` is about to be called
        self._gathered_lsn = 0  # the last change when `_gather` was called last
        self._committing = False  # a commit is under way, or has failed
        self._lsn = 0  # the last change of that commit
        self._task: asyncio.Task[None] | None = None  # the commit, if it needs a task
        self._on_end: asyncio.Future[None] | None = None  # `commit_rest` waits for the end of a commit
        self._closing = False  # no commit begins any more

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the journal, and commit in this event loop from now on."""
        self._loop = loop
        self.journal.on_failure = self.fail
        self.journal.on_admission = self.on_admission
        self.journal.on_fetches_done = self._scheduler.run_pending_soon

    async def commit_rest(self) -> None:
        """Commit the last changes, unless the journal has failed: the server is about to stop."""
        self._closing = True
        if self.is_open or self.failed.is_set():
            return
        if self._committing:
            self._on_end = self._loop.create_future()
            await self._on_end
        if not self.failed.is_set():
            self._committing = True
            self._lsn = self.broker.last_lsn
            await self._commit_in_task()

    def await_commit(self, waiter: CommitWaiter) -> None:
        """Call `on_commit` after the next commit. A waiter asks once, until `on_commit` returns False."""
        self._waiting.append(waiter)
        if not self._committing:
            self._schedule()

    def on_admission(self, admits: int) -> None:
        """Pass on what the journal admits from now on. If that is not everything, a commit makes room."""
        if self._scheduler.stopped:
            return
        self.broker.set_admission(admits)
        self._scheduler.on_admission(admits)
        if admits != ALL and not self._committing:
            self._schedule()  # and not now: a change may be half recorded

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Begin a commit, unless the round of the event loop that has just ended has brought changes, but too few."""
        self._is_scheduled = False
        if self._committing or self._closing:
            return
        lsn = self.broker.last_lsn
        is_idle = self._scheduler.is_idle()
        if is_idle:
            self._scheduler.refill()
        if is_idle and lsn != self._gathered_lsn and lsn - self.durable_lsn < ENOUGH and self.broker.admits == ALL:
            self._gathered_lsn = lsn
            self._schedule()
            return
        self._begin(is_idle)

    def _begin(self, may_wait: bool) -> None:
        self._committing = True
        self._lsn = self.broker.last_lsn
        try:
            has_begun = self.journal.begin_commit(may_wait, self._end_commit)
        except Exception as error:
            if not self._committing:
                raise  # it has ended, and what was to follow has failed
            self._end_commit(error)
            return
        if not has_begun:
            self._task = self._loop.create_task(self._commit_in_task())

    async def _commit_in_task(self) -> None:
        try:
            await self.journal.commit()
        except Exception as error:
            self._end_commit(error)
        else:
            self._end_commit(None)

    def _end_commit(self, error: Exception | None) -> None:
        """Send what has waited for the commit, and commit again if there are more changes."""
        if error is not None:
            self.fail(error)
        elif self.failure is None:
            self._committing = False
            self.durable_lsn = self._lsn
            waiting = self._waiting
            self._waiting = []
            for waiter in waiting:
                if waiter.on_commit():
                    self._waiting.append(waiter)
            self._scheduler.run_pending()
            if self.broker.last_lsn != self.durable_lsn:
                self._schedule()
        if self._on_end is not None:
            if not self._on_end.done():  # else nobody waits any more
                self._on_end.set_result(None)
            self._on_end = None

    def fail(self, error: Exception) -> None:
        """Acknowledge nothing more, and stop the server: recorded changes may be lost."""
        if self.failure is not None:
            return
        if self.logs_failure:
            log.critical(
                "the journal failed; the server acknowledges nothing more, and stops: %s",
                error,
                exc_info=None if isinstance(error, OSError) else error,
            )
        self.failure = error
        self.failed.set()
        self._on_failure()
