"""The empty task for greenstalk, and its worker: `python -m bench.tasks.greenstalk_calls`.

greenstalk is a client and has no worker. This is the loop that its users write: reserve, call, delete; with the variant
"threads", ten of them, each with a connection of its own.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import greenstalk

from bench.tasks import marks

AT_ONCE = 10 if os.environ.get("BENCH_VARIANT") == "threads" else 1


def empty() -> None:
    """Do nothing."""


TASKS: dict[str, Callable[[], None]] = {"empty": empty, "mark": marks.mark}


def connect() -> greenstalk.Client[str]:
    return greenstalk.Client(("127.0.0.1", marks.port()))


def work() -> None:
    """Run what comes, for ever."""
    with connect() as queue:
        while True:
            job = queue.reserve()
            call = json.loads(job.body)
            TASKS[call["task"]](*call["args"], **call["kwargs"])
            queue.delete(job)


def end(signum: int, frame: FrameType | None) -> None:
    os._exit(0)


class Producer:
    """Enqueues in the ordinary way."""

    def __enter__(self) -> Producer:
        self._queue = connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()

    def put(self, count: int) -> None:
        for _ in range(count):
            self._put("empty")

    def put_mark(self) -> None:
        self._put("mark")

    def _put(self, task: str) -> None:
        self._queue.put(json.dumps({"task": task, "args": [], "kwargs": {}}))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    for _ in range(AT_ONCE - 1):
        threading.Thread(target=work, daemon=True).start()
    work()
