"""Finds failed jobs, buried or in dead tubes, and groups them by tube, task and error.

Workers leave a report about each job that they bury, in the tube NAME.errors (tasks/failure.py). Those are read once
each, some in a second, so that a page with many of them fills within seconds and the server serves others meanwhile. A
buried job without a report is grouped by what its body calls, and by the reason that the server gives.

    list-jobs NAME buried, NAME.errors      in pages, each LISTED_AGAIN seconds while there are viewers
    peek                                    PEEKED a second, of reports and jobs that have not been read yet

Two errors are the same if they differ in numbers and quoted text only. Any client that may put can leave texts as long
as a body, so each is cut before it is kept or matched, bodies are decoded in a thread, and each view reads MAX_READ
bytes at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from beanstalk_client.commands import PAGE_ENTRIES, make
from beanstalk_client.console.bodies import Report, call_of, report_of
from beanstalk_client.errors import Error, UnknownCommandError
from beanstalk_client.job import Job
from beanstalk_client.observe.reader import Reader
from beanstalk_client.statistics import Statistics
from beanstalk_client.tasks.failure import ERRORS

LISTED_AGAIN: Final = 5.0
"""Seconds after which the lists are asked for again."""

MAX_TUBES: Final = 100
"""Maximum number of tubes with buried jobs that are listed, those with the most jobs first; the same for dead tubes."""

MAX_JOBS: Final = 2000
MAX_BODIES: Final = 20_000
"""Maximum number of jobs that are listed: of a tube, and of all tubes together, in equal shares."""

PEEKED: Final = 100
"""Bodies that are read a second: a millisecond or two of the server's time."""

BATCH: Final = 20

MAX_BODY: Final = 65_536
"""Bytes of the largest body that is read: no report is longer (REPORT_LENGTH)."""

MAX_READ: Final = 2 * 1024 * 1024
"""Bytes of bodies that one view reads."""

MAX_TEXT: Final = 1000
"""Characters of an error that are kept and matched, and of each other text of a report."""

VARIABLE: Final = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}\b|\d+|'[^']*'|\"[^\"]*\"")

REASONS: Final = {
    "released": "released by a worker",
    "timed-out": "its time to run ended",
    "disconnected": "its worker disconnected",
    "expired": "it expired",
}


@dataclass(slots=True)
class Failed:
    """A job that has failed.

    Attributes:
        state: "buried", or "dead" if it is in a dead tube.
        age: seconds since it was put.
        size: bytes of its body.
    """

    id: int
    tube: str
    state: str
    age: int
    size: int
    reason: str
    report: Report | None
    task: str
    origin: str = ""

    @property
    def error(self) -> str:
        return self.report.error if self.report else REASONS.get(self.reason, self.reason)


@dataclass(slots=True)
class Group:
    """Jobs that have failed alike.

    Attributes:
        key: tells it from the others, also after a restart.
        error: of the latest.
        first, last: when they were buried, as their reports say; "" if no report does.
    """

    key: str
    tube: str
    state: str
    task: str
    error: str
    jobs: list[Failed] = field(default_factory=list)
    first: str = ""
    last: str = ""
    origins: set[str] = field(default_factory=set)

    @property
    def example(self) -> Failed:
        """The latest job that has a report, or else the first."""
        return max(
            self.jobs, key=lambda job: (job.report is not None, job.report.buried if job.report else "", -job.age)
        )


def same_error(error: str) -> str:
    """An error without what differs from job to job."""
    return VARIABLE.sub("…", error[:MAX_TEXT])[:300]


def shortened(report: Report) -> Report:
    """A report as it is kept: without its traceback, and with short texts."""
    texts = {name: getattr(report, name)[:MAX_TEXT] for name in ("tube", "task", "error", "buried", "worker")}
    return replace(report, traceback=[], **texts)


