"""Finds the problems of a server in its samples, and describes each in a sentence.

A problem has a level: "bad" is what loses or holds up jobs, "odd" is what may be intended.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from beanstalk_client.observe.sampler import Sampler
from beanstalk_client.observe.samples import Samples, Tube
from beanstalk_client.tasks.failure import ERRORS
from beanstalk_client.tasks.results import RESULTS

FULL: Final = 0.8
"""The share of a limit from which on it is a problem."""

GROWS: Final = 1.0
"""Jobs a second by which a tube must grow to be a problem."""

LATE: Final = 3600
"""Seconds for which the next job of a tube must have waited to be a problem."""

TOLD: Final = 5
"""Maximum number of tubes that a problem names."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem.

    Attributes:
        text: a sentence.
        page: the page that shows more, and what it is asked; "" for none.
        tubes: some of the tubes that it is about.
    """

    level: str
    text: str
    page: str = ""
    tubes: list[str] = field(default_factory=list)


def problems_of(sampler: Sampler) -> list[Problem]:
    """What is wrong, the worst first."""
    found = []
    if sampler.problem:
        found.append(Problem("bad", f"The server does not answer: {sampler.problem}"))
    found += _of_server(sampler.samples)
    found += _of_tubes(sampler.samples.tubes.values(), sampler.throttled)
    return sorted(found, key=lambda problem: problem.level != "bad")


def _of_server(server: Samples) -> Iterable[Problem]:
    if not server.figures:
        return
    if str(server.figures.get("draining", "false")).lower() == "true":
        yield Problem("odd", "The server is in drain mode: it accepts no new jobs.", "cluster")
    memory, limit = server.number("current-memory") or 0, server.number("max-memory") or 0
    if limit and memory >= FULL * limit:
        yield Problem("bad", f"Jobs use {memory / limit:.0%} of --max-memory.")
    if timeouts := server.rates.get("timeouts", 0):
        yield Problem("bad", f"Jobs exceed their time to run: {timeouts * 60:.0f} per minute.")
    role = str(server.figures.get("cluster-role", ""))
    if role and role != "leader":
        yield Problem("bad", f"The answering node is not the leader: its role is {role}.", "cluster")
    if role and not str(server.figures.get("cluster-leader", "")):
        yield Problem("bad", "The cluster has no leader.", "cluster")
    refused = sum(server.number(f"refused-{limit}") or 0 for limit in ("jobs", "bytes", "delay", "size"))
    if refused:
        yield Problem("odd", f"{_count(refused, 'put was', 'puts were')} refused by policies since the server started.")


def _of_tubes(tubes: Iterable[Tube], throttled: set[str]) -> Iterable[Problem]:
    unwatched, paused, slow, late, failed = [], [], [], [], []
    buried = 0
    for tube in tubes:
        if tube.buried:
            failed.append(tube)
            buried += tube.buried or 0
        if not tube.ready or tube.name.endswith((ERRORS, RESULTS)):  # which no worker watches
            continue
        if tube.pause_left:
            paused.append(tube)
        elif tube.watching == 0:
            unwatched.append(tube)
        elif tube.growth is not None and tube.growth >= GROWS and not tube.waiting:
            slow.append(tube)
        if (tube.next_age or 0) >= LATE and tube.watching:
            late.append(tube)
    if unwatched:
        verb = "has ready jobs and no worker" if len(unwatched) == 1 else "have ready jobs and no worker"
        yield _problem("bad", f"{_count(len(unwatched), 'tube')} {verb}.", "tubes?only=unwatched", unwatched)
    if late:
        text = f"In {_count(len(late), 'tube')}, the next job has been ready for more than an hour."
        yield _problem("bad", text, "tubes?sort=age", late)
    if slow:
        text = f"{_count(len(slow), 'tube')} {'gets' if len(slow) == 1 else 'get'} jobs faster than workers take them."
        yield _problem("bad", text, "tubes?sort=growth", slow)
    if failed:
        text = f"{_count(buried, 'job is', 'jobs are')} buried in {_count(len(failed), 'tube')}."
        yield _problem("bad", text, "failures", failed)
    if paused:
        text = f"{_count(len(paused), 'tube')} with ready jobs {'is' if len(paused) == 1 else 'are'} paused."
        yield _problem("odd", text, "tubes?only=paused", paused)
    if throttled:
        verb = "is throttled by its policy" if len(throttled) == 1 else "are throttled by their policies"
        yield Problem(
            "odd", f"{_count(len(throttled), 'tube')} {verb}.", "tubes?only=throttled", sorted(throttled)[:TOLD]
        )


def _problem(level: str, text: str, page: str, tubes: list[Tube]) -> Problem:
    worst = heapq.nlargest(TOLD, tubes, key=lambda tube: (tube.ready or 0) + (tube.buried or 0))
    return Problem(level, text, page, [tube.name for tube in worst])


def _count(number: int, one: str, more: str = "") -> str:
    """A number and its noun: "1 tube", "3 tubes"."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"
