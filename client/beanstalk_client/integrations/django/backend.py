"""The backend of Django's tasks: a task that is enqueued is a job in the tube of its queue.

    supports_defer        yes: `run_after` is the moment at which the server has the job ready
    supports_priority     yes: 100 is priority 65436 of the protocol, 0 is 65536, -100 is 65636
    supports_async_task   yes: the worker awaits coroutines on its event loop
    supports_get_result   with the option `result_ttl`: `results.py`

A deferred task has its result's id for a key, which is how `cancel` finds it. With `result_ttl`, each task has.
Must never import what only workers need, nor run a task.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.crypto import get_random_string

from beanstalk_client.commands import DEFAULT_PRIORITY, Duration
from beanstalk_client.errors import NotFoundError, TooLateError, UnsupportedError
from beanstalk_client.tasks.failure import tries_for
from beanstalk_client.tasks.tasks import NO_RESULTS

from .clients import client_of
from .library import (
    DEFAULT_TASK_BACKEND_ALIAS,
    BaseTaskBackend,
    InvalidTask,
    Task,
    task_backends,
    task_enqueued,
)
from .message import Message, encode
from .options import Options, is_count, is_seconds, problems, read_options
from .results import TUBE, aware, find_result, new_result, shown_moment

LOSSES = 3
"""How many workers a task may lose before the server buries its job, if its retries allow fewer: by default, Django's
tasks have none, and a stop of a worker must not cost a task.
"""

APP = "beanstalk_client.integrations.django"


@dataclass(frozen=True)
class BeanstalkTask(Task):
    """A task that may say what becomes of it when it fails: `@task(retries=5, backoff=10)`.

    Attributes:
        retries: how many times it is run again; None: as the backend's OPTIONS say.
        backoff: how long it waits for the first of these, twice as long each further time; None: the same.
    """

    retries: int | None = None
    backoff: Duration | None = None


class BeanstalkBackend(BaseTaskBackend):
    """Django's tasks through a beanstalk server."""

    task_class = BeanstalkTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.supports_get_result: bool = self.options.get("result_ttl") is not None

    @functools.cached_property
    def settings(self) -> Options:
        """The backend's options.

        Raises:
            ImproperlyConfigured: they are not valid.
        """
        wrong = [what for what, _ in problems(self.options, frozenset(self.queues))]
        if wrong:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: {'; '.join(wrong)}")
        return read_options(self.options)

    def tube(self, queue: str) -> str:
        """The tube of a queue."""
        return f"{self.settings.prefix}{queue}"

    @property
    def results_tube(self) -> str:
        """The tube of results."""
        return f"{self.settings.prefix}{TUBE}"

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        retries, backoff = getattr(task, "retries", None), getattr(task, "backoff", None)
        if retries is not None and not is_count(retries):
            raise InvalidTask(f"retries is {retries!r}; it must be a whole number, 0 or more.")
        if backoff is not None and not is_seconds(backoff, 0):
            raise InvalidTask(f"backoff is {backoff!r}; it must be 0 or more: seconds, or a string such as '5m'.")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put a task as a job. Within a transaction, it exists if and only if that commits, with the option `outbox`;
        without it, it is put at once, and `transaction.on_commit(partial(task.enqueue, ...))` waits for the commit.

        Raises:
            InvalidTask: this backend cannot run it.
            TypeError, ValueError: its arguments are not of JSON.
            beanstalk_client.errors.Error: the server does not take it, or is not reached.
            beanstalk_client.errors.UnsupportedError: results are to be kept, and the server is stock beanstalkd.
        """
        self.validate_task(task)
        result = new_result(task, get_random_string(32), list(args), dict(kwargs), self.alias)
        now = datetime.datetime.now(datetime.timezone.utc)
        after = aware(task.run_after)
        body = encode(
            Message(task.module_path, result.args, result.kwargs, result.id, task.queue_name, task.priority, now, after)
        )
        retries = getattr(task, "retries", None)
        tries = max(tries_for(self.settings.retries if retries is None else retries), LOSSES)
        self._put(body, self.tube(task.queue_name), DEFAULT_PRIORITY - int(task.priority), after, result.id, tries)
        object.__setattr__(result, "enqueued_at", shown_moment(now))
        task_enqueued.send(type(self), task_result=result)
        return result

    def _put(
        self, body: bytes, tube: str, priority: int, run_after: datetime.datetime | None, key: str, tries: int
    ) -> None:
        ttr = self.settings.ttr
        with self._client(tube) as client:
            if client.knows("put-with"):
                more: dict[str, Any] = {}
                if run_after is not None:
                    more["at"] = max(run_after.timestamp(), 0)
                if run_after is not None or self.supports_get_result:
                    more["key"] = key
                client.put_with(body, priority, 0, ttr, tries=tries, **more)
            elif self.supports_get_result:
                raise UnsupportedError(NO_RESULTS)
            elif run_after is None:
                client.put(body, priority, 0, ttr)
            else:
                wait = run_after - datetime.datetime.now(datetime.timezone.utc)
                client.put(body, priority, max(wait.total_seconds(), 0), ttr)

    def _recorder(self, tube: str) -> Any:
        """What records commands in the current transaction; None outside one, or without the option `outbox`."""
        if self.settings.outbox is None:
            return None
        from beanstalk_client.outbox.django import Outbox

        return Outbox(self.settings.outbox).client(tube)

    def _client(self, tube: str) -> AbstractContextManager[Any]:
        recorder = self._recorder(tube)
        return client_of(self.settings.client, tube) if recorder is None else contextlib.nullcontext(recorder)

    def get_result(self, result_id: str) -> Any:
        """The result of a task: what is kept of it, and its status by now. See Django's `Task.get_result`.

        Raises:
            NotImplementedError: OPTIONS has no `result_ttl`.
            TaskResultDoesNotExist: there is no such task, it was cancelled or deleted, or `result_ttl` is over.
            beanstalk_client.errors.Error: the server refuses, or is not reached.
        """
        if not self.supports_get_result:
            return super().get_result(result_id)
        return find_result(self, result_id)

    def cancel(self, result: Any) -> bool:
        """Cancel a deferred task: one that was enqueued with `run_after`.

        Args:
            result: what `enqueue` has returned, or its id. Where QUEUES is [], an id does not do.

        Returns:
            True if it is off for good: it will not run, or, if it has failed and waits for another attempt, not again.
            False if it was too late, or if it was not deferred. Within a transaction, with the option `outbox`, True:
            it is cancelled after the commit, unless it is too late then.

        Raises:
            UnknownCommandError: the server cannot tell: it is stock beanstalkd.
            ValueError: an id, where any name is one of a queue.
        """
        if isinstance(result, str):
            if not self.queues:
                raise ValueError("the backend has no QUEUES, so an id is not enough: pass the result of enqueue")
            key, queues = result, sorted(self.queues)
        else:
            key, queues = result.id, [result.task.queue_name]
        recorders = [self._recorder(self.tube(queue)) for queue in queues]
        if None not in recorders:  # which of the queues it is in is found out after the commit
            for recorder in recorders:
                recorder.cancel_keyed(key)
            return True
        for queue in queues:
            with client_of(self.settings.client, self.tube(queue)) as client:
                try:
                    client.cancel_keyed(key)
                except NotFoundError:
                    continue
                except TooLateError:
                    return False
                return True
        return False

    async def acancel(self, result: Any) -> bool:
        """`cancel`, for coroutines."""
        return bool(await sync_to_async(self.cancel, thread_sensitive=True)(result))

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """What is wrong with the settings, for `manage.py check`."""
        yield from super().check(**kwargs)
        for what, hint in problems(self.options, frozenset(self.queues)):
            yield checks.Error(f"TASKS[{self.alias!r}]: {what}", hint=hint, id="beanstalk_client.E001")
        if not apps.is_installed(APP):
            yield checks.Warning(
                f"TASKS[{self.alias!r}] needs a worker, and `manage.py beanstalk_worker` is not installed",
                hint=f"Add {APP!r} to INSTALLED_APPS.",
                id="beanstalk_client.W001",
            )


def cancel(result: Any, using: str = DEFAULT_TASK_BACKEND_ALIAS) -> bool:
    """`BeanstalkBackend.cancel` of the backend with an alias."""
    return bool(backend_of(using).cancel(result))


async def acancel(result: Any, using: str = DEFAULT_TASK_BACKEND_ALIAS) -> bool:
    """`cancel`, for coroutines."""
    return bool(await backend_of(using).acancel(result))


def backend_of(alias: str) -> BeanstalkBackend:
    """The backend with an alias.

    Raises:
        ImproperlyConfigured: it is another kind of backend.
    """
    backend: Any = task_backends[alias]
    if not isinstance(backend, BeanstalkBackend):
        raise ImproperlyConfigured(f"TASKS[{alias!r}] is {type(backend).__name__}, not a BeanstalkBackend")
    return backend