def group(jobs: Iterable[Failed]) -> list[Group]:
    """Group jobs by tube, state, task and error, the largest group first."""
    groups: dict[tuple[str, ...], Group] = {}
    for job in jobs:
        error = job.error
        alike = (job.tube, job.state, job.task, same_error(error))
        found = groups.get(alike)
        if found is None:
            key = hashlib.sha256("\0".join(alike).encode("utf-8", "replace")).hexdigest()[:16]
            found = groups[alike] = Group(key, job.tube, job.state, job.task, error)
        found.jobs.append(job)
        if job.origin:
            found.origins.add(job.origin)
        if job.report is not None:
            found.first = min(found.first or job.report.buried, job.report.buried)
            if job.report.buried >= found.last:
                found.last, found.error = job.report.buried, error
    return sorted(groups.values(), key=lambda each: (-len(each.jobs), each.tube, each.key))


def fitting(groups: Iterable[Group], tube: str, text: str) -> list[Group]:
    """The groups of a tube, or from it, with a text in the task or in the error of a job; "" fits all."""
    wanted = text.lower()
    return [
        each
        for each in groups
        if (not tube or tube == each.tube or tube in each.origins)
        and (wanted in each.task.lower() or any(wanted in job.error.lower() for job in each.jobs))
    ]


