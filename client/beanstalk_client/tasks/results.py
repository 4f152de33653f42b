"""Keeps the results of tasks: jobs with keys, in a tube beside that of the task.

    handle = total.result(ttl=3600).put(17)
    handle.get(timeout=5)

The worker puts the result of job 42 of the tube `shop` into the tube `shop.results`, with the key `job-42`, before it
deletes the job. No client reserves it; the server deletes it after `ttl` seconds. So a result survives and expires as
any job does. Its body is JSON, or what the serializer of `Tasks` writes:

    {"state": "done", "value": 3}
    {"state": "running", "progress": 0.4, "note": "page 4 of 10"}
    {"state": "failed", "error": "ValueError: …", "traceback": ["Traceback (most recent call last):", …]}

A handle asks for it again and again while it waits, at first every 10 ms and then twice a second.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from beanstalk_client.commands import Duration, seconds_of
from beanstalk_client.errors import JobTooBigError, NotFoundError, TooLateError
from beanstalk_client.events import tell
from beanstalk_client.tasks.failure import describe, escaped, showable, trace_of
from beanstalk_client.tasks.message import current
from beanstalk_client.tasks.steps import Steps, TaskQueue

if TYPE_CHECKING:
    from beanstalk_client.tasks.message import Message

R = TypeVar("R")

RESULTS = ".results"
"""What a tube's name ends with that has the results of another one's jobs."""

META = "result"
"""Where a message says for how many seconds its result is kept."""

PENDING = "pending"
RUNNING = "running"
DONE = "done"
FAILED = "failed"
GONE = "gone"

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5
"""Seconds between two questions of a handle that waits."""

MAX_TTL = 2**32

TRACEBACK = 20_000
"""Characters of a traceback that are kept; its end says most."""


_warned: set[tuple[str, str]] = set()
"""Tasks, and their tubes, that have been warned of."""

log: logging.Logger = logging.getLogger("beanstalk_client.worker")


class TaskFailedError(Exception):
    """The task has failed, and is not tried again.

    Example:
        try:
            handle.get()
        except TaskFailedError as error:
            print(error.error)

    Attributes:
        error: the type and the text of its exception, in one line.
        traceback: that of the worker, as text; "" if there is none.
    """

    def __init__(self, error: str, traceback: str = "") -> None:
        super().__init__(error)
        self.error = error
        self.traceback = traceback


class ResultGoneError(Exception):
    """There is no result, and no job that could still have one: it was cancelled, deleted, or has expired.

    Example:
        try:
            handle.get()
        except ResultGoneError:
            print("cancelled, or too old")
    """


class Progress(NamedTuple):
    """What a run has told of itself.

    Example:
        progress: Progress = handle.progress or Progress(0.0, "waiting")

    Attributes:
        fraction: 0.0 to 1.0.
        note: for people.
    """

    fraction: float
    note: str


def key_of(job_id: int) -> str:
    """The key of a job's result."""
    return f"job-{job_id}"


class Result(Generic[R]):
    """The result of a call, which there is once a worker has run it.

    Make it again in another process from `tube` and `job_id`: `tasks.result_of(tube, job_id)`.

    Example:
        result: Result[int] = total.result(ttl="1h").put(17)
        print(result.state, result.get(timeout=5))

    Attributes:
        tube: that of the job.
        job_id: the id of the job.
    """

    def __init__(self, tasks: TaskQueue, tube: str, job_id: int) -> None:
        self._tasks = tasks
        self.tube = tube
        self.job_id = job_id

    def __repr__(self) -> str:
        return f"<Result of job {self.job_id} of tube {self.tube}>"

    def get(self, timeout: Duration | None = None) -> R:
        """Wait for the result, and return it. It can be asked for again until its ttl is over.

        Example:
            value = handle.get(timeout=5)

        Args:
            timeout: how long to wait: seconds, "5m", or a timedelta; None for as long as the job is there.

        Raises:
            TimeoutError: there is no result yet.
            TaskFailedError: the task has failed, and is not tried again.
            ResultGoneError: the job was cancelled or deleted, or its result has expired.
        """
        value: R = self._do(self._wait(timeout))
        return value

    def __await__(self) -> Generator[Any, None, R]:
        return self.aget().__await__()

    async def aget(self, timeout: Duration | None = None) -> R:
        """As `get`, in asyncio; `await handle` is the same without a timeout.

        Example:
            value = await handle.aget(timeout=5)
        """
        value: R = await self._ado(self._wait(timeout))
        return value

    @property
    def state(self) -> str:
        """ "pending" (ready, delayed, or waiting for its next try), "running", "done", "failed" or "gone".

        Example:
            if handle.state == "done":
                print(handle.get())
        """
        return str(self._do(self._look())[0])

    async def astate(self) -> str:
        """As `state`, in asyncio.

        Example:
            if await handle.astate() == "done":
                print(await handle.aget())
        """
        return str((await self._ado(self._look()))[0])

    @property
    def progress(self) -> Progress | None:
        """What the run has told last, or None.

        Example:
            if handle.progress is not None:
                print(f"{handle.progress.fraction:.0%}")
        """
        return _progress_of(self._do(self._look())[1])

    async def aprogress(self) -> Progress | None:
        """As `progress`, in asyncio.

        Example:
            progress = await handle.aprogress()
        """
        return _progress_of((await self._ado(self._look()))[1])

    def _do(self, steps: Steps) -> Any:
        return self._tasks._do(self.tube + RESULTS, steps)

    async def _ado(self, steps: Steps) -> Any:
        return await self._tasks._ado(self.tube + RESULTS, steps)

    def _look(self) -> Steps:
        """The state, and the body of the result."""
        found = yield from self._read()
        if found.get("state") == DONE:
            return DONE, found
        job = None
        with contextlib.suppress(NotFoundError):
            job = yield methodcaller("stats_job", self.job_id)
        if job is None or job.get("state") == "buried":  # its result was put before, perhaps since the first question
            found = yield from self._read()
        return self._state_of(found, job), found

    def _read(self) -> Steps:
        """The body of the result; {} if there is none."""
        return (yield from read_result(self._tasks, self.job_id))

    def _state_of(self, found: dict[str, Any], job: dict[str, Any] | None) -> str:
        """The state of a call, by its result and by its job's statistics.

        A failed job that was kicked, redriven or replaced keeps its id and its old result, and runs again.
        """
        state = found.get("state")
        is_tried = job is not None and job.get("tube") == self.tube and job.get("state") != "buried"
        if state == DONE or (state == FAILED and not is_tried):
            return str(state)
        if job is None:
            return GONE
        return {"reserved": RUNNING, "buried": FAILED}.get(str(job.get("state")), PENDING)

    def _wait(self, timeout: Duration | None) -> Steps:
        """The value of the result, as soon as there is one."""
        end = None if timeout is None else time.monotonic() + seconds_of(timeout, "timeout")
        pause = FIRST_PAUSE
        while True:
            state, found = yield from self._look()
            if state in (DONE, FAILED, GONE):
                return self._value(state, found)
            left = pause if end is None else end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"job {self.job_id} of tube {self.tube} has no result yet: it is {state}")
            if pause == FIRST_PAUSE:
                self._warn_of_own_tube()
            yield min(pause, left)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _warn_of_own_tube(self) -> None:
        """Warn once of a task that waits for a job of its own tube, which needs a slot while the task has one."""
        run = current.get(None)
        if run is None or run._tasks is not self._tasks or run._task_tube != self.tube:
            return
        if (run.message.task, self.tube) not in _warned:
            _warned.add((run.message.task, self.tube))
            message = (
                f"task {run.message.task} waits for a result of its own tube {self.tube}: workers deadlock if such "
                "tasks fill all their slots or threads; use a different tube for the task that it waits for"
            )
            tell(log, logging.WARNING, "waits-for-own-tube", message, task=run.message.task, tube=self.tube)

    def _value(self, state: str, found: dict[str, Any]) -> Any:
        if state == DONE:
            return found.get("value")
        if state == GONE:
            raise ResultGoneError(f"job {self.job_id} of tube {self.tube} is gone and has no result")
        lines = found.get("traceback") or []
        raise TaskFailedError(str(found.get("error") or "the server buried the job"), "\n".join(map(str, lines)))


