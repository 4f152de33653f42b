"""The empty task for taskiq: its broker over a stream of Redis, which acknowledges, and the one over a list, which
loses what a worker had that died. No results; uvloop, which taskiq takes where it is there, and hiredis.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from taskiq_redis import ListQueueBroker, RedisStreamBroker

from bench import tasks

URL = tasks.redis_url()

broker = ListQueueBroker(URL) if tasks.variant() == "list" else RedisStreamBroker(URL, consumer_id="0")


@broker.task
async def empty() -> None:
    """Do nothing."""


@broker.task
async def mark() -> None:
    tasks.mark()


@asynccontextmanager
async def producing() -> AsyncIterator[Any]:
    await broker.startup()
    yield lambda task: globals()[task].kiq()
    await broker.shutdown()
