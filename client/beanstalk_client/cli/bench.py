"""Measures a server with jobs in a tube of its own (`beanstalk bench`): rate and latency of put, reserve and delete.

    put      each slot puts jobs, until there are --jobs or --seconds are over
    reserve  each slot reserves them, which takes --seconds at the most
    delete   each slot deletes them: all of them
    cycle    each slot puts a job, reserves one and deletes it, within the same bounds

A *slot* has one command in flight; each connection has --pipeline of them. With --delay, jobs are not ready: they are
put and deleted.

Must never leave a job behind. A signal or an error stops the slots after the replies that they wait for, so that each
job is known by its id. What was put on a connection that is lost is looked for in the tube.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Final

from beanstalk_client import AsyncClient, BeanstalkdError, BuriedError, Job, NotFoundError, TimedOutError
from beanstalk_client.cli.output import UNAVAILABLE, OperatorError, show_json, show_table
from beanstalk_client.cli.target import client_arguments, connecting, named, told
from beanstalk_client.commands import MAX_SECONDS, make

DEFAULT_JOBS: Final = 100_000
DEFAULT_BYTES: Final = 100_000_000
"""Maximum number of jobs, and of bytes of their bodies, unless --jobs says otherwise."""

READY_WITHIN: Final = 1
"""Seconds that a reserve waits, which asks for a job that is ready."""

BATCH: Final = 1000
"""Number of jobs that are deleted together at the end."""

BUSY: Final = 0.9
"""Share of a core from which on the client is said to be the limit."""

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end it; the exit status is 128 more, as in a shell."""

PERCENTILES: Final = {"p50": 50, "p99": 99, "max": 100}

COLUMNS: Final = ("operation", "jobs", "jobs/s", "p50 ms", "p99 ms", "max ms", "client CPU %")

Step = Callable[[AsyncClient[bytes]], Awaitable[None]]
"""Does something with one job."""


