"""Runs Django's tasks, one for each job: plain functions in threads, coroutines on the event loop, with signals.

    what becomes of a task                    of its job        signals                        status
    it returns                                deleted           task_started, task_finished    SUCCESSFUL
    it raises, and has retries left           released, later   task_started                   READY
    it raises, and has none                   buried            task_started, task_finished    FAILED
    it takes other values                     buried            none                           FAILED
    it is not known                           released, until another worker has had time to take it; then buried
    the worker ends before it does            ready again       task_started                   -

Beside each job that is buried, a report goes to the tube `<tube>.errors`, as this package's own workers do.
Database connections are looked after as around a request: those that are too old or broken are closed before and after
each plain function; a coroutine has a thread of its own for what it lets run in one, whose connections are closed with
it. What listens to a signal and fails is logged, and changes nothing.
With the option `result_ttl`, the result is put before each signal; what cannot be put is logged. A task that has
returned, but whose result does not reach the server, runs again: as if the worker had been lost before its end.
Must never read a result after its signal was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections
from django.utils import timezone

from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.commands import seconds_of
from beanstalk_client.consumer import DONE, Bury, Delivery, Outcome, Release, is_last_attempt
from beanstalk_client.errors import BeanstalkdError, Error, JobTooBigError
from beanstalk_client.events import reason_of, tell
from beanstalk_client.names import own_name
from beanstalk_client.tasks.failure import (
    ERRORS,
    Backoff,
    delay_of,
    describe,
    is_of_worker,
    showable,
    stats_of,
    take_back_cancellation,
    task_report,
    trace_of,
    tries_of,
    unknown_delay,
)
from beanstalk_client.tasks.reports import Reports
from beanstalk_client.tasks.runner import LOOKUP_DELAY, run_apart
from beanstalk_client.tasks.threads import Threads

from .backend import BeanstalkBackend
from .library import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from .message import Message, decode
from .results import Kept, ResultStore, UnrunnableError, change, record_of, result_of

log: logging.Logger = logging.getLogger("beanstalk_client.django")


class ArgumentsError(Exception):
    """The task does not take the arguments of the job; the message says why."""


class ResultTooBigError(Exception):
    """What a task has returned does not fit into a job, with its arguments."""


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # a function written in C may have none
        return None


def _check_arguments(result: Any) -> None:
    """
    Raises:
        ArgumentsError: the function of the task cannot be called with the arguments.
    """
    signature = _signature(result.task.func)
    if signature is not None:
        try:
            signature.bind(*([None] if result.task.takes_context else []), *result.args, **result.kwargs)
        except TypeError as error:
            raise ArgumentsError(f"{result.task.module_path}: {error}") from None


class DjangoTaskRunner:
    """Runs tasks of one backend: the handler of a consumer. To be made on the event loop.

    Args:
        backend: whose tasks.
        threads: how many plain functions run at a time.
        worker_id: who runs them, for `TaskResult.worker_ids`.
        unknown_task_grace: seconds until a job with an unknown task is buried.

    Attributes:
        threads: those of plain functions.
    """

    def __init__(
        self, backend: BeanstalkBackend, threads: int, worker_id: str, unknown_task_grace: float = 0.0
    ) -> None:
        self._backend = backend
        self._unknown_task_grace = unknown_task_grace
        self.threads: Threads = Threads(threads)
        self._worker_id = worker_id
        self._report = Reports(self.connect)
        ttl = backend.settings.result_ttl
        self._results = None if ttl is None else ResultStore(self.connect, backend.results_tube, seconds_of(ttl))

    def connect(self) -> AsyncClient[bytes]:
        """A client of the backend's server that is not connected yet."""
        return AsyncClient(**self._backend.settings.client, encoding=None, name=own_name("beanstalk-worker"))

    async def __call__(self, delivery: Delivery) -> Outcome:
        """Run the task of a job; return what becomes of the job."""
        name = ""
        try:
            message = decode(delivery.body)
            name = message.path
            result = result_of(message, self._backend.alias)
        except (UnrunnableError, ValueError) as error:
            if isinstance(error, UnrunnableError) and (off := await self._put_off(delivery, error)) is not None:
                return off
            return await self._bury_unrunnable(delivery, name, error)
        run = _Run(self._backend, result)
        if self._results is not None:
            run.save = functools.partial(self._save_from_thread, asyncio.get_running_loop(), run, message, delivery)
            if not await self._load(run):
                return Release(LOOKUP_DELAY)
        result.worker_ids.append(self._worker_id)
        try:
            _check_arguments(result)
        except ArgumentsError as error:
            run.note_failure(error)
            if self._results is not None:
                await self._save(run, message, delivery)
            return await self._bury_unrunnable(delivery, name, error)
        if result.task.takes_context:
            await self._count(result, delivery, 0)
        if inspect.iscoroutinefunction(result.task.func):
            await self._run_on_loop(run, delivery)
        else:
            loop = asyncio.get_running_loop()

            def count() -> int:
                return asyncio.run_coroutine_threadsafe(self._count_failure(run, delivery), loop).result()

            await self.threads.run(run.complete, (count,), {})
        if run.error is not None:
            return await self._bury(delivery, name, run.error, run.tries)
        return DONE if run.delay is None else Release(run.delay)

    async def _put_off(self, delivery: Delivery, error: UnrunnableError) -> Release | None:
        """Leave a job with an unknown task to a worker of another version; None: it is buried."""
        if not self._unknown_task_grace:
            return None
        found = await stats_of(delivery)
        if not found:
            return Release(LOOKUP_DELAY)
        delay = unknown_delay(found, self._unknown_task_grace)
        if not delay:
            return None
        text = f"job {delivery.job_id} is released with a delay of {delay:.3g} s: {error}"
        tell(log, logging.WARNING, "task-unknown", text, job=delivery.job_id, delay=delay)
        return Release(delay, int(found["pri"]))

    async def close(self) -> None:
        self.threads.close()
        await self._report.close()
        if self._results is not None:
            await self._results.close()

    # Results that are kept

    async def _load(self, run: _Run) -> bool:
        """Add what is kept of former attempts to a result; return False if the server is not reached."""
        assert self._results is not None
        try:
            kept = await self._results.load(run.result.id)
        except BeanstalkdError as error:
            self._tell_lost(run, f"earlier attempts are unknown: {reason_of(error)}")
        except (Error, OSError) as error:
            self._tell_lost(run, f"not started: {reason_of(error)}")
            return False
        else:
            if kept is not None:
                run.resume(kept)
        return True

    def _save_from_thread(
        self, loop: asyncio.AbstractEventLoop, run: _Run, message: Message, delivery: Delivery
    ) -> bool:
        return asyncio.run_coroutine_threadsafe(self._save(run, message, delivery), loop).result()

    async def _save(self, run: _Run, message: Message, delivery: Delivery) -> bool:
        """Keep a result as it is now; return False if the server is not reached.

        Raises:
            ResultTooBigError: a task has returned more than a job may have.
        """
        assert self._results is not None
        result = run.result
        try:
            try:
                await self._results.put(message, record_of(result, delivery.job_id), run.delay or 0.0)
            except JobTooBigError:
                if result.status == TaskResultStatus.SUCCESSFUL:
                    raise ResultTooBigError("arguments and return value are too large for a job") from None
                await self._results.put(message, record_of(result, delivery.job_id, 0), run.delay or 0.0)
        except BeanstalkdError as error:
            self._tell_lost(run, f"result not saved: {reason_of(error)}")
        except (Error, OSError) as error:
            self._tell_lost(run, f"result not saved: {reason_of(error)}")
            return False
        return True

    def _tell_lost(self, run: _Run, what: str) -> None:
        text = f"task {run.result.id} ({run.result.task.module_path}): {what}"
        tell(log, logging.WARNING, "result-lost", text, task=run.result.id)

    async def _count(self, result: Any, delivery: Delivery, retries: int) -> dict[str, Any]:
        """Find out which try this is, for the result's `attempts`; return what is known of the job."""
        found = await stats_of(delivery)
        tries = tries_of(found, retries)
        known = len(result.worker_ids)
        result.worker_ids[:0] = [""] * (tries - known)  # workers before it that are not known
        return found

    async def _count_failure(self, run: _Run, delivery: Delivery) -> int:
        """Which try has failed, from 1. None follows if the server gives the job up."""
        found = await self._count(run.result, delivery, run.retries)
        tries = tries_of(found, run.retries)
        if is_last_attempt(found):
            run.retries = min(run.retries, tries - 1)
        return tries

    async def _run_on_loop(self, run: _Run, delivery: Delivery) -> None:
        async with ThreadSensitiveContext():
            try:
                await sync_to_async(run.start)()
                try:
                    value = await run_apart(run.call(), delivery)
                    await sync_to_async(run.succeed)(value)
                except BaseException as error:
                    if is_of_worker(error, delivery):
                        raise
                    await take_back_cancellation(delivery)
                    tries = await self._count_failure(run, delivery) if run.retries else 1
                    await sync_to_async(run.fail)(showable(error), tries)
            finally:
                await asyncio.shield(sync_to_async(connections.close_all)())

    async def _bury_unrunnable(self, delivery: Delivery, name: str, error: BaseException) -> Outcome:
        text = f"job {delivery.job_id} is buried: {error}"
        tell(log, logging.ERROR, "task-unrunnable", text, job=delivery.job_id)
        return await self._bury(delivery, name, error, 1)

    async def _bury(self, delivery: Delivery, name: str, error: BaseException, tries: int) -> Outcome:
        """No further try is made: say why where people can read it."""
        found: dict[str, Any] = {}
        try:
            found = await delivery.stats()
            tube = str(found["tube"])
            await self._report(tube + ERRORS, delivery.job_id, task_report(delivery.job_id, tube, name, tries, error))
        except (Error, OSError, ValueError) as trouble:
            text = f"job {delivery.job_id}: report not saved: {reason_of(trouble)}"
            tell(log, logging.WARNING, "report-lost", text, job=delivery.job_id)
        return Release() if is_last_attempt(found) else Bury()  # to the dead tube, if there is one


