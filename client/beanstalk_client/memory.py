"""A queue in memory, for tests of what uses tasks: no server, no threads, and a clock that the test moves.

    with tasks.in_memory() as queue:
        shop.order(17)                      # puts cancel_order.key("order-17").delay(900)
        assert queue.run(899) == 0          # nothing is due within the next 899 seconds
        shop.pay(17)                        # calls it off
        assert not queue.jobs()

Delays, moments, keys, cancels, priorities, retries and burials are a server's: tests hold this queue against one. What
the client refuses to send, and a body that is too big for the server, are refused here as there.
Tasks run in the caller's thread, one after the other; no other client reserves anything, and no time to run ends.
Must never be taken for a queue in production: it keeps nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from beanstalk_client.commands import (
    DEFAULT_PRIORITY,
    DEFAULT_TTR,
    DEFAULT_TUBE,
    MAX_ID,
    STATES,
    Duration,
    make,
    seconds_of,
    unix_time_of,
    within,
)
from beanstalk_client.commands import seconds as checked
from beanstalk_client.consumer import Bury, Outcome, Release
from beanstalk_client.errors import BuriedError, ExistsError, JobTooBigError, NotFoundError, TimedOutError, TooLateError
from beanstalk_client.session import Session
from beanstalk_client.tasks.failure import AnyDelivery
from beanstalk_client.tasks.message import UnreadableError, read
from beanstalk_client.tasks.results import RESULTS
from beanstalk_client.tasks.runner import TaskRunner

if TYPE_CHECKING:
    import datetime

    from beanstalk_client.schedules import Schedule
    from beanstalk_client.tasks.message import Message
    from beanstalk_client.tasks.task import Task, TaskRegistry

READY = "ready"
DELAYED = "delayed"
RESERVED = "reserved"
BURIED = "buried"

ONCE_TTL = 3600
"""Seconds for which a token stays taken, unless its put says so."""


@dataclasses.dataclass(eq=False, repr=False)
class MemoryJob:
    """A job of a queue in memory.

    Attributes:
        id, tube, body, priority: what they are on a server.
        state: "ready", "delayed", "reserved" or "buried".
        key: "" for none.
        due: when its delay ends, in Unix time.
        message: the call that its body asks for, or None if it asks for none.
    """

    id: int
    tube: str
    key: str
    due: float
    body: bytes = b""
    priority: int = 0
    ttr: float = 0.0
    delay: float = 0.0
    state: str = READY
    message: Message | None = None
    reserves: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0
    tries: int = 0
    max_tries: int = 0
    backoff: float = 0.0
    ttl: float = 0.0
    hold: float = 0.0
    group: str = ""
    _after: str = ""  # the group that it waits for
    _sunk: int = 0  # which burial was its last
    _again: tuple[Any, ...] | None = None  # if it was replaced while reserved: the arguments of `_begin` then

    def __post_init__(self) -> None:
        self._created = self.due

    def __repr__(self) -> str:
        call = f"{self.message.task}{tuple(self.message.args)}" if self.message else f"{len(self.body)} bytes"
        return f"<job {self.id} of tube {self.tube}, {self.state}: {call}>"

    def stats(self, now: float) -> dict[str, Any]:
        """What `stats-job` says, as far as it makes sense without a server."""
        found: dict[str, Any] = {
            "id": self.id,
            "tube": self.tube,
            "state": self.state,
            "pri": self.priority,
            "age": int(now - self._created),
            "delay": int(self.delay),
            "ttr": int(self.ttr),
            "time-left": int(max(0.0, self.due - now)) if self.state == DELAYED and not self._after else 0,
            "file": 0,
            "reserves": self.reserves,
            "timeouts": 0,
            "releases": self.releases,
            "buries": self.buries,
            "kicks": self.kicks,
        }
        return {**found, "key": self.key} if self.key else found


class MemoryQueue:
    """Tubes of jobs, and a clock that stands still.

    Args:
        tasks: whose tasks its jobs call.
        now: what its clock says to begin with, in Unix time; by default what the machine's says.
        max_job_size: bytes of the largest body that it takes, as the server's option -z.
        schedules: whether the schedules of `tasks` fire, as beside a scheduler that is started with the test.

    Attributes:
        now: what its clock says, in Unix time.
        errors: the exceptions of tasks, in the order in which they were raised.
    """

    def __init__(
        self, tasks: TaskRegistry, now: float | None = None, *, max_job_size: int = 65535, schedules: bool = True
    ) -> None:
        self._tasks = tasks
        self._has_schedules = schedules
        self._firings: dict[str, float] = {}  # the next moment of each schedule
        self._max_job_size: int = within("max_job_size", max_job_size, MAX_ID)
        self.now: float = round(time.time() if now is None else unix_time_of(now, "now"), 6)
        checked("now", self.now)
        self.errors: list[BaseException] = []
        self._jobs: dict[int, MemoryJob] = {}  # in the order of their ids
        self._keyed_jobs: dict[tuple[str, str], MemoryJob] = {}  # by tube and key
        # Entries of both heaps stay when a job changes, and are checked when they come up.
        self._ready: dict[str, list[tuple[int, int]]] = {}  # heap of each tube: priority and id
        self._timers: list[tuple[float, int]] = []  # heap: when a delay or a ttl ends, and the job's id
        self._held: dict[tuple[str, str], tuple[float, int]] = {}  # by tube and key: until when, and the job's id
        self._tokens: dict[tuple[str, str], tuple[float, int]] = {}  # likewise by tube and token
        self._groups: dict[str, int] = {}  # of each that has had a job, how many it has
        self._waiting: dict[str, list[MemoryJob]] = {}  # jobs that wait for a group
        self._ended: list[str] = []  # groups whose last job is gone, until the jobs that wait for them go on
        self._last = 0
        self._burials = 0
        self._fire()

    # What a test asks for

    def jobs(self, tube: str | None = None, state: str | None = None) -> list[MemoryJob]:
        """The jobs that there are, by their ids: all, or those of a tube, or in a state."""
        self._settle()
        return [job for job in self._jobs.values() if tube in (None, job.tube) and state in (None, job.state)]

    def advance(self, seconds: Duration) -> None:
        """Let time pass, in which nothing runs: seconds, "15m", or a timedelta."""
        checked("seconds", seconds)
        end = self._after(seconds_of(seconds))
        self._settle()
        while self._timers and self._timers[0][0] < end:  # a job may wait for one that goes
            self.now = self._timers[0][0]
            self._settle()
        self.now = end

    def run(self, seconds: Duration = 0.0) -> int:
        """Run what is due within this many seconds from now ("15m", a timedelta), each at its moment; return how many
        runs that were. `math.inf`: until nothing is left.

        Raises:
            ValueError: that is no time, or never ends, as schedules fire again and again.
            RuntimeError: the test is a coroutine, for which there is `await queue.arun()`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError("queue.run() was called in a coroutine: use `await queue.arun()` there")
        return asyncio.run(self.arun(seconds))  # outside of `except`, which tasks would see in their tracebacks

    async def arun(self, seconds: Duration = 0.0) -> int:
        """As `run`, in asyncio."""
        length = seconds_of(seconds)
        if length != math.inf:
            checked("seconds", length)
        end = self._after(length)
        self._settle()
        if end == math.inf and self._firings:
            raise ValueError("seconds is inf: must be finite, because schedules fire forever")
        runner = _MemoryRunner(self)
        runs = 0
        while True:
            job = self._reserve(None)
            if job is not None:
                runs += 1
                await self._run(runner, job)
                continue
            timer = self._timers[0][0] if self._timers else math.inf
            moment = min(timer, *self._firings.values(), math.inf)
            if moment > end or moment == math.inf:
                self.now = max(self.now, end if end < math.inf else self.now)
                return runs
            self.now = max(self.now, moment)

    async def _run(self, runner: TaskRunner, job: MemoryJob) -> None:
        client = self.client(job.tube)
        delivery = _Delivery(self, job)
        run = asyncio.ensure_future(runner(delivery))  # as at a worker, so that only the test itself is cancelled here
        try:
            await asyncio.wait([run])
        except asyncio.CancelledError:
            delivery.is_called_off = True
            run.cancel()
            await asyncio.wait([run])
            raise
        outcome: Outcome = run.result()
        if job.state != RESERVED:
            return
        if isinstance(outcome, Release):
            with contextlib.suppress(BuriedError):  # it has demanded that
                client.release(job, outcome.priority, outcome.delay)
        elif isinstance(outcome, Bury):
            client.bury(job, outcome.priority)
        else:
            client.delete(job)

    def client(self, tube: str = DEFAULT_TUBE) -> MemoryClient:
        """What puts into a tube and takes from it, with the methods of `Client` that tasks need."""
        return MemoryClient(self, tube)

    # What its clients ask for

    def _after(self, seconds: float) -> float:
        """The moment after this many seconds: in whole microseconds, so that ten times 0.1 s are one second."""
        return round(self.now + seconds, 6)

    def _settle(self) -> None:
        """Let everything happen that has been due by now."""
        self._fire()
        while True:
            if self._timers and self._timers[0][0] <= self.now:
                job = self._jobs.get(heappop(self._timers)[1])
                if job is None:
                    continue
                if job.state == DELAYED and job.due <= self.now:
                    self._enter(job, READY)
                if job.state == READY and job.ttl and job.due + job.ttl <= self.now:
                    self._remove(job, holds=True, at=job.due + job.ttl)
            elif self._ended:
                self._end_wait(self._ended.pop())
            else:
                return

    def _enter(self, job: MemoryJob, state: str) -> None:
        """Let a job be ready or delayed."""
        job.state = state
        if state == DELAYED:
            if job.due < math.inf:
                heappush(self._timers, (job.due, job.id))
            return
        heappush(self._ready.setdefault(job.tube, []), (job.priority, job.id))
        if job.ttl:
            heappush(self._timers, (job.due + job.ttl, job.id))

    def _end_wait(self, group: str) -> None:
        """A group has ended, unless it has got another job since."""
        if self._groups[group]:
            return
        for job in self._waiting.pop(group, ()):
            if job._after == group and job.id in self._jobs:
                job._after = ""
                job.due = self._after(job.delay)
                self._enter(job, DELAYED)

    def _leave(self, job: MemoryJob) -> None:
        """A job is no member of its group any more."""
        if job.group:
            self._groups[job.group] -= 1
            if not self._groups[job.group]:
                self._ended.append(job.group)

    def _fire(self) -> None:
        """Put the firings of schedules that are due by now; of one that is new, none of the past."""
        if not (self._has_schedules and self._tasks.schedules):
            return
        from beanstalk_client.schedules.schedule import key_of
        from beanstalk_client.schedules.scheduler import GROUP, Scheduler

        schedules = {schedule.name: schedule for schedule in self._tasks.schedules}
        if len(schedules) > len(self._firings):
            Scheduler(self._tasks.connect, schedules.values())  # which refuses what it could not plan
            for name in schedules:
                self._firings.setdefault(name, _next(schedules[name], self.now))
        while (moment := min(self._firings.values(), default=math.inf)) <= self.now:
            for name, schedule in schedules.items():
                if self._firings[name] == moment:
                    self._firings[name] = _next(schedule, moment)
                    firing = schedule.firing(int(moment))
                    self._admit(firing.body)
                    job = self._new(firing.tube, key_of(GROUP, name, int(moment)))
                    self._fill(job, firing.body, firing.priority, 0.0, firing.ttr, dict(firing.demands), moment)

    def _keyed(self, tube: str, key: str) -> MemoryJob | None:
        self._settle()
        return self._keyed_jobs.get((tube, key)) if key else None

    def _holder(self, tube: str, key: str) -> int:
        """The id of the job that is done and whose key is held; 0 for none."""
        until, job_id = self._held.get((tube, key), (0.0, 0))
        return job_id if until > self.now else 0

    def _remove(self, job: MemoryJob, *, holds: bool, at: float) -> None:
        del self._jobs[job.id]
        if self._keyed_jobs.get((job.tube, job.key)) is job:
            del self._keyed_jobs[job.tube, job.key]
        self._leave(job)
        job.state = "gone"
        if holds and job.hold:
            self._held[job.tube, job.key] = at + job.hold, job.id

    def _reserve(self, tubes: list[str] | None) -> MemoryJob | None:
        """The best of the jobs that are ready, or None."""
        self._settle()
        if tubes is None:  # reports are for people, and results for who waits
            tubes = [tube for tube in self._ready if not tube.endswith((self._tasks.errors or RESULTS, RESULTS))]
        ready = [job for job in map(self._first, tubes) if job is not None]
        if not ready:
            return None
        job = min(ready, key=lambda job: (job.priority, job.id))
        heappop(self._ready[job.tube])
        job.state = RESERVED
        job.reserves += 1
        return job

    def _first(self, tube: str) -> MemoryJob | None:
        """The best of the ready jobs of a tube, which is then at the top of its heap."""
        heap = self._ready.get(tube, [])
        while heap:
            priority, job_id = heap[0]
            job = self._jobs.get(job_id)
            if job is not None and job.state == READY and job.priority == priority:
                return job
            heappop(heap)
        self._ready.pop(tube, None)
        return None

    def _find(self, job: MemoryJob | int, *states: str) -> MemoryJob:
        self._settle()
        found = self._jobs.get(_id_of(job))
        if found is None or (states and found.state not in states):
            raise NotFoundError
        return found

    def _admit(self, body: bytes) -> None:
        if len(body) > self._max_job_size:
            raise JobTooBigError

    def _new(self, tube: str, key: str) -> MemoryJob:
        self._last += 1
        job = self._jobs[self._last] = MemoryJob(self._last, tube, key, self.now)
        if key:
            self._keyed_jobs[tube, key] = job
        return job

    def _fill(
        self,
        job: MemoryJob,
        body: bytes,
        priority: int,
        delay: float,
        ttr: float,
        demands: dict[str, Any],
        due: float | None = None,
    ) -> None:
        """Give a job what a put says, whether it is new or replaced. A reserved job is put when that ends."""
        self._leave(job)
        self._write(job, body)
        job.priority = priority
        job.delay = delay
        job.tries = 0
        job.max_tries = int(demands.get("tries", 0))
        job.backoff, job.ttl, job.hold = (seconds_of(demands.get(name) or 0) for name in ("backoff", "ttl", "hold"))
        job.group = demands.get("group", "")
        if job.group:
            if job.group not in self._groups:
                self._last += 1  # at a server, a group has an id
            self._groups[job.group] = self._groups.get(job.group, 0) + 1
        beginning = ttr, due, demands.get("after", ""), bool(demands.get("after_waits"))
        if job.state == RESERVED:
            job._created, job._again = self.now, beginning
        else:
            self._begin(job, *beginning)

    def _begin(self, job: MemoryJob, ttr: float, due: float | None, after: str, waits: bool) -> None:
        """Let a job be ready or delayed, or wait for a group, as its put says."""
        job.ttr = ttr
        job.due = self._after(job.delay) if due is None else due
        job._after = ""
        if after and (self._groups.get(after) or (waits and after not in self._groups)):
            job._after, job.due = after, math.inf
            self._waiting.setdefault(after, []).append(job)
        self._enter(job, DELAYED if job.due > self.now else READY)

    def _runs_again(self, job: MemoryJob) -> bool:
        """Put a job whose reservation ends, if it was replaced meanwhile; False if it was not."""
        if job._again is None:
            return False
        (ttr, due, *rest), job._again = job._again, None
        self._begin(job, ttr, None if due is None else max(due, self.now), *rest)
        return True

    def _write(self, job: MemoryJob, body: bytes) -> None:
        """Give a job a body."""
        job.body = body
        try:
            job.message = read(body, self._tasks.serializer)
        except UnreadableError:
            job.message = None


