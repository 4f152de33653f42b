"""The empty task for taskiq: its broker over a stream of Redis, which acknowledges, and the one over a list, which
loses what a worker had that died. No results; uvloop, which taskiq takes where it is there, and hiredis.
"""

from __future__ import annotations

import os

from taskiq_redis import ListQueueBroker, RedisStreamBroker

from bench.tasks import marks
from bench.tasks.looped import LoopedProducer

LISTED = os.environ.get("BENCH_VARIANT") == "list"

broker = ListQueueBroker(marks.redis_url()) if LISTED else RedisStreamBroker(marks.redis_url(), consumer_id="0")


@broker.task
async def empty() -> None:
    """Do nothing."""


@broker.task
async def mark() -> None:
    marks.mark()


class Producer(LoopedProducer):
    """Enqueues in the ordinary way."""

    async def begin(self) -> None:
        await broker.startup()

    async def end(self) -> None:
        await broker.shutdown()

    async def put_one(self) -> None:
        await empty.kiq()

    async def mark_one(self) -> None:
        await mark.kiq()
