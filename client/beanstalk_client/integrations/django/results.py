"""Keeps the results of tasks, if OPTIONS has `result_ttl`: each is a job with the result's id for a key.

It is in the tube `django.results`, behind the backend's prefix, and the server deletes it after `result_ttl` seconds.
The worker puts it when an attempt begins and when it ends, before the signal. Its body is that of the task's job, and:

    "result": {"job": 17, "status": "SUCCESSFUL", "started_at": "…", "last_attempted_at": "…", "finished_at": "…",
               "worker_ids": ["…"], "errors": [["builtins.OSError", "Traceback …"]], "value": 3}

The task's job has the same key in its own tube, and says what the state is until the task has finished:

    of the result    of the task's job            status
    SUCCESSFUL       any, or none                 SUCCESSFUL
    FAILED           reserved, buried, or none    FAILED: it is about to be buried, or was deleted then
    any other        ready, delayed               READY: also if it was kicked
    any other        reserved                     RUNNING
    any other        buried, or in another tube   FAILED
    RUNNING, READY   none                         it does not exist: the job was cancelled or deleted
    none             none                         it does not exist: or it has expired

Must never import a module that a body names and that is of no installed app.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from beanstalk_client.clients import SharedClient
from beanstalk_client.commands import make
from beanstalk_client.errors import NotFoundError, TooLateError
from beanstalk_client.tasks.failure import describe
from beanstalk_client.tasks.results import TRACEBACK

from .clients import client_of
from .library import InvalidTask, Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from .message import Message, decode, encode

if TYPE_CHECKING:
    from beanstalk_client import Client
    from beanstalk_client.asynchronous import AsyncClient

    from .backend import BeanstalkBackend

TUBE = "django.results"
"""The tube of results, behind the prefix."""

MOMENTS = ("started_at", "last_attempted_at", "finished_at")

STATES = {
    "reserved": TaskResultStatus.RUNNING,
    "buried": TaskResultStatus.FAILED,
}
"""The status of a task by the state of its job; READY by the others."""


class UnrunnableError(Exception):
    """No worker of this program can run the task; the message says why."""


# Results of Django


def new_result(
    task: Any,
    id: str,
    args: list[Any],
    kwargs: dict[str, Any],
    alias: str,
    enqueued_at: datetime.datetime | None = None,
    worker_ids: Iterable[str] = (),
) -> Any:
    """The result of a task that has not run, of the backend with an alias."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=enqueued_at,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=list(worker_ids),
    )


def change(result: Any, **values: Any) -> None:
    """Set attributes of a result: they are frozen for all but backends."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def result_of(message: Message, alias: str) -> Any:
    """The result of a task that a job names, as if it had not run.

    Raises:
        UnrunnableError: it is no task, or not one of this backend.
    """
    module = message.path.rpartition(".")[0]
    if not _may_be_imported(module):
        raise UnrunnableError(f"{message.path} is not in an installed app, and its module was not imported")
    try:
        found = import_string(message.path)
    except Exception as error:  # a module may raise any exception
        raise UnrunnableError(f"{message.path} cannot be imported: {describe(error)}") from error
    if not isinstance(found, Task):
        raise UnrunnableError(f"{message.path} is {type(found).__name__}, not a task")
    try:
        task = found.using(
            priority=message.priority,
            queue_name=message.queue,
            run_after=message.run_after and shown_moment(message.run_after),
            backend=alias,
        )
        return new_result(task, message.id, message.args, message.kwargs, alias, shown_moment(message.enqueued_at))
    except (InvalidTask, TypeError, ValueError) as error:
        raise UnrunnableError(f"{message.path} cannot run here: {error}") from error


def _may_be_imported(module: str) -> bool:
    """Whether a job may name this module: to import one runs it, and a producer need not be allowed to
    may run any installed module.
    """
    return module in sys.modules or any(f"{module}.".startswith(f"{app.name}.") for app in apps.get_app_configs())


# Moments


def shown_moment(moment: datetime.datetime) -> datetime.datetime:
    """A moment with a time zone as the project's code knows moments: without one, if USE_TZ is not set."""
    if settings.USE_TZ:
        return moment
    naive: datetime.datetime = timezone.make_naive(moment, timezone.get_default_timezone())
    return naive


def aware(moment: datetime.datetime | None) -> datetime.datetime | None:
    """A moment with its time zone: without USE_TZ, that of the settings."""
    if moment is None or timezone.is_aware(moment):
        return moment
    zoned: datetime.datetime = timezone.make_aware(moment, timezone.get_default_timezone())
    return zoned


# Bodies


def record_of(result: Any, job_id: int, traceback: int = TRACEBACK) -> dict[str, Any]:
    """What is kept of a result beside its task.

    Args:
        job_id: of the task.
        traceback: characters of the tracebacks of all its errors that are kept; their ends say most.
    """
    each = traceback // max(len(result.errors), 1)
    moments = {name: aware(getattr(result, name)) for name in MOMENTS}
    return {
        "job": job_id,
        "status": result.status.value,
        **{name: moment and moment.isoformat() for name, moment in moments.items()},
        "worker_ids": result.worker_ids,
        "errors": [[error.exception_class_path, error.traceback[-each:] if each else ""] for error in result.errors],
        "value": result._return_value,
    }


