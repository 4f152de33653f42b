"""Handles a failed task: whether and when it is retried, what is logged, and its report.

Must never show the arguments of a task, but in what its exception says and its traceback quotes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Protocol, Union

from beanstalk_client.commands import MAX_SECONDS, Duration, seconds, seconds_of
from beanstalk_client.consumer import is_last_attempt
from beanstalk_client.errors import Error

LONGEST_DELAY = 86400.0
"""Seconds that a job waits for its next try at most: a day."""

JITTER = 0.1
"""By how much of itself a backoff is made longer at most, at random: so jobs that failed together are not tried so."""

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""Where the modules of this package are."""

UNKNOWN_TASK_GRACE = 300.0
"""Seconds for which a worker leaves a job to other workers whose task it does not have."""

UNKNOWN_TASK_BACKOFF = 5.0
"""The first delay of such a job, doubled with each further one."""

ERRORS = ".errors"
"""What a tube's name ends with that has the errors of another one's jobs."""

REPORT_LENGTH = 65_000
"""How long a report may be, in bytes: the longest job that beanstalkd takes has 65,535."""

REPORT_TTL = 30 * 86400.0
"""Seconds that a report is kept, by a server that can be told so."""

Backoff = Union[Duration, Callable[[int], Duration]]
"""The delay after the first failure, doubled with each further one; or what says how long, given the failure's number.
"""


class Retry(Exception):  # noqa: N818
    """Raised by a task: try again, after a delay, and count it as a failure.

    Example:
        if response.status == 503:
            raise Retry(delay="5m", reason="the shop is closed")

    Args:
        delay: seconds, "5m", or a timedelta, at most a day; None for the task's backoff.
        reason: for the log.

    Raises:
        TypeError, ValueError: it is no delay.
    """

    delay: float | None = None

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry requested")
        if delay is not None:
            seconds("delay", delay)  # which refuses a bad one
            self.delay = seconds_of(delay)


class RunTimeoutError(Exception):
    """A run took longer than the task's timeout."""


class GiveUp(Exception):  # noqa: N818
    """Raised by a task: no further try can succeed. Its job is buried at once.

    Example:
        if order is None:
            raise GiveUp("there is no such order")

    Args:
        reason: for the log and the report.
    """


def delay_of(backoff: Backoff, failures: int, jitter: float = JITTER) -> float:
    """After how many seconds a job is tried again.

    Args:
        failures: how often it has failed, this time included.
        jitter: by how much of itself the delay is made longer at most, at random.
    """
    if callable(backoff):
        delay = float(seconds_of(backoff(failures), "backoff"))
    else:
        delay = seconds_of(backoff, "backoff") * 2.0 ** min(failures - 1, 60)
    if delay != delay:
        raise ValueError("backoff is nan: must be seconds")
    return min(max(0.0, delay) * (1 + random.random() * jitter), LONGEST_DELAY)


def tries_of(found: dict[str, Any], retries: int) -> int:
    """Which try of a job this is, 1 or more, by its `stats-job`: as the server counts, where it does.

    Where it does not, each reserve is a try, and each bury is taken to have come after the last one: the kick behind it
    has given the job all its tries back.
    """
    counted = int(found.get("tries", 0))
    if counted or int(found.get("max-tries", 0)):
        return counted + 1
    return max(1, int(found.get("reserves", 1)) - int(found.get("buries", 0)) * (retries + 1))


def unknown_delay(found: dict[str, Any], grace: float, jitter: float = JITTER) -> float:
    """Seconds for which a job is released whose task is unknown; 0: it is buried.

    Args:
        found: its `stats-job`.
        grace: seconds from when it was first due until it is buried.
        jitter: as for `delay_of`.
    """
    releases, age, delay = (int(found.get(name, 0)) for name in ("releases", "age", "delay"))
    if releases:  # its first delay is not known any more: it has waited at least as long as it was released for
        waited = min(age, max(delay, UNKNOWN_TASK_BACKOFF * (2.0 ** min(releases, 60) - 1)))
    elif "max-tries" in found:  # it may have a moment instead of a delay, which the server does not say
        waited = 0
    else:
        waited = age - delay
    left = grace - waited
    if left <= 0 or is_last_attempt(found):
        return 0.0
    if int(found.get("max-tries", 0)) == int(found.get("tries", 0)) + 2:  # the last release that the server allows
        return left
    return min(left, delay_of(UNKNOWN_TASK_BACKOFF, releases + 1, jitter))


