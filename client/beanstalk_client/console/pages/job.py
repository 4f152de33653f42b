"""The page of a job: its decoded body, its statistics, and the reason for its state."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any, Final

from starlette.responses import Response

from beanstalk_client.cli.show import why_there
from beanstalk_client.console.bodies import MAX_SHOWN, Report, describe, report_of
from beanstalk_client.console.rendering import moment
from beanstalk_client.console.visit import Visit
from beanstalk_client.errors import Error, ForbiddenError, NotFoundError
from beanstalk_client.statistics import Statistics
from beanstalk_client.tasks.failure import ERRORS

UNITS: Final = {"age": "s", "delay": "s", "ttr": "s", "time-left": "s", "expires-in": "s", "reserved-for": "s"}


async def job(visit: Visit) -> Response:
    job_id = visit.number("id")
    await visit.user.sampler.look()
    if visit.live:
        return visit.message(200, "", "")
    client = visit.user.client
    found = await client.stats_job(job_id)
    content, problem = b"", ""
    try:
        content = (await client.peek(job_id)).body
    except ForbiddenError:
        problem = "Your token has no right to read the body."
    body = await asyncio.to_thread(describe, content)
    tube: dict[str, Any] = {}
    with contextlib.suppress(Error):
        tube = dict(await client.stats_tube(found["tube"]))
    report = await _report(visit, found)
    told = {**dataclasses.asdict(report), "buried": moment(report.buried)} if report else None
    return visit.page(
        "job.html",
        tab="tubes",
        job=found,
        units=UNITS,
        body=body,
        problem=problem,
        why=why_there(found, tube, told),
        report=report or body.report,
        text=_editable(content),
        can_reschedule=found["state"] == "delayed" and await visit.knows("reschedule"),
        can_reprioritize=found["state"] != "reserved" and await visit.knows("reprioritize"),
    )


async def body(visit: Visit) -> Response:
    """The body as it is, for a file: no browser shows it."""
    job_id = visit.number("id")
    content = (await visit.user.client.peek(job_id)).body
    return Response(
        content,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="job-{job_id}.bin"'},
    )


def _editable(content: bytes) -> str | None:
    """A body that a text area gives back as it was; None if none would."""
    if len(content) > MAX_SHOWN:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").replace("\t", "").isprintable() else None


async def _report(visit: Visit, found: Statistics) -> Report | None:
    """The report of the worker that has buried a job, if it has left one."""
    for tube in (found["tube"], found.get("origin")):
        if not tube:
            continue
        with contextlib.suppress(NotFoundError, ForbiddenError, ValueError):  # ValueError: the name would be too long
            async with visit.user.using(f"{tube}{ERRORS}") as client:
                keyed = await client.knows("peek-keyed")
                left = await (client.peek_keyed(f"job-{found['id']}") if keyed else client.peek_ready())
            report = await asyncio.to_thread(report_of, left.body)
            if report is not None and report.job == found["id"]:
                return report
    return None
