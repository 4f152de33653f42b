"""Clients in Python, ours and greenstalk: what a job costs the process that puts, reserves and deletes it.

They run in the generator, so their CPU time is that of its process.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from bench import process
from bench.results import Sample
from bench.subject import Subject
from harness.servers import ROOT

BODY = "x" * 100
AT_ONCE = 10
PIPELINED = 100
WARM_UP = 0.1  # the jobs that are not counted, beside those that are

CYCLE = "put + reserve + delete"
PUT = "put"


def cycles(client: Any, count: int) -> None:
    for _ in range(count):
        client.put(BODY)
        client.delete(client.reserve())


def puts(client: Any, count: int) -> None:
    for _ in range(count):
        client.put(BODY)


def pipelined_puts(client: Any, count: int) -> None:
    for _ in range(-(-count // PIPELINED)):
        with client.pipeline() as pipeline:
            puts(pipeline, PIPELINED)


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
            puts(pipeline, PIPELINED)


LOADS: dict[str, dict[str, Callable[[Any, int], Any]]] = {
    CYCLE: {
        "greenstalk": cycles,
        "Client": cycles,
        "AsyncClient": await_cycles,
        f"AsyncClient, {AT_ONCE} at a time": await_cycles_at_once,
    },
    PUT: {
        "greenstalk": puts,
        "Client": puts,
        "AsyncClient": await_puts,
        f"Client, {PIPELINED} in a pipeline": pipelined_puts,
        f"AsyncClient, {PIPELINED} in a pipeline": await_pipelined_puts,
    },
}
"""By what is done with a job, and by the client; others are compared with the first."""


def python_client(subject: Subject, *, work: str, client: str, count: int) -> Sample:
    """Let a client do this many jobs: its rate, and CPU times in microseconds a job."""
    sys.path.append(str(ROOT / "client"))
    gc.enable()
    try:
        load, address = LOADS[work][client], ("127.0.0.1", subject.port)
        if client.startswith("AsyncClient"):
            import uvloop
            from beanstalk_client import AsyncClient

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                connected: Any = AsyncClient(address)
                runner.run(connected.connect())
                try:
                    return _measured(subject, lambda jobs: runner.run(load(connected, jobs)), count)
                finally:
                    runner.run(connected.close())
        if client == "greenstalk":
            from greenstalk import Client as Blocking
        else:
            from beanstalk_client import Client as Blocking  # type: ignore[assignment]
        with Blocking(address) as blocking:
            return _measured(subject, lambda jobs: load(blocking, jobs), count)
    finally:
        gc.disable()
        sys.path.pop()


def _measured(subject: Subject, do: Callable[[int], object], count: int) -> Sample:
    do(max(int(count * WARM_UP), 1))
    server, wall, cpu = process.cpu(subject.pid), time.perf_counter(), time.process_time()
    do(count)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    served = process.cpu(subject.pid).since(server).total
    return {"rate": count / wall, "client_cpu": cpu / count * 1e6, "server_cpu": served / count * 1e6}
