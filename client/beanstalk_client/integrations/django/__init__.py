"""Django's tasks through a beanstalk server: a backend, and `manage.py beanstalk_worker`.

    INSTALLED_APPS = [..., "beanstalk_client.integrations.django"]
    TASKS = {"default": {"BACKEND": "beanstalk_client.integrations.django.BeanstalkBackend",
                         "OPTIONS": {"addresses": "beanstalk://127.0.0.1:11300"}}}

Must not import tasks before the backend is used: Django imports this package while it reads its settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import BeanstalkBackend, BeanstalkTask, acancel, cancel

__all__ = ["BeanstalkBackend", "BeanstalkTask", "acancel", "cancel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        try:
            from . import backend
        except ModuleNotFoundError as error:
            if error.name not in ("asgiref", "django"):
                raise
            raise ImportError(
                "this backend needs Django: pip install './client[django]' in a clone of beanstalk-server"
            ) from error
        return getattr(backend, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
