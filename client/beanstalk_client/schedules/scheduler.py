"""Puts the firings of schedules into the server before they are due, beside any number of other schedulers.

A pass looks what is planned, puts what is missing and leaves the new plan in the server. What makes each firing happen
once, for any number of passes:

    the key      of each firing tells schedule and moment; it stays held long after the firing is done. A second put of
                 it is answered EXISTS.
    the plan     a job in the group's tube for each schedule, which no client reserves: until when all is planned. So
                 what was missed is known, and a first start fires nothing of the past.
    the lock     a job with a key, which the server deletes unless it is renewed: passes do not overlap. A scheduler
                 that has stood still finds its lock gone, and puts nothing of what it has thought of before.
    the clock    is the server's: a job that is delayed until a known moment tells what its wall clock says. How wrong
                 the clocks of schedulers are does not matter.

Must never read the wall clock of its own machine to decide when something fires.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from beanstalk_client.commands import Duration, function_of, seconds_of, sequence_of, text_of
from beanstalk_client.errors import (
    BadFormatError,
    BeanstalkdError,
    Error,
    ExistsError,
    NotFoundError,
    TooLateError,
    UnsupportedError,
)
from beanstalk_client.events import tell
from beanstalk_client.passes import Passes, described_of
from beanstalk_client.replies import is_name
from beanstalk_client.schedules.planner import MOST, Pass, Plan, plan
from beanstalk_client.schedules.schedule import Schedule, key_of
from beanstalk_client.version import VERSION

if TYPE_CHECKING:
    from beanstalk_client.blocking import Client

log: logging.Logger = logging.getLogger("beanstalk_client.schedules")

GROUP: Final = "schedules"

AHEAD: Final = 600.0
"""How many seconds are planned ahead, by default. Three quarters of it, at least, all schedulers may be gone without a
firing being missed, which a deployment or a restart of their machine fits into. A server that was down fires late what
is planned, so more would mean that more comes at once then."""

HOLD: Final = 86400.0
"""How many seconds the key of a firing that is done stays held, by default. No scheduler that stands still for less can
repeat one, and what a crash has left half done is completed without doubles for this long. A held key takes 250
bytes."""

LONGEST: Final = 1e9
"""Seconds that `ahead` and `hold` are below: 31 years."""

PASSES: Final = 4
"""How many passes there are in `ahead` seconds: three of them may fail before a firing could be missed."""

LOOK_AFTER: Final = 5.0
"""Seconds after which a scheduler that waits for its next pass looks whether the server still has its plans."""

LOCK_FOR: Final = 30.0
"""Seconds after which the lock of a scheduler that has died or stands still is free."""

RENEW_AFTER: Final = 5.0
"""Seconds after which a pass asks whether the lock is still its own before it changes anything more."""

BUSY_FOR: Final = (0.5, 1.5)
"""Seconds between two attempts to get the lock: anything in between, so that many schedulers do not keep step."""

END_OF_TIME: Final = 4_102_444_800
"""The year 2100, in Unix time: until when plans are delayed, and the job that tells the clock."""

LOCK_KEY: Final = "lock"
CLOCK_KEY: Final = "clock"
PLAN_KEY: Final = "plan/"


class LockLostError(Error):
    """The pass took longer than its lock, and was given up before it changed anything more."""


class Scheduler(Passes):
    """Plans schedules, again and again.

    Example:
        with Scheduler(tasks.connect, tasks.schedules).in_thread():
            serve()

    Args:
        connect: makes a client of the server; its encoding must be None.
        schedules: what to plan.
        group: the tube of plans, and the beginning of all keys: schedulers of one application share it, different
            applications on one server each need their own.
        ahead: how far is planned ahead: seconds, "30m", or a timedelta; the next firing of each schedule always is,
            however far away.
        hold: for how long the key of a firing stays held after it is done.
        clock: tells Unix time in seconds; None for the clock of the server. For tests.

    Raises:
        ValueError: two schedules of the same name, a group that can be no tube or is the tube of a task, durations that
            are not above 0.
    """

    def __init__(
        self,
        connect: Callable[[], Client[bytes]],
        schedules: Iterable[Schedule],
        *,
        group: str = GROUP,
        ahead: Duration = AHEAD,
        hold: Duration = HOLD,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__("schedules")
        if not is_name(text_of(group, "group")):
            raise ValueError(f"group {group!r} is not a valid tube name")
        ahead, hold = seconds_of(ahead, "ahead"), seconds_of(hold, "hold")
        if not (0 < ahead < LONGEST and 0 < hold < LONGEST):
            raise ValueError(f"ahead is {ahead}, hold is {hold}: must be seconds, more than 0 and below {LONGEST:g}")
        self.group = group
        self.ahead = ahead
        self.hold = hold
        self._connect: Callable[[], Client[bytes]] = function_of(connect, "connect")
        self._clock = clock
        self._schedules: dict[str, Schedule] = {}
        for schedule in sequence_of(schedules, "schedules"):
            if schedule.name in self._schedules:
                raise ValueError(f"two schedules have the name {schedule.name!r}; give one another name: name=…")
            if schedule.task.tube == group:
                raise ValueError(f"schedule {schedule.name}: its task must not be in {group!r}, the tube of the plans")
            key_of(group, schedule.name, 0)
            self._schedules[schedule.name] = schedule
        self._mine: set[str] = set()  # what the server has planned, at least once, as this scheduler would
        self._superseded: set[str] = set()
        self._is_whole = False  # whether the last pass was made, and left nothing to do at once

    def _run_connected(self) -> None:
        with contextlib.closing(self._connect()) as queue:
            while not self._stopped.is_set():
                wait = self._pass_or_lose(queue)
                self._note_pass()
                self._wait(queue, wait)

    def _wait(self, queue: Client[bytes], seconds: float) -> None:
        """Wait for the next pass, or until the server has lost its jobs, such as one without a binlog in a restart."""
        while seconds > 0 and not self._stopped.wait(min(seconds, LOOK_AFTER)):
            seconds -= LOOK_AFTER
            name = next(iter(self._mine), None)
            if name is None:
                continue
            try:
                queue.use(self.group)
                queue.peek_keyed(PLAN_KEY + name)
            except NotFoundError:
                message = f"the server has lost the plan of schedule {name}: planning it anew"
                tell(log, logging.WARNING, "schedule-plan-lost", message, schedule=name)
                self._mine.clear()  # what cannot be planned anew is not looked for again
                return

    def _tell_failed(self, described: str) -> None:
        message = f"planning of group {self.group} failed, retrying: {described}"
        tell(log, logging.WARNING, "schedules-failed", message, group=self.group)

    def _tell_resumed(self) -> None:
        message = f"planning of group {self.group} resumed"
        tell(log, logging.INFO, "schedules-resumed", message, group=self.group)

    def _tell_ended(self, described: str, error: Exception) -> None:  # noqa: ARG002 its traceback says no more
        message = f"planning of group {self.group} has stopped: {described}"
        tell(log, logging.ERROR, "schedules-ended", message, group=self.group)

    def run_once(self) -> None:
        """Plan what is to be planned now, as soon as no other scheduler does so.

        Raises:
            Error: as `make_pass`.
            OSError: the server cannot be reached.
        """
        with contextlib.closing(self._connect()) as queue:
            while not self._stopped.is_set():
                wait = self._pass_or_lose(queue)
                if self._is_whole:
                    return
                self._stopped.wait(wait)

    def _pass_or_lose(self, queue: Client[bytes]) -> float:
        """Make a pass, and another one at once if it was too slow."""
        try:
            return self.make_pass(queue)
        except LockLostError:
            return 0

    def make_pass(self, queue: Client[bytes]) -> float:
        """Plan once what has to be planned by now.

        Args:
            queue: a client whose encoding is None. It uses another tube afterwards.

        Returns:
            After how many seconds another pass should follow.

        Raises:
            UnsupportedError: the server does not know jobs with moments.
            LockLostError: it took too long, and is not whole.
            Error: the server refuses what is no single schedule's, or is lost.
        """
        self._is_whole = False
        queue.use(self.group)
        try:
            term = LeaderTerm(queue, self.group)
        except ExistsError:
            return random.uniform(*BUSY_FOR)
        try:
            wait = self._make_pass(queue, term)
        except BaseException:
            with contextlib.suppress(Exception):  # which would hide why the pass failed; the lock expires in any case
                term.end()
            raise
        term.end()
        return wait

    def _make_pass(self, queue: Client[bytes], term: LeaderTerm) -> float:
        earliest, latest = self._now(queue)
        plans = {name: self._read(queue, name) for name in (*self._schedules, *self._others(queue))}
        renewed_until = latest + 3 * self.ahead / PASSES
        interval = self.ahead / PASSES
        written: dict[str, Pass] = {}
        gone: list[str] = []
        for name, old in plans.items():
            schedule = self._schedules.get(name)
            with self._alone(name):
                if schedule is None:
                    if old is not None and latest > old.renewed_until:
                        self._call_off(term, old.tube, name, (each for each in old.planned if each > earliest))
                        gone.append(name)
                    continue
                work = schedule.work()
                tube = schedule.task.tube
                if self._is_anothers(schedule, work, tube, old, latest):
                    continue
                to_do = plan(
                    schedule.moments, work, tube, schedule.missed, old, earliest, latest, self.ahead, renewed_until
                )
                self._do(term, schedule, old, to_do, earliest, latest)
                written[name] = to_do
                if not to_do.is_whole:
                    interval = 0
                elif len(to_do.plan.planned) >= MOST:  # which may not reach to the next pass
                    interval = min(interval, (to_do.plan.planned[-1] - latest) / PASSES)
        for name, done in written.items():
            body = done.plan.encode().encode()
            with self._alone(name):
                term.change(self.group).put_with(body, key=PLAN_KEY + name, replace=True, at=END_OF_TIME)
                if done.is_whole:  # before that, the plan may still have another definition
                    self._mine.add(name)
        for name in gone:
            with contextlib.suppress(NotFoundError, TooLateError):
                term.change(self.group).cancel_keyed(PLAN_KEY + name)
            message = f"schedule {name} removed: no scheduler has it any more"
            tell(log, logging.WARNING, "schedule-removed", message, schedule=name)
        self._is_whole = interval > 0
        return interval

    def _now(self, queue: Client[bytes]) -> tuple[int, int]:
        """Two seconds of Unix time between which the server's wall clock is."""
        if self._clock is not None:
            now = math.floor(self._clock())
            return now, now + 1
        try:
            job_id = queue.put_with(b"", key=CLOCK_KEY, at=END_OF_TIME)
        except ExistsError as error:
            job_id = error.id
        told = queue.stats_job(job_id)
        if told["state"] != "delayed":  # a client has kicked it
            job_id = queue.put_with(b"", key=CLOCK_KEY, at=END_OF_TIME, replace=True)
            told = queue.stats_job(job_id)
        latest = END_OF_TIME - int(told["time-left"])
        return latest - 1, latest

    def _others(self, queue: Client[bytes]) -> list[str]:
        """The names of the schedules that are planned in this group, and that this scheduler does not have."""
        keys = (str(entry.get("key", "")) for entry in queue.list_jobs(self.group, "delayed"))
        names = (key[len(PLAN_KEY) :] for key in keys if key.startswith(PLAN_KEY))
        return [name for name in names if name not in self._schedules]

    def _read(self, queue: Client[bytes], name: str) -> Plan | None:
        """What is planned of a schedule; None if nothing ever was."""
        try:
            body = queue.peek_keyed(PLAN_KEY + name).body
        except NotFoundError:
            return None
        try:
            return Plan.decode(body.decode())
        except ValueError as error:
            message = f"schedule {name}: the plan is unreadable, starting a new one: {error}"
            tell(log, logging.ERROR, "schedule-plan-unreadable", message, schedule=name)
            return None

    def _is_anothers(self, schedule: Schedule, work: str, tube: str, old: Plan | None, latest: int) -> bool:
        """Whether to stand back, as schedulers with another definition of this schedule have come later.

        Each takes a schedule over once, when it first sees it, and again when the plan is not renewed any more. So the
        scheduler that was started last decides, and two of different versions do not undo each other's work for ever.
        """
        name = schedule.name
        is_same = old is None or (old.timing, old.work, old.tube) == (schedule.moments.text(), work, tube)
        stands_back = not is_same and name in self._mine and old is not None and latest <= old.renewed_until
        if stands_back and name not in self._superseded:
            message = (
                f"schedule {name} is not planned here: a scheduler that started later has a different definition of it"
            )
            tell(log, logging.WARNING, "schedule-superseded", message, schedule=name)
        (self._superseded.add if stands_back else self._superseded.discard)(name)
        return stands_back

    def _do(
        self,
        term: LeaderTerm,
        schedule: Schedule,
        old: Plan | None,
        to_do: Pass,
        earliest: int,
        latest: int,
    ) -> None:
        name = schedule.name
        if old is not None:
            self._call_off(term, old.tube, name, to_do.off)
        made_up = 0
        for moment in sorted((*to_do.replaced, *to_do.put)):
            firing = schedule.firing(moment)
            try:
                term.change(firing.tube).put_with(
                    firing.body,
                    firing.priority,
                    ttr=firing.ttr,
                    key=key_of(self.group, name, moment),
                    replace=moment in to_do.replaced,
                    at=moment,
                    hold=max(moment - latest, 0) + self.hold,  # held from whenever it is deleted on, also long before
                    **firing.demands,
                )
            except BadFormatError:
                if not firing.demands:
                    raise
                names = ", ".join(firing.demands)
                raise ValueError(
                    f"the server does not support these attributes of put-with: {names}; "
                    f"use beanstalk-server {VERSION} or later"
                ) from None
            except (ExistsError, TooLateError):
                pass  # another scheduler, or this one, has put it; a worker has it, or it is done
            else:
                made_up += moment <= earliest
        if made_up:
            message = f"schedule {name} makes up for {made_up} missed firing{'s' if made_up > 1 else ''}"
            tell(log, logging.WARNING, "schedule-missed", message, schedule=name, firings=made_up)

    def _call_off(self, term: LeaderTerm, tube: str, name: str, moments: Iterable[int]) -> None:
        for moment in moments:
            with contextlib.suppress(NotFoundError, TooLateError):
                term.change(tube).cancel_keyed(key_of(self.group, name, moment))

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """What the server refuses of one schedule keeps no other from being planned."""
        try:
            yield
        except UnsupportedError:
            raise
        except (BeanstalkdError, ValueError) as error:  # the latter: a name for which no key is long enough
            message = f"schedule {name} not planned, retrying: {described_of(error)}"
            tell(log, logging.ERROR, "schedule-refused", message, schedule=name)


