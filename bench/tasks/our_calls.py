"""The empty task for our own client, as a coroutine or as a plain function, which runs in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from beanstalk_client import Tasks

from bench.tasks import mark as tell
from bench.tasks import port, variant

tasks: Any = Tasks(f"beanstalk://127.0.0.1:{port()}")

if variant() == "plain":

    @tasks.task
    def empty() -> None:
        """Do nothing."""

    @tasks.task
    def mark() -> None:
        tell()

else:

    @tasks.task
    async def empty() -> None:
        """Do nothing."""

    @tasks.task
    async def mark() -> None:
        tell()


@contextmanager
def producing() -> Iterator[Any]:
    yield lambda task: globals()[task].put()
    tasks.close()
