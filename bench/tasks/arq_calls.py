"""The empty task for arq, and its worker: `python -m bench.tasks.arq_calls`.

uvloop, hiredis, no results, no lines in the log for each job. The queue is looked at every 10 ms for up to 1,000 jobs:
with arq's own settings, every half a second for 100, it would run 200 jobs a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import run_worker

from bench import tasks


async def empty(context: dict[Any, Any]) -> None:
    """Do nothing."""


async def mark(context: dict[Any, Any]) -> None:
    tasks.mark()


def settings() -> RedisSettings:
    return RedisSettings(port=tasks.port())


@asynccontextmanager
async def producing() -> AsyncIterator[Any]:
    pool = await create_pool(settings())
    yield pool.enqueue_job
    await pool.aclose()


class WorkerSettings:
    """What `arq` reads."""

    functions = [empty, mark]
    max_jobs = 10
    keep_result = 0
    log_results = False
    poll_delay = 0.01
    queue_read_limit = 1000


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    run_worker(WorkerSettings, redis_settings=settings())