class MemoryClient:
    """A client of a queue in memory, which uses and watches one tube.

    It makes the commands that `Client` would send, which refuses what no server takes.
    """

    def __init__(self, queue: MemoryQueue, tube: str) -> None:
        self._session = Session(None, tube, tube)
        self._queue = queue
        self._tube = tube

    def put(
        self, body: bytes, priority: int = DEFAULT_PRIORITY, delay: Duration = 0, ttr: Duration = DEFAULT_TTR
    ) -> int:
        return self.put_with(body, priority, delay, ttr)

    def put_with(
        self,
        body: bytes,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = 0,
        ttr: Duration = DEFAULT_TTR,
        *,
        key: str = "",
        replace: bool = False,
        again: bool = False,
        within: Duration | None = 0,
        at: float | datetime.datetime | None = None,
        once: str = "",
        once_ttl: Duration | None = 0,
        **demands: Any,
    ) -> int:
        data = self._session.encode(body)
        make.put_with(
            data,
            priority,
            delay,
            ttr,
            key=key,
            replace=replace,
            again=again,
            within=within,
            at=at,
            once=once,
            once_ttl=once_ttl,
            **demands,
        )
        delay, ttr = seconds_of(delay), max(1, seconds_of(ttr))  # a second at least, as at a server
        queue = self._queue
        queue._admit(data)
        taken_until, taken_id = queue._tokens.get((self._tube, once), (0.0, 0))
        if taken_until > queue.now:
            raise ExistsError(taken_id)
        if at is not None:
            delay = max(0.0, unix_time_of(at) - queue.now)
        job, holder = queue._keyed(self._tube, key), queue._holder(self._tube, key)
        if (job is not None or holder) and not replace:
            raise ExistsError(job.id if job is not None else holder)
        if (job is not None and job.state == RESERVED and not again) or (job is None and holder):
            raise TooLateError
        if job is None:
            job = queue._new(self._tube, key)
        if within:
            first = queue.now if job.state == RESERVED else job._created
            delay = min(delay, max(first + seconds_of(within) - queue.now, 0.0))
        if at is None:
            queue._fill(job, data, priority, delay, ttr, demands)
        else:
            queue._fill(job, data, priority, 0.0, ttr, demands, queue._after(delay))
        if once:
            queue._tokens[self._tube, once] = queue._after(seconds_of(once_ttl or ONCE_TTL)), job.id
            queue._last += 1  # at a server, a token has an id
        return job.id

    def cancel(self, job: MemoryJob | int) -> None:
        make.cancel(_id_of(job))
        self._cancel(self._queue._find(job))

    def cancel_keyed(self, key: str) -> None:
        self._cancel(self.peek_keyed(key))

    def _cancel(self, job: MemoryJob) -> None:
        if job.state != DELAYED:
            raise TooLateError
        self._queue._remove(job, holds=False, at=self._queue.now)

    def stats_group(self, group: str) -> dict[str, Any]:
        """The state of a group, and how many jobs it has, with the keys of `stats-group`."""
        make.stats_group(group)
        members = [job for job in self._queue.jobs() if job.group == group]
        waiting = sum(job._after == group for job in self._queue.jobs())
        if group not in self._queue._groups and not waiting:
            raise NotFoundError
        states = {f"current-jobs-{state}": sum(job.state == state for job in members) for state in STATES}
        state = "open" if members else "ended" if group in self._queue._groups else "awaited"
        return {"name": group, "state": state, **states, "waiting-jobs": waiting}

    def cancel_group(self, group: str) -> int:
        make.cancel_group(group)
        self.stats_group(group)  # which raises NotFoundError
        found = [job for job in self._queue.jobs() if job.group == group and job.state != RESERVED]
        for job in found:
            self._queue._remove(job, holds=False, at=self._queue.now)
        return len(found)

    def reserve(self, timeout: float = 0) -> MemoryJob:
        """The best job that is ready."""
        if timeout:
            raise ValueError(
                f"timeout is {timeout}: must be 0, because no other client can put jobs into a queue in memory"
            )
        job = self._queue._reserve([self._tube])
        if job is None:
            raise TimedOutError
        return job

    def delete(self, job: MemoryJob | int) -> None:
        make.delete(_id_of(job))
        found = self._queue._find(job)
        if not self._queue._runs_again(found):
            self._queue._remove(found, holds=True, at=self._queue.now)

    def release(self, job: MemoryJob | int, priority: int | None = None, delay: Duration = 0) -> None:
        make.release(_id_of(job), priority, delay)
        delay = seconds_of(delay)
        found = self._queue._find(job, RESERVED)
        found.releases += 1
        if self._queue._runs_again(found):
            return
        found.priority = DEFAULT_PRIORITY if priority is None else priority
        found.delay = delay
        found.tries += 1
        if found.max_tries and found.tries >= found.max_tries:
            self._sink(found)
            raise BuriedError
        wait = delay or (found.backoff and found.backoff * 2.0 ** (found.tries - 1))
        found.due = self._queue._after(wait)
        self._queue._enter(found, DELAYED if wait else READY)

    def bury(self, job: MemoryJob | int, priority: int | None = None) -> None:
        make.bury(_id_of(job), priority)
        found = self._queue._find(job, RESERVED)
        if self._queue._runs_again(found):
            return
        found.priority = DEFAULT_PRIORITY if priority is None else priority
        self._sink(found)

    def _sink(self, job: MemoryJob) -> None:
        self._queue._burials += 1
        job._sunk = self._queue._burials
        job.buries += 1
        job.state = BURIED

    def give_back(self, job: MemoryJob | int) -> None:
        make.give_back(_id_of(job))
        found = self._queue._find(job, RESERVED)
        found.reserves -= 1
        if not self._queue._runs_again(found):
            self._queue._enter(found, READY)

    def save(self, job: MemoryJob | int, body: bytes) -> None:
        data = self._session.encode(body)
        make.save(_id_of(job), data)
        self._queue._admit(data)
        found = self._queue._find(job, RESERVED)
        if found._again is not None:
            raise TooLateError
        self._queue._write(found, data)

    def reprioritize(self, job: MemoryJob | int, priority: int) -> None:
        make.reprioritize(_id_of(job), priority)
        self._reprioritize(self._queue._find(job), priority)

    def reprioritize_keyed(self, key: str, priority: int) -> None:
        make.reprioritize_keyed(key, priority)
        self._reprioritize(self.peek_keyed(key), priority)

    def _reprioritize(self, job: MemoryJob, priority: int) -> None:
        if job.state == RESERVED:
            raise TooLateError
        job.priority = priority
        if job.state == READY:
            self._queue._enter(job, READY)

    def kick_job(self, job: MemoryJob | int) -> None:
        make.kick_job(_id_of(job))
        found = self._queue._find(job, BURIED, DELAYED)
        found.kicks += 1
        found._after = ""
        found.tries = 0
        found.due = self._queue.now
        self._queue._enter(found, READY)

    def kick(self, limit: int) -> int:
        """Kick buried jobs of the tube, or delayed ones where none is buried; return how many."""
        make.kick(limit)
        buried = self._queue.jobs(self._tube, BURIED)
        delayed = self._queue.jobs(self._tube, DELAYED)
        chosen = sorted(buried, key=lambda job: job._sunk) or sorted(delayed, key=lambda job: (job.due, job.id))
        for job in chosen[:limit]:
            self.kick_job(job)
        return len(chosen[:limit])

    def peek_keyed(self, key: str) -> MemoryJob:
        make.peek_keyed(key)
        job = self._queue._keyed(self._tube, key)
        if job is None:
            raise NotFoundError
        return job

    def knows(self, command: str) -> bool:
        """Whether the queue has a command of the server."""
        return hasattr(self, command.replace("-", "_"))

    def stats_job(self, job: MemoryJob | int) -> dict[str, Any]:
        make.stats_job(_id_of(job))
        return self._queue._find(job).stats(self._queue.now)


