"""The programs that are written for task queues, ours and others': a task that does nothing, and who enqueues it.

Each module has the tasks `empty` and `mark`, which tells the bench that it runs, and `producing`, a context manager
(an asynchronous one where the library speaks asyncio) that gives a function to enqueue the task of a name in the
ordinary way. It needs no more than its task queue and the standard library.
"""

from __future__ import annotations

import os
import time


def mark() -> None:
    """Tell the bench the time, in nanoseconds of the monotonic clock, on a pipe that it has made.

    Must never be on the path of the tasks that are measured.
    """
    pipe = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY)
    try:
        os.write(pipe, b"%d\n" % time.monotonic_ns())
    finally:
        os.close(pipe)


def port() -> int:
    """Where the broker listens, on this machine."""
    return int(os.environ["BENCH_PORT"])


def redis_url() -> str:
    """The broker, if it is Redis."""
    return f"redis://127.0.0.1:{port()}/0"


def variant() -> str:
    """Which of its tasks or brokers a module has; it knows what that means."""
    return os.environ.get("BENCH_VARIANT", "")