class LeaderTerm:
    """The time in which one scheduler may make a pass, and its client: a job in the group's tube locks out the others.

    Args:
        queue: it uses the group's tube.

    Raises:
        ExistsError: another scheduler has the lock.
    """

    def __init__(self, queue: Client[bytes], group: str) -> None:
        self.queue: Client[bytes] = queue
        self._tube = group
        self._renewed = _clocks()
        try:
            self._job_id = self._lock()
        except ExistsError as error:
            if not self._is_buried(error.id):
                raise
            self._job_id = self._lock(replace=True)

    def _lock(self, replace: bool = False) -> int:
        # It is delayed, as only what is delayed can be cancelled without a right to consume.
        return self.queue.put_with(b"", delay=LOCK_FOR, ttl=1, key=LOCK_KEY, replace=replace)

    def _is_buried(self, job_id: int) -> bool:
        """Whether the lock is buried, and would never expire: a worker that watches the wrong tube has had it."""
        try:
            return bool(self.queue.stats_job(job_id)["state"] == "buried")
        except NotFoundError:
            return False

    def change(self, tube: str) -> Client[bytes]:
        """The client, which uses this tube, for one change.

        Raises:
            LockLostError: another scheduler has the lock by now, or may have it.
        """
        if tube != self._tube:
            self.queue.use(tube)
            self._tube = tube
        if max(now - then for now, then in zip(_clocks(), self._renewed)) >= RENEW_AFTER:
            renewed = _clocks()
            try:
                self.queue.reschedule(self._job_id, LOCK_FOR)
            except (NotFoundError, TooLateError):
                raise LockLostError("the lock of the schedules was lost") from None
            self._renewed = renewed
        return self.queue

    def end(self) -> None:
        with contextlib.suppress(NotFoundError, TooLateError, OSError):
            self.queue.cancel(self._job_id)


def _clocks() -> tuple[float, float]:
    """Seconds, by two clocks: one is never set, the other goes on while the machine sleeps."""
    return time.monotonic(), time.time()
