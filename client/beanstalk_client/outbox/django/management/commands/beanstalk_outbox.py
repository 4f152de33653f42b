"""`manage.py beanstalk_outbox`: sends the rows of the outbox until a stop signal."""

from __future__ import annotations

import functools
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS
from django.utils.connection import ConnectionDoesNotExist

from beanstalk_client import signals
from beanstalk_client.outbox.command import add_relay_options, run_relay
from beanstalk_client.outbox.django import DjangoDatabase
from beanstalk_client.passes import END_WITHIN
from beanstalk_client.program import Kind, ProgramError, add_option
from beanstalk_client.worker.command import find_tasks


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    help = "Sends the jobs of committed transactions to a beanstalk server. SIGTERM, SIGINT: stop after this pass."

    def add_arguments(self, parser: Any) -> None:
        app = "module and name of the Tasks object (default: use the server of --backend)"
        parser.add_argument("app", metavar="MODULE:NAME", nargs="?", help=app)
        add = functools.partial(add_option, parser)
        add("--backend", Kind("ALIAS", str), "default", "without MODULE:NAME: alias of the backend in TASKS")
        add("--database", Kind("ALIAS", str), DEFAULT_DB_ALIAS, "alias of the database")
        add_relay_options(parser)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a program of its own."""
        with signals.exiting(END_WITHIN):
            super().run_from_argv(argv)

    def handle(self, *_: Any, **options: Any) -> None:
        from beanstalk_client.integrations.django.management.commands.beanstalk_worker import configure_logging

        configure_logging(options["verbosity"])
        try:
            database = DjangoDatabase(options["database"])
            connect = functools.partial(_connect, options["app"], options["backend"])
            told = run_relay(database, connect, options)
        except ConnectionDoesNotExist:
            raise CommandError(f"DATABASES has no {options['database']!r}") from None
        except (ProgramError, ValueError) as error:
            raise CommandError(str(error)) from error
        if told:
            self.stdout.write(told)


def _connect(app: str | None, alias: str) -> Any:
    """Connect to the server of a Tasks, or of a backend of Django's tasks."""
    if app:
        return find_tasks(app).connect()
    from beanstalk_client.blocking import Client
    from beanstalk_client.integrations.django.backend import backend_of

    try:
        backend = backend_of(alias)
    except ImproperlyConfigured as error:
        raise CommandError(f"name your Tasks object, such as shop.jobs:tasks: {error}") from None
    return Client(**backend.settings.client, encoding=None)
