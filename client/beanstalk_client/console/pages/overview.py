"""The overview page: problems, totals, rates and the busiest tubes."""

from __future__ import annotations

import heapq
from typing import Final

from starlette.responses import Response

from beanstalk_client.console.metrics import RUN, WAIT
from beanstalk_client.console.problems import problems_of
from beanstalk_client.console.visit import Visit

BUSIEST: Final = 10
"""Number of tubes on the overview."""


async def overview(visit: Visit) -> Response:
    sampler = visit.user.sampler
    await sampler.look()
    server = sampler.samples
    sees_server = sampler.sees_server
    metrics = visit.state.metrics
    if sees_server:
        metrics.look()
    tubes = sampler.samples.tubes
    busiest = heapq.nlargest(
        BUSIEST, tubes.values(), key=lambda tube: ((tube.puts or 0) + (tube.deletes or 0), tube.ready or 0)
    )
    sampler.show([tube.name for tube in busiest])
    aged = [tube for tube in tubes.values() if tube.next_age is not None]
    oldest = max(aged, key=lambda tube: tube.next_age or 0, default=None)
    put = server.number("total-jobs") if sees_server else sum(tube.total or 0 for tube in tubes.values())
    rates = {name: server.rates.get(name) for name in ("puts", "reserves", "deletes")}
    return visit.page(
        "overview.html",
        tab="overview",
        problems=problems_of(sampler),
        is_new=put == 0 and (sees_server or bool(tubes)),
        server=server,
        sees_server=sees_server,
        totals=sampler.totals,
        rates={**rates, "failures": sampler.failures},
        history=sampler.history,
        oldest=oldest,
        busiest=sorted(busiest, key=lambda tube: tube.name),  # by their rates, rows would change places at each sample
        known=len(tubes),
        count=server.number("current-tubes") if sees_server else len(tubes),
        percentiles={"Waiting": metrics.percentiles(WAIT), "Processing": metrics.percentiles(RUN)}
        if sees_server
        else {},
        has_metrics=bool(metrics.nodes),
        metrics_problem=next((node.problem for node in metrics.nodes if node.problem), ""),
    )
