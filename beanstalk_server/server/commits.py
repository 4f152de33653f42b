"""The commit gate: no reply leaves before the change that it reports is durable.

Every change has a log sequence number (LSN): the broker counts the changes that it records in the journal. A connection
with a reply to a change above `durable_lsn` waits here for a commit. Commits run one at a time, each for all the
changes that came during the one before. After a commit that fails, there is none.

A commit costs the same for one change as for a hundred. So an event loop that has nothing else to do gathers changes
first: the commit begins when a round of the loop has brought no more of them, or when there are enough. Then the
journal may also make the loop wait for the disk. While there is something else to do, a commit begins at once, and goes
on beside it.

Where several gates share an event loop, they gather together, and their commits begin at the same time. If these leave
in one write, a gate whose commit could not leave now waits for that write, and goes on gathering.

If it is measured, it is counted how long replies wait: for each commit, as long as the reply that has waited longest of
those that leave with it. Where no reply waits, as long as the commit takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from beanstalk_server.events import event
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.histogram import Histogram
from beanstalk_server.queue.journal import ALL, Journal
from beanstalk_server.server.turns import Runnable, Turns

if TYPE_CHECKING:
    from beanstalk_server.server.slow import SlowLog

ENOUGH: Final = 512
"""A commit of this many changes gathers no more: they have taken one or two milliseconds."""

NO_REPLY: Final = -1
"""In place of the moment since when a reply has waited."""

log = logging.getLogger("beanstalk_server")


class CommitWaiter(Runnable):
    """Anything that may wait for a commit."""

    def on_commit(self) -> bool:
        """Send what `durable_lsn` allows by now; return whether more waits for a commit."""
        return False

    def abort(self) -> None:
        """Close the connection: what was to be sent is lost."""


class UncommittedReplies:
    """Replies of one client that wait for a commit, linked to the next ones.

    A deque of tuples would make objects of the two numbers.

    Args:
        lsn: the LSN of the last change that they report.
        data: the replies.
        weight: bytes of the replies and of their commands.
    """

    def __init__(self, lsn: int, data: bytes, weight: int) -> None:
        self.lsn = lsn
        self.data = data
        self.weight = weight
        self.next: UncommittedReplies | None = None


class Gathering:
    """Begins the commits of all gates of an event loop, at the same time."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self._gates: list[CommitGate] = []  # that have something to commit, in the order in which they came
        self._changes = 0  # how many they had when `_gather` was called last
        self._is_scheduled = False  # `_gather` is about to be called
        self._is_held = False  # a write is under way

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gather what this event loop brings."""
        self._loop = loop

    def add(self, gate: CommitGate) -> None:
        """Begin a commit of this gate, which has none under way; it asks once until then."""
        self._gates.append(gate)
        self._schedule()

    # What the sender of several gates' commits tells

    def join(self) -> None:
        """Begin them now: a write is about to leave."""
        self._begin(False)

    def hold(self) -> None:
        """Begin none until `release`: a write is under way, with nothing behind it."""
        self._is_held = True

    def release(self) -> None:
        """Begin commits again: the write has ended."""
        self._is_held = False
        if self._gates:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_held:
            self._is_scheduled = True
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Begin the commits, unless the round of the event loop that has just ended has brought changes, but few."""
        self._is_scheduled = False
        if self._is_held:
            return
        is_idle = True
        admits_all = True
        changes = 0
        for gate in self._gates:
            turns = gate.turns
            is_idle = is_idle and turns.next_round is None and not (turns.queue or turns.slow_turns)
            admits_all = admits_all and gate.broker.admits == ALL
            changes += gate.broker.last_lsn - gate.durable_lsn
        if is_idle:
            for gate in self._gates:
                gate.turns.budget = gate.turns.quantum
            if changes != self._changes and changes < ENOUGH and admits_all:
                self._changes = changes
                self._schedule()
                return
        self._begin(is_idle)

    def _begin(self, may_wait: bool) -> None:
        self._changes = 0
        waiting = self._gates
        self._gates = []
        waiting.reverse()
        try:
            while waiting:
                waiting.pop().begin(may_wait)
        finally:  # what follows from one commit may fail, and the others must not wait for ever
            if waiting:
                waiting.reverse()
                self._gates = waiting + self._gates
                self._schedule()


