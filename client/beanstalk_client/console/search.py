"""Searches the bodies and keys of a tube in the background, within a budget, with progress.

A search runs independently of the pages that show it, and ends after LOOKED_WITHIN seconds without a viewer.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from beanstalk_client.commands import make
from beanstalk_client.console.actions import meaning
from beanstalk_client.console.security import who_has_most
from beanstalk_client.errors import Error, NotFoundError
from beanstalk_client.job import Job
from beanstalk_client.observe.reader import Reader
from beanstalk_client.statistics import Statistics

BATCH: Final = 25
A_SECOND: Final = 500
BYTES_A_SECOND: Final = 20_000_000
"""Bodies, and bytes of them, that are read a second: a few milliseconds of the server's time."""

MAX_SEEN: Final = 200_000
MAX_FOUND: Final = 5000
MAX_BODY: Final = 1_048_576
"""Bounds: jobs that are looked at, jobs that are found, bytes of a body that is read."""

MAX_BATCH: Final = 2 * MAX_BODY
"""Bytes of bodies that are asked for at once: other pages are served between two batches."""

LOOKED_WITHIN: Final = 60.0

MAX_SEARCHES: Final = 20
"""Maximum number of searches; beyond it, the oldest one of the token with most searches is evicted."""


@dataclass(eq=False, repr=False)
class Search:
    """A search.

    Attributes:
        total: how many jobs are to be looked at, as far as is known.
        seen: how many have been.
        passed_over: how many were too large to be read.
        found: what fits, as list-jobs tells of it.
        state: "runs", "done", "stopped", "full" or "failed".
    """

    id: int
    owner: str
    reader: Reader
    tube: str
    job_state: str
    text: str
    total: int
    seen: int = 0
    passed_over: int = 0
    found: list[Statistics] = field(default_factory=list)
    state: str = "runs"
    error: str = ""

    def __post_init__(self) -> None:
        self._wanted = self.text.encode("utf-8", "replace").lower()
        self._looked = time.monotonic()
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._run())

    @property
    def share(self) -> float:
        """Its progress, from 0 to 1."""
        return 1.0 if self.state == "done" else min(self.seen / self.total, 1.0) if self.total else 0.0

    def look(self) -> None:
        """Note that a page shows it."""
        self._looked = time.monotonic()

    def stop(self) -> None:
        if self.state == "runs":
            self.state = "stopped"

    async def _run(self) -> None:
        try:
            await self._search()
        except NotFoundError:  # the tube has gone
            self.state = "done"
        except (Error, OSError) as error:
            self.state, self.error = "failed", meaning(error)

    async def _search(self) -> None:
        following = "0"
        while following:
            following, jobs = await self.reader.jobs(self.tube, self.job_state, following, 1000)
            for start in range(0, len(jobs), BATCH):
                began = time.monotonic()
                read = await self._look_into(jobs[start : start + BATCH])
                if began - self._looked > LOOKED_WITHIN:
                    self.stop()
                elif len(self.found) >= MAX_FOUND or self.seen >= MAX_SEEN:
                    self.state = "full"
                if self.state != "runs":
                    return
                pause = max(BATCH / A_SECOND, read / BYTES_A_SECOND)
                await asyncio.sleep(max(pause - (time.monotonic() - began), 0))
        self.state = "done"

    async def _look_into(self, jobs: list[Statistics]) -> int:
        """Look into these jobs; return how many bytes of bodies were read."""
        found = {int(job["id"]) for job in jobs if self._wanted in str(job.get("key", "")).lower().encode()}
        unread = [job for job in jobs if job["id"] not in found and int(job.get("size", 0)) <= MAX_BODY]
        self.passed_over += len(jobs) - len(found) - len(unread)
        for some in _by_bytes(unread):
            for each in await self.reader.together([make.peek(int(job["id"])) for job in some]):
                if isinstance(each, Job) and self._wanted in each.body.lower():
                    found.add(each.id)
        self.found += [job for job in jobs if job["id"] in found]
        self.seen += len(jobs)
        return sum(int(job.get("size", 0)) for job in unread)


def _by_bytes(jobs: list[Statistics]) -> Iterator[list[Statistics]]:
    """These jobs in batches with bodies of MAX_BATCH bytes at most, or of one job."""
    batch: list[Statistics] = []
    size = 0
    for job in jobs:
        own = int(job.get("size", 0))
        if batch and size + own > MAX_BATCH:
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += own
    if batch:
        yield batch


class Searches:
    """The latest searches."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._searches: dict[int, Search] = {}

    def begin(self, owner: str, reader: Reader, tube: str, job_state: str, text: str, total: int) -> Search:
        search = Search(next(self._ids), owner, reader, tube, job_state, text, total)
        self._searches[search.id] = search
        while len(self._searches) > MAX_SEARCHES:
            most = who_has_most(each.owner for each in self._searches.values())
            self._searches.pop(next(key for key, each in self._searches.items() if each.owner == most)).stop()
        return search

    def find(self, owner: str, id: int) -> Search | None:
        search = self._searches.get(id)
        return search if search is not None and search.owner == owner else None

    async def close(self) -> None:
        tasks = [search.task for search in self._searches.values() if not search.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
