"""The command line of `beanstalk-worker`: its options, its errors, and the worker that it runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from beanstalk_client import signals
from beanstalk_client.commands import MAX_WEIGHT, MODES
from beanstalk_client.consumer import AT_ONCE, look_for_server
from beanstalk_client.consumers import FORCE_AFTER, GRACE, run
from beanstalk_client.errors import UnsupportedError
from beanstalk_client.events import tell
from beanstalk_client.logs import keep_log
from beanstalk_client.names import own_name
from beanstalk_client.program import (
    COUNT,
    FAILED,
    SECONDS,
    TUBE,
    Kind,
    UsageError,
    add_common_options,
    add_option,
    run_program,
    server_errors,
)
from beanstalk_client.schedules.scheduler import GROUP, Scheduler
from beanstalk_client.tasks import Tasks
from beanstalk_client.tasks.failure import UNKNOWN_TASK_GRACE
from beanstalk_client.worker.processes import BELOW, Parent, Processes, command_line, run_reloaded
from beanstalk_client.worker.serving import Group, LifespanError, Worker, resident_memory

MOST_THREADS = 40
"""Maximum number of threads by default."""

DJANGO_SETTINGS = "DJANGO_SETTINGS_MODULE"
"""The variable of the environment that names the settings of a project with Django."""

log: logging.Logger = logging.getLogger("beanstalk_client.worker")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="beanstalk-worker",
        description="Run the tasks of a program. Each job in a tube is a call of one task.",
        epilog="SIGTERM or SIGINT: reserve no more jobs, wait for running jobs, and give back the rest after --grace. "
        "A second signal gives them back at once, and a third ends the process.",
    )
    app = "module and name of the Tasks object, such as shop.jobs:tasks"
    parser.add_argument("app", metavar="MODULE:NAME", help=app)
    add = functools.partial(add_option, parser)
    add(
        "--tube",
        Kind("NAME[,NAME…][=N]", read_group),
        None,
        "tubes, and their maximum number of running jobs; tubes in one list share N; repeatable "
        "(default: the tubes of all tasks, --at-once for each)",
        action="append",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="",
        help="order in which the tubes of one list are served: priority (of jobs), weighted (tube weights, in jobs) or "
        "fair (tube weights, in run time) (default: priority)",
    )
    add(
        "--weight",
        Kind("TUBE=N", read_weight),
        [],
        f"with --mode: weight of a tube, 1 to {MAX_WEIGHT}; repeatable (default: the weight in its policy, or 1)",
        action="append",
    )
    add("--at-once", COUNT, AT_ONCE, "maximum number of running jobs of each tube")
    threads = f"number of threads for plain functions (default: maximum number of running jobs, at most {MOST_THREADS})"
    add("--threads", COUNT, None, threads)
    add("--processes", COUNT, 1, "number of worker processes; the options above apply to each process")
    add(
        "--max-jobs",
        COUNT,
        0,
        "exit after this many jobs; with --processes, a new process replaces this one (default: no limit)",
    )
    add(
        "--max-memory",
        Kind("BYTES", read_size),
        0,
        "maximum memory of the process after a job, such as 500MB: exit above it; with --processes, a new process "
        "replaces this one (default: no limit)",
    )
    parser.add_argument("--burst", action="store_true", help="exit when no job is ready or running; delayed jobs stay")
    parser.add_argument(
        "--reload",
        action="store_true",
        help="for development: restart when a .py file in the working directory changes; needs watchfiles",
    )
    add("--grace", SECONDS, GRACE, "grace period: time that running jobs have to finish after a stop signal")
    add(
        "--unknown-task-grace",
        SECONDS,
        UNKNOWN_TASK_GRACE,
        "time for which jobs with an unknown task are released to other workers before they are buried (0: none)",
    )
    parser.add_argument(
        "--schedule",
        action="store_true",
        help="also run the program's schedules; any number of workers may have this option",
    )
    add("--group", TUBE, GROUP, "with --schedule: tube for the plans of this program")
    parser.add_argument(
        "--tracebacks",
        default="last",
        choices=["last", "all"],
        help="failed attempts that are logged with a traceback: the last one, or all (default: last)",
    )
    add_common_options(parser, more="; debug logs each job")
    return parser


def read_size(text: str) -> int:
    """A number of bytes: "500MB", "2GiB"."""
    found = re.fullmatch("([0-9]{1,15})(?:([kMGT])(i?)B)?", text.replace("Ki", "ki"))
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of bytes, or with a unit: 500MB, 2GiB")
    power = " kMGT".index(found[2] or " ")
    return int(found[1]) * int((1024 if found[3] else 1000) ** power)


def read_weight(text: str) -> tuple[str, int]:
    """A tube and its weight: "mail=3"."""
    name, _, number = text.partition("=")
    if not (name and number.isdigit() and 1 <= int(number) <= MAX_WEIGHT):
        raise argparse.ArgumentTypeError(f"{text!r} must be a tube and its weight, such as mail=3")
    return name, int(number)


def read_group(text: str) -> Group:
    """Tubes that share slots: "mail", "mail=5", "mail,letters=5"."""
    names, equals, number = text.partition("=")
    tubes = [name for name in names.split(",") if name]
    if not tubes:
        raise argparse.ArgumentTypeError(f"{text!r} must begin with the name of a tube")
    return Group(tuple(tubes), COUNT.read(number) if equals else 0)


def find_tasks(app: str) -> Tasks:
    """The Tasks that a command line names. With DJANGO_SETTINGS, they may use the models of a project with Django.

    Raises:
        UsageError: there are none, or the project cannot be set up.
    """
    module_name, colon, name = app.partition(":")
    if not (colon and module_name and name):
        raise UsageError(f"{app!r}: must be MODULE:NAME, such as shop.jobs:tasks")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if DJANGO_SETTINGS in os.environ:
        try:
            import django

            django.setup()
        except Exception as error:
            raise UsageError(f"{DJANGO_SETTINGS}={os.environ[DJANGO_SETTINGS]}: {_where(error)}") from None
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise UsageError(f"no module {error.name} in the working directory or on Python's path") from None
        raise UsageError(f"{module_name} cannot be imported: {_where(error)}") from None
    except Exception as error:
        raise UsageError(f"{module_name} cannot be imported: {_where(error)}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module_name} has no attribute {name}")
        found = getattr(found, part)
    if not isinstance(found, Tasks):
        kind = type(found).__qualname__
        article = "an" if kind[0] in "aeiouAEIOU" else "a"
        raise UsageError(f"{app} is {article} {kind}, not a Tasks object")
    return found


def _where(error: BaseException) -> str:
    """An exception of an import in one line, with the line that has raised it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def groups_of(options: argparse.Namespace, tasks: Tasks) -> list[Group]:
    """Return the tubes that share slots, and the number of these.

    Raises:
        UsageError: there is no tube, or one is named twice.
    """
    named: list[Group] = options.tube or [Group((tube,), 0) for tube in tasks.tubes]
    if not named:
        raise UsageError(f"{options.app} has no tasks")
    tubes = [tube for group in named for tube in group.tubes]
    for tube in tubes:
        if tubes.count(tube) > 1:
            raise UsageError(f"--tube: {tube} is named twice")
    return [Group(group.tubes, group.at_once or options.at_once) for group in named]


