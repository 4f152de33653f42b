"""Runs the task of a job and returns the job's outcome: the handler of a worker's consumer.

    it returns                       DONE
    it fails                         Release, after its backoff; after its last try Bury, with a report for people
    it raises Retry, GiveUp          Release after the delay that it names; Bury
    it takes longer than its timeout as if it failed
    its arguments do not fit         Bury
    the body cannot be read          Bury
    there is no such task            Release, until another worker has had time to take it; then Bury
    the worker cancels it            the CancelledError passes; any other one is a failure, as each exception is
    no thread can begin it           Release at once: all threads hang

Coroutines run on the event loop, plain functions in threads.
Must never put anything into a log that the body says, but the names of tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from beanstalk_client.commands import seconds_of
from beanstalk_client.consumer import DONE, Bury, Outcome, Release, is_last_attempt
from beanstalk_client.errors import BeanstalkdError, Error
from beanstalk_client.events import reason_of, tell
from beanstalk_client.tasks.failure import (
    JITTER,
    LONGEST_DELAY,
    AnyDelivery,
    GiveUp,
    Retry,
    RunTimeoutError,
    delay_of,
    describe,
    for_waiter,
    is_of_worker,
    showable,
    stats_of,
    take_back_cancellation,
    task_report,
    tries_of,
    unknown_delay,
)
from beanstalk_client.tasks.message import Message, UnreadableError, current, read
from beanstalk_client.tasks.middleware import Failure, Run, around, called, tell_failed
from beanstalk_client.tasks.results import DONE as DONE_RESULT
from beanstalk_client.tasks.results import put_result, told_failure, ttl_of
from beanstalk_client.tasks.task import BACKOFF

if TYPE_CHECKING:
    from beanstalk_client.tasks.task import Task, TaskRegistry
    from beanstalk_client.tasks.threads import Threads

LOOKUP_DELAY = 5.0
"""Seconds after which a job is tried again whose statistics were not to be had when it failed."""

CANCELLED_WITHIN = 5.0
"""Seconds that a coroutine may take to end when it is cancelled because of its timeout; then it goes on unheeded."""

LONGEST_NAME = 200
"""Characters of the name of an unknown task that are shown."""

log: logging.Logger = logging.getLogger("beanstalk_client.worker")


async def _keep_outcome(call: Awaitable[Any], kept: list[tuple[Any, BaseException | None]]) -> None:
    """Keep what a call returns or raises, also if the asyncio task that awaits it is cancelled."""
    try:
        kept.append((await call, None))
    except BaseException as error:
        if issubclass(type(error), GeneratorExit) and asyncio._get_running_loop() is None:
            raise  # the event loop is closed, and with it this coroutine
        kept.append((None, for_waiter(error, "task")))


async def run_apart(call: Awaitable[Any], delivery: AnyDelivery, timeout: float | None = None) -> Any:
    """Await a call of a task in an asyncio task of its own: it may cancel that one, even later.

    Args:
        timeout: seconds.

    Raises:
        RunTimeoutError: the call took longer.
    """
    kept: list[tuple[Any, BaseException | None]] = []
    apart = asyncio.get_running_loop().create_task(_keep_outcome(call, kept))
    is_over = False
    try:
        if timeout is not None:
            await asyncio.wait([apart], timeout=timeout)
            if not apart.done():
                is_over = True
                apart.cancel()
                await asyncio.wait([apart], timeout=CANCELLED_WITHIN)
                if not apart.done():
                    raise RunTimeoutError(f"timed out after {timeout:g} s and was cancelled, but continues to run")
        await apart
    except asyncio.CancelledError:  # before it began; or at its end, by the task
        if not apart.done():
            apart.cancel()
            await asyncio.wait([apart])
        if not kept:
            raise
    value, error = kept[0]
    if error is None:
        return value
    if is_over and issubclass(type(error), asyncio.CancelledError) and not delivery.is_called_off:
        raise RunTimeoutError(f"timed out after {timeout:g} s")
    raise error


class UnknownTaskError(Exception):
    """A job asks for a task that this program does not have."""


class ArgumentsError(TypeError):
    """The function of a task cannot be called with the arguments of the job."""


class TaskRunner:
    """The handler of a consumer.

    Args:
        tasks: which tasks there are.
        threads: where plain functions run; None for the caller's own, one at a time.
        all_tracebacks: the log has the traceback of each try that fails, and not of the last one only.
        jitter: by how much of itself a backoff is made longer at most, at random.
        unknown_task_grace: seconds until a job with an unknown task is buried.
    """

    def __init__(
        self,
        tasks: TaskRegistry,
        threads: Threads | None,
        jitter: float = JITTER,
        *,
        all_tracebacks: bool = False,
        unknown_task_grace: float = 0.0,
    ) -> None:
        self._tasks = tasks
        self._unknown_task_grace = unknown_task_grace
        self._all_tracebacks = all_tracebacks
        self._threads = threads
        self._jitter = jitter

    async def __call__(self, delivery: AnyDelivery) -> Outcome:
        """Run the task of a job."""
        try:
            message = read(delivery.body, self._tasks.serializer)
        except UnreadableError as error:
            return await self._bury(delivery, None, "", error)
        task = self._tasks.get(message.task)
        if task is None:
            return await self._put_off(delivery, message.task[:LONGEST_NAME])
        debug = log.isEnabledFor(logging.DEBUG)
        began = time.monotonic() if debug else 0.0
        try:
            value = await self._run(task, message, delivery)
        except BaseException as error:  # a task that calls sys.exit, or cancels itself, has failed, and ends no worker
            if is_of_worker(error, delivery):
                raise
            await take_back_cancellation(delivery)
            return await self._fail(delivery, task, showable(error), ttl_of(message))
        if message.meta and ttl_of(message):
            await take_back_cancellation(delivery)
            told = {"state": DONE_RESULT, "value": value}
            if not await self._tell_result(delivery, task, ttl_of(message), told):
                return Release(LOOKUP_DELAY)  # as if the worker had been lost before its end: it runs again
        if debug:
            seconds = time.monotonic() - began
            self._tell(logging.DEBUG, "task-done", delivery, task.name, f"done in {seconds:.3f} s", seconds=seconds)
        return DONE

    # Runs

    async def _run(self, task: Task[..., Any], message: Message, delivery: AnyDelivery) -> Any:
        run = Run(message, delivery.tube, delivery.job_id, self._tasks, task.tube, delivery)
        current.set(run)
        if not self._tasks.middleware:
            return await self._call(task, message, delivery, task.function)
        function = task.function if task.is_async else called(self._tasks.middleware, run, task.function)
        value = ended = None  # where a middleware swallows the exception of the task
        with around(self._tasks.middleware, "running", run, BaseException):
            try:
                value = await self._call(task, message, delivery, function)
            except BaseException as error:
                ended = error if is_of_worker(error, delivery) else None
                raise
        if ended is not None:  # it was swallowed, and the task is not done all the same
            raise ended
        return value

    async def _call(
        self, task: Task[..., Any], message: Message, delivery: AnyDelivery, function: Callable[..., Any]
    ) -> Any:
        try:
            task._check(message.args, message.kwargs)
        except TypeError as error:
            raise ArgumentsError(str(error)) from None
        if not task.is_async and self._threads is not None:
            result = await self._threads.run(function, message.args, message.kwargs, task.timeout)
        else:
            result = function(*message.args, **message.kwargs)
        if inspect.isawaitable(result):  # also of a function that returns a coroutine, without being async
            result = await run_apart(result, delivery, task.timeout)
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError(f"task {task.name} returned a coroutine or generator, whose code did not run")
        return result

    # What fails

    async def _fail(
        self, delivery: AnyDelivery, task: Task[..., Any], error: BaseException, result_ttl: float = 0.0
    ) -> Outcome:
        """A run has failed: try it again, or no more."""
        found = await stats_of(delivery)
        if not found:  # the job is tried again in any case
            shown = error if self._all_tracebacks else None
            self._tell(logging.WARNING, "task-failed", delivery, task.name, f"failed: {describe(error)}", error=shown)
            self._tell_middleware(Failure(error, 1, LOOKUP_DELAY))
            return Release(LOOKUP_DELAY)
        tries = tries_of(found, task.retries)
        if isinstance(error, (GiveUp, ArgumentsError, *task.give_up_on)):
            return await self._bury(delivery, task, task.name, error, found, tries, result_ttl)
        if is_last_attempt(found):
            await self._bury(delivery, task, task.name, error, found, tries, result_ttl)
            return Release(0, int(found["pri"]))  # to the dead tube, if there is one
        if tries > task.retries:
            return await self._bury(delivery, task, task.name, error, found, tries, result_ttl)
        try:
            asked = error.delay if isinstance(error, Retry) else None
            if asked is None:
                delay = delay_of(task.backoff, tries, self._jitter)
            else:
                delay = min(Release(seconds_of(asked, "delay")).delay, LONGEST_DELAY)
        except BaseException as trouble:
            delay = delay_of(BACKOFF, tries, self._jitter)
            message = f"backoff failed, using {delay:.3g} s: {describe(showable(trouble))}"
            self._tell(logging.ERROR, "backoff-failed", delivery, task.name, message, error=showable(trouble))
        most = min(task.retries + 1, int(found.get("max-tries", 0)) or task.retries + 1)
        message = f"failed, try {tries} of {most}; retrying in {delay:.3g} s: {describe(error)}"
        shown = error if self._all_tracebacks and not isinstance(error, (Retry, RunTimeoutError)) else None
        self._tell(logging.WARNING, "task-failed", delivery, task.name, message, error=shown, tries=tries, delay=delay)
        self._tell_middleware(Failure(error, tries, delay))
        return Release(delay, int(found["pri"]))

    async def _put_off(self, delivery: AnyDelivery, task: str) -> Outcome:
        """The task is unknown: leave the job to a worker of another version for a while, then bury it."""
        name = repr(task)  # any client may have written it
        error = UnknownTaskError(f"this worker has no task {name}")
        found: dict[str, Any] = {}
        delay = 0.0
        if self._unknown_task_grace:
            found = await stats_of(delivery)
            if not found:
                return Release(LOOKUP_DELAY)
            delay = unknown_delay(found, self._unknown_task_grace, self._jitter)
        if not delay:
            outcome = await self._bury(delivery, None, name[1:-1], error, found)
            return Release(0, int(found["pri"])) if is_last_attempt(found) else outcome
        text = f"released with a delay of {delay:.3g} s: {error}"
        self._tell(logging.WARNING, "task-unknown", delivery, name[1:-1], text, delay=delay)
        return Release(delay, int(found["pri"]))

    async def _bury(
        self,
        delivery: AnyDelivery,
        task: Task[..., Any] | None,
        name: str,
        error: BaseException,
        found: dict[str, Any] | None = None,
        tries: int = 1,
        result_ttl: float = 0.0,
    ) -> Outcome:
        """No further try is made."""
        found = found or await stats_of(delivery)
        tube = str(found.get("tube") or delivery.tube)
        if task is not None:  # before the log, of which Sentry makes events: it drops the second one of an exception
            self._tell_middleware(Failure(error, tries, None))
        message = f"buried after {tries} {'try' if tries == 1 else 'tries'}: {describe(error)}"
        expected = error if task is not None and not isinstance(error, (GiveUp, RunTimeoutError, Retry)) else None
        self._tell(logging.ERROR, "task-buried", delivery, name, message, error=expected, tries=tries, where=tube)
        if self._tasks.errors is not None and tube:
            try:
                await self._tasks._report(
                    tube + self._tasks.errors, delivery.job_id, task_report(delivery.job_id, tube, name, tries, error)
                )
            except (Error, OSError, ValueError) as trouble:
                message = f"report not saved in {tube}{self._tasks.errors}: {reason_of(trouble)}"
                self._tell(logging.WARNING, "report-lost", delivery, name, message)
        if task is not None and result_ttl:
            await self._tell_result(delivery, task, result_ttl, told_failure(error))
        return Bury(int(found["pri"]) if "pri" in found else None)

    def _tell_middleware(self, failure: Failure) -> None:
        for middleware in self._tasks.middleware:
            try:
                middleware.failed(current.get(), failure)
            except BaseException as trouble:
                tell_failed(middleware, "failed", current.get(), trouble)

    async def _tell_result(
        self, delivery: AnyDelivery, task: Task[..., Any], ttl: float, content: dict[str, Any]
    ) -> bool:
        """Put the result of a run, for who has asked for it; return False if the server was not reached.

        A result that the server refuses is lost: to run the task again, until drain mode ends, would be worse.
        """
        try:
            trouble = await put_result(self._tasks, task.tube, delivery.job_id, ttl, content)
        except (BeanstalkdError, ValueError) as error:
            trouble = f"result not saved: {reason_of(error)}"
        except (Error, OSError) as error:
            message = f"result not saved: {reason_of(error)}"
            self._tell(logging.WARNING, "result-lost", delivery, task.name, message)
            return False
        if trouble:
            self._tell(logging.WARNING, "result-lost", delivery, task.name, trouble)
        return True

    def _tell(
        self,
        level: int,
        event: str,
        delivery: AnyDelivery,
        name: str,
        message: str,
        error: BaseException | None = None,
        where: str = "",
        **fields: Any,
    ) -> None:
        """Log an event of a job."""
        tube = where or delivery.tube
        text = f"job {delivery.job_id} of tube {tube}, task {name or '?'}: {message}"
        tell(log, level, event, text, error, job=delivery.job_id, tube=tube, task=name, **fields)
