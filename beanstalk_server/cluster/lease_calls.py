"""Makes the calls about leases of all shards, in a thread and one at a time, and reports that the node is alive.

Questions that arrive during a call go together in the next one, so a thousand shards cost the engine little more than
one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic_ns
from typing import Any, Final, TypeVar

from beanstalk_server.cluster.engine.interface import Engine, EngineError, Lease, LeaseCall, Report
from beanstalk_server.cluster.lease import OBSERVATIONS
from beanstalk_server.events import event
from beanstalk_server.queue.units import SECOND

T = TypeVar("T")

CUT_OFF: Final = 2
"""After this many TTLs without an answer of the engine, a node is cut off: this is no failover any more, and perhaps
another node can serve its clients."""

COMPLAINTS: Final = 10 * SECOND
"""Nanoseconds between two lines of the log about an engine that does not answer."""

log = logging.getLogger("beanstalk_server")


class LeaseCalls:
    """Asks for all shards of one node, until `close`.

    Args:
        engine: a connection for these calls alone.
        ttl: of the leases, in nanoseconds.
        report: returns what the node says of itself.
        on_silence: called when the engine has not answered for long, again and again, until it does.
        in_thread: makes a call that blocks; one at a time. A thread of its own, if not given.
        clock: nanoseconds.
    """

    def __init__(
        self,
        engine: Engine,
        ttl: int,
        report: Callable[[], Report],
        on_silence: Callable[[], None],
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.engine = engine
        self._ttl = ttl
        self._report = report
        self._on_silence = on_silence
        self._threads: ThreadPoolExecutor | None = None
        if in_thread is None:
            self._threads = ThreadPoolExecutor(1, "lease")
        self._in_thread = in_thread or self._in_own_thread
        self._clock = clock
        self._waiting: list[tuple[LeaseCall, asyncio.Future[Lease | None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._reported = -1  # when the node has last said that it is alive
        self._silent_since = -1  # when the engine has begun not to answer at all
        self._failing: set[int] = set()  # the shards whose last call has failed
        self._complained = -1  # when the log has been told about that last

    async def ask(self, call: LeaseCall) -> Lease | None:
        """Make a call, together with others; return the lease as it is then, or None if it has failed, as is logged."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Lease | None] = loop.create_future()
        self._waiting.append((call, future))
        if self._task is None:
            self._task = loop.create_task(self._work())
        return await future

    async def call(self, call: Callable[[Engine], T]) -> T:
        """Make a call that is about no lease.

        Raises:
            EngineError: it has failed.
        """
        try:
            answer: T = await self._in_thread(lambda: call(self.engine))
        except EngineError as error:
            self._note_silence(error)
            raise
        self._note_answer()
        return answer

    def report_soon(self) -> None:
        """Say what has changed about the node with the next call."""
        self._reported = -1

    async def report(self) -> None:
        """Say at once what has changed about the node, if the engine answers."""
        report = self._report()
        await self._in_thread(lambda: self.engine.perform([], report))

    def close(self) -> None:
        """Close the connection; what is under way fails."""
        self.engine.close()
        if self._threads is not None:
            self._threads.shutdown()

    async def _in_own_thread(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _work(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                asked = [(call, future) for call, future in waiting if not future.done()]
                if asked:
                    await self._perform(asked)
        finally:
            self._task = None

    async def _perform(self, asked: list[tuple[LeaseCall, asyncio.Future[Lease | None]]]) -> None:
        """Make calls at once, and answer those who have asked for them."""
        calls = [call for call, _ in asked]
        now = self._clock()
        is_due = self._reported < 0 or now - self._reported >= self._ttl // OBSERVATIONS
        answers: list[Lease | EngineError]
        try:
            report = self._report() if is_due else None
            answers = await self._in_thread(lambda: self.engine.perform(calls, report))
        except Exception as error:
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
            raise
        failure = None
        for (call, future), answer in zip(asked, answers, strict=True):
            lease = None
            if isinstance(answer, EngineError):
                failure = answer
                self._failing.add(call.shard)
            else:
                lease = answer
                self._failing.discard(call.shard)
            if not future.done():  # else the caller has been cancelled
                future.set_result(lease)
        if all(isinstance(answer, EngineError) for answer in answers):
            assert failure is not None, "each of them is one"
            self._note_silence(failure)
            return
        if is_due:
            self._reported = now
        if failure is not None:
            self._complain(failure)
        self._note_answer()

    def _note_answer(self) -> None:
        self._silent_since = -1
        if not self._failing and self._complained >= 0:
            self._complained = -1
            log.info("the engine is responding again", event("engine-answers"))

    def _note_silence(self, error: EngineError) -> None:
        self._complain(error)
        now = self._clock()
        if self._silent_since < 0:
            self._silent_since = now
        elif now - self._silent_since >= CUT_OFF * self._ttl:
            self._on_silence()

    def _complain(self, error: EngineError) -> None:
        now = self._clock()
        if self._complained < 0 or now - self._complained >= COMPLAINTS:
            self._complained = now
            log.warning("%(error)s", event("engine-silent", error=error))