def warn_of_tubes(options: argparse.Namespace, tasks: Tasks) -> None:
    """Log each tube of --tube that no task has: its name may be misspelled."""
    for group in options.tube or ():
        for tube in group.tubes:
            if tube not in tasks.tubes:
                message = (
                    f"--tube {tube}: no task of {options.app} uses it; its tubes are {', '.join(tasks.tubes) or 'none'}"
                )
                tell(log, logging.WARNING, "tube-without-task", message, tube=tube)


def schedules_of(options: argparse.Namespace, tasks: Tasks) -> AbstractContextManager[None]:
    """Return a context that plans the schedules, with --schedule.

    Raises:
        UsageError: there are none, or the group cannot be.
    """
    if not options.schedule:
        return contextlib.nullcontext()
    if not tasks.schedules:
        raise UsageError(f"--schedule: {options.app} has no schedules")
    connect = functools.partial(tasks.connect, name=own_name("beanstalk-scheduler"))
    try:
        return Scheduler(connect, tasks.schedules, group=options.group).in_thread()
    except ValueError as error:
        raise UsageError(f"--schedule: {error}") from None


def _check_moments(tasks: Tasks) -> None:
    """Make sure that the server can keep what is planned.

    Raises:
        OSError, Error: it cannot, or is not reached.
    """
    with contextlib.closing(tasks.connect()) as queue:
        if not queue.knows("put-with"):
            raise UnsupportedError("--schedule: schedules need put-with, which the server does not support")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker until a stop signal; return the exit status."""
    return run_program(make_parser(), _run, arguments, FORCE_AFTER)


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    below = os.environ.pop(BELOW, "")
    parent = Parent(below) if below.startswith("processes") else None
    if options.reload and not below:
        try:
            run_reloaded(given)
        except ImportError as error:
            raise UsageError(str(error)) from None
        return 0
    if options.burst and options.processes > 1:
        raise UsageError("--burst and --processes cannot be combined")
    tasks = find_tasks(options.app)
    if DJANGO_SETTINGS in os.environ:
        from beanstalk_client.integrations.django_project import FreshConnections

        tasks.middleware.insert(0, FreshConnections())
    groups = groups_of(options, tasks)
    scheduler = schedules_of(options, tasks)
    if options.max_memory:
        try:
            resident_memory()
        except OSError as error:
            raise UsageError(str(error)) from None
    keep_log()  # the program may have configured logging
    if options.processes > 1 and parent is None:
        with server_of(tasks):  # what keeps each process from starting
            asyncio.run(look_for_server(tasks.connect_async(), [tube for group in groups for tube in group.tubes]))
            if options.schedule:
                _check_moments(tasks)
        return asyncio.run(Processes(command_line(given), options.processes, options.grace).run())
    if parent is not None:
        parent.stop_with_it()
    warn_of_tubes(options, tasks)
    worker = Worker(
        tasks,
        groups,
        threads=options.threads or min(sum(group.at_once for group in groups), MOST_THREADS),
        grace=options.grace,
        weights=dict(options.weight),
        mode=options.mode,
        all_tracebacks=options.tracebacks == "all",
        unknown_task_grace=options.unknown_task_grace,
        max_jobs=options.max_jobs,
        max_memory=options.max_memory,
        burst=options.burst,
    )
    try:
        with server_of(tasks):
            if options.schedule:
                _check_moments(tasks)
            with signals.deadlines_kept(), scheduler:
                run(worker.run())
    except LifespanError as error:
        cause = error.__cause__
        assert cause is not None
        message = f"the lifespan of {options.app} failed: {_where(cause)}"
        tell(log, logging.ERROR, "lifespan-failed", message, cause)
        return FAILED
    if parent is not None and worker.is_recycled:
        parent.announce_recycling()
    return 0


def server_of(tasks: Tasks) -> contextlib.AbstractContextManager[None]:
    """`server_errors` of the server of tasks."""
    return server_errors(f"server {tasks.where}", tasks.where)