class CommitGate:
    """Commits what replies wait for, and passes on what the journal admits.

    Args:
        gathering: that of its event loop.
        on_failure: called once, when the journal has failed: recorded changes may be lost. `failure` says why.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        journal: Journal,
        broker: Broker,
        turns: Turns,
        on_failure: Callable[[], None],
        gathering: Gathering,
    ) -> None:
        self.journal = journal
        self.broker = broker
        self.turns = turns
        self.is_open = not journal.keeps  # no reply ever waits
        self.logs_failure = True  # else the callback does
        self.durable_lsn = 0  # the changes up to this one are durable
        self.commits: Histogram | None = None  # how long replies wait for their commits, if that is measured
        self.failure: Exception | None = None  # why the journal failed
        self.failed = asyncio.Event()  # set with `failure`
        self.slow: SlowLog | None = None  # is told how long commits take
        self._began = 0  # when the commit began, if that is logged
        self._gathering = gathering
        self._on_failure = on_failure
        self._waiting: list[CommitWaiter] = []  # in the order in which they came
        self._is_waiting = False  # for the gathering
        self._committing = False  # a commit is under way, or has failed
        self._lsn = 0  # the last change of that commit
        self._commit_since = NO_REPLY  # since when a reply has waited for it, in nanoseconds
        self._since = NO_REPLY  # the same for the next commit
        self._task: asyncio.Task[None] | None = None  # the commit, if it needs a task
        self._on_end: asyncio.Future[None] | None = None  # `commit_rest` waits for the end of a commit
        self._closing = False  # no commit begins any more

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the journal, and commit in this event loop from now on."""
        self._loop = loop
        self._gathering.start(loop)
        self.journal.on_failure = self.fail
        self.journal.on_admission = self.on_admission
        self.journal.on_fetches_done = self.turns.run_pending_soon

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
            if self.slow is not None:
                self._began = self.turns.clock()
            if self.commits is not None:
                self._note_begin()
            await self._commit_in_task()

    def await_commit(self, waiter: CommitWaiter) -> None:
        """Call `on_commit` after the next commit. A waiter asks once, until `on_commit` returns False."""
        self._waiting.append(waiter)
        if not self._committing:
            self._schedule()

    def note_reply(self, lsn: int) -> None:
        """Note that a reply which reports this change waits from now on. Needed only while there are `commits`."""
        if self._since == NO_REPLY and lsn > self._lsn:  # else it leaves with the commit that is under way
            self._since = self.turns.clock()

    def _note_begin(self) -> None:
        since = self._since
        self._commit_since = self.turns.clock() if since == NO_REPLY else since
        self._since = NO_REPLY

    def on_admission(self, admits: int) -> None:
        """Pass on what the journal admits from now on. If that is not everything, a commit makes room."""
        if self.turns.stopped:
            return
        self.broker.set_admission(admits)
        self.turns.on_admission(admits)
        if admits != ALL and not self._committing:
            self._schedule()  # and not now: a change may be half recorded

    def _schedule(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._gathering.add(self)

    def begin(self, may_wait: bool) -> None:
        """Begin a commit, as the gathering decides: no other one is under way, unless the server stops."""
        self._is_waiting = False
        if self._committing or self._closing:
            return
        self._committing = True
        self._lsn = self.broker.last_lsn
        if self.slow is not None:
            self._began = self.turns.clock()
        if self.commits is not None:
            self._note_begin()
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
            if self.slow is not None:
                self.slow.note_commit(self._lsn - self.durable_lsn, self.turns.clock() - self._began)
            if self.commits is not None and self._commit_since != NO_REPLY:
                self.commits.add(self.turns.clock() - self._commit_since)
            self.durable_lsn = self._lsn
            self._send_waiting()
            self.turns.run_pending()
            if self.broker.last_lsn != self.durable_lsn:
                self._schedule()
        if self._on_end is not None:
            if not self._on_end.done():  # else no task waits any more
                self._on_end.set_result(None)
            self._on_end = None

    def _send_waiting(self) -> None:
        """Let all who have waited send what they may by now; one that fails must not keep the others waiting."""
        waiting = self._waiting
        self._waiting = []
        for waiter in waiting:
            try:
                if waiter.on_commit():
                    self._waiting.append(waiter)
            except Exception:
                log.exception(
                    "%(client)s: a connection failed; this is a bug in the server",
                    event("bug-in-connection", client=waiter.label()),
                )
                waiter.abort()

    def fail(self, error: Exception) -> None:
        """Acknowledge nothing more, and stop the server: recorded changes may be lost."""
        if self.failure is not None:
            return
        if self.logs_failure:
            log.critical(
                "the journal failed: the server is stopping and acknowledges no more changes: %(error)s",
                event("journal-failed", error=error),
                exc_info=None if isinstance(error, OSError) else error,
            )
        self.failure = error
        self.failed.set()
        self._on_failure()
