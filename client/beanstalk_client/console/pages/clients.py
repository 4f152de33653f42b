"""The pages of connected clients and of the cluster."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from beanstalk_client.console.visit import Visit
from beanstalk_client.errors import ForbiddenError, UnknownCommandError

SHOWN: Final = 500

CLUSTER: Final = {
    "cluster-role": "role of the answering node",
    "cluster-leader": "leader",
    "cluster-epoch": "epoch",
    "cluster-shards": "shards",
    "cluster-shards-led": "shards led by the answering node",
    "cluster-commit-latency-p50": "commit, p50 (µs)",
    "cluster-commit-latency-p99": "commit, p99 (µs)",
}

SERVER: Final = ("server", "version", "hostname", "os", "platform", "pid", "uptime", "max-job-size", "draining", "id")


SEARCHED: Final = ("name", "client-name", "user", "using", "tubes")
"""What a search looks at."""


def does(client: Mapping[str, Any]) -> str:
    """What a client does. The protocol calls one that holds jobs idle, as it neither waits nor is blocked."""
    state = str(client.get("state", ""))
    return "working" if state == "idle" and client.get("reserved") else state


def _lasting(client: Mapping[str, Any]) -> tuple[int, int]:
    """What clients are sorted by: workers first, then the oldest. The jobs that they hold change at each sample."""
    return -int(client.get("worker", 0)), -int(client.get("age", 0))


async def clients(visit: Visit) -> Response:
    sampler = visit.user.sampler
    await sampler.look()
    problem = ""
    found: list[dict[str, Any]] = []
    try:
        found = list(await visit.user.list_clients())
    except UnknownCommandError:
        problem = "This server cannot list its clients; beanstalk-server can."
    except ForbiddenError:
        problem = 'Your token may not list clients: it needs the right admin = "*".'
    text, only = visit.text("q").lower(), visit.text("only")
    if text:
        found = [one for one in found if text in " ".join(str(one.get(key, "")) for key in SEARCHED).lower()]
    count = {
        "workers": sum(1 for one in found if one.get("worker")),
        "waiting": sum(1 for one in found if one.get("state") == "waiting"),
        "holding": sum(1 for one in found if one.get("reserved")),
        "producers": sum(1 for one in found if one.get("producer")),
    }
    kinds = {"workers": "worker", "holding": "reserved", "producers": "producer"}
    if only in kinds:
        found = [one for one in found if one.get(kinds[only])]
    elif only == "waiting":
        found = [one for one in found if one.get("state") == "waiting"]
    shown = heapq.nsmallest(SHOWN, found, key=lambda one: (-int(one.get("reserved", 0)), *_lasting(one)))
    return visit.page(
        "clients.html",
        tab="clients",
        clients=sorted(shown, key=_lasting),
        does=does,
        total=len(found),
        count=count,
        q=visit.text("q"),
        only=only,
        problem=problem,
        server=sampler.samples,
        history=sampler.history,
    )


async def cluster(visit: Visit) -> Response:
    sampler = visit.user.sampler
    await sampler.look()
    server = sampler.samples
    sees_server = sampler.sees_server
    if sees_server:
        visit.state.metrics.look()
    return visit.page(
        "cluster.html",
        tab="cluster",
        server=server,
        sees_server=sees_server,
        figures={text: server.figures[key] for key, text in CLUSTER.items() if key in server.figures}
        if sees_server
        else {},
        about={key: server.figures[key] for key in SERVER if key in server.figures} if sees_server else {},
        nodes=visit.state.metrics.nodes if sees_server else [],
        draining=str(server.figures.get("draining", "")).lower() == "true",
        knows_drain="cmd-drain" in server.figures,
        problem=sampler.problem,
    )
