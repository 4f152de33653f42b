"""Wraps middleware around each put and each run of a task: for logs, traces, metrics, databases.

    class Timed(Middleware):
        @contextlib.contextmanager
        def running(self, run):
            began = time.monotonic()
            try:
                yield
            finally:
                print(run.message.task, time.monotonic() - began)

Both are entered and left where the call is made: in the thread that puts, in the event loop that runs. What `running`
sets in a `contextvars` variable is there in the task, also where that runs in a thread. The first of the list is the
outermost. An exception of the task passes through; if it is swallowed, the task has succeeded. An exception of a
middleware itself is logged, and the put or the run goes on as if it did not exist. Only `Retry` and `GiveUp` pass: they
say on purpose what becomes of the call.
Must never wait: neither of the two is a coroutine, so it would hold up all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from beanstalk_client.events import tell
from beanstalk_client.tasks.failure import AnyDelivery, GiveUp, Retry, describe
from beanstalk_client.tasks.message import current, with_checkpoint
from beanstalk_client.tasks.results import RESULTS, put_progress, told_progress, ttl_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from beanstalk_client.tasks.message import Message
    from beanstalk_client.tasks.steps import Steps, TaskQueue


@dataclasses.dataclass(eq=False, repr=False)
class Put:
    """A put that is under way.

    Example:
        def putting(self, put: Put):
            put.message.meta["user"] = user.get()
            return contextlib.nullcontext()

    Attributes:
        message: what is put; `message.meta` is there to be added to.
        tube: where.
        job_id: of the job, once the block ends without an exception; 0 before.
    """

    message: Message
    tube: str
    job_id: int = 0

    def __repr__(self) -> str:  # without arguments: it may be logged
        return f"<put of {self.message.task} into tube {self.tube}{f': job {self.job_id}' if self.job_id else ''}>"


@dataclasses.dataclass(eq=False, repr=False)
class Run:
    """A run that is under way. A task finds its own with `current_run()`.

    Example:
        def running(self, run: Run):
            return log_context(task=run.message.task, job=run.job_id)

    Attributes:
        message: the call; `message.meta` has what was added when it was put.
        tube: where its job comes from; "" if the worker does not know, because it watches several.
        job_id: of its job.
        last_checkpoint: the value that this attempt or an earlier one saved last with `checkpoint`, or None.
    """

    message: Message
    tube: str
    job_id: int
    _tasks: TaskQueue | None = None
    _task_tube: str = ""
    _delivery: AnyDelivery | None = None

    def __post_init__(self) -> None:
        self.last_checkpoint: Any = self.message.checkpoint
        self._loop = asyncio._get_running_loop()  # the worker's

    def checkpoint(self, value: Any) -> None:
        """Save how far the run is. The next attempt gets the value as `last_checkpoint`. It replaces the former one.

        Each call writes the whole job anew: call it every few seconds at most. If the connection is lost, it waits
        until the job is taken back.

        Example:
            run = current_run()
            for number in range(run.last_checkpoint or 0, 1000):
                send_page(number)
                run.checkpoint(number + 1)

        Args:
            value: what the serializer can write. With the arguments, it must fit into a job.

        Raises:
            TypeError, ValueError: the serializer cannot write the value. Nothing is saved.
            JobTooBigError: the job would be too large. Nothing is saved.
            TooLateError: the job was put with `again` meanwhile, and runs again: this run may end. Nothing is saved.
            ReservationLostError: another worker may have the job: this run should end. Nothing is saved.
            UnsupportedError: the server is a beanstalkd, which cannot save a job.
            RuntimeError: it was called in a coroutine, where `await current_run().acheckpoint(…)` is right.
        """
        loop = asyncio._get_running_loop()
        if loop is not None and self._tasks is not None and not self._tasks.is_in_memory:
            raise RuntimeError("checkpoint() was called in a coroutine: use `await current_run().acheckpoint(…)` there")
        saving = self._checkpoint(value)
        if loop is None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(saving, self._loop).result()
        else:
            with contextlib.suppress(StopIteration):
                saving.send(None)  # in memory, nothing waits

    async def acheckpoint(self, value: Any) -> None:
        """As `checkpoint`, in a coroutine.

        Example:
            await current_run().acheckpoint(number + 1)
        """
        saving = self._checkpoint(value)
        if self._loop in (None, asyncio.get_running_loop()):
            await saving
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(saving, self._loop))

    def _checkpoint(self, value: Any) -> Coroutine[Any, Any, None]:
        """A coroutine that saves the value, which is serialized now; it must run in the worker's event loop."""
        body = None
        if self._tasks is not None and self._delivery is not None:
            try:
                body = with_checkpoint(self._delivery.body, value, self._tasks.serializer)
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"task {self.message.task}, checkpoint: {error}") from error
        return self._save(body, value)

    async def _save(self, body: bytes | None, value: Any) -> None:
        if self._delivery is not None and body is not None:
            await self._delivery.save(body)
        self.last_checkpoint = value

    def progress(self, fraction: float, note: str = "") -> None:
        """Tell who waits for the result how far the run is. Does nothing if the call was put without `result`.

        Each call is a put: call it a few times a second at most.

        Example:
            current_run().progress(0.4, "page 4 of 10")

        Args:
            fraction: 0.0 to 1.0.
            note: for people.

        Raises:
            ValueError: the fraction is not from 0 to 1.
            RuntimeError: a coroutine calls it, which says `await current_run().aprogress(…)`.
        """
        if self._tasks is not None and not self._tasks.is_in_memory and asyncio._get_running_loop() is not None:
            raise RuntimeError("progress() was called in a coroutine: use `await current_run().aprogress(…)` there")
        steps = self._progress(fraction, note)
        if self._tasks is not None and steps is not None:
            self._tasks._do(self._task_tube + RESULTS, steps)

    async def aprogress(self, fraction: float, note: str = "") -> None:
        """As `progress`, in a coroutine.

        Example:
            await current_run().aprogress(0.4, "page 4 of 10")
        """
        steps = self._progress(fraction, note)
        if self._tasks is not None and steps is not None:
            await self._tasks._ado(self._task_tube + RESULTS, steps)

    def _progress(self, fraction: float, note: str) -> Steps | None:
        content = told_progress(fraction, note)
        ttl = ttl_of(self.message)
        return put_progress(self._tasks, self.job_id, ttl, content) if self._tasks is not None and ttl else None

    def __repr__(self) -> str:  # without arguments: it may be logged
        return f"<run of {self.message.task}: job {self.job_id}{f' of tube {self.tube}' if self.tube else ''}>"


