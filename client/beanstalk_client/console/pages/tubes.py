"""All tubes: search, sort by any column, in pages. It shows what has been sampled, and asks the server for nothing."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response

from beanstalk_client.console.visit import Visit
from beanstalk_client.observe.samples import (
    BURIED,
    DELAYED,
    PAUSE_LEFT,
    PUTS,
    READY,
    RESERVED,
    WAITING,
    WATCHING,
    Tube,
)

PAGE_SIZE: Final = 50

COLUMNS: Final[dict[str, tuple[str, Callable[[Tube], Any]]]] = {
    "ready": ("ready", lambda tube: tube.figures[READY] or 0),
    "reserved": ("reserved", lambda tube: tube.figures[RESERVED] or 0),
    "delayed": ("delayed", lambda tube: tube.figures[DELAYED] or 0),
    "buried": ("buried", lambda tube: tube.figures[BURIED] or 0),
    "puts": ("put/s", lambda tube: tube.puts or 0.0),
    "deletes": ("delete/s", lambda tube: tube.deletes or 0.0),
    "growth": ("growth/s", lambda tube: tube.growth or 0.0),
    "age": ("next job", lambda tube: tube.next_age or 0),
    "watching": ("workers", lambda tube: tube.figures[WATCHING] or 0),
    "total": ("total", lambda tube: tube.figures[PUTS] or 0),
}
"""What tubes can be sorted by, largest first: the heading, and the figure."""

ONLY: Final[dict[str, tuple[str, Callable[[Tube], bool]]]] = {
    "unwatched": (
        "with ready jobs and no worker",
        lambda tube: bool(tube.figures[READY]) and not tube.figures[WATCHING] and not tube.name.endswith(".errors"),
    ),
    "paused": ("paused", lambda tube: bool(tube.figures[PAUSE_LEFT])),
    "buried": ("with buried jobs", lambda tube: bool(tube.figures[BURIED])),
    "waiting": ("with waiting workers", lambda tube: bool(tube.figures[WAITING])),
    "throttled": ("held back by a policy", lambda _: True),
}


async def tubes(visit: Visit) -> Response:
    sampler = visit.user.sampler
    await sampler.look()
    text, only = visit.text("q"), visit.text("only")
    sort, page = visit.text("sort", "ready"), max(visit.number("page", 1, 10**6), 1)
    found = list(sampler.tubes().values())
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
        shown = heapq.nlargest(last, found, key=figure)[first:]  # of equal ones, in the order of their names
    else:
        sort = "name"
        shown = heapq.nsmallest(last, found, key=lambda tube: tube.name)[first:]
    sampler.show([tube.name for tube in shown])
    server = sampler.server()
    count = server.number("current-tubes") if server.figures and not sampler.survey.is_refused else known
    return visit.page(
        "tubes.html",
        tab="tubes",
        rows=[sampler.row(tube.name) for tube in shown],
        columns={name: heading for name, (heading, _) in COLUMNS.items()},
        only=only,
        filters={name: heading for name, (heading, _) in ONLY.items()},
        q=text,
        sort=sort,
        page=page,
        found=len(found),
        pages=max(-(-len(found) // PAGE_SIZE), 1),
        known=known,
        count=count,
        throttled=sampler.throttled,
        history=sampler.history,
        problem=sampler.problem,
    )