def tries_for(retries: int) -> int:
    """The `tries` of a job, so that the server buries it after its last attempt, also if that kills the worker."""
    return min(retries + 1, MAX_SECONDS)


def describe(error: BaseException) -> str:
    """An exception in one line."""
    lines = traceback.format_exception_only(type(error), error)
    return escaped(" ".join("".join(lines).split())[:1000])


def trace_of(error: BaseException) -> str:
    """The traceback of an exception."""
    return escaped("".join(traceback.format_exception(type(error), error, error.__traceback__)))


def escaped(text: str) -> str:
    """A text that can be encoded as UTF-8: lone surrogates, as in the names of some files, are escaped."""
    return text.encode(errors="backslashreplace").decode()


def of_task(error: BaseException) -> BaseException:
    """An exception without the part of its traceback that is this package's own, so that it begins with the task."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


class UnshowableError(Exception):
    """In the place of an exception of a task that cannot be shown, because its own methods fail."""


def showable(error: BaseException) -> BaseException:
    """An exception of a task, without this package's part of its traceback; or another one in its place, if
    `isinstance`, the log or a report would fail because of it.
    """
    try:
        isinstance(error, Exception)  # may call its `__class__`
        error = of_task(error)
        describe(error)
        trace_of(error)
    except BaseException:
        instead = UnshowableError(f"a {type(error).__name__} that cannot be shown")
        instead.__suppress_context__ = True  # of which the other one becomes part if this one is raised
        return instead
    return error


def for_waiter(error: BaseException, what: str) -> BaseException:
    """An exception of a call, as it may be raised where a coroutine awaits it.

    No future takes a StopIteration, and a GeneratorExit would close that coroutine.

    Args:
        what: what has raised it.
    """
    if not issubclass(type(error), (StopIteration, GeneratorExit)):
        return error
    failure = RuntimeError(f"the {what} raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


class AnyDelivery(Protocol):
    """What is needed here of a delivery: of a server's, or of a queue in memory."""

    job_id: int
    body: bytes
    is_called_off: bool

    @property
    def tube(self) -> str: ...

    async def stats(self) -> dict[str, Any]: ...

    async def save(self, body: bytes) -> None: ...


async def stats_of(delivery: AnyDelivery) -> dict[str, Any]:
    """The `stats-job` of a job; {} if the server is lost, or the job is not reserved by this worker any more."""
    try:
        return await delivery.stats()
    except (Error, OSError):
        return {}


def is_of_worker(error: BaseException, delivery: AnyDelivery) -> bool:
    """Whether the worker has ended a run from outside, and not the task itself."""
    if issubclass(type(error), GeneratorExit):
        return asyncio._get_running_loop() is None  # the coroutine is closed, as its event loop is
    return issubclass(type(error), asyncio.CancelledError) and delivery.is_called_off


async def take_back_cancellation(delivery: AnyDelivery) -> None:
    """Clear what a task has left that has cancelled the asyncio task of its own run, and has not waited since."""
    mine: Any = asyncio.current_task()
    if mine._must_cancel and not delivery.is_called_off:  # there is no public way to see it
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
    while sys.version_info >= (3, 11) and mine.cancelling() and not delivery.is_called_off:
        mine.uncancel()


def report(job: int | None, tube: str, error: str, tries: int, *, by: str, trace: str = "", **fields: Any) -> bytes:
    """What is put beside a buried job, for people: JSON, one key a line.

    Args:
        job: its id; None for a row of an outbox, which is no job yet.
        by: what has run it, "worker", "sender" or "relay"; "reporter" if that is lost.
        fields: what else is known of it.
    """
    trace = escaped(trace)
    content = {
        "job": job,
        "tube": tube,
        "error": escaped(error),
        "tries": tries,
        "buried": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        by: f"{socket.gethostname()}:{os.getpid()}",
        **fields,
    }
    trace = trace[-REPORT_LENGTH:]
    while True:  # its end says most
        body = json.dumps({**content, "traceback": trace.splitlines()} if trace else content, indent=1).encode()
        if len(body) <= REPORT_LENGTH or not trace:
            return body
        trace = trace[len(trace) // 4 + 1 :]


def task_report(job: int, tube: str, task: str, tries: int, error: BaseException) -> bytes:
    """The report about the job of a task."""
    return report(job, tube, describe(error), tries, by="worker", trace=trace_of(error), task=escaped(task))
