"""Runs the tasks of a `Tasks` in a project with Django. Django's own tasks have a worker of their own (`django/`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.db import close_old_connections

from beanstalk_client.tasks import Middleware
from beanstalk_client.tasks.middleware import Run


class FreshConnections(Middleware):
    """Closes database connections that are too old or broken before and after each call of a plain function.

    `beanstalk-worker` adds it if DJANGO_SETTINGS_MODULE is set.

    Example:
        tasks = Tasks(…, middleware=[FreshConnections()])
    """

    @contextlib.contextmanager
    def calling(self, run: Run) -> Iterator[Run]:
        """Around each call of a plain function, in its thread."""
        close_old_connections()
        try:
            yield run
        finally:
            close_old_connections()
