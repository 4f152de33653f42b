"""Declares a schedule: its name, its moments, and the job that it puts for each of them."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from beanstalk_client.commands import Duration, make, sequence_of, text_of
from beanstalk_client.replies import MAX_NAME, is_name
from beanstalk_client.schedules.moments import Moments
from beanstalk_client.schedules.planner import ONCE, RULES, SKIP
from beanstalk_client.tasks.failure import tries_for

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from beanstalk_client.tasks.task import Task

SCHEDULE: Final = "schedule"
"""Where a message says which schedule has put it."""


class Moment:
    """What stands in a schedule's arguments for the moment of the firing; there is one, `MOMENT`."""

    def __repr__(self) -> str:
        return "MOMENT"


MOMENT: Final = Moment()
"""In the arguments of a schedule: the moment of the firing as text, in the schedule's zone, such as
"2027-02-01T06:00:00+01:00". A task that is late knows by it which firing it is.

Example:
    @tasks.cron("0 8 * * mon", kwargs={"moment": MOMENT})
    @tasks.task
    def weekly_report(moment): ...
"""


class Demands(TypedDict, total=False):
    """What a schedule demands for its firings, as `put_with` takes it."""

    ttl: Duration | None
    tries: int
    limit: str
    limit_count: int


class ScheduleOptions(Demands, total=False):
    """The options of a schedule, as `Tasks.cron` describes them."""

    missed: str
    name: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None


class Firing(NamedTuple):
    """The job of a firing, but for its key and its moment.

    Example:
        firing: Firing = schedule.firing(1_800_000_000)
        print(firing.tube, firing.body)
    """

    tube: str
    body: bytes
    priority: int
    ttr: float
    """Seconds."""
    demands: Demands
    """Its `ttl`, `tries` and `limit`, if it has them."""


class Schedule:
    """What fires when.

    Example:
        weekly = Schedule("weekly-report", Cron("0 8 * * mon"), report, kwargs={"moment": MOMENT})

    Args:
        name: its own among all schedules of a group; it must stay the same when the expression changes.
        moments: when it fires.
        task: what it fires. The job is put without the task's middleware.
        missed: "skip", "once" or "all": what becomes of firings that no one has put in time.
        args, kwargs: the arguments, with `MOMENT` for the moment of the firing.
        demands: of each firing. By default, `tries` is the task's `retries` plus 1. With "skip", `ttl` is the time to
            the next firing.

    Raises:
        TypeError, ValueError: an argument that cannot be.
        TypeError, ValueError: the task's serializer cannot write an argument.
    """

    def __init__(
        self,
        name: str,
        moments: Moments,
        task: Task[..., Any],
        *,
        missed: str = ONCE,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **demands: Unpack[Demands],
    ) -> None:
        if not is_name(text_of(name, "name of a schedule")):
            raise ValueError(
                f"schedule {name!r}: its name cannot be the key of a job: must be 1 to {MAX_NAME} characters of "
                "A-Z a-z 0-9 - + / ; . $ _ ( ), not beginning with a hyphen; give it another one: name=…"
            )
        if missed not in RULES:
            raise ValueError(f"schedule {name}: missed is {missed!r}: must be one of {', '.join(RULES)}")
        self.name: str = name
        self.moments: Moments = moments
        self.task: Task[..., Any] = task
        self.missed = missed
        self._args = sequence_of(args, "args")
        if not isinstance(kwargs or {}, Mapping):
            raise TypeError(f"kwargs is {kwargs!r}: must be a dict")
        self._kwargs = dict(kwargs or {})
        for each in demands:
            if each not in Demands.__annotations__:
                raise TypeError(
                    f"unknown option {each} of a schedule: must be one of {', '.join(Demands.__annotations__)}"
                )
        self._demands: Demands = {"tries": tries_for(task.retries), **demands}
        make.put_with(b"", **demands)  # which refuses bad ones
        self.firing(0)

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {self.moments.text()}>"

    def firing(self, moment: int) -> Firing:
        """The job of the firing at this moment, in Unix time."""
        firing = self._firing(self.moments.spelled(moment))
        if self._expires and (following := self.moments.after(moment)) is not None:
            return firing._replace(demands={**self._demands, "ttl": following - moment})
        return firing

    @property
    def _expires(self) -> bool:
        """Whether a firing that no worker has taken is deleted when the next one is due."""
        return self.missed == SKIP and "ttl" not in self._demands

    def work(self) -> str:
        """A digest of what each firing does, apart from its moment: equal digests, equal jobs."""
        digested = (self._firing("MOMENT"), self._expires)
        return hashlib.sha256(repr(digested).encode()).hexdigest()[:16]

    def _firing(self, spelled: str) -> Firing:
        args = [spelled if value is MOMENT else value for value in self._args]
        kwargs = {name: spelled if value is MOMENT else value for name, value in self._kwargs.items()}
        task = self.task
        message = task.message(args, kwargs)
        message.meta[SCHEDULE] = self.name
        return Firing(task.tube, task.encode(message), task.default_priority, task.default_ttr, self._demands)


def key_of(group: str, name: str, moment: int) -> str:
    """The key of the job of a firing: "schedules/monthly-report/20270201T050000Z".

    Raises:
        ValueError: it is longer than a key can be.
    """
    spelled = datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    key = f"{group}/{name}/{spelled}"
    if len(key) > MAX_NAME:
        raise ValueError(f"schedule {name!r}: its name is too long for keys of {MAX_NAME} bytes, such as {key!r}")
    return key
