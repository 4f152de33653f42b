"""The page of all tubes: filter, sort and page through the samples, without a request to the server."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from beanstalk_client.console.visit import Visit
from beanstalk_client.observe.samples import Tube

PAGE_SIZE: Final = 50

COLUMNS: Final = {
    "ready": ("ready", "ready"),
    "reserved": ("reserved", "reserved"),
    "delayed": ("delayed", "delayed"),
    "buried": ("buried", "buried"),
    "puts": ("put/s", "puts"),
    "deletes": ("delete/s", "deletes"),
    "growth": ("growth/s", "growth"),
    "age": ("next job's age", "next_age"),
    "watching": ("workers", "watching"),
    "total": ("total", "total"),
}
"""What tubes can be sorted by, largest first: the heading, and the attribute of a tube."""

ONLY: Final[dict[str, tuple[str, Callable[[Tube], bool]]]] = {
    "unwatched": (
        "with ready jobs and no worker",
        lambda tube: bool(tube.ready) and not tube.watching and not tube.name.endswith(".errors"),
    ),
    "paused": ("paused", lambda tube: bool(tube.pause_left)),
    "buried": ("with buried jobs", lambda tube: bool(tube.buried)),
    "waiting": ("with waiting workers", lambda tube: bool(tube.waiting)),
    "throttled": ("throttled by a policy", lambda _: True),
}


async def tubes(visit: Visit) -> Response:
    sampler = visit.user.sampler
    await sampler.look()
    text, only = visit.text("q"), visit.text("only")
    sort, page = visit.text("sort", "ready"), max(visit.number("page", 1, 10**6), 1)
    found = list(sampler.samples.tubes.values())
    known = len(found)
    if text:
        found = [tube for tube in found if text.lower() in tube.name.lower()]
    if only == "throttled":
        found = [tube for tube in found if tube.name in sampler.throttled]
    elif only in ONLY:
        found = [tube for tube in found if ONLY[only][1](tube)]
    first, last = (page - 1) * PAGE_SIZE, page * PAGE_SIZE
    if sort in COLUMNS:
        figure = COLUMNS[sort][1]
        shown = heapq.nlargest(last, found, key=lambda tube: getattr(tube, figure) or 0)[
            first:
        ]  # of equal ones, in the order of their names
    else:
        sort = "name"
        shown = heapq.nsmallest(last, found, key=lambda tube: tube.name)[first:]
    sampler.show([tube.name for tube in shown])
    return visit.page(
        "tubes.html",
        tab="tubes",
        rows=shown,
        columns={name: heading for name, (heading, _) in COLUMNS.items()},
        only=only,
        filters={name: heading for name, (heading, _) in ONLY.items()},
        q=text,
        sort=sort,
        page=page,
        found=len(found),
        pages=max(-(-len(found) // PAGE_SIZE), 1),
        known=known,
        count=sampler.samples.number("current-tubes") if sampler.sees_server else known,
        throttled=sampler.throttled,
        history=sampler.history,
        problem=sampler.problem,
    )
