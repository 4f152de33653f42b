"""Enqueues calls of the empty task, one by one, and prints what that took.

    python -m bench.tasks.enqueue celery_calls 1000 200

First this many that are not counted (the second number), and a mark; it then says that it is ready, and waits for a
line. Then those that are counted, and a mark. What it prints at the end is a line of JSON, in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def producing(calls: Any) -> Iterator[Callable[[str, int], None]]:
    """Give a function that enqueues a number of calls, each when the one before is acknowledged."""
    made = calls.producing()
    if hasattr(made, "__enter__"):
        with made as put:

            def put_all(task: str, count: int) -> None:
                for _ in range(count):
                    put(task)

            yield put_all
        return
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        put = runner.run(made.__aenter__())

        async def await_all(task: str, count: int) -> None:
            for _ in range(count):
                await put(task)

        yield lambda task, count: runner.run(await_all(task, count))
        runner.run(made.__aexit__(None, None, None))


def main() -> None:
    count, before = int(sys.argv[2]), int(sys.argv[3])
    with producing(importlib.import_module(f"bench.tasks.{sys.argv[1]}")) as put:
        put("empty", before)
        put("mark", 1)
        print("ready", flush=True)
        sys.stdin.readline()
        wall, cpu = time.perf_counter(), time.process_time()
        put("empty", count)
        spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(spent), flush=True)
        sys.stdin.readline()
        put("mark", 1)


if __name__ == "__main__":
    main()
