"""The empty task for greenstalk, and its worker: `python -m bench.tasks.greenstalk_calls`.

greenstalk is a client and has no worker. This is the loop that its users write: reserve, call, delete; with the variant
"threads", ten of them, each with a connection of its own.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import greenstalk

from bench import tasks

AT_ONCE = 10 if tasks.variant() == "threads" else 1


def empty() -> None:
    """Do nothing."""


TASKS: dict[str, Callable[[], None]] = {"empty": empty, "mark": tasks.mark}


def connect() -> greenstalk.Client[str]:
    return greenstalk.Client(("127.0.0.1", tasks.port()))


def work() -> None:
    """Run what comes, for ever."""
    with connect() as queue:
        while True:
            job = queue.reserve()
            call = json.loads(job.body)
            TASKS[call["task"]](*call["args"], **call["kwargs"])
            queue.delete(job)


@contextmanager
def producing() -> Iterator[Any]:
    with connect() as queue:
        yield lambda task: queue.put(json.dumps({"task": task, "args": [], "kwargs": {}}))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for _ in range(AT_ONCE - 1):
        threading.Thread(target=work, daemon=True).start()
    work()
