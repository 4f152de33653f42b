"""The page of failures in groups, and the page of one group with an example."""

from __future__ import annotations

import asyncio
import heapq

from starlette.responses import Response

from beanstalk_client.console.failures import fitting
from beanstalk_client.console.visit import BadRequestError, Visit

SHOWN_TUBES = 100
"""Tubes that are listed beside the groups."""

SHOWN = 200
"""Groups that are listed, and jobs of a group that its page lists."""


async def failures(visit: Visit) -> Response:
    user = visit.user
    await user.sampler.look()
    groups = await user.failures.refresh()
    tube, text = visit.text("tube"), visit.text("q")
    found = await asyncio.to_thread(fitting, groups, tube, text) if tube or text else groups
    named = {name for group in groups for name in (group.tube, *group.origins)} | ({tube} - {""})
    tubes = user.sampler.samples.tubes
    most = heapq.nlargest(SHOWN_TUBES, tubes.values(), key=lambda tube: tube.buried or 0)
    buried = [tube for tube in most if tube.buried]
    return visit.page(
        "failures.html",
        tab="failures",
        groups=found[:SHOWN],
        fits=len(found),
        count=len(groups),
        found=user.failures,
        tube=tube,
        names=sorted(named),
        q=text,
        back=visit.url("failures", tube=tube, q=text).removeprefix(f"{visit.base}/"),
        buried=buried,
        survey=user.sampler.survey,
    )


async def failure(visit: Visit) -> Response:
    await visit.user.sampler.look()
    if not visit.live:
        await visit.user.failures.refresh()
    group = visit.user.failures.find(visit.text("key"))
    if group is None:
        raise BadRequestError(
            "This group no longer exists: its jobs were retried or deleted, or failed with another error.", 404
        )
    await visit.user.failures.complete(group)
    return visit.page("failure.html", tab="failures", group=group, jobs=group.jobs[:SHOWN])
