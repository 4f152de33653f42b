"""The page of a tube: its charts, its policy and its jobs by state; and the page of a search through its jobs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.responses import Response

from beanstalk_client.console.bodies import summary
from beanstalk_client.console.visit import BadRequestError, Visit, read_name
from beanstalk_client.errors import ForbiddenError, NotFoundError
from beanstalk_client.observe.reader import PAGE_SIZE, Reader
from beanstalk_client.observe.samples import STATES, ages, percentiles
from beanstalk_client.statistics import Statistics

POLICY: Final = {
    "bytes": "bytes of bodies",
    "refused-jobs": "puts refused: too many jobs",
    "refused-bytes": "puts refused: too many bytes",
    "refused-delay": "puts refused: delay too long",
    "refused-size": "puts refused: body too large",
    "expired-jobs": "expired",
    "dead-jobs": "moved to the dead tube",
    "retried-jobs": "retried after a backoff",
    "redriven-jobs": "redriven from here",
    "held-keys": "held keys",
}
"""What stats-tube says of a tube with a policy, in words."""

SEARCH_PAGE: Final = 50


def _done_by_policy(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What the policy of a tube has done, in words: at least one figure where it has a policy."""
    found = {text: figures[key] for key, text in POLICY.items() if key in figures}
    return {text: value for text, value in found.items() if value} or dict(list(found.items())[:1])


async def _summaries(reader: Reader, jobs: Iterable[Statistics]) -> dict[int, str]:
    """The bodies of some jobs in one line each, by their ids."""
    bodies = await reader.bodies(jobs)
    return await asyncio.to_thread(lambda: {number: summary(body) for number, body in bodies.items()})


async def tube(visit: Visit) -> Response:
    name = visit.tube()
    sampler = visit.user.sampler
    await sampler.look([name])
    figures: Statistics = {}
    if not visit.live:
        try:
            figures = await visit.user.client.stats_tube(name)
        except NotFoundError:
            if did := visit.text("did"):  # an order has taken its last job, and the tube has gone with it
                return visit.redirect(visit.url("tubes", did=did))
            raise
        sampler.samples.take_tube(sampler.now, name, figures)
    row = sampler.samples.tubes.get(name)
    if row is None:
        raise NotFoundError
    state = visit.text("state") or next(
        (each for each in ("buried", "ready", "reserved", "delayed") if getattr(row, each)), "ready"
    )
    if state not in STATES:
        raise BadRequestError("Unknown state: must be ready, reserved, delayed or buried.")
    following = visit.text("from", "0")
    if not re.fullmatch(r"\d[-0-9]{0,82}", following, re.ASCII):
        raise BadRequestError("Bad position in the list.")
    jobs: list[Statistics] = []
    bodies: dict[int, str] = {}
    problem = ""
    if not visit.live:
        try:
            following, jobs = await visit.user.jobs(name, state, following)
            bodies = await _summaries(visit.user, jobs)
        except ForbiddenError:
            following, problem = "", "Your token has no right to inspect the jobs of this tube."
    return visit.page(
        "tube.html",
        tab="tubes",
        name=name,
        row=row,
        figures=figures,
        policy=_done_by_policy(figures),
        percentiles=percentiles(figures),
        ages=ages(figures),
        states=STATES,
        state=state,
        jobs=jobs,
        bodies=bodies,
        size=PAGE_SIZE,
        following=following,
        position=visit.text("from", "0"),
        problem=problem,
        is_throttled=name in sampler.throttled,
        history=sampler.history,
        can_list=await visit.knows("list-jobs"),
    )


async def begin_search(visit: Visit) -> Response:
    form = await visit.form()
    name = read_name(form.get("name", [""])[0])
    state = form.get("state", ["ready"])[0]
    text = form.get("text", [""])[0].strip()
    if state not in STATES or not text or len(text) > 1000:
        raise BadRequestError("A search needs a text of 1 to 1,000 characters, and a state.")
    if not await visit.knows("list-jobs"):
        raise BadRequestError("This server cannot list jobs, so they cannot be searched; beanstalk-server can.", 501)
    figures = await visit.user.client.stats_tube(name)
    total = int(figures[f"current-jobs-{state}"])
    search = visit.state.searches.begin(visit.owner, visit.user, name, state, text, total)
    return visit.redirect(visit.url("search", id=search.id))


async def search(visit: Visit) -> Response:
    found = visit.state.searches.find(visit.owner, visit.number("id"))
    if found is None:
        raise BadRequestError("This search no longer exists.", 404)
    found.look()
    page = max(visit.number("page", 1, 10**4), 1)
    jobs = found.found[(page - 1) * SEARCH_PAGE : page * SEARCH_PAGE]
    return visit.page(
        "search.html",
        tab="tubes",
        search=found,
        jobs=jobs,
        bodies=await _summaries(visit.user, jobs),
        page=page,
        pages=max(-(-len(found.found) // SEARCH_PAGE), 1),
    )
