"""Clients in Python, ours and greenstalk: what a job costs the process that puts, reserves and deletes it.

    python -m bench.clients                             # tries each once; `python -m bench --scenario clients` measures

Each client runs in a process of its own, on another processor than the server's. It does some jobs that are not
counted, says that it is ready, waits for a line, and prints what the others took, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import process
from bench.samples import Sample
from bench.servers import GENERATOR_CPU, Server
from harness.servers import BEANSTALKD, OURS, ROOT, ServerError

BODY = "x" * 100
AT_ONCE = 10
PIPELINED = 100

CYCLE = "put + reserve + delete"
PUT = "put"

DONE_WITHIN = 180.0
"""Seconds that a client may take."""

WARM_UP = 0.1
"""The jobs that are not counted, beside those that are."""

Load = Callable[[int, int], dict[str, float]]
"""Does this many jobs at this port, after some that are not counted; returns what they took."""


def timed(begin: Callable[[int], object], count: int) -> dict[str, float]:
    """What something takes that does a number of jobs: `wall` and `cpu`, in seconds."""
    begin(max(int(count * WARM_UP), 1))
    print("ready", flush=True)
    sys.stdin.readline()
    wall, cpu = time.perf_counter(), time.process_time()
    begin(count)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def cycles(client: Any) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in range(count):
            client.put(BODY)
            client.delete(client.reserve())

    return run


def puts(client: Any) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in range(count):
            client.put(BODY)

    return run


def pipelined_puts(client: Any) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in range(-(-count // PIPELINED)):
            with client.pipeline() as pipeline:
                for _ in range(PIPELINED):
                    pipeline.put(BODY)

    return run


def greenstalk(works: Callable[[Any], Callable[[int], None]]) -> Load:
    def load(port: int, count: int) -> dict[str, float]:
        from greenstalk import Client

        with Client(("127.0.0.1", port)) as client:
            return timed(works(client), count)

    return load


def blocking(works: Callable[[Any], Callable[[int], None]]) -> Load:
    def load(port: int, count: int) -> dict[str, float]:
        from beanstalk_client import Client

        with Client(("127.0.0.1", port)) as client:
            return timed(works(client), count)

    return load


async def await_cycles(client: Any, count: int) -> None:
    for _ in range(count):
        await client.put(BODY)
        await client.delete(await client.reserve())


async def await_cycles_at_once(client: Any, count: int) -> None:
    await asyncio.gather(*(await_cycles(client, -(-count // AT_ONCE)) for _ in range(AT_ONCE)))


async def await_puts(client: Any, count: int) -> None:
    for _ in range(count):
        await client.put(BODY)


async def await_pipelined_puts(client: Any, count: int) -> None:
    for _ in range(-(-count // PIPELINED)):
        async with client.pipeline() as pipeline:
            for _ in range(PIPELINED):
                pipeline.put(BODY)


def looped(works: Callable[[Any, int], Any]) -> Load:
    def load(port: int, count: int) -> dict[str, float]:
        import uvloop
        from beanstalk_client import AsyncClient

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            client: Any = AsyncClient(("127.0.0.1", port))
            runner.run(client.connect())
            try:
                return timed(lambda number: runner.run(works(client, number)), count)
            finally:
                runner.run(client.close())

    return load


LOADS: dict[str, dict[str, Load]] = {
    CYCLE: {
        "greenstalk": greenstalk(cycles),
        "Client": blocking(cycles),
        "AsyncClient": looped(await_cycles),
        f"AsyncClient, {AT_ONCE} at a time": looped(await_cycles_at_once),
    },
    PUT: {
        "greenstalk": greenstalk(puts),
        "Client": blocking(puts),
        "AsyncClient": looped(await_puts),
        f"Client, {PIPELINED} in a pipeline": blocking(pipelined_puts),
        f"AsyncClient, {PIPELINED} in a pipeline": looped(await_pipelined_puts),
    },
}
"""By what is done with a job, and by the client; others are compared with the first."""


def measure(server: Server, work: str, client: str, jobs: int) -> Sample:
    """Let a client do this many jobs.

    Returns:
        `rate`, in jobs a second; `client_cpu` and `server_cpu`, in microseconds a job.

    Raises:
        ServerError: it fails.
    """
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}", "PYTHONSAFEPATH": "1"}
    line = [sys.executable, "-m", "bench.clients", "--load", work, client, str(server.port), str(jobs)]
    with (
        subprocess.Popen(
            line, env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as loading,
        process.killed_after(DONE_WITHIN, loading),
    ):
        os.sched_setaffinity(loading.pid, {GENERATOR_CPU})
        assert loading.stdin is not None
        assert loading.stdout is not None
        if loading.stdout.readline() != b"ready\n":
            raise ServerError(f"{client} has ended")
        before = process.cpu(server.pid)
        loading.stdin.write(b"\n")
        loading.stdin.flush()
        spent = json.loads(loading.stdout.readline() or b"null")
        served = process.cpu(server.pid).since(before).total
    if spent is None or loading.returncode:
        raise ServerError(f"{client} has failed")
    return {
        "rate": jobs / spent["wall"],
        "client_cpu": spent["cpu"] / jobs * 1e6,
        "server_cpu": served / jobs * 1e6,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--load"]:
        work, client, port, count = given[1:]
        print(json.dumps(LOADS[work][client](int(port), int(count))), flush=True)
        return
    jobs = int(given[0]) if given else 5_000
    for peer in (OURS, BEANSTALKD):
        server = Server(peer)
        try:
            for work, clients in LOADS.items():
                for client in clients:
                    sample = measure(server, work, client, jobs)
                    print(peer, work, client, {name: round(value, 1) for name, value in sample.items()}, flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