class Failure(NamedTuple):
    """A run that has failed, and what becomes of its job.

    Example:
        def failed(self, run: Run, failure: Failure):
            print(run.message.task, failure.error, failure.tries)

    Attributes:
        error: what the task has raised.
        tries: which try this was, 1 or more.
        delay: seconds until the next one; None if there is none, and the job is buried.
    """

    error: BaseException
    tries: int
    delay: float | None


class Middleware:
    """Does nothing. Override what you need.

    Example:
        class Logged(Middleware):
            def failed(self, run, failure):
                print(run.message.task, failure.error)
    """

    def putting(self, put: Put) -> AbstractContextManager[Any]:
        """Around each put."""
        return contextlib.nullcontext(put)

    def running(self, run: Run) -> AbstractContextManager[Any]:
        """Around each run."""
        return contextlib.nullcontext(run)

    def calling(self, run: Run) -> AbstractContextManager[Any]:
        """Around each call of a plain function, in its thread."""
        return contextlib.nullcontext(run)

    def failed(self, run: Run, failure: Failure) -> None:
        """After a run that has failed, when it is decided what becomes of its job."""


log: logging.Logger = logging.getLogger("beanstalk_client.middleware")


@contextlib.contextmanager
def around(
    middleware: Sequence[Middleware], name: str, subject: Put | Run, errors: type[BaseException]
) -> Iterator[None]:
    """Enter the context managers of a hook, and leave them in reverse order.

    Args:
        name: of the hook: "putting", "running" or "calling".
        errors: of the middleware: they are logged and ignored.
    """
    refusal: BaseException | None = None
    with contextlib.ExitStack() as stack:
        for one in middleware:
            try:
                manager = getattr(one, name)(subject)
                manager.__enter__()
            except BaseException as trouble:
                if isinstance(trouble, (GiveUp, Retry)) or not isinstance(trouble, errors):
                    refusal = trouble
                    raise
                tell_failed(one, name, subject, trouble)
            else:
                stack.push(functools.partial(_leave, one, manager, name, subject, errors))
        yield
    if refusal is not None:  # another middleware has swallowed it, but there is no put and no run
        raise refusal


def called(middleware: Sequence[Middleware], run: Run, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the hook `calling` of all middleware around its calls."""
    hooked = [one for one in middleware if type(one).calling is not Middleware.calling]
    if not hooked:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        with around(hooked, "calling", run, BaseException):
            return function(*args, **kwargs)

    return call


def _leave(
    one: Middleware,
    manager: AbstractContextManager[Any],
    name: str,
    subject: Put | Run,
    errors: type[BaseException],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool:
    """Leave a context manager; return whether it swallows the exception."""
    try:
        return bool(manager.__exit__(kind, error, trace))
    except (GiveUp, Retry):
        raise
    except errors as trouble:
        if trouble is not error:
            tell_failed(one, name, subject, trouble)
        return False


def tell_failed(middleware: Middleware, name: str, subject: Put | Run, error: BaseException) -> None:
    """Log that a hook has raised an exception, which is ignored."""
    message = f"{subject!r}: {name} of middleware {type(middleware).__name__} failed: {describe(error)}"
    task, tube, job = subject.message.task, subject.tube, subject.job_id
    tell(log, logging.ERROR, "middleware-failed", message, error, task=task, tube=tube, job=job)


def current_run() -> Run:
    """The run that the caller is part of.

    Example:
        @tasks.task
        def total(order):
            print("job", current_run().job_id)

    Raises:
        LookupError: it is part of none.
    """
    run: Run = current.get()
    return run
