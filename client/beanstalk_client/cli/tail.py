"""Prints new jobs of a tube without reserving them (`beanstalk tail`).

No command of the protocol tells of new jobs without reserving them, and a reserved job is one that a worker waits for.
So the tube is looked at again and again, by list-jobs: the first thousand jobs that are ready and the first thousand
that are reserved, which is where a job is that a worker took at once. What comes and is gone between two looks is not
seen. A server that does not know list-jobs (beanstalkd) shows its next ready job only.
Must never reserve: workers would get their jobs later, and another count of reserves.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Final

import beanstalk_client
from beanstalk_client import Client
from beanstalk_client.cli.bodies import as_json, show_body
from beanstalk_client.cli.output import on_terminal, show_json, writing
from beanstalk_client.cli.target import asking

STATES: Final = ("ready", "reserved")

MOST: Final = 1000
"""Maximum number of jobs of each state that are listed: those of one page."""

Look = Callable[[], list[int]]
"""What finds the jobs that are there now, by id."""


def tail(options: argparse.Namespace) -> int:
    """Show bodies until Ctrl-C, or as many as are wanted."""
    with asking(options, f"tube {options.tube}") as client:
        look = _way_to_look(client, options.tube)
        seen: set[int] = set()
        first = True
        shown = 0
        while True:
            there = look()
            new = [job_id for job_id in there if job_id not in seen]
            for job_id in new[: options.lines] if first else new:
                shown += _show(client, job_id, options)
                if shown == options.jobs:
                    return 0
            seen = set(there)
            first = False
            time.sleep(options.interval)


def _way_to_look(client: Client[bytes], tube: str) -> Look:
    def listed() -> list[int]:
        found: list[int] = []
        for state in STATES:
            try:
                found += [int(job["id"]) for job in islice(client.list_jobs(tube, state), MOST)]
            except beanstalk_client.NotFoundError:  # there is no tube at present
                continue
        return found

    def peeked() -> list[int]:
        try:
            return [client.peek_ready().id]
        except beanstalk_client.NotFoundError:
            return []

    try:
        listed()
    except beanstalk_client.UnknownCommandError:
        message = "the server does not support list-jobs: printing only the next ready job, whenever it changes"
        print(f"beanstalk tail: {message}", file=sys.stderr)
        client.use(tube)
        return peeked
    return listed


def _show(client: Client[bytes], job_id: int, options: argparse.Namespace) -> bool:
    """Show one job; return whether it was still there."""
    try:
        body = client.peek(job_id).body
    except beanstalk_client.NotFoundError:
        if not options.json:
            print(f"job {job_id} was gone before it could be read", file=sys.stderr)
        return False
    with writing():
        if options.json:
            show_json({"id": job_id, **as_json(body)})
        else:
            if options.ids or on_terminal():
                print(f"{job_id}\t", end="")
            show_body(body if on_terminal() else body + b"\n")
    return True
