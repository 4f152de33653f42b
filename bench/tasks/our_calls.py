"""The empty task for our own client, as a coroutine or as a plain function, which runs in a thread."""

from __future__ import annotations

import os
from typing import Any

from beanstalk_client import Tasks

from bench.tasks import marks

PLAIN = os.environ.get("BENCH_VARIANT") == "plain"

tasks: Any = Tasks(f"beanstalk://127.0.0.1:{marks.port()}")

if PLAIN:

    @tasks.task
    def empty() -> None:
        """Do nothing."""

    @tasks.task
    def mark() -> None:
        marks.mark()

else:

    @tasks.task
    async def empty() -> None:
        """Do nothing."""

    @tasks.task
    async def mark() -> None:
        marks.mark()


class Producer:
    """Enqueues in the ordinary way."""

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        tasks.close()

    def put(self, count: int) -> None:
        for _ in range(count):
            empty.put()

    def put_mark(self) -> None:
        mark.put()
