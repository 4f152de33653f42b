"""The empty task for RQ. Results are not kept, nor are jobs that are done; redis-py has its parser in C (hiredis)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis
from rq import Queue

from bench.tasks import mark, port


def empty() -> None:
    """Do nothing."""


@contextmanager
def producing() -> Iterator[Any]:
    queue = Queue("default", connection=Redis(port=port()))
    tasks = {"empty": empty, "mark": mark}
    yield lambda task: queue.enqueue(tasks[task], result_ttl=0)
    queue.connection.close()
