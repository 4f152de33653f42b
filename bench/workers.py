"""Workers of task queues, ours and others': how fast each empties a queue of empty tasks, and what that costs.

A broker is started, calls are enqueued one by one, and a worker is started that runs them. Two marks among the calls
(`bench/tasks`) say when the first and the last of those that count run: what is before the first is there for
the worker to start and to warm up. At both, the CPU time is read of the worker with all its processes, those that have
ended included, and of the broker. The broker has one processor, and the worker with all its processes another.
The dependency group `bench` has the task queues.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bench import process
from bench.results import Sample
from bench.servers import GENERATOR_CPU, SERVER_CPU
from harness import servers
from harness.servers import BEANSTALKD, OURS, REDIS, ROOT, ServerError

AT_ONCE = 10
"""How many tasks may run at a time, where a worker can do more than one."""

WARM_UP = 0.1
"""The calls that are not counted, beside those that are."""

MARKED_WITHIN = 180.0
"""Seconds until a mark must come."""

STOPS_WITHIN = 20.0
"""Seconds until a worker must have ended after it was told to."""

KEPT = " -b"
"""Behind the name of a broker that keeps its jobs on disk."""


@dataclass(frozen=True)
class TaskQueue:
    """A task queue, as it is measured.

    Args:
        calls: its module in bench.tasks.
        worker: what Python is called with; {port} is the broker's.
        jobs: how many calls are counted at full size, such that they take some seconds.
        broker: OURS, BEANSTALKD or REDIS; with KEPT, it keeps its jobs.
        variant: which of its tasks or brokers; its module knows.
    """

    calls: str
    worker: tuple[str, ...]
    jobs: int
    broker: str = REDIS
    variant: str = ""


OUR_WORKER = ("-m", "beanstalk_client.worker", "bench.tasks.our_calls:tasks", "--at-once", str(AT_ONCE))
GREENSTALK = ("-m", "bench.tasks.greenstalk_calls")
CELERY = ("-m", "celery", "--app", "bench.tasks.celery_calls", "worker", "--loglevel", "WARNING")
CELERY_ALONE = ("--without-gossip", "--without-mingle", "--without-heartbeat")
TASKIQ = ("-m", "taskiq", "worker", "bench.tasks.taskiq_calls:broker", "--workers", "1", "--log-level", "WARNING")
TASKIQ_TASKS = ("--max-async-tasks", str(AT_ONCE), "--max-prefetch", "100")

QUEUES = {
    "ours": TaskQueue("our_calls", OUR_WORKER, 50_000, broker=OURS),
    "ours, plain function": TaskQueue("our_calls", OUR_WORKER, 30_000, broker=OURS, variant="plain"),
    "ours -b": TaskQueue("our_calls", OUR_WORKER, 10_000, broker=OURS + KEPT),
    "ours, with beanstalkd": TaskQueue("our_calls", OUR_WORKER, 30_000, broker=BEANSTALKD),
    "greenstalk, one loop": TaskQueue("greenstalk_calls", GREENSTALK, 20_000, broker=OURS),
    "greenstalk, 10 threads": TaskQueue("greenstalk_calls", GREENSTALK, 20_000, broker=OURS, variant="threads"),
    "greenstalk, one loop, with beanstalkd": TaskQueue("greenstalk_calls", GREENSTALK, 20_000, broker=BEANSTALKD),
    "taskiq, stream": TaskQueue("taskiq_calls", (*TASKIQ, *TASKIQ_TASKS), 10_000),
    "taskiq, list": TaskQueue("taskiq_calls", (*TASKIQ, *TASKIQ_TASKS), 10_000, variant="list"),
    "Celery, prefork": TaskQueue(
        "celery_calls", (*CELERY, *CELERY_ALONE, "--pool", "prefork", "-c", str(AT_ONCE)), 6_000
    ),
    "Celery, threads": TaskQueue(
        "celery_calls", (*CELERY, *CELERY_ALONE, "--pool", "threads", "-c", str(AT_ONCE)), 6_000
    ),
    "Celery, solo": TaskQueue("celery_calls", (*CELERY, *CELERY_ALONE, "--pool", "solo"), 6_000),
}
"""By the name that tables have; what others are compared with is the first."""

PACKAGES = ("celery", "taskiq", "taskiq-redis", "redis", "hiredis", "uvloop", "greenstalk")
"""What task queues need: the versions are part of the results."""


def package_versions() -> str:
    """The installed packages as "name version", with commas."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES if list(metadata.distributions(name=name)))