class _Run:
    """One run of a task, and its outcome.

    Attributes:
        result: what Django knows of it.
        retries: how many times it is run again when it fails.
        delay: seconds until then, if it has failed and is run again.
        error: what it has failed with, if it is not.
        tries: how many there were by then.
        save: keeps its result, from a thread; returns False if the server is not reached.
    """

    def __init__(self, backend: BeanstalkBackend, result: Any) -> None:
        options = backend.settings
        retries, backoff = getattr(result.task, "retries", None), getattr(result.task, "backoff", None)
        self._backend = backend
        self._backoff: Backoff = options.backoff if backoff is None else backoff
        self.retries: int = options.retries if retries is None else retries
        self.result = result
        self.delay: float | None = None
        self.error: BaseException | None = None
        self.tries = 1
        self.save: Callable[[], bool] = _keep_nothing
        self._is_kept = False

    def resume(self, kept: Kept) -> None:
        """Add what is kept of former attempts.

        A result that was successful stays: its worker was lost before its job was deleted.
        """
        self._is_kept = kept.status == TaskResultStatus.SUCCESSFUL
        ready = {"status": TaskResultStatus.READY, "finished_at": None, "_return_value": None}
        change(self.result, **{**kept.attributes, **ready})

    def complete(self, count: Callable[[], int]) -> None:
        """The whole of it, in a thread."""
        with _old_connections_closed():
            self.start()
            try:
                self.succeed(self.call())
            except BaseException as error:
                self.fail(showable(error), count() if self.retries else 1)

    def start(self) -> None:
        now = timezone.now()
        started = self.result.started_at or now
        change(self.result, status=TaskResultStatus.RUNNING, started_at=started, last_attempted_at=now)
        if not self._is_kept:
            self.save()
        task_started.send_robust(type(self._backend), task_result=self.result)

    def call(self) -> Any:
        """What its function returns."""
        task, result = self.result.task, self.result
        context = [TaskContext(task_result=result)] if task.takes_context else []
        return task.func(*context, *result.args, **result.kwargs)

    def succeed(self, value: Any) -> None:
        """
        Raises:
            TypeError, ValueError: the value is not of JSON, which is a failure, as everywhere in Django.
            ResultTooBigError: it is too large to be kept.
        """
        value = normalize_json(value)
        change(self.result, _return_value=value, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now())
        try:
            if not self.save():
                self.delay = LOOKUP_DELAY
                return
        except ResultTooBigError:
            change(self.result, _return_value=None)
            self.retries = 0  # another attempt would return as much
            raise
        task_finished.send_robust(type(self._backend), task_result=self.result)

    def note_failure(self, error: BaseException) -> None:
        """Add an error to the result, which has failed with it."""
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        self.result.errors.append(TaskError(exception_class_path=path, traceback=trace_of(error)))
        change(self.result, status=TaskResultStatus.FAILED, finished_at=timezone.now())

    def fail(self, error: BaseException, tries: int) -> None:
        """Note that it has failed with an error that can be shown."""
        self.note_failure(error)
        self.tries = tries
        if tries <= self.retries:
            self.delay = delay_of(self._backoff, tries)
            change(self.result, status=TaskResultStatus.READY, finished_at=None)
            self.save()
            text = f"failed, try {tries} of {self.retries + 1}; retrying in {self.delay:.3g} s: {describe(error)}"
            text = f"task {self.result.id} ({self.result.task.module_path}): {text}"
            tell(log, logging.WARNING, "task-failed", text, error, task=self.result.id, tries=tries, delay=self.delay)
            return
        self.save()
        try:
            raise error
        except BaseException:  # what listens to the signal may look at `sys.exc_info()`
            task_finished.send_robust(type(self._backend), task_result=self.result)
        self.error = showable(error)  # without this function in its traceback


def _keep_nothing() -> bool:
    return True


@contextlib.contextmanager
def _old_connections_closed() -> Iterator[None]:
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
