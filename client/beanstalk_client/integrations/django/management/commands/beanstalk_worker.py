"""`manage.py beanstalk_worker`: runs Django's tasks until a stop signal.

Must never run a task itself, nor know what one is.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.crypto import get_random_string
from django.utils.module_loading import autodiscover_modules

from beanstalk_client import signals
from beanstalk_client.consumer import AT_ONCE, Consumer
from beanstalk_client.consumers import FORCE_AFTER, GRACE, Consumers, run
from beanstalk_client.errors import Error
from beanstalk_client.events import reason_of, tell
from beanstalk_client.program import COUNT, SECONDS, Kind, add_option
from beanstalk_client.tasks.failure import UNKNOWN_TASK_GRACE
from beanstalk_client.tasks.reports import tidied

from ...backend import backend_of
from ...library import DEFAULT_TASK_BACKEND_ALIAS, InvalidTaskBackend
from ...worker import DjangoTaskRunner, log


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    help = (
        "Runs tasks from a beanstalk server. SIGTERM, SIGINT: wait for running tasks; a second signal gives them back."
    )

    def add_arguments(self, parser: Any) -> None:
        add = functools.partial(add_option, parser)
        queues = "queue of the tasks; repeatable (default: the backend's QUEUES)"
        add("--queue", Kind("NAME", str), None, queues, action="append")
        add("--backend", Kind("ALIAS", str), DEFAULT_TASK_BACKEND_ALIAS, "alias of the backend in TASKS")
        add("--at-once", COUNT, AT_ONCE, "maximum number of running tasks")
        add("--threads", COUNT, None, "number of threads for plain functions (default: same as --at-once)")
        grace = "grace period: time that running tasks have to finish after a stop signal; then they are given back"
        add("--grace", SECONDS, GRACE, grace)
        add(
            "--unknown-task-grace",
            SECONDS,
            UNKNOWN_TASK_GRACE,
            "time for which jobs with an unknown task are released to other workers before they are buried (0: none)",
        )
        add("--worker-id", Kind("ID", str), None, "id of this worker in the context of a task (default: random)")

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a program of its own."""
        with signals.exiting(FORCE_AFTER):
            super().run_from_argv(argv)

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            backend = backend_of(options["backend"])
            backend.settings  # noqa: B018 raises what is wrong with them
        except (InvalidTaskBackend, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        queues = options["queue"] or sorted(backend.queues)
        if not queues:
            raise CommandError(f"TASKS[{options['backend']!r}] has no QUEUES: name them with --queue")
        unknown = [queue for queue in queues if backend.queues and queue not in backend.queues]
        if unknown:
            raise CommandError(f"queue {unknown[0]!r} is unknown: must be one of {', '.join(sorted(backend.queues))}")
        configure_logging(options["verbosity"])
        autodiscover_modules("tasks")
        worker_id = options["worker_id"] or get_random_string(32)
        at_once, tubes = options["at_once"], [backend.tube(queue) for queue in queues]
        runner = functools.partial(
            DjangoTaskRunner, backend, options["threads"] or at_once, worker_id, options["unknown_task_grace"]
        )
        try:
            run(serve(runner, tubes, at_once, options["grace"], worker_id))
        except Error as error:
            raise CommandError(f"refused by the server: {reason_of(error)}") from error


async def serve(
    make_runner: Callable[[], DjangoTaskRunner], tubes: list[str], at_once: int, grace: float, worker_id: str
) -> None:
    """Run tasks until a signal comes and they have ended, or have been given back when the grace was over."""
    runner = make_runner()
    worker = Consumers(log, "worker", "running tasks", grace)
    text = f"worker {worker_id} takes tasks from {', '.join(tubes)}, {at_once} at a time"
    tell(log, logging.INFO, "worker-started", text, tubes=",".join(tubes))
    try:
        with worker.on_signals():
            async with tidied(runner.connect, tubes):
                consumer = Consumer(runner.connect, tubes, runner, at_once=at_once, room=runner.threads.room)
                runner.threads.on_room = consumer.resume
                await worker.consume([consumer])
    finally:
        await runner.close()
    tell(log, logging.INFO, "worker-stopped", f"worker {worker_id} has stopped")


def configure_logging(verbosity: int) -> None:
    """What this worker tells goes to standard error, unless the project's LOGGING says otherwise."""
    package = logging.getLogger("beanstalk_client")
    if not package.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        package.addHandler(handler)
        package.setLevel((logging.ERROR, logging.INFO, logging.DEBUG, logging.DEBUG)[verbosity])
