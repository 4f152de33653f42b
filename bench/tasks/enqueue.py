"""Enqueues calls of the empty task, one by one, and prints what that took.

    python -m bench.tasks.enqueue rq_calls 1000 200        # in the environment of the task queue

First this many that are not counted (the second number), and a mark; it then says that it is ready, and waits for a
line. Then those that are counted, and a mark. What it prints at the end is a line of JSON, in seconds.
"""

from __future__ import annotations

import importlib
import json
import sys
import time


def main() -> None:
    calls = importlib.import_module(f"bench.tasks.{sys.argv[1]}")
    count, before = int(sys.argv[2]), int(sys.argv[3])
    with calls.Producer() as producer:
        producer.put(before)
        producer.put_mark()
        print("ready", flush=True)
        sys.stdin.readline()
        wall, cpu = time.perf_counter(), time.process_time()
        producer.put(count)
        spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(spent), flush=True)
        sys.stdin.readline()
        producer.put_mark()


if __name__ == "__main__":
    main()
