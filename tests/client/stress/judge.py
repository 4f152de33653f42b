"""Judges the jobs of a round by the lines that their runs have written and by what the server says of them."""

import contextlib
import json
import re

from beanstalk_client import NotFoundError, TimedOutError

from tests.client.stress.program import KINDS, lines

EARLY = 0.05
"""Seconds by which a job may run before its backoff is over: clocks of two processes are read."""


class Job:
    """A job that was put.

    Attributes:
        job_id: None if the answer to the put was lost.
        is_lost: a server without a binlog has ended since.
    """

    def __init__(self, kind, number, moment):
        self.kind = kind
        self.name = f"{kind}-{number}"
        self.moment = moment
        self.job_id = None
        self.is_lost = False

    @property
    def has_ended(self):
        return any(line.endswith(" well") for line in lines(self.name))


def problems_of(job, round_, state, reports):
    """What is wrong with a job, in words.

    Args:
        round_: that it was in: `shocks`, `losses` and `restarts` say what happened meanwhile.
        state: "done", or what the server says.
        reports: how many there are.
    """
    kind = KINDS[job.kind]
    history = [read(line) for line in lines(job.name)]
    began = [one for one in history if one[2].startswith("began")]
    yield from (text for _, _, text in history if text.startswith("problem"))
    yield from overlaps(job, kind, history, round_.losses)
    shocks = round_.shocks()
    most = kind.runs * (1 + round_.restarts) + shocks
    if len(began) > most:
        yield f"{len(began)} runs, and at most {most} are expected ({kind.runs}, and {shocks} failures around it)"
    if job.is_lost or job.job_id is None:
        return
    if not shocks:
        if len(began) != kind.runs:
            yield f"{len(began)} runs instead of {kind.runs}"
        yield from backoffs(kind, history)
    elif not began and not (state == "buried" and shocks > kind.retries):  # each has cost an attempt before its begin
        yield f"it never ran: it is {state}, after {shocks} failures around it"
    if state != kind.end and not (state == "buried" and shocks and (kind.retries < 12 or shocks > kind.retries)):
        yield f"it is {state}, and must be {kind.end}"
    if state == "buried" and not reports:
        yield "it is buried without a report"
    if reports > 1 and not shocks:
        yield f"it has {reports} reports"


def read(line):
    moment, _, pid, text = line.split(maxsplit=3)
    return float(moment), int(pid), text


def overlaps(job, kind, history, losses):
    """Runs of one job at the same time, where docs/workers.md does not say that there may be two.

    It says so of another worker after a lost connection, of a job that was put within the second before a loss, and of
    a plain function whose time is over.
    """
    began = []
    for moment, pid, text in history:
        if text.startswith("began"):
            began.append((moment, pid))
        if text.startswith("overlaps"):
            (first, former), (_, latter) = (began * 2)[-2:] if len(began) == 1 else began[-2:]
            is_lost = any(first <= loss <= moment for loss in losses)
            is_new = any(loss - 1 <= job.moment <= loss for loss in losses)
            may_run_on = kind.timeout is not None and not kind.is_async
            if not may_run_on and not (is_lost and (former != latter or is_new)):
                yield f"two runs at once ({text})"
                return


def backoffs(kind, history):
    """Runs that began before the backoff of the failure before them was over."""
    if kind.crashes or kind.end == "done":
        return
    ended = {text.split()[1]: moment for moment, _, text in history if text.startswith("ended")}
    for moment, _, text in history:
        if text.startswith("began") and (last := ended.get(str(int(text.split()[1]) - 1))) is not None:
            number = int(text.split()[1]) - 1
            due = kind.pause(number) if kind.is_async or kind.timeout is None else 0.0
            if moment - last < due - EARLY:
                yield f"run {number + 1} began {moment - last:.3f} s after failure {number}, before {due:g} s"
                return


def look(client, jobs, reports):
    """Return the states of the jobs that the server has, by id, and count the reports that are new."""
    states = {}
    for job in jobs:
        if job.job_id is not None and not job.is_lost:
            with contextlib.suppress(NotFoundError):
                states[job.job_id] = client.stats_job(job.job_id)["state"]
    client.watch("stress.errors")
    client.ignore("default")
    with contextlib.suppress(TimedOutError):
        while True:
            report = client.reserve(timeout=0)
            reports[json.loads(report.body)["job"]] += 1
            client.delete(report)
    return states


def history(job, log):
    """What the runs of a job have written, and what the log of the worker says of it: the begin and the end of it."""
    said = [line for line in log.splitlines() if re.search(rf"\bjob {job.job_id}\b", line)]
    return [line for part in (lines(job.name), said) for line in (part if len(part) <= 20 else part[:12] + part[-6:])]
