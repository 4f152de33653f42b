"""Sends the commits of all shards that a node leads: what comes while others are under way leaves together.

One thread waits for the engine, for all of them, because a message costs more than the commit that it carries. Each
shard has a *lane*, with one commit under way at a time; closing one disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from beanstalk_server.cluster.engine.interface import Answer, Commit, CommitCall, Committer
from beanstalk_server.storage.write_thread import Writer, WriteThread

T = TypeVar("T")

OnAnswer = Callable[[Answer | BaseException], None]
"""Called on the event loop with what the engine has answered, or with what has gone wrong."""


class Pace(Protocol):
    """Begins the commits of all shards together: those that leave in one write should begin at the same
    time.
    """

    def join(self) -> None:
        """A write is about to leave: all that have something send it now."""

    def hold(self) -> None:
        """A write is under way, with nothing behind it: what is sent now would only wait."""

    def release(self) -> None:
        """It has ended, and the waiters for its commits have been told."""


class Lane:
    """The way of the commits of one shard. Belongs to one event loop."""

    __slots__ = ("_is_open", "_lanes", "_on_answer", "call", "shard")

    _on_answer: OnAnswer
    call: CommitCall
    """What is under way."""

    def __init__(self, lanes: Lanes, shard: int) -> None:
        self.shard = shard
        self._lanes = lanes
        self._is_open = True

    def append(self, commit: Commit, may_exceed: bool, on_answer: OnAnswer, wait: float = 0.0) -> None:
        """Send a commit; the one before has been answered.

        Args:
            may_exceed: go beyond the engine's limit of memory.
            on_answer: never called after `close`.
            wait: how long the event loop may be held, in seconds. If the answer comes within that time, `on_answer` may
                be called within this call.
        """
        self.call = CommitCall(self.shard, commit, may_exceed)
        self._on_answer = on_answer
        self._lanes.send(self, wait)

    async def run(self, work: Callable[[], T]) -> T:
        """Do something else that blocks where the engine is asked; return what it returns, or raise what it raises."""
        return await self._lanes.run(work)

    def close(self) -> None:
        """Send nothing more. A commit that is under way may happen nevertheless."""
        if self._is_open:
            self._is_open = False
            self._lanes.closed()

    @property
    def is_open(self) -> bool:
        return self._is_open

    def answer(self, answer: Answer | BaseException) -> None:
        """Tell the sender of the commit, unless the lane was closed meanwhile."""
        if self._is_open:
            self._on_answer(answer)


class Lanes:
    """All lanes of a node. Belongs to one event loop.

    Args:
        committer: used by nobody else.
        worker: where the engine is asked; tests replace it.
        pace: of those who begin commits; it is told of writes while several lanes are open.
    """

    def __init__(self, committer: Committer, worker: Writer | None = None, pace: Pace | None = None) -> None:
        self._committer = committer
        self._pace = pace
        self._worker: Final = worker or WriteThread("engine")
        self._open = 0  # how many lanes are
        self._queue: list[Lane] = []  # that have a commit to send
        self._wait = -1.0  # how long all in the queue would hold the event loop; below 0 if the queue is empty
        self._is_scheduled = False  # `_flush` is about to be called
        self._is_busy = False  # the thread has commits, or their answers are being told
        self._sent: list[Lane] = []  # whose commits the thread has
        self._answers: list[Answer | BaseException] = []  # to them

    def lane(self, shard: int) -> Lane:
        """A lane for a shard, which has no other one that is open."""
        self._open += 1
        return Lane(self, shard)

    def close(self) -> None:
        """End the thread. What is still under way is abandoned."""
        self._queue.clear()
        self._committer.close()
        self._worker.close()

    # What lanes ask for

    def send(self, lane: Lane, wait: float) -> None:
        """Send what a lane has, with what others have by then."""
        if self._open == 1 and not self._is_busy and not self._queue:  # nobody else has anything
            self._begin([lane], wait)
            return
        self._queue.append(lane)
        self._wait = wait if self._wait < 0 else min(wait, self._wait)
        if not self._is_busy and not self._is_scheduled:  # others may have something in this round of the event loop
            self._schedule()

    async def run(self, work: Callable[[], T]) -> T:
        """Do something in the thread."""
        return await self._worker.run(work)

    def closed(self) -> None:
        """Note that a lane was closed."""
        self._open -= 1

    # Sending

    def _flush(self) -> None:
        """Give all that is to be sent to the thread."""
        self._is_scheduled = False
        if self._pace is not None and not self._is_busy:
            self._ask_others(self._pace)
        if self._is_busy:
            return
        sent = [lane for lane in self._queue if lane.is_open]
        wait = self._wait
        self._queue = []
        self._wait = -1.0
        if sent:
            if self._pace is not None:
                self._pace.hold()
            self._begin(sent, wait)
        elif self._pace is not None:
            self._pace.release()

    def _ask_others(self, pace: Pace) -> None:
        """Let all that have something send it now."""
        self._is_scheduled = True  # what they send needs no other `_flush`
        has_asked = False
        try:
            pace.join()
            has_asked = True
        finally:
            self._is_scheduled = False
            if not has_asked:
                self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _begin(self, sent: list[Lane], wait: float) -> None:
        self._is_busy = True
        self._sent = sent
        self._worker.begin(self._append, self._on_end, wait)

    def _append(self) -> None:
        """In the thread."""
        self._answers = list(self._committer.append([lane.call for lane in self._sent]))

    def _on_end(self, error: BaseException | None) -> None:
        if error is not None:
            self._answers = [error for _ in self._sent]
        self._tell()

    def _tell(self) -> None:
        """Tell the lanes what was answered, and send what has come meanwhile."""
        sent, answers = self._sent, self._answers
        try:
            while sent:
                sent.pop().answer(answers.pop())
        finally:  # a sender may fail, and the others must not wait for ever
            if sent:
                asyncio.get_running_loop().call_soon(self._tell)
            else:
                self._is_busy = False
                if self._queue:
                    if not self._is_scheduled:
                        self._flush()
                elif self._pace is not None:
                    self._pace.release()