@contextlib.contextmanager
def broker(kind: str, directory: Path | None) -> Iterator[servers.Process]:
    """Start a broker on a processor of its own; with a directory, it keeps its jobs there."""
    program = kind.removesuffix(KEPT)
    options = ["--save", "", "--appendonly", "no"] if program == REDIS else []
    if directory:
        options = ["-b", str(directory)]
    started = servers.start(program, options, directory=directory or "/", processor=SERVER_CPU)
    try:
        yield started
    finally:
        started.stop()


class Marks:
    """The pipe that tasks write to."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, "marks")
        os.mkfifo(self.path)
        self._pipe = os.open(self.path, os.O_RDWR)  # so that it never ends

    def wait(self, worker: subprocess.Popen[bytes], log: Path) -> int:
        """Wait for the next mark; return its moment, in nanoseconds.

        Raises:
            ServerError: the worker has ended, or none comes.
        """
        end = time.monotonic() + MARKED_WITHIN
        while not select.select([self._pipe], [], [], 0.25)[0]:
            if worker.poll() is not None or time.monotonic() > end:
                told = log.read_text(errors="replace").strip()[-500:]
                raise ServerError(f"the worker {'has exited' if worker.poll() is not None else 'does nothing'}: {told}")
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._pipe, 1)
        return int(line)

    def close(self) -> None:
        os.close(self._pipe)


def enqueue_and_run(queue: TaskQueue, jobs: int, directory: Path | None = None) -> Sample:
    """Enqueue this many calls, and let a worker run them.

    Args:
        directory: where the broker keeps its jobs, if it keeps any.

    Returns:
        `rate` of the worker and `put_rate` of the producer, in calls a second; `cpu` and `put_cpu` of those processes,
        `server_cpu` and `put_server_cpu` of the broker meanwhile, in microseconds a call.

    Raises:
        ServerError: the broker, the producer or the worker fails.
    """
    with (
        broker(queue.broker, directory) as server,
        tempfile.TemporaryDirectory() as place,
        contextlib.closing(Marks(place)) as marks,
    ):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
            "PYTHONSAFEPATH": "1",
            "BENCH_PORT": str(server.address[1]),
            "BENCH_MARKS": marks.path,
            "BENCH_VARIANT": queue.variant,
        }
        sample = _enqueue(queue, jobs, server, environment)
        return sample | _drain(queue, jobs, server, environment, marks, Path(place) / "log")


def _enqueue(queue: TaskQueue, jobs: int, server: servers.Process, environment: dict[str, str]) -> Sample:
    line = [sys.executable, "-m", "bench.tasks.enqueue", queue.calls, str(jobs), str(int(jobs * WARM_UP))]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=environment, cwd="/", stdin=pipe, stdout=pipe, start_new_session=True) as producer:
        late = threading.Timer(MARKED_WITHIN, producer.kill)
        late.start()
        os.sched_setaffinity(producer.pid, {GENERATOR_CPU})
        assert producer.stdin is not None
        assert producer.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            producer.stdout.readline()  # it is ready
            before = process.cpu(server.pid)
            producer.stdin.write(b"\n")
            producer.stdin.flush()
            spent = json.loads(producer.stdout.readline() or b"null")
            served = process.cpu(server.pid).since(before).total
            producer.stdin.write(b"\n")
            producer.stdin.close()
        status = producer.wait()
        late.cancel()
    if status or spent is None:
        raise ServerError(f"{queue.calls}: the producer has failed")
    return {
        "put_rate": jobs / spent["wall"],
        "put_cpu": spent["cpu"] / jobs * 1e6,
        "put_server_cpu": served / jobs * 1e6,
    }


def _drain(
    queue: TaskQueue, jobs: int, server: servers.Process, environment: dict[str, str], marks: Marks, log: Path
) -> Sample:
    line = [sys.executable, *(part.format(port=server.address[1]) for part in queue.worker)]
    with log.open("wb") as out, open(os.devnull) as nothing:
        worker = subprocess.Popen(
            line, env=environment, cwd=log.parent, stdin=nothing, stdout=out, stderr=out, start_new_session=True
        )
    try:
        os.sched_setaffinity(worker.pid, {GENERATOR_CPU})
        began = marks.wait(worker, log)
        spent, served = process.cpu_of_family(worker.pid), process.cpu(server.pid)
        ended = marks.wait(worker, log)
        return {
            "rate": jobs / (ended - began) * 1e9,
            "cpu": (process.cpu_of_family(worker.pid) - spent) / jobs * 1e6,
            "server_cpu": process.cpu(server.pid).since(served).total / jobs * 1e6,
        }
    finally:
        _stop(worker)


def _stop(worker: subprocess.Popen[bytes]) -> None:
    """Tell a worker to end, and kill what is left of it."""
    family = process.family(worker.pid)
    worker.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(STOPS_WITHIN)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.wait()