class Kept(NamedTuple):
    """What is kept of a result.

    Attributes:
        job_id: of the task.
        attributes: of the result, when it was put.
    """

    message: Message
    job_id: int
    attributes: dict[str, Any]

    @property
    def status(self) -> Any:
        return self.attributes["status"]


def read(body: bytes) -> Kept | None:
    """What is kept of a result; None if the body is not that of one."""
    try:
        record = json.loads(body)["result"]
        moments = {name: record[name] and datetime.datetime.fromisoformat(record[name]) for name in MOMENTS}
        attributes = {
            "status": TaskResultStatus(record["status"]),
            **{name: moment and shown_moment(moment) for name, moment in moments.items()},
            "worker_ids": list(map(str, record["worker_ids"])),
            "errors": [TaskError(exception_class_path=path, traceback=trace) for path, trace in record["errors"]],
            "_return_value": record["value"],
        }
        return Kept(decode(body), int(record["job"]), attributes)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


# What programs ask


def find_result(backend: BeanstalkBackend, result_id: str) -> Any:
    """The result with an id.

    Raises:
        TaskResultDoesNotExist: there is neither a result nor a job of the task, or this program does not have the task.
        beanstalk_client.errors.Error: the server refuses, or is not reached.
    """
    try:
        make.peek_keyed(result_id)  # which refuses what is no key
    except (TypeError, ValueError):
        raise TaskResultDoesNotExist(result_id) from None
    with client_of(backend.settings.client, backend.results_tube) as client:
        message, kept, status = _look(client, backend, result_id)
    try:
        result = result_of(message, backend.alias)
    except UnrunnableError as error:
        raise TaskResultDoesNotExist(f"{result_id}: {error}") from error
    change(result, **{**(kept.attributes if kept else {}), "status": status})
    if not result.is_finished:  # it was kicked
        change(result, finished_at=None)
    return result


def _look(client: Client[bytes], backend: BeanstalkBackend, result_id: str) -> tuple[Message, Kept | None, Any]:
    """The task of a result, what is kept of it, and its status."""
    kept = _kept(client, backend, result_id)
    if kept is not None and kept.status == TaskResultStatus.SUCCESSFUL:
        return kept.message, kept, kept.status
    tubes = [backend.tube(queue) for queue in sorted(backend.queues)]
    job = None
    if kept is not None:
        message = kept.message
        with contextlib.suppress(NotFoundError):
            job = client.stats_job(kept.job_id)
    else:
        found = _job_of(client, tubes, result_id)
        if found is not None:
            message, job = found
    status = None
    if job is not None:
        state = job["state"] if job["tube"] in tubes else "buried"
        status = STATES.get(str(state), TaskResultStatus.READY)
    if status != TaskResultStatus.READY:  # the task may have finished since the first question
        kept = _kept(client, backend, result_id) or kept
        if kept is not None and kept.status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED):
            return kept.message, kept, kept.status
    if status is None:
        raise TaskResultDoesNotExist(result_id)
    return message, kept, status


def _kept(client: Client[bytes], backend: BeanstalkBackend, result_id: str) -> Kept | None:
    client.use(backend.results_tube)
    try:
        return read(client.peek_keyed(result_id).body)
    except NotFoundError:
        return None


def _job_of(client: Client[bytes], tubes: Iterable[str], result_id: str) -> tuple[Message, Any] | None:
    """The task with this id, and the statistics of its job."""
    for tube in tubes:
        client.use(tube)
        with contextlib.suppress(NotFoundError, ValueError):  # ValueError: the body of another program's job
            job = client.peek_keyed(result_id)
            return decode(job.body), client.stats_job(job)
    return None


# What workers do


class ResultStore:
    """Puts results, on a connection of its own.

    Args:
        connect: makes a client that is not connected yet.
        tube: of the results.
        ttl: seconds for which a result is kept.
    """

    def __init__(self, connect: Callable[[], AsyncClient[bytes]], tube: str, ttl: float) -> None:
        self._client: SharedClient[bytes] = SharedClient(connect())
        self._tube = tube
        self._ttl = ttl

    async def load(self, result_id: str) -> Kept | None:
        """What is kept of a result.

        Raises:
            Error, OSError: the server is not reached, or refuses.
        """
        await self._client.connect()  # which waits for longer than a command
        async with self._client.using(self._tube) as client:
            return await self._read(client, result_id)

    async def put(self, message: Message, record: dict[str, Any], delay: float = 0.0) -> None:
        """Keep a result; that of a failed attempt, unless another run of the same task has put a successful one.

        Args:
            delay: seconds until the next attempt.

        Raises:
            Error, OSError: the server is not reached, or refuses.
        """
        await self._client.connect()
        async with self._client.using(self._tube) as client:
            if record["status"] in (TaskResultStatus.READY, TaskResultStatus.FAILED):  # after RUNNING
                kept = await self._read(client, message.id)
                if kept is not None and kept.status == TaskResultStatus.SUCCESSFUL:
                    return
            with contextlib.suppress(TooLateError):  # a client has reserved the result, which is a mistake
                await client.put_with(encode(message, record), key=message.id, replace=True, ttl=self._ttl + delay)

    async def _read(self, client: AsyncClient[bytes], result_id: str) -> Kept | None:
        try:
            return read((await client.peek_keyed(result_id)).body)
        except NotFoundError:
            return None

    async def close(self) -> None:
        await self._client.close()
