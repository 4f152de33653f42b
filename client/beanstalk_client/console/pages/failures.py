"""What has failed, in groups, and one group with an example."""

from __future__ import annotations

from starlette.responses import Response

from beanstalk_client.cli.top_samples import BURIED
from beanstalk_client.console.visit import BadRequestError, Visit

SHOWN = 200
"""Jobs of a group that its page lists."""


async def failures(visit: Visit) -> Response:
    user = visit.user
    await user.sampler.look()
    groups = await user.failures.refresh()
    tubes = user.sampler.tubes()
    buried = [user.sampler.row(name) for name, tube in tubes.items() if tube.figures[BURIED]]
    return visit.page(
        "failures.html",
        tab="failures",
        groups=groups,
        found=user.failures,
        buried=sorted((row for row in buried if row), key=lambda row: -(row.buried or 0))[:100],
        survey=user.sampler.survey,
    )


async def failure(visit: Visit) -> Response:
    await visit.user.sampler.look()
    if not visit.live:
        await visit.user.failures.refresh()
    group = visit.user.failures.find(visit.text("key"))
    if group is None:
        raise BadRequestError(
            "There is no such group any more: its jobs were retried, deleted, or failed otherwise.", 404
        )
    return visit.page("failure.html", tab="failures", group=group, jobs=group.jobs[:SHOWN])
