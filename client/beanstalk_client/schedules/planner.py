"""Plans one schedule: the firings to put and to cancel, and the next plan.

A function of what is known, without I/O and clock, so that any number of schedulers come to the same:

    the schedule, the moment, the plan that the server has  ->  the firings to put and to call off, the next plan

A plan says until when all is planned. What was to fire after that moment, and before now, is *missed*: it was never in
the server, as no scheduler was there. What is planned is put again in each pass, which the server answers EXISTS: so a
firing that a tube has lost comes back, and what one scheduler has begun another one completes.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Final

from beanstalk_client.commands import MAX_SECONDS
from beanstalk_client.replies import is_name
from beanstalk_client.schedules.moments import Moments, between, last

SKIP: Final = "skip"
ONCE: Final = "once"
ALL: Final = "all"
RULES: Final = (SKIP, ONCE, ALL)
"""What becomes of firings that were missed: none is made up for, the last one is, all are."""

MOST: Final = 1000
"""How many firings of a schedule one pass puts at most, missed ones and those to come each; what remains is done by the
next pass. A plan of this many is a body of 11 kB."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the server knows of a schedule: what its schedulers left there for each other."""

    timing: str
    """Its moments as text."""
    work: str
    """What each firing does: a digest of it."""
    tube: str
    """Where its firings are."""
    until: int
    """All firings until this moment, in Unix time, have been put, or were missed and dealt with."""
    planned: tuple[int, ...]
    """The moments of those that had been put and were still to come when this was written."""
    renewed_until: float
    """Until this moment, in Unix time, the scheduler that wrote this will have written it again."""

    def encode(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def decode(cls, text: str) -> Plan:
        """The plan that `encode` wrote.

        Raises:
            ValueError: it is none.
        """
        try:
            values = json.loads(text)
            plan = cls(**{**values, "planned": tuple(values["planned"])})
        except (TypeError, KeyError, ValueError, RecursionError):
            plan = None
        if plan is None or not plan._is_possible():
            raise ValueError(f"not the plan of a schedule: {text[:100]!r}")
        return plan

    def _is_possible(self) -> bool:
        """Whether its values are of their types, and its moments such as a server knows; any client can write a job."""
        return (
            all(type(value) is str for value in (self.timing, self.work, self.tube))
            and is_name(self.tube)
            and all(type(value) is int and 0 <= value <= MAX_SECONDS for value in (self.until, *self.planned))
            and type(self.renewed_until) in (int, float)
            and 0 <= self.renewed_until <= MAX_SECONDS
        )


@dataclasses.dataclass(frozen=True)
class Pass:
    """What is to be done now, in this order."""

    off: tuple[int, ...]
    """The moments of firings to call off, in the old plan's tube."""
    replaced: tuple[int, ...]
    """The moments of firings that are planned, but do other work by now."""
    put: tuple[int, ...]
    """The moments of firings to put; those before now are missed ones that are made up for."""
    plan: Plan
    """What to leave in the server when all this is done."""
    is_whole: bool
    """Whether nothing remains for another pass that should follow at once."""


def plan(
    moments: Moments,
    work: str,
    tube: str,
    missed: str,
    old: Plan | None,
    earliest: int,
    latest: int,
    ahead: float,
    renewed_until: float,
) -> Pass:
    """What to do for a schedule.

    Args:
        missed: one of RULES.
        old: the plan that the server has; None if it has none: then this is the schedule's first start.
        earliest, latest: the server's wall clock is between these, in Unix time. A firing that is due between them is
            put, as its moment is the server's business; but not at a first start, which never fires what may be past.
        ahead: how many seconds are planned ahead. The next firing always is, however far away.
        renewed_until: as in the Plan that this makes.
    """
    timing = moments.text()
    planned = {moment for moment in old.planned if moment > earliest} if old is not None else set()
    if old is None or old.timing != timing:  # its moments begin anew: no firing of the new ones was missed
        made_up: tuple[int, ...] = ()
        is_whole = True
        done_until = latest
    else:
        found = _made_up(moments, missed, old.until, earliest)
        made_up, is_whole = tuple(found[:MOST]), len(found) <= MOST
        done_until = max(old.until, earliest) if is_whole else made_up[-1]
    if not is_whole:  # first what is late
        assert old is not None
        return Pass((), (), made_up, dataclasses.replace(old, until=done_until, renewed_until=renewed_until), False)

    if old is None or old.timing != timing or old.tube != tube:
        wanted = _wanted(moments, latest, latest + ahead)
        kept: set[int] = set()  # what is planned for later than what is wanted now, and stays
    else:
        wanted = _wanted(moments, earliest, max(latest + ahead, *planned, 0))
        kept = {moment for moment in planned if len(wanted) == MOST and moment > wanted[-1]}
    if old is not None and old.tube != tube:
        off = planned
        replaced: set[int] = set()
        done_until = latest
    else:
        off = planned.difference(wanted, kept)
        replaced = planned.difference(off) if old is not None and old.work != work else set()
    return Pass(
        off=tuple(sorted(off)),
        replaced=tuple(sorted(replaced)),
        put=(*made_up, *(moment for moment in wanted if moment not in replaced)),
        plan=Plan(timing, work, tube, max((done_until, *wanted)), (*wanted, *sorted(kept)), renewed_until),
        is_whole=True,
    )


def _wanted(moments: Moments, after: int, until: float) -> list[int]:
    """The first firing after a moment, however far away, and all others until another moment; MOST at most."""
    wanted: list[int] = []
    moment = moments.after(after)
    while moment is not None and len(wanted) < MOST and (not wanted or moment <= until):
        wanted.append(moment)
        moment = moments.after(moment)
    return wanted


def _made_up(moments: Moments, missed: str, after: int, until: int) -> list[int]:
    """Those of the missed firings that the rule wants, in their order: at most one more than MOST."""
    if missed == SKIP or until <= after:
        return []
    if missed == ONCE:
        found = last(moments, after, until)
        return [] if found is None else [found]
    made_up = []
    for moment in between(moments, after, until):
        made_up.append(moment)
        if len(made_up) > MOST:
            break
    return made_up
