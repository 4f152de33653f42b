"""Brings bodies back into memory for those who have asked, in rounds.

What is asked for in one turn of the event loop, or while a round is under way, belongs to one round. It takes one call
off the event loop, or none if the system has all of it in memory. Where a body is, is found out when it is asked for;
its segment stays until it has been read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from beanstalk_server.queue.job import NOT_IN_MEMORY, Job
from beanstalk_server.storage.body_reader import BodyReader
from beanstalk_server.storage.segment import Location, Segment
from beanstalk_server.storage.segment_log import SegmentLog

ROUND_SIZE: Final = 1 << 20
"""Bytes: a round ends with the request that takes it past this size."""

ROUND_LENGTH: Final = 512
"""A round ends with the request that takes it past this number of jobs."""


class _Request(NamedTuple):
    """One request for bodies: jobs, and for each its body, or where that is."""

    jobs: list[Job]
    bodies: list[bytes | Location]
    on_fetched: Callable[[], None]


class Fetches:
    """The requests that wait, and the round that is under way.

    Args:
        log: knows where bodies are.
        reader: reads them, and nothing else.
        in_thread: calls a function off the event loop.
        on_round: called after each round.
        on_failure: called when a body cannot be read. Then nothing is fetched any more.
    """

    def __init__(
        self,
        log: SegmentLog,
        reader: BodyReader,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        on_round: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        """The rounds, while there are any."""
        self._log = log
        self._reader = reader
        self._in_thread = in_thread
        self._on_round = on_round
        self._on_failure = on_failure
        self._requests: deque[_Request] = deque()
        self._waiting: asyncio.Future[None] | None = None  # for the end of a round
        self._is_closed = False

    def add(self, jobs: list[Job], on_fetched: Callable[[], None]) -> None:
        """Call `on_fetched` later, with the bodies of these jobs in memory."""
        log = self._log
        bodies = [log.place_to_read(job) if job.body is NOT_IN_MEMORY else job.body for job in jobs]
        self._requests.append(_Request(jobs, bodies, on_fetched))
        if self.task is None and not self._is_closed:
            self.task = asyncio.get_running_loop().create_task(self._run())

    async def wait_for(self, segment: Segment) -> None:
        """Return when no body is read from this segment any more, which is about to go. One call at a time."""
        while segment.reads and self.task is not None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._reader.forget(segment)

    def close(self) -> None:
        """Begin no further round. Then await `task`."""
        self._is_closed = True

    async def _run(self) -> None:
        try:
            while self._requests and not self._is_closed:
                await self._run_round()
                await asyncio.sleep(0)  # a round that reads nothing from the disk does not leave the event loop
        except Exception as error:
            self._is_closed = True
            self._on_failure(error)
        finally:
            self.task = None
            self._end_waiting()

    async def _run_round(self) -> None:
        requests, places = self._next_round()
        bodies = self._reader.read_cached(places)
        if missing := [place for place in places if place not in bodies]:
            bodies |= await self._in_thread(partial(self._reader.read, missing))
        for place in places:
            self._log.release(place)
        self._end_waiting()
        if self._is_closed:
            return
        for request in requests:
            for job, body in zip(request.jobs, request.bodies, strict=True):
                if job.body is NOT_IN_MEMORY:
                    self._log.bodies.bring_back(job, bodies[body] if isinstance(body, Location) else body)
            try:
                request.on_fetched()
            except Exception as error:  # the others must not wait for ever
                context = {"message": "the step after a fetch failed; this is a bug in the server", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        self._log.drop_bodies()
        self._on_round()

    def _next_round(self) -> tuple[list[_Request], list[Location]]:
        """The requests of the next round, and what has to be read for them."""
        requests: list[_Request] = []
        places: list[Location] = []
        size = jobs = 0
        while self._requests and size < ROUND_SIZE and jobs < ROUND_LENGTH:
            request = self._requests.popleft()
            requests.append(request)
            jobs += len(request.jobs)
            for body in request.bodies:
                if isinstance(body, Location):
                    places.append(body)
                    size += body.size
        return requests, places

    def _end_waiting(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
