"""The page of schedules and outboxes, from what schedulers (schedules/) and relays (outbox/) leave in the server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from beanstalk_client.commands import make
from beanstalk_client.console.bodies import Call, call_of
from beanstalk_client.console.visit import Visit
from beanstalk_client.errors import ForbiddenError, NotFoundError, UnknownCommandError
from beanstalk_client.job import Job
from beanstalk_client.outbox.status import EVERY, KEY, TUBE, Status
from beanstalk_client.schedules.moments import Cron, Every, Moments, last
from beanstalk_client.schedules.planner import Plan
from beanstalk_client.schedules.schedule import key_of
from beanstalk_client.schedules.scheduler import PLAN_KEY

MAX_PLAN: Final = 65_536
"""Bytes of the largest plan that is read."""

MAX_PLANS: Final = 200

STALE_AFTER: Final = 3 * EVERY + 60
"""Seconds without a new status after which no relay runs, or after which the clocks differ by a minute."""

DAY: Final = 86400

OUTCOMES: Final = {
    "ready": "waiting for a worker",
    "reserved": "runs",
    "delayed": "failed, will be retried",
    "buried": "failed",
    "": "done",
}
"""How a firing went, by the state of its job: a job that is gone was done."""


@dataclass(slots=True)
class Line:
    """A schedule as it is shown.

    Attributes:
        since: when it was planned first.
        next: when it fires next, and the job of that firing.
        last: when it fired last, how that went, and the job of that if there is one.
        is_stale: no scheduler renews the plan.
    """

    group: str
    name: str
    plan: Plan
    since: int
    next: int | None = None
    next_job: dict[str, Any] | None = None
    last: int | None = None
    outcome: str = ""
    last_job: dict[str, Any] | None = None
    call: Call | None = None
    is_stale: bool = False


@dataclass(slots=True)
class OutboxLine:
    """An outbox as it is shown.

    Attributes:
        is_stale: no relay renews the status.
    """

    name: str
    status: Status
    is_stale: bool


def read_timing(text: str) -> Moments | None:
    """The moments that a plan names; None if they cannot be computed here: cron expressions need the extra `cron`."""
    if matched := re.fullmatch(r"every (\d{1,10}) s", text):
        return Every(int(matched[1])) if int(matched[1]) else None
    if matched := re.fullmatch(r"cron (.{1,200}) (\S{1,60})", text):
        try:
            return Cron(matched[1], matched[2])
        except (ImportError, ValueError):
            return None
    return None


async def schedules(visit: Visit) -> Response:
    await visit.user.sampler.look()
    if visit.live:
        return visit.message(200, "", "")
    lines: list[Line] = []
    outboxes: list[OutboxLine] = []
    problem = ""
    try:
        for group in visit.settings.schedules:
            lines += await _plans(visit, group)
        outboxes = await _outboxes(visit)
    except UnknownCommandError:
        problem = "Schedules need keys and list-jobs, which this server does not support; beanstalk-server does."
    except ForbiddenError:
        problem = "Your token has no right to inspect the tubes of plans and outboxes."
    lines.sort(key=lambda line: (line.next or 2**40, line.name))
    return visit.page(
        "schedules.html", tab="schedules", lines=lines, outboxes=outboxes, problem=problem, now=time.time()
    )


async def _bodies(visit: Visit, tube: str, prefix: str) -> list[tuple[str, int, bytes]]:
    """The delayed jobs of a tube whose keys begin with a prefix: what follows it, the age in seconds, and the body."""
    try:
        _, jobs = await visit.user.client.execute(make._job_page(tube, "delayed"))
    except NotFoundError:
        return []
    named = {
        int(job["id"]): (str(job["key"])[len(prefix) :], int(job["age"]))
        for job in jobs
        if str(job.get("key", "")).startswith(prefix) and int(job.get("size", 0)) <= MAX_PLAN
    }
    ids = list(named)[:MAX_PLANS]
    bodies = await visit.user.together([make.peek(each) for each in ids])
    return [(*named[each], found.body) for each, found in zip(ids, bodies, strict=True) if isinstance(found, Job)]


async def _outboxes(visit: Visit) -> list[OutboxLine]:
    lines = []
    for name, _, body in await _bodies(visit, TUBE, KEY):
        with contextlib.suppress(ValueError):
            status = Status.decode(body)
            lines.append(OutboxLine(name, status, time.time() - status.time > STALE_AFTER))
    return sorted(lines, key=lambda line: line.name)


async def _plans(visit: Visit, group: str) -> list[Line]:
    lines = []
    for name, age, body in await _bodies(visit, group, PLAN_KEY):
        with contextlib.suppress(ValueError):
            lines.append(Line(group, name, Plan.decode(body.decode("utf-8", "replace")), int(time.time()) - age))
    for line in lines:
        await _complete(visit, line)
    return lines


async def _complete(visit: Visit, line: Line) -> None:
    """Look for the jobs of the next firing and of the last one."""
    now = int(time.time())
    plan = line.plan
    line.next = next((moment for moment in plan.planned if moment > now), None)
    line.is_stale = plan.renewed_until < now
    past = [moment for moment in plan.planned if moment <= now]
    moments = read_timing(plan.timing)
    earliest = max(line.since, now - 400 * DAY)
    line.last = past[-1] if past else last(moments, earliest, now) if moments is not None else None
    if line.next is not None:
        line.next_job, line.call = await _firing(visit, line, line.next)
    if line.last is not None:
        line.last_job, call = await _firing(visit, line, line.last)
        line.call = line.call or call
        line.outcome = OUTCOMES.get(line.last_job["state"] if line.last_job else "", "")


async def _firing(visit: Visit, line: Line, moment: int) -> tuple[dict[str, Any] | None, Call | None]:
    try:
        key = key_of(line.group, line.name, moment)
        async with visit.user.using(line.plan.tube) as client:
            job = await client.peek_keyed(key)
        return dict(await visit.user.client.stats_job(job.id)), await asyncio.to_thread(call_of, job.body)
    except (NotFoundError, ForbiddenError, ValueError):
        return None, None
