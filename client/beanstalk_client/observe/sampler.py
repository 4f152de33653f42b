"""Samples a server for all viewers with the same rights, and keeps the last hour for charts.

    with viewers            each interval: `stats`, a page of `stats-tubes`, the tubes that are shown, the ages of the
                            next jobs of some (survey.py has the budget)
    without viewers         each IDLE_INTERVAL: `stats` alone, so that the charts have no gap
    several users           each has a sampler, as each may see other tubes; together they keep to one budget
    no connection           `problem` says why; each interval tries again

The budget is 5 ms of the server's time a second. Memory is bounded: a tube takes 400 bytes; MAX_TRACKED of them have
an hour of figures, 5 kB each. Time is a number of seconds that never goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.commands import Command
from beanstalk_client.errors import (
    BadFormatError,
    BeanstalkdError,
    Error,
    ForbiddenError,
    InternalError,
    NotFoundError,
    OutOfMemoryError,
    UnauthorizedError,
    UnknownCommandError,
)
from beanstalk_client.events import reason_of
from beanstalk_client.observe.samples import STATES, Samples
from beanstalk_client.observe.survey import READERS, Survey
from beanstalk_client.replies import Document

T = TypeVar("T")

INTERVAL: Final = 2.0
IDLE_INTERVAL: Final = 10.0
"""Seconds between two samples, with and without viewers."""

HURRY: Final = 0.1
"""Seconds between the begin of a sample and that of the next one, at least."""

STEP: Final = 10.0
"""Seconds between two values of a history."""

LOOKED_WITHIN: Final = 30.0
"""Seconds after the last look until it no longer counts as a viewer."""

KEPT: Final = 360
"""Maximum number of steps of a history: an hour of steps of 10 s."""

MAX_TRACKED: Final = 500
"""Maximum number of tubes with a history: those that were shown last."""

MAX_SHOWN: Final = 100
"""Maximum number of shown tubes that are asked for in each interval."""

SLOW: Final = 3.0
"""Seconds that a sample may take until pages say that the server does not answer."""

TOP: Final = 10
"""Number of tubes with the most ready jobs that are sampled as if they were shown."""

SERVER_SERIES: Final = {
    **{state: f"current-jobs-{state}" for state in STATES},
    **{name: f"current-{name}" for name in ("memory", "connections", "waiting")},
}
"""The figures of the server that have a history, beside the rates, by their keys in `stats`."""

RATE_SERIES: Final = ("puts", "reserves", "deletes", "failures")

FAILURES: Final = ("cmd-release", "cmd-bury", "job-timeouts")
"""The counters that tell of failures: a job that is released, buried or runs out of time has failed."""

REFUSALS: Final = (
    NotFoundError,
    UnknownCommandError,
    BadFormatError,  # beanstalkd takes stats-tubes for a stats with an argument
    ForbiddenError,
    InternalError,
    OutOfMemoryError,
)
"""Replies that answer a question, so that sampling goes on."""


class Series:
    """The mean of a figure in each of the last steps of time.

    Args:
        length: of a step, in seconds.
    """

    def __init__(self, length: float = STEP) -> None:
        self._length = length
        self._values = array("f", [math.nan]) * KEPT
        self._step = -1  # the number of the latest step; its place is the remainder by KEPT
        self._count = 0

    def add(self, now: float, value: float | None) -> None:
        """Take a value; None is none."""
        step = int(now // self._length)
        if step > self._step:
            for passed in range(max(self._step + 1, step - KEPT + 1), step + 1):
                self._values[passed % KEPT] = math.nan
            self._step, self._count = step, 0
        if value is None or step < self._step:
            return
        place = step % KEPT
        mean = self._values[place] if self._count else 0.0
        self._count += 1
        self._values[place] = mean + (value - mean) / self._count

    def last(self, now: float, count: int = KEPT) -> list[float | None]:
        """The latest steps until now, the newest last; None where nothing was taken."""
        step = int(now // self._length)
        found: list[float | None] = []
        for each in range(step - count + 1, step + 1):
            value = self._values[each % KEPT] if self._step - KEPT < each <= self._step else math.nan
            found.append(None if math.isnan(value) else value)
        if found[-1] is None:  # a step that has just begun
            found.pop()
        return found


class Shared(Generic[T]):
    """What several ask for at a time is fetched once, and is good for some seconds.

    Attributes:
        latest: what was fetched last, however long ago.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._at = -math.inf
        self.latest: T | None = None

    async def get(self, fetch: Callable[[], Awaitable[T]], good_for: float) -> T:
        async with self._lock:
            if self.latest is None or self._clock() - self._at > good_for:
                self.latest = await fetch()
                self._at = self._clock()
            return self.latest


