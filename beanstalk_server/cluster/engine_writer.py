"""Writes a binlog whose directory is in the engine: collects operations, and sends them as commits by a lane.

It takes the place of the thread that writes to a disk. The work itself blocks nothing, so it is done at once. What it
has collected becomes one commit. A commit that cannot be made now is sent again until it is durable, however long that
takes, and its waiters wait. It ends only when another node leads, when the engine has diverged, or when the one that
leads here gives up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

from beanstalk_server.cluster.commit_sender import CommitSender, DivergedError
from beanstalk_server.cluster.directory import FIRST_PAUSE, LONGEST_PAUSE, EngineDirectory
from beanstalk_server.cluster.engine.interface import Answer, CommitCall, EngineError, Position
from beanstalk_server.cluster.lanes import Lanes
from beanstalk_server.events import event
from beanstalk_server.queue.histogram import RecentHistogram
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.write_thread import OnEnd, await_end

T = TypeVar("T")
logger = logging.getLogger("beanstalk_server")

SLOW_COMMIT: Final = 1.0
"""Seconds without a successful commit until a line is logged."""


class GivenUpError(Exception):
    """Nothing more is sent to the engine: the leader here has given up."""


class _Waiting:
    """Who waits for a commit."""

    def __init__(self, position: Position, on_end: OnEnd, began: float) -> None:
        self.position = position
        self.on_end = on_end
        self.began = began


class EngineWriter:
    """Sends the commits of one leader, one at a time. Belongs to one event loop.

    Args:
        directory: collects; used by this object alone from `start` on.
        lanes: has a lane for the shard until the writer is closed.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        directory: EngineDirectory,
        lanes: Lanes,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.latency = RecentHistogram()
        """How long commits have taken, from their beginning until they were durable."""
        self.on_lost_lease: Callable[[], None] | None = None
        """Called when a commit waits for the engine to get the lease again, which it has lost."""
        self._directory = directory
        assert directory.sender is not None, "it is written to"
        self._sender: CommitSender = directory.sender
        self._lanes = lanes
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()  # in the order of their positions
        self._is_busy = False  # the lane has a commit, or a pause is under way
        self._exceeds = False  # whether that commit may go beyond the engine's limit of memory
        self._pause = FIRST_PAUSE
        self._timer: asyncio.TimerHandle | None = None  # of a pause
        self._failed_at = 0.0  # since when no commit has been taken; 0 if the last one was
        self._is_reported = False  # the log knows about that
        self._failure: BaseException | None = None  # why nothing is sent
        lanes.open(directory.shard)

    @property
    def epoch(self) -> int:
        """Of the leader."""
        return self._sender.epoch

    @property
    def durable(self) -> Position:
        """The position of the last commit that is durable."""
        return self._sender.durable

    def start(self) -> None:
        """From now on the directory only collects, and this sends."""
        self._directory.is_direct = False
        self._directory.on_refusal = self._ask_for_room

    # As storage.write_thread.Writer

    def begin(self, work: Callable[[], object], on_end: OnEnd, wait: float = 0.0) -> None:
        """Do a piece of work now; call `on_end` when all that it and those before it have collected is durable.

        Args:
            on_end: called with None, or with the exception that the work has raised, or that has ended all sending.
            wait: how long the event loop may be held, in seconds.
        """
        if self._failure is not None:
            asyncio.get_running_loop().call_soon(on_end, self._failure)
            return
        try:
            work()
        except Exception as error:
            asyncio.get_running_loop().call_soon(on_end, error)
            return
        sender = self._sender
        operations, size = self._directory.take()
        if operations:
            sender.add(operations, size)
        elif sender.next() is None:
            asyncio.get_running_loop().call_soon(on_end, None)
            return
        self._waiting.append(_Waiting(sender.last, on_end, self._clock()))
        if not self._is_busy:
            self._send(wait)

    async def run(self, work: Callable[[], T]) -> T:
        """Do a piece of work; return what it returns when all it has collected is durable, or raise what it raises."""
        return await await_end(self, work)

    def close(self) -> None:
        """Send nothing more. What is still under way is abandoned."""
        self.give_up(GivenUpError("closed"))

    # What the node asks for

    def check(self, position: Position, durable: Position) -> None:
        """Compare where the engine is with where it has to be; if it has lost something, send that again.

        Args:
            position: of the engine's last commit, as the answer to a renewal has it.
            durable: what `durable` was when the renewal was sent.
        """
        if position < durable and self._failure is None:
            self._verify()

    def keep(self, kept: int) -> None:
        """Keep this many bytes of the last commits, to send them again."""
        self._sender.keep(kept)

    def give_up(self, error: BaseException) -> None:
        """Send nothing more, and end everything that is under way with this error."""
        self._end(error)
        self._lanes.shut(self._directory.shard)
        self._directory.disconnect()

    async def restart(self) -> None:
        """Begin anew after DivergedError, with the files and the position that the engine has now.

        Raises:
            BaseException: what has ended all sending meanwhile.
        """
        failure = self._failure
        assert isinstance(failure, DivergedError), "it has diverged"
        pause = FIRST_PAUSE
        while True:
            try:
                files = await self._lanes.run(self._directory.fetch)
            except EngineError as error:
                self._note_failure(str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                files = None
            if self._failure is not None and self._failure is not failure:
                raise self._failure
            if files is not None:
                break
        self._directory.adopt(files)
        self._sender.restart(failure.position)
        self._failure = None

    # Sending

    def _send(self, wait: float = 0.0) -> None:
        """Send the next commit, if there is one."""
        commit = self._sender.next()
        if commit is not None:
            self._is_busy = True
            self._exceeds = self._sender.may_exceed(self._clock())
            self._lanes.append(CommitCall(self._directory.shard, commit, self._exceeds), self._on_answer, wait)

    def _on_answer(self, answer: Answer | BaseException) -> None:
        self._is_busy = False
        if self._failure is not None:
            return
        sender = self._sender
        now = self._clock()
        try:
            if not isinstance(answer, (Answer, EngineError)):
                raise answer
            shortage = sender.on_reply(answer, self._exceeds, now)
        except BaseException as failure:
            self._end(failure)
            return
        self._directory.is_full = sender.is_full
        if not shortage:
            self._note_success()
        else:
            self._is_busy = True
            self._note_failure(shortage)
            if isinstance(answer, Answer) and answer.position is None and self.on_lost_lease is not None:
                self.on_lost_lease()
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._resume)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        waiting = self._waiting
        try:
            while waiting and waiting[0].position <= sender.durable:
                ended = waiting.popleft()
                self.latency.add(round((now - ended.began) * SECOND))
                ended.on_end(None)
        finally:  # a waiter may fail, and the others must not wait for ever
            if not self._is_busy and self._failure is None:
                self._send()

    def _resume(self) -> None:
        self._timer = None
        self._is_busy = False
        self._send()

    def _verify(self) -> None:
        """Find out what the engine has."""
        self._sender.verify()
        if not self._is_busy:
            self._send()

    def _ask_for_room(self) -> None:
        """Find out whether the engine is still full, unless a commit is about to."""
        if self._failure is None and self._sender.next() is None:
            self._verify()

    def _end(self, failure: BaseException) -> None:
        """Send nothing more, and end all waiting commits with this error."""
        if self._failure is None or isinstance(self._failure, DivergedError):
            self._failure = failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._is_busy = False
        while self._waiting:
            self._waiting.popleft().on_end(self._failure)

    # The log

    def _note_failure(self, what: str) -> None:
        now = self._clock()
        self._failed_at = self._failed_at or now
        if not self._is_reported and now - self._failed_at >= SLOW_COMMIT:
            self._is_reported = True
            logger.error(
                "the engine does not accept commits: %(error)s; changes wait",
                event("engine-takes-no-commits", error=what),
            )

    def _note_success(self) -> None:
        self._pause = FIRST_PAUSE
        if self._is_reported:
            logger.info(
                "the engine accepts commits again, after %(seconds).0f s",
                event("engine-takes-commits", seconds=self._clock() - self._failed_at),
            )
            self._is_reported = False
        self._failed_at = 0.0
