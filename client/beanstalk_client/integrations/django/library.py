"""Chooses the library that defines tasks: Django from 6.0 on, or its backport django-tasks, with the same names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BACKPORT = "django_tasks"


def _name() -> str:
    """The package of the library: the backport where it is among INSTALLED_APPS, or where Django has no tasks."""
    chosen = any(app == BACKPORT or app.startswith(f"{BACKPORT}.") for app in settings.INSTALLED_APPS)
    for name in (BACKPORT,) if chosen else ("django.tasks", BACKPORT):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        else:
            return name
    raise ImproperlyConfigured(
        "tasks need Django 6.0 or later, or the backport for earlier versions: "
        "pip install './client[django]' in a clone of beanstalk-server"
    )


NAME = _name()
"""`django.tasks` or `django_tasks`."""

_package: Any = importlib.import_module(NAME)
_base: Any = importlib.import_module(f"{NAME}.base")
_exceptions: Any = importlib.import_module(f"{NAME}.exceptions")
_signals: Any = importlib.import_module(f"{NAME}.signals")

task_backends: Any = _package.task_backends
DEFAULT_TASK_BACKEND_ALIAS: str = _package.DEFAULT_TASK_BACKEND_ALIAS
task: Any = _base.task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist
InvalidTaskBackend: Any = getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
normalize_json: Any = importlib.import_module(
    f"{NAME}.utils" if NAME == BACKPORT else "django.utils.json"
).normalize_json
task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished

if TYPE_CHECKING:  # Django has no types: this is what is used of them

    class BaseTaskBackend:
        alias: str
        options: dict[str, Any]
        queues: set[str]

        def __init__(self, alias: str, params: Mapping[str, Any]) -> None: ...
        def validate_task(self, task: Any) -> None: ...
        def get_result(self, result_id: str) -> Any: ...
        def check(self, **kwargs: Any) -> Iterable[Any]: ...

    class Task:
        def using(self, **changes: Any) -> Any: ...

else:
    BaseTaskBackend = importlib.import_module(f"{NAME}.backends.base").BaseTaskBackend
    Task = _base.Task