class Sampler:
    """Samples a server, with the rights of one user.

    Args:
        client: a client of its own.
        clock: seconds.
        users: how many samplers share the budget at present.
        interval: seconds between two samples with viewers.
        step: seconds between two values of a history.

    Attributes:
        prefix: only tubes with this prefix are asked for in rounds.
        samples: the latest figures of the server and its tubes.
        survey: which tubes have been asked about.
        problem: why the server does not answer; "" if it does. error: the exception, or None.
        totals: the jobs by state at the latest sample: those of the server, or of the tubes that are known if the user
            may not see the server.
        throttled: the tubes whose policy holds back their jobs at present.
        failures: the rate of failures, a second, or None.
        taken: how many samples have been taken or tried.
        is_unauthorized: the server does not take the token any more.
        is_closed: nothing is sampled any more.
    """

    def __init__(
        self,
        client: AsyncClient[bytes],
        clock: Callable[[], float] = time.monotonic,
        users: Callable[[], int] = lambda: 1,
        interval: float = INTERVAL,
        step: float = STEP,
    ) -> None:
        self._client = client
        self._clock = clock
        self._users = users
        self._interval, self._step = interval, step
        self._task: asyncio.Task[None] | None = None
        self._tick = asyncio.Event()  # set at the end of a sample, and replaced
        self._wake = asyncio.Event()
        self._looked = -math.inf
        self._shown: dict[str, float] = {}  # the tubes that are shown, and since when: the latest last
        self._series = {name: Series(step) for name in (*RATE_SERIES, *SERVER_SERIES)}
        self._tracked: dict[str, dict[str, Series]] = {}
        self._counted: tuple[float, float] | None = None  # the moment, and the failures counted then
        self.samples: Samples = Samples()
        self.survey: Survey = Survey(self.samples)
        self.prefix: str = ""
        self.error: Exception | None = None
        self._asked: float | None = None  # when the sample that goes on began
        self.totals: dict[str, int] = dict.fromkeys(STATES, 0)
        self.throttled: set[str] = set()
        self.failures: float | None = None
        self.taken: int = 0
        self.is_unauthorized: bool = False
        self.is_closed: bool = False

    @property
    def problem(self) -> str:
        if self.error is None:
            seconds = 0.0 if self._asked is None else self.now - self._asked
            return f"no answer for {seconds:.0f} s" if seconds > SLOW else ""
        meaning = self.error.meaning if isinstance(self.error, BeanstalkdError) else ""
        return meaning or reason_of(self.error)

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def is_looked_at(self) -> bool:
        return self._clock() - self._looked < LOOKED_WITHIN

    async def connect(self) -> None:
        """Connect now, so that the caller gets the error; see `AsyncClient.connect`."""
        await self._client.connect()

    # For pages

    async def look(self, shown: Iterable[str] = (), within: float = 0.15) -> None:
        """Sample from now on, for a viewer of these tubes. If the last sample is old, wait for one, but not long."""
        was_idle = not self.is_looked_at
        self.show(shown)
        self.start()
        if was_idle:
            self._wake.set()
        if was_idle or not self.taken:
            await self.wait(within)

    async def again(self, within: float = 0.3) -> None:
        """Take a sample now, after a change, and wait for it, but not long."""
        await self.look()
        if self._asked is None:
            self._wake.set()
            await self.wait(within)

    def start(self) -> None:
        """Sample from now on, slowly without viewers."""
        if not self.is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    def show(self, shown: Iterable[str]) -> None:
        """Note that these tubes are shown to a viewer."""
        self._looked = now = self._clock()
        for name in shown:
            self._shown.pop(name, None)
            self._shown[name] = now
        while len(self._shown) > MAX_SHOWN:
            del self._shown[next(iter(self._shown))]

    async def wait(self, within: float) -> bool:
        """Wait for the next sample; tell whether there was one."""
        try:
            await asyncio.wait_for(self._tick.wait(), within)
        except TimeoutError:
            return False
        return True

    @property
    def sees_server(self) -> bool:
        """Whether the figures of the server are known, and this user may see them."""
        return bool(self.samples.figures) and not self.survey.is_refused

    def _totals(self) -> dict[str, int]:
        if self.sees_server:
            return {state: self.samples.number(f"current-jobs-{state}") or 0 for state in STATES}
        tubes = self.samples.tubes.values()
        return {state: sum(getattr(tube, state) or 0 for tube in tubes) for state in STATES}

    def history(self, name: str, tube: str = "", count: int = KEPT) -> list[float | None]:
        """The last hour of a figure of the server, or of a tube."""
        series = self._tracked.get(tube, {}).get(name) if tube else self._series.get(name)
        return series.last(self._clock(), count) if series else []

    async def close(self) -> None:
        """End sampling; who waits for a sample waits no longer."""
        self.is_closed = True
        self._wake_waiting()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.close()

    # Sampling

    async def _run(self) -> None:
        while True:
            began = self._clock()
            await self.sample()
            pause = (self._interval if self.is_looked_at else IDLE_INTERVAL) * max(self._users(), 1)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(began + pause - self._clock(), HURRY))
            await asyncio.sleep(began + HURRY - self._clock())

    async def sample(self) -> None:
        """Take one sample; what goes wrong is in `problem`."""
        self._asked = self._clock()
        try:
            await self._sample()
            self.error, self.is_unauthorized = None, False
            self.taken += 1
        except (Error, OSError) as error:
            self.error = error
            self.survey = Survey(self.samples)  # the next connection may be to a server with other commands
            if isinstance(error, BeanstalkdError):
                self.is_unauthorized = isinstance(error, UnauthorizedError)
        self._asked = None
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()

    async def _sample(self) -> None:
        now = self._clock()
        if not self.is_looked_at:
            await self._ask(["stats"])
        else:
            for name in [name for name, moment in self._shown.items() if now - moment > LOOKED_WITHIN]:
                del self._shown[name]
            questions = self.survey.begin(now, self._interval, self._wanted(), self.prefix)
            while questions:
                await self._ask(questions)
                questions = self.survey.more(now)
        self._record(self._clock())

    def _wanted(self) -> Sequence[str]:
        """The tubes to look at more closely: those that are shown, latest first, and those with the most ready jobs."""
        top = heapq.nlargest(TOP, self.samples.tubes.values(), key=lambda tube: tube.ready or 0)
        return list(dict.fromkeys([*[tube.name for tube in top], *reversed(self._shown)]))[:MAX_SHOWN]

    async def _ask(self, questions: Sequence[str]) -> None:
        asked = [self._client.execute(_command(question)) for question in questions]
        results = await asyncio.gather(*asked, return_exceptions=True)
        for question, result in zip(questions, results, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, REFUSALS):
                raise result
            if question.startswith("stats-tube") and not isinstance(result, BaseException):
                for figures in result[1] if isinstance(result, tuple) else [result]:
                    self._note_policy(figures)
            self.survey.take(self._clock(), question, result)

    def _note_policy(self, figures: Mapping[str, Any]) -> None:
        if figures.get("throttled"):
            self.throttled.add(str(figures["name"]))
        elif self.throttled:
            self.throttled.discard(str(figures["name"]))

    def _record(self, now: float) -> None:
        samples = self.samples
        self.totals = self._totals()
        if self.survey.is_refused:
            for state, total in self.totals.items():
                self._series[state].add(now, total)
            for name in ("puts", "deletes"):
                rates = [getattr(tube, name) for tube in self.samples.tubes.values()]
                self._series[name].add(now, sum(rate for rate in rates if rate is not None))
        elif samples.figures:
            for name, key in SERVER_SERIES.items():
                self._series[name].add(now, samples.number(key))
            for name in ("puts", "reserves", "deletes"):
                self._series[name].add(now, samples.rates.get(name))
            self._count_failures(now)
        tubes = self.samples.tubes
        names = tubes if len(tubes) <= MAX_TRACKED else self._wanted()
        for name in names:
            tube = tubes.get(name)
            if tube is None or tube.moment < now - 2 * self._interval:
                continue
            series = self._tracked.pop(name, None)
            if series is None:
                series = {figure: Series(self._step) for figure in ("ready", "puts", "deletes")}
            self._tracked[name] = series
            for figure, values in series.items():
                values.add(now, getattr(tube, figure))
        for name in [name for name in self._tracked if name not in tubes]:
            del self._tracked[name]
        while len(self._tracked) > MAX_TRACKED:
            del self._tracked[next(iter(self._tracked))]

    def _count_failures(self, now: float) -> None:
        count = float(sum(self.samples.number(key) or 0 for key in FAILURES))
        before, self._counted = self._counted, (now, count)
        if before is None or now <= before[0] or count < before[1]:
            return
        self.failures = (count - before[1]) / (now - before[0])
        self._series["failures"].add(now, self.failures)


def _command(question: str) -> Command[Any]:
    return Command(f"{question}\r\n".encode(), Document(READERS[question.partition(" ")[0]]), True)
