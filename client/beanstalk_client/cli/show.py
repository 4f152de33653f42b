"""Explains the state of a job (`beanstalk show`), from its statistics and the report of the worker that buried it.

The text of a report is untrusted. Must never change anything at the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final

import beanstalk_client
from beanstalk_client.cli.output import on_terminal, safe, show_json, show_pairs
from beanstalk_client.cli.target import asking
from beanstalk_client.commands import is_until_resumed
from beanstalk_client.errors import shown
from beanstalk_client.observe.samples import number
from beanstalk_client.tasks.failure import ERRORS

REASONS: Final = {
    "released": "a worker released it",
    "timed-out": "its time to run ended",
    "disconnected": "its worker disconnected",
    "expired": "it expired",
}
"""What the reasons of stats-job mean."""

LONGEST: Final = 4000
"""Characters of a line of a report."""


def show(options: argparse.Namespace) -> int:
    """Show a job, why it is in its state, and the report about it if there is one."""
    with asking(options, f"job {options.id}") as client:
        found = dict(client.stats_job(options.id))
        tube: dict[str, Any] = {}
        with contextlib.suppress(beanstalk_client.NotFoundError):  # it was its last job, and has gone meanwhile
            tube = dict(client.stats_tube(found["tube"]))
        report = _report(client, found)
    why = why_there(found, tube, report)
    if options.json:
        show_json({"why": why, "job": found, "report": report})
        return 0
    print(_line(f"job {found['id']} of tube {found['tube']} is {found['state']}: {why}"))
    print()
    show_pairs(found)
    if report is not None:
        trace = report.pop("traceback", None)
        print()
        show_pairs({_line(f"report-{name}"): _line(value) for name, value in report.items()})
        if isinstance(trace, list):
            print(*map(_line, trace), sep="\n")
    return 0


def why_there(found: Mapping[str, Any], tube: Mapping[str, Any], report: Mapping[str, Any] | None) -> str:
    """Why a job is in its state, in one sentence.

    Args:
        found: its stats-job.
        tube: the stats-tube of its tube; empty if that is not known.
        report: what a worker has said of it when it was buried, if it has.
    """
    tries, limit = int(found.get("tries", 0)), int(found.get("max-tries", 0))
    reason = REASONS.get(found.get("reason", ""), "")
    failed = f"failure {tries}{f' of {limit}' if limit else ''}: {reason or 'unknown reason'}"
    left = f"{found['time-left']} s"
    if found["state"] == "reserved":
        client = found.get("client")
        who = f"{client} reserved it {found['reserved-for']} s ago" if client else "a worker has reserved it"
        return f"{who}; its time to run ends in {left} unless the worker touches it (reserves: {found['reserves']})"
    if found["state"] == "delayed":
        if tries:
            return f"{failed}; it is ready in {left}"
        back = f"a worker released it (releases: {found['releases']}); " if found["releases"] else ""
        return f"{back}it is ready in {left}"
    if found["state"] == "buried":
        if report is not None:
            who = report.get("worker") or report.get("sender") or "a worker"
            return f"{who} buried it at {report.get('buried')} (reserves: {found['reserves']}): {report.get('error')}"
        if limit and tries >= limit:
            return f"{failed}; there is no report"
        return "it was buried without a report"
    return _why_ready(found, tube, reason if found.get("origin") else failed if tries else "")


def _why_ready(found: Mapping[str, Any], tube: Mapping[str, Any], reason: str) -> str:
    came = f"it comes from {found['origin']} ({reason}); " if found.get("origin") else f"{reason}; " if reason else ""
    if left := number(tube, "pause-time-left"):
        length = "until resumed" if is_until_resumed(left) else f"for {left} s more"
        return f"{came}its tube is paused {length} (beanstalk resume {tube['name']})"
    if tube.get("throttled"):
        return f"{came}its tube has reached the rate or max-reserved of its policy"
    if tube and not tube["current-watching"]:
        return f"{came}no client is watching its tube"
    return f"{came}it is waiting for a worker to reserve it"


def _report(client: beanstalk_client.Client[bytes], found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The report about a job; of a server that knows no keys, the next report of its tube if it is that."""
    for tube in (found["tube"], found.get("origin")):
        if not tube:
            continue
        with contextlib.suppress(beanstalk_client.NotFoundError, beanstalk_client.ForbiddenError, ValueError):
            client.use(f"{tube}{ERRORS}")  # ValueError: such a name would be too long, or it is not JSON
            keyed = client.knows("peek-keyed")
            job = client.peek_keyed(f"job-{found['id']}") if keyed else client.peek_ready()
            report: Any = json.loads(job.body)
            if isinstance(report, dict) and report.get("job") == found["id"]:
                return report
    return None


def _line(value: object) -> str:
    text = shown(str(value), LONGEST)
    return safe(text) if on_terminal() else text