def _next(schedule: Schedule, now: float) -> float:
    """When a schedule fires next; infinity for never again."""
    moment = schedule.moments.after(math.floor(now))
    return math.inf if moment is None else moment


def _id_of(job: MemoryJob | int) -> int:
    return job if isinstance(job, int) else job.id


class _Delivery:
    """A job in hand."""

    def __init__(self, queue: MemoryQueue, job: MemoryJob) -> None:
        self._queue = queue
        self.job_id = job.id
        self.body = job.body
        self.tube = job.tube
        self.is_called_off = False

    async def stats(self) -> dict[str, Any]:
        return self._queue.client(self.tube).stats_job(self.job_id)

    async def save(self, body: bytes) -> None:
        self._queue.client(self.tube).save(self.job_id, body)
        self.body = body


class _MemoryRunner(TaskRunner):
    """A runner that notes what goes wrong, for the test to look at."""

    def __init__(self, queue: MemoryQueue) -> None:
        super().__init__(queue._tasks, None, jitter=0.0)  # a test says to the second what runs
        self._queue = queue

    async def _fail(
        self, delivery: AnyDelivery, task: Task[..., Any], error: BaseException, result_ttl: float = 0.0
    ) -> Outcome:
        self._queue.errors.append(error)
        return await super()._fail(delivery, task, error, result_ttl)
