"""The empty task for Celery. No results, no events, no rate limits, 64 tasks fetched ahead for each that may run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from bench import tasks

app = Celery("bench", broker=tasks.redis_url())
app.conf.update(
    task_ignore_result=True,
    worker_disable_rate_limits=True,
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def empty() -> None:
    """Do nothing."""


@app.task
def mark() -> None:
    tasks.mark()


@contextmanager
def producing() -> Iterator[Any]:
    yield lambda task: globals()[task].delay()
    app.close()