def _progress_of(found: dict[str, Any]) -> Progress | None:
    if "progress" not in found:
        return None
    return Progress(float(found["progress"]), str(found.get("note", "")))


# What a worker does


def ttl_of(message: Message) -> float:
    """For how many seconds the result of a call is kept; 0 if it is not, or for a time that no server takes."""
    ttl = message.meta.get(META, 0)
    return float(ttl) if isinstance(ttl, (int, float)) and 0 < ttl < MAX_TTL else 0.0


def told_progress(fraction: float, note: str) -> dict[str, Any]:
    """The body of a result while its job runs.

    Raises:
        ValueError: the fraction is not from 0 to 1.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"progress is {fraction}: must be from 0 to 1")
    return {"state": RUNNING, "progress": float(fraction), "note": escaped(note)}


def told_failure(error: BaseException) -> dict[str, Any]:
    """The body of the result of a task that has failed."""
    return {"state": FAILED, "error": describe(error), "traceback": trace_of(error)[-TRACEBACK:].splitlines()}


async def put_result(tasks: TaskQueue, tube: str, job_id: int, ttl: float, content: dict[str, Any]) -> str:
    """Put a result, in the place of progress or a former result; return "", or why this value can be no result.

    Of a failure that is too large, the traceback is left out.

    Raises:
        Error, OSError: the server is not reached, or refuses it.
    """
    try:
        body = _written(tasks, content)
        await tasks._ado(tube + RESULTS, _put(job_id, ttl, body))
    except ValueError as error:
        trouble = f"the result cannot be serialized: {error}"
    except JobTooBigError:
        trouble = f"the result has {len(body)} bytes, more than a job of the server may have"
    else:
        return ""
    told = {"state": FAILED, "error": content.get("error", trouble), "traceback": []}
    await tasks._ado(tube + RESULTS, _put(job_id, ttl, tasks.serializer.write(told)))
    return trouble


def _written(tasks: TaskQueue, content: dict[str, Any]) -> bytes:
    """The body of a result.

    Raises:
        ValueError: the value cannot be written, or a method of it has failed.
    """
    try:
        return tasks.serializer.write(content)
    except BaseException as error:
        raise ValueError(describe(showable(error))) from None


def read_result(tasks: TaskQueue, job_id: int) -> Steps:
    """Read the body of a job's result from its tube; {} if there is none."""
    try:
        job = yield methodcaller("peek_keyed", key_of(job_id))
    except NotFoundError:
        return {}
    found = tasks.serializer.read(job.body)
    return found if isinstance(found, dict) else {}


def put_progress(tasks: TaskQueue, job_id: int, ttl: float, content: dict[str, Any]) -> Steps:
    """Put the progress of a run, unless another run of the job has put its result."""
    if (yield from read_result(tasks, job_id)).get("state") != DONE:
        yield from _put(job_id, ttl, tasks.serializer.write(content))


def _put(job_id: int, ttl: float, body: bytes) -> Steps:
    with contextlib.suppress(TooLateError):  # a client has reserved the result, which is a mistake
        yield methodcaller("put_with", body, key=key_of(job_id), replace=True, ttl=ttl)
