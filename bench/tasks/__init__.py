"""The programs that are written for task queues, ours and others': a task that does nothing, and who enqueues it.

Each runs in the environment of its task queue, so none may need more than that and the standard library. Besides the
empty task it has one that tells the bench when it runs (`marks.py`). `BENCH_PORT` is where the broker listens.
"""