class Failures:
    """The failures that a token may see.

    Attributes:
        groups: as they were found last.
        is_partial: there are more jobs than are looked at.
        unread: how many bodies are still to be read.
        can_list: whether the server can list jobs; None before it was asked.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = asyncio.Lock()
        self._listed_at = -LISTED_AGAIN
        self._listed: list[tuple[str, str, Statistics, str]] = []  # tube, state, job, origin
        self._reports: dict[int, tuple[str, int]] = {}  # by the id of the job: the tube of errors, and the report's id
        self._sizes: dict[int, int] = {}  # of reports and jobs, by id
        self._bodies: dict[int, Report | str] = {}  # by id: the report, or what a job calls
        self._most = MAX_JOBS
        self._is_stale = True  # lists or bodies have changed since `groups` was made
        self.groups: list[Group] = []
        self.is_partial: bool = False
        self.unread: int = 0
        self.can_list: bool | None = None

    async def refresh(self, within: float = 0.15) -> list[Group]:
        """Look what has failed, for some seconds at most; what remains is for the next time."""
        if self._lock.locked():
            return self.groups
        async with self._lock:
            now = time.monotonic()
            if now - self._listed_at >= LISTED_AGAIN:
                self._listed_at = now
                with contextlib.suppress(UnknownCommandError):
                    await self._list()
            await self._read(now + within)
            if self._is_stale:
                self._is_stale = False
                self.groups = await asyncio.to_thread(lambda: group(self._jobs()))
        return self.groups

    async def complete(self, found: Group) -> None:
        """Give the example of a group its whole report, with the traceback."""
        example = found.example
        report_id = self._reports.get(example.id, ("", 0))[1] if example.report is not None else 0
        if report_id:
            (result,) = await self._reader.together([make.peek(report_id)])
            if isinstance(result, Job) and len(result.body) <= MAX_BODY:
                example.report = await asyncio.to_thread(report_of, result.body) or example.report

    def find(self, key: str) -> Group | None:
        return next((each for each in self.groups if each.key == key), None)

    async def _list(self) -> None:
        tubes = self._reader.sampler.samples.tubes
        buried = [name for name, tube in tubes.items() if tube.buried and not name.endswith(ERRORS)]
        buried.sort(key=lambda name: -(tubes[name].buried or 0))
        self.is_partial = len(buried) > MAX_TUBES
        listed: list[tuple[str, str, Statistics, str]] = []
        reports: dict[int, tuple[str, int]] = {}
        sizes: dict[int, int] = {}
        errors = [name for name, tube in tubes.items() if name.endswith(ERRORS) and tube.ready]
        dead = await self._dead_tubes()
        number = len(buried[:MAX_TUBES]) + len(errors[:MAX_TUBES]) + len(dead)
        self._most = min(MAX_JOBS, MAX_BODIES // max(number, 1))
        for name in buried[:MAX_TUBES]:
            listed += [(name, "buried", job, "") for job in await self._all(name, "buried")]
        for name in errors[:MAX_TUBES]:
            for job in await self._all(name, "ready"):
                matched = re.fullmatch(r"job-(\d{1,20})", str(job.get("key", "")))
                if matched and int(job.get("size", 0)) <= MAX_BODY:
                    reports[int(matched[1])] = (name, int(job["id"]))
                    sizes[int(job["id"])] = int(job.get("size", 0))
        for name, first in dead:
            for job in await self._all(name, "ready"):
                listed.append((name, "dead", job, str(first["origin"]) if job["id"] == first["id"] else ""))
        self.can_list = True
        self._is_stale = True
        sizes |= {int(job["id"]): int(job.get("size", 0)) for _, _, job, _ in listed}
        self._listed, self._reports, self._sizes = listed, reports, sizes

    async def _all(self, tube: str, state: str) -> list[Statistics]:
        """The jobs of a tube in a state: as many as are looked at."""
        try:
            following, jobs = await self._reader.page(tube, state, "0", min(self._most, PAGE_ENTRIES))
            while following and len(jobs) < self._most:
                left = self._most - len(jobs)
                following, more = await self._reader.page(tube, state, following, min(left, PAGE_ENTRIES))
                jobs += more
        except UnknownCommandError:
            self.can_list = False
            raise
        except Error:  # it has gone, or may not be seen
            return []
        self.is_partial |= bool(following)
        return jobs

    async def _dead_tubes(self) -> list[tuple[str, Statistics]]:
        """The tubes that have dead letters, with the first ready job of each, which has come from another tube."""
        tubes = self._reader.sampler.samples.tubes
        names = [name for name, tube in tubes.items() if tube.ready and not name.endswith(ERRORS)]
        names = [name for name in names if not tubes[name].delayed]
        names.sort(key=lambda name: ("dead" not in name.lower(), -(tubes[name].ready or 0)))
        pages = await asyncio.gather(
            *[self._reader.jobs(name, "ready", count=1) for name in names[:MAX_TUBES]], return_exceptions=True
        )
        first = [
            (name, page[1][0])
            for name, page in zip(names, pages, strict=False)
            if not isinstance(page, BaseException) and page[1] and page[1][0].get("reason")
        ]
        found = await self._reader.together([make.stats_job(job["id"]) for _, job in first])
        return [
            (name, job)
            for (name, _), job in zip(first, found, strict=True)
            if isinstance(job, dict) and job.get("origin")
        ]

    async def _read(self, until: float) -> None:
        """Read bodies that have not been read yet: reports, then those of jobs without a report."""
        wanted = [self._reports[job["id"]][1] for _, _, job, _ in self._listed if job["id"] in self._reports]
        wanted += [
            job["id"]
            for _, _, job, _ in self._listed
            if job["id"] not in self._reports and int(job.get("size", 0)) <= MAX_BODY
        ]
        missing = [each for each in wanted if each not in self._bodies]
        done = read = 0
        while done < len(missing) and done < 2 * PEEKED and read < MAX_READ and time.monotonic() < until:
            batch = missing[done : done + BATCH]
            results = await self._reader.together([make.peek(each) for each in batch])
            bodies = await asyncio.to_thread(_read_bodies, results)
            self._bodies.update(zip(batch, bodies, strict=True))
            self._is_stale = True
            done += len(batch)
            read += sum(self._sizes[each] for each in batch)
        self.unread = len(missing) - done
        if len(self._bodies) > MAX_BODIES:
            kept = set(wanted)
            self._bodies = {each: body for each, body in self._bodies.items() if each in kept}

    def _jobs(self) -> list[Failed]:
        found = []
        for tube, state, job, origin in self._listed:
            job_id = int(job["id"])
            report_id = self._reports.get(job_id, ("", 0))[1]
            read = self._bodies.get(report_id or job_id, "")
            report = read if isinstance(read, Report) and read.job == job_id else None
            task = report.task if report else read if isinstance(read, str) else ""
            age, size = int(job.get("age", 0)), int(job.get("size", 0))
            found.append(Failed(job_id, tube, state, age, size, str(job.get("reason", "")), report, task, origin))
        return found


def _read_bodies(results: Sequence[Any]) -> list[Report | str]:
    return [_read_body(each.body) if isinstance(each, Job) else "" for each in results]


def _read_body(body: bytes) -> Report | str:
    """The report that a job's body is, or the name of what it calls; "" for neither."""
    if len(body) > MAX_BODY:  # put again since it was listed
        return ""
    report = report_of(body)
    if report is not None:
        return shortened(report)
    call = call_of(body)
    return call.function[:MAX_TEXT] if call is not None else ""
