"""The page of a group of jobs: its progress, its buried jobs, and the jobs that wait for it."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response

from beanstalk_client.console.visit import Visit
from beanstalk_client.observe.samples import STATES

ENDS: Final = ("done", "cancelled", "expired", "dead")


async def group(visit: Visit) -> Response:
    name = visit.tube()  # its rules are those of a tube's name
    await visit.user.sampler.look()
    if visit.live:
        return visit.message(200, "", "")
    found = await visit.user.client.stats_group(name)
    return visit.page(
        "group.html",
        tab="tubes",
        name=name,
        home=name.rpartition("/")[0] or name,
        group=found,
        states=STATES,
        ends=ENDS,
        buried=[int(each) for each in re.findall(r"\d+", str(found["buried"]))],
        left=sum(int(found[f"current-jobs-{state}"]) for state in STATES),
    )