def percentile(latencies: Sequence[float], percent: int) -> float:
    """The smallest value that at least this share of the values do not exceed; 0 for no values.

    Args:
        latencies: in ascending order.
        percent: from 1 to 100.
    """
    return latencies[-(-len(latencies) * percent // 100) - 1] if latencies else 0.0


def measured(operation: str, seconds: float, cpu: float, latencies: list[float]) -> dict[str, Any]:
    """The result of an operation, as it is in JSON: times in seconds, and client-cpu as a share of one core.

    Args:
        seconds: from the first command to the last reply.
        cpu: CPU time of this process meanwhile, in seconds.
        latencies: one for each job, in seconds.
    """
    latencies = sorted(latencies)
    return {
        "operation": operation,
        "jobs": len(latencies),
        "seconds": round(seconds, 6),
        "rate": round(len(latencies) / seconds, 3),
        **{name: round(percentile(latencies, percent), 6) for name, percent in PERCENTILES.items()},
        "client-cpu": round(cpu / seconds, 3),
    }


def row(result: Mapping[str, Any]) -> list[object]:
    """The result of an operation, as it is in the table."""
    latencies = [round(1000 * result[name], 3) for name in PERCENTILES]
    cpu = round(100 * result["client-cpu"])
    return [result["operation"], result["jobs"], round(result["rate"]), *latencies, cpu]


class Bench:
    """One run.

    Attributes:
        tube: its own.
        jobs: maximum number of jobs at a time.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.tube: str = f"{options.prefix}-{os.getpid()}-{secrets.token_hex(4)}"
        self.jobs: int = options.jobs or min(DEFAULT_JOBS, DEFAULT_BYTES // max(options.size, 1)) or 1
        self._addresses, self._arguments = client_arguments(options)
        self._clients: list[AsyncClient[bytes]] = []
        self._command = make.put(bytes(options.size), 0, options.delay, MAX_SECONDS)
        self._todo = 0  # jobs that the operation has still to begin with
        self._held: deque[tuple[AsyncClient[bytes], int]] = deque()  # jobs, and the client that deletes each
        self._left: set[int] = set()  # jobs that are there
        self._unknown = 0  # jobs that may be there: puts and deletes without a reply, and jobs of cycles

    async def run(self) -> list[dict[str, Any]]:
        """Measure, and delete all jobs, also if it is cancelled.

        Raises:
            OperatorError: the server cannot be reached, is lost or refuses something.
        """
        options = self._options
        try:
            with connecting(options):
                self._clients = [self._client() for _ in range(min(options.clients, self.jobs))]
                await self._clients[0].connect()  # or there is no use in the others
                await asyncio.gather(*(client.connect() for client in self._clients))
            _note(
                f"{named(options)}: up to {self.jobs} jobs of {options.size} bytes at a time in the tube {self.tube}, "
                "all deleted at the end"
            )
            with told(options, f"tube {self.tube}"):
                return await self._measure_all()
        finally:
            try:
                await asyncio.gather(*(client.close() for client in self._clients))  # their jobs are ready again
                await self._clean()
            except BaseException:
                _note(f"jobs may be left in the tube {self.tube}")
                raise

    def _client(self) -> AsyncClient[bytes]:
        return AsyncClient(self._addresses, None, use=self.tube, watch=self.tube, reconnect=False, **self._arguments)

    async def _measure_all(self) -> list[dict[str, Any]]:
        results = [await self._measure("put", self._put, self.jobs)]
        if not self._options.delay:
            results.append(await self._measure("reserve", self._reserve, len(self._left)))
        reserved = {job_id for _, job_id in self._held}
        self._held.extend(zip(cycle(self._clients), self._left - reserved, strict=False))
        results.append(await self._measure("delete", self._delete, len(self._held), math.inf))
        if not self._options.delay:
            results.append(await self._measure("cycle", self._cycle, self.jobs))
        return results

    async def _measure(self, operation: str, step: Step, jobs: int, seconds: float = 0) -> dict[str, Any]:
        """Let all slots do a step with each job, for some seconds: those of --seconds, unless said otherwise."""
        self._todo = jobs
        latencies: list[float] = []
        clients = islice(cycle(self._clients), min(len(self._clients) * self._options.pipeline, jobs))
        began, cpu = time.perf_counter(), time.process_time()
        end = began + (seconds or self._options.seconds)
        each = (self._repeat(step, client, end, latencies) for client in clients)
        slots = asyncio.gather(*each, return_exceptions=True)
        try:
            outcomes = await asyncio.shield(slots)
        except asyncio.CancelledError:
            self._todo = 0
            await slots
            raise
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return measured(operation, took, cpu, latencies)

    async def _repeat(self, step: Step, client: AsyncClient[bytes], end: float, latencies: list[float]) -> None:
        """One slot."""
        began = time.perf_counter()
        try:
            while self._todo and began < end:
                self._todo -= 1
                await step(client)
                now = time.perf_counter()
                latencies.append(now - began)
                began = now
        except BaseException:
            self._todo = 0
            raise

    async def _put(self, client: AsyncClient[bytes]) -> None:
        self._left.add(await self._new_job(client))
        self._unknown -= 1

    async def _reserve(self, client: AsyncClient[bytes]) -> None:
        self._held.append((client, await self._reserved(client)))

    async def _delete(self, _: AsyncClient[bytes]) -> None:
        client, job_id = self._held.popleft()
        self._left.discard(job_id)
        self._unknown += 1
        await client.execute(make.delete(job_id))
        self._unknown -= 1

    async def _cycle(self, client: AsyncClient[bytes]) -> None:
        """Put, reserve and delete. There are never more reserves than jobs, so that none waits."""
        await self._new_job(client)  # its id is not noted: another client may have deleted it before this reply comes
        await client.execute(make.delete(await self._reserved(client)))
        self._unknown -= 1

    async def _new_job(self, client: AsyncClient[bytes]) -> int:
        """Put a job, which is counted as unknown."""
        self._unknown += 1
        try:
            return await client.execute(self._command)
        except BuriedError:  # there is a job
            raise
        except BeanstalkdError:
            self._unknown -= 1
            raise

    async def _reserved(self, client: AsyncClient[bytes]) -> int:
        try:
            return (await client.execute(make.reserve(READY_WITHIN))).id
        except TimedOutError:
            why = f"no job within {READY_WITHIN} s: another worker is reserving its jobs, or the tube is paused"
            raise OperatorError(f"tube {self.tube}: {why}") from None

    async def _clean(self) -> None:
        """Delete what is left."""
        if self._left or self._unknown:
            with told(self._options, f"tube {self.tube}"):
                async with self._client() as client:
                    await self._delete_known(client)
                    await self._delete_unknown(client)

    async def _delete_known(self, client: AsyncClient[bytes]) -> None:
        end = time.monotonic() + self._options.answer_within
        while self._left:
            left = list(self._left)
            for ids in (left[start : start + BATCH] for start in range(0, len(left), BATCH)):
                results = await asyncio.gather(*map(client.delete, ids), return_exceptions=True)
                for job_id, result in zip(ids, results, strict=True):
                    if result is None:
                        self._left.discard(job_id)
                    elif not isinstance(result, NotFoundError):
                        raise result
            if self._left:  # the server has not seen yet that the connection of their worker is closed
                if time.monotonic() > end:
                    raise OperatorError(f"tube {self.tube}: {len(self._left)} jobs cannot be deleted", UNAVAILABLE)
                await asyncio.sleep(0.05)

    async def _delete_unknown(self, client: AsyncClient[bytes]) -> None:
        """Look for jobs whose put or delete has no reply, and for those of cycles that have not ended."""
        looks: list[Callable[[], Awaitable[Job[bytes]]]] = [client.peek_delayed, client.peek_buried]
        for look in (lambda: client.reserve(READY_WITHIN), *looks):
            while self._unknown:
                try:
                    job = await look()
                except (TimedOutError, NotFoundError):
                    break
                await client.delete(job.id)
                self._unknown -= 1


def bench(options: argparse.Namespace) -> int:
    """Measure, and show the results; return the exit status."""
    return asyncio.run(_bench(options))


async def _bench(options: argparse.Namespace) -> int:
    one = Bench(options)
    ended: list[int] = []
    run = asyncio.ensure_future(one.run())

    def end(number: int) -> None:
        if not ended:
            _note("stopping: deleting the jobs; press Ctrl-C again to leave them in the tube")
        ended.append(number)
        run.cancel()

    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        results = await run
    except asyncio.CancelledError:
        if not ended:
            raise
        return 128 + ended[0]
    if options.json:
        settings = {name: getattr(options, name) for name in ("clients", "pipeline", "size", "delay", "seconds")}
        show_json({"server": named(options), "tube": one.tube, "jobs": one.jobs, **settings, "results": results})
    else:
        show_table(COLUMNS, map(row, results))
    if any(result["client-cpu"] > BUSY for result in results):
        _note("the client used a full CPU core and may be the bottleneck: the server may be faster")
    return 0


def _note(message: str) -> None:
    print(f"beanstalk bench: {message}", file=sys.stderr, flush=True)
