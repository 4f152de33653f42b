"""Sends the commits of all shards that a node leads: those that arrive during a write leave together in the next.

One thread waits for the engine, for all of them, because a message costs more than the commit that it carries. Each
shard has a *lane*, with one commit under way at a time; closing one disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from beanstalk_server.cluster.engine.interface import Answer, CommitCall, Engine
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


class _Sent(NamedTuple):
    """A commit on its way."""

    call: CommitCall
    on_answer: OnAnswer


class Lanes:
    """All lanes of a node. Belongs to one event loop.

    Args:
        engine: a connection that this object alone uses.
        worker: where the engine is asked; tests replace it.
        pace: synchronizes the commits of several lanes.
    """

    def __init__(self, engine: Engine, worker: Writer | None = None, pace: Pace | None = None) -> None:
        self._engine = engine
        self._pace = pace
        self._worker: Final = worker or WriteThread("engine")
        self._open: set[int] = set()  # the shards that have a lane
        self._queue: list[_Sent] = []  # what is to be sent
        self._wait = -1.0  # how long all in the queue would hold the event loop; below 0 if the queue is empty
        self._is_scheduled = False  # `_flush` is about to be called
        self._is_busy = False  # the thread has commits, or their answers are being told
        self._sent: list[_Sent] = []  # what the thread has
        self._answers: list[Answer | BaseException] = []  # to them

    def open(self, shard: int) -> None:
        """Open the lane of a shard."""
        self._open.add(shard)

    def shut(self, shard: int) -> None:
        """Close the lane of a shard. A commit that is under way may happen nevertheless, and is answered."""
        self._open.discard(shard)
        self._queue = [each for each in self._queue if each.call.shard != shard]

    def append(self, call: CommitCall, on_answer: OnAnswer, wait: float = 0.0) -> None:
        """Send a commit, with what others have by then; the one before of its shard has been answered.

        Args:
            wait: how long the event loop may be held, in seconds. If the answer comes within that time, `on_answer` may
                be called within this call.
        """
        sent = _Sent(call, on_answer)
        if len(self._open) == 1 and not self._is_busy and not self._queue:  # no other shard has a commit
            self._begin([sent], wait)
            return
        self._queue.append(sent)
        self._wait = wait if self._wait < 0 else min(wait, self._wait)
        if not self._is_busy and not self._is_scheduled:  # others may have something in this round of the event loop
            self._schedule()

    async def run(self, work: Callable[[], T]) -> T:
        """Do something else that blocks where the engine is asked; return what it returns, or raise what it raises."""
        return await self._worker.run(work)

    def close(self) -> None:
        """End the thread. What is still under way is abandoned."""
        self._queue.clear()
        self._engine.close()
        self._worker.close()

    # Sending

    def _flush(self) -> None:
        """Give all that is to be sent to the thread."""
        self._is_scheduled = False
        if self._pace is not None and not self._is_busy:
            self._ask_others(self._pace)
        if self._is_busy:
            return
        sent, self._queue = self._queue, []
        wait = self._wait
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

    def _begin(self, sent: list[_Sent], wait: float) -> None:
        self._is_busy = True
        self._sent = sent
        self._worker.begin(self._append, self._on_end, wait)

    def _append(self) -> None:
        """In the thread."""
        self._answers = list(self._engine.append([each.call for each in self._sent]))

    def _on_end(self, error: BaseException | None) -> None:
        if error is not None:
            self._answers = [error for _ in self._sent]
        self._tell()

    def _tell(self) -> None:
        """Tell the senders what was answered, and send what has come meanwhile."""
        sent, answers = self._sent, self._answers
        try:
            while sent:
                sent.pop().on_answer(answers.pop())
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
