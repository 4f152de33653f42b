"""A producer whose library speaks asyncio: each of its steps is a coroutine, run to its end on uvloop."""

from __future__ import annotations

import abc
import asyncio

import uvloop


class LoopedProducer(abc.ABC):
    """Enqueues one by one; the next call is made when the one before is acknowledged."""

    def __enter__(self) -> LoopedProducer:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.__enter__()
        self._runner.run(self.begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self.end())
        self._runner.close()

    def put(self, count: int) -> None:
        self._runner.run(self._put(count))

    def put_mark(self) -> None:
        self._runner.run(self.mark_one())

    async def _put(self, count: int) -> None:
        for _ in range(count):
            await self.put_one()

    @abc.abstractmethod
    async def begin(self) -> None:
        """Connect."""

    @abc.abstractmethod
    async def end(self) -> None:
        """Disconnect."""

    @abc.abstractmethod
    async def put_one(self) -> None:
        """Enqueue a call of the empty task."""

    @abc.abstractmethod
    async def mark_one(self) -> None:
        """Enqueue a mark."""
