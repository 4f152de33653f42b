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
from beanstalk_client.cli.target import connecting, make_async_client, named, told
from beanstalk_client.commands import make

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

Step = Callable[[AsyncClient[bytes]], Awaitable[bool]]
"""Does something with one job; returns False if there is no further one."""


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
        self._clients: list[AsyncClient[bytes]] = []
        # Jobs are not ready again before the end: reserve and delete have no more jobs than put.
        self._command = make.put(bytes(options.size), 0, options.delay, 3600 + 10 * int(options.seconds))
        self._is_stopping = False
        self._todo = 0  # jobs that the operation has still to begin with
        self._held: dict[AsyncClient[bytes], deque[int]] = {}  # the jobs that each client deletes
        self._left: set[int] = set()  # jobs that were put and are not deleted, but for those of cycles
        self._unknown = 0  # jobs of cycles that are not deleted, and puts without a reply

    async def run(self) -> list[dict[str, Any]]:
        """Measure, and delete all jobs, also if it is cancelled.

        Raises:
            OperatorError: the server cannot be reached, is lost or refuses something.
        """
        options = self._options
        try:
            with connecting(options):
                for number in range(min(options.clients, self.jobs)):
                    self._clients.append(self._client())
                    if not number:
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
        return make_async_client(self._options, use=self.tube, watch=self.tube, reconnect=False)

    async def _measure_all(self) -> list[dict[str, Any]]:
        self._todo, limit = self.jobs, self._options.seconds
        results = [await self._measure("put", self._put, limit)]
        if not self._options.delay:
            self._todo = len(self._left)
            results.append(await self._measure("reserve", self._reserve, limit))
        held = {job_id for ids in self._held.values() for job_id in ids}
        for client, job_id in zip(cycle(self._clients), self._left - held, strict=False):
            self._held.setdefault(client, deque()).append(job_id)
        results.append(await self._measure("delete", self._delete, float("inf")))
        if not self._options.delay:
            self._todo = self.jobs
            results.append(await self._measure("cycle", self._cycle, limit))
        return results

    async def _measure(self, operation: str, step: Step, limit: float) -> dict[str, Any]:
        latencies: list[float] = []
        clients = islice(cycle(self._clients), min(len(self._clients) * self._options.pipeline, self.jobs))
        began, cpu = time.perf_counter(), time.process_time()
        end = began + limit
        slots = asyncio.gather(
            *(self._repeat(step, client, end, latencies) for client in clients), return_exceptions=True
        )
        try:
            outcomes = await asyncio.shield(slots)
        except asyncio.CancelledError:
            self._is_stopping = True
            await slots
            raise
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return measured(operation, took, cpu, latencies)

    async def _repeat(self, step: Step, client: AsyncClient[bytes], end: float, latencies: list[float]) -> None:
        """One slot."""
        clock = time.perf_counter
        try:
            began = clock()
            while began < end and not self._is_stopping and await step(client):
                now = clock()
                latencies.append(now - began)
                began = now
        except BaseException:
            self._is_stopping = True
            raise

    async def _put(self, client: AsyncClient[bytes]) -> bool:
        if not self._begin():
            return False
        self._left.add(await self._new_job(client))
        self._unknown -= 1
        return True

    async def _reserve(self, client: AsyncClient[bytes]) -> bool:
        if not self._begin():
            return False
        self._held.setdefault(client, deque()).append(await self._reserved(client))
        return True

    async def _delete(self, client: AsyncClient[bytes]) -> bool:
        held = self._held.get(client)
        if not held:
            return False
        job_id = held.popleft()
        await client.execute(make.delete(job_id))
        self._left.discard(job_id)
        return True

    async def _cycle(self, client: AsyncClient[bytes]) -> bool:
        """Put, reserve and delete. There are never more reserves than jobs, so that none waits."""
        if not self._begin():
            return False
        await self._new_job(client)  # its id is not noted: another client may have deleted it before this reply comes
        await client.execute(make.delete(await self._reserved(client)))
        self._unknown -= 1
        return True

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

    def _begin(self) -> bool:
        """Whether there is a job to begin with, which is the caller's then."""
        self._todo -= 1
        return self._todo >= 0

    async def _reserved(self, client: AsyncClient[bytes]) -> int:
        try:
            return (await client.execute(make.reserve(READY_WITHIN))).id
        except TimedOutError:
            raise OperatorError(
                f"tube {self.tube}: no job within {READY_WITHIN} s: another worker takes its jobs, or it is paused"
            ) from None

    async def _clean(self) -> None:
        """Delete what is left."""
        if not (self._left or self._unknown):
            return
        client = self._client()
        with connecting(self._options):
            await client.connect()
        try:
            with told(self._options, f"tube {self.tube}"):
                await self._delete_known(client)
                await self._delete_unknown(client)
        finally:
            await client.close()

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
        """Delete what was put on a connection that is lost, or is of a cycle that has not ended."""
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
            _note("stopping: its jobs are deleted; a second signal leaves them there")
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
        _note("this client used a whole core: the server may be faster")
    return 0


def _note(message: str) -> None:
    print(f"beanstalk bench: {message}", file=sys.stderr, flush=True)
