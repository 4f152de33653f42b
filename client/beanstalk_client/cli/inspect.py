"""The CLI commands that only read: ping, stats, tubes, ls, peek, clients.

Must never change anything at the server.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import beanstalk_client
from beanstalk_client.cli.bodies import as_json, show_body
from beanstalk_client.cli.output import USAGE, OperatorError, on_terminal, safe, show_json, show_pairs, show_table
from beanstalk_client.cli.target import asking, named
from beanstalk_client.commands import is_until_resumed
from beanstalk_client.observe.samples import number

TUBE_COLUMNS: Final = {
    "name": "tube",
    "current-jobs-urgent": "urgent",
    "current-jobs-ready": "ready",
    "current-jobs-reserved": "reserved",
    "current-jobs-delayed": "delayed",
    "current-jobs-buried": "buried",
    "current-waiting": "waiting",
    "total-jobs": "total",
    "pause-time-left": "paused",
}
"""The columns of `tubes`, by their names in stats-tube."""

STRIKING: Final = {"buried": "red", "paused": "yellow", "reason": "red"}
"""The columns that strike the eye, and their colours."""

JOB_COLUMNS: Final = {
    **{name: name for name in ("id", "state", "pri", "age", "delay", "ttr", "time-left", "size", "reserves")},
    "tries": "failures",
    "reason": "reason",
    "key": "key",
}
"""The columns of `ls`, by their names in list-jobs. `failures` are those that the policy of the tube counts."""

CLIENT_COLUMNS: Final = (
    "name", "user", "state", "producer", "worker", "using", "watching", "reserved", "age", "client-name", "tubes"
)  # fmt: skip


def ping(options: argparse.Namespace) -> int:
    """Ask for something that costs nothing, and say how long the answer took."""
    with asking(options) as client:
        began = time.perf_counter()
        client.using()
        took = time.perf_counter() - began
    if options.json:
        show_json({"server": named(options), "seconds": round(took, 6)})
    else:
        print(f"{named(options)} answered in {took * 1000:.3f} ms")
    return 0


def stats(options: argparse.Namespace) -> int:
    """Show what the server says of itself, of a tube or of a job."""
    if sum(map(bool, (options.tube, options.job, options.group))) > 1:
        raise OperatorError("TUBE, --job and --group cannot be combined", USAGE)
    what = f"tube {options.tube}" if options.tube else f"job {options.job}" if options.job else ""
    with asking(options, f"group {options.group}" if options.group else what) as client:
        if options.group:
            found = dict(client.stats_group(options.group))
        elif options.job:
            found = dict(client.stats_job(options.job))
        elif options.tube:
            found = dict(client.stats_tube(options.tube))
        else:
            found = dict(client.stats())
    if options.json:
        show_json(found)
    else:
        show_pairs(_readable(found))
    return 0


def tubes(options: argparse.Namespace) -> int:
    """List the tubes, with what is in them."""
    prefix = options.prefix or ""
    with asking(options) as client:
        if options.names:
            found: list[dict[str, Any]] = [{"name": name} for name in sorted(client.tubes()) if name.startswith(prefix)]
        else:
            found = list(_all_tubes(client, prefix))
    keys = {column: key for key, column in TUBE_COLUMNS.items()}
    if options.sort != "tube":
        found.sort(key=lambda tube: (-tube.get(keys[options.sort], 0), tube["name"]))
    if options.json:
        show_json([tube["name"] for tube in found] if options.names else found)
    elif options.names:
        for tube in found:
            print(safe(tube["name"]) if on_terminal() else tube["name"])
    else:
        show_table(
            list(TUBE_COLUMNS.values()),
            ([tube.get(key, "") for key in TUBE_COLUMNS] for tube in map(_readable, found)),
            STRIKING,
        )
    return 0


def ls(options: argparse.Namespace) -> int:
    """List jobs of a tube in one state, or in each."""
    states = [options.state] if options.state else ["reserved", "ready", "delayed", "buried"]
    jobs: list[dict[str, Any]] = []
    with asking(options, f"tube {options.tube}", "list-jobs") as client:
        for state in states:
            jobs += islice(client.list_jobs(options.tube, state), options.limit + 1 - len(jobs))
    more = len(jobs) > options.limit
    del jobs[options.limit :]
    if options.json:
        show_json(jobs)
    else:
        show_table(
            list(JOB_COLUMNS.values()), ([job.get(column, "") for column in JOB_COLUMNS] for job in jobs), STRIKING
        )
    if more:
        print(f"showing the first {options.limit} jobs; use --limit to show more", file=sys.stderr)
    return 0


def peek(options: argparse.Namespace) -> int:
    """Show the body of a job."""
    asked = [state for state in ("ready", "delayed", "buried") if getattr(options, state) is not None]
    if len(asked) + (options.id is not None) != 1:
        raise OperatorError("one of ID, --ready, --delayed and --buried must be given", USAGE)
    if options.id is not None:
        with asking(options, f"job {options.id}") as client:
            job = client.peek(options.id)
    else:
        tube = getattr(options, asked[0])
        with asking(options, f"a {asked[0]} job in tube {tube}") as client:
            client.use(tube)
            job = {"ready": client.peek_ready, "delayed": client.peek_delayed, "buried": client.peek_buried}[asked[0]]()
    if options.json:
        show_json({"id": job.id, **as_json(job.body)})
    else:
        if options.id is None:
            print(f"job {job.id}", file=sys.stderr)
        show_body(job.body)
    return 0


def clients(options: argparse.Namespace) -> int:
    """List the connected clients."""
    with asking(options, extension="list-clients") as client:
        found = client.list_clients()
    if options.json:
        show_json(found)
    else:
        show_table(CLIENT_COLUMNS, ([one.get(column, "") for column in CLIENT_COLUMNS] for one in found))
    return 0


def _readable(found: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of a tube, with words for a pause that ends only when the tube is resumed."""
    pauses = [key for key in ("pause", "pause-time-left") if is_until_resumed(number(found, key) or 0)]
    return {**found, **dict.fromkeys(pauses, "until resumed")}


def _all_tubes(client: beanstalk_client.Client[bytes], prefix: str = "") -> Iterator[dict[str, Any]]:
    """The statistics of all tubes whose names begin with the prefix.

    A server that knows no stats-tubes is asked for each tube by itself; a tube that goes meanwhile is left out.
    """
    try:
        yield from client.stats_tubes(prefix=prefix)
    except beanstalk_client.UnknownCommandError:
        for name in sorted(name for name in client.tubes() if name.startswith(prefix)):
            try:
                yield dict(client.stats_tube(name))
            except beanstalk_client.NotFoundError:
                continue
