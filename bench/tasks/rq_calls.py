"""The empty task for RQ. Results are not kept, nor are jobs that are done; redis-py has its parser in C (hiredis)."""

from __future__ import annotations

from typing import Any

from redis import Redis
from rq import Queue

from bench.tasks.marks import mark, port


def empty() -> None:
    """Do nothing."""


class Producer:
    """Enqueues in the ordinary way."""

    def __enter__(self) -> Producer:
        self._queue = Queue("default", connection=Redis(port=port()))
        self._keeps: dict[str, Any] = {"result_ttl": 0}
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.connection.close()

    def put(self, count: int) -> None:
        for _ in range(count):
            self._queue.enqueue(empty, **self._keeps)

    def put_mark(self) -> None:
        self._queue.enqueue(mark, **self._keeps)
