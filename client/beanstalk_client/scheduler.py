"""Plans the schedules of a program: `python -m beanstalk_client.scheduler`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Sequence

from beanstalk_client.logs import keep_log
from beanstalk_client.passes import END_WITHIN
from beanstalk_client.program import (
    SOME_SECONDS,
    TUBE,
    UsageError,
    add_common_options,
    add_option,
    run_program,
    run_until_signal,
)
from beanstalk_client.schedules.schedule import Schedule
from beanstalk_client.schedules.scheduler import AHEAD, GROUP, HOLD, Scheduler
from beanstalk_client.worker.command import find_tasks, server_of


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m beanstalk_client.scheduler",
        description="Put the firings of a program's schedules into the server before they are due. "
        "Any number of schedulers may run at the same time.",
        epilog="SIGTERM or SIGINT: stop. Planned firings stay in the server.",
    )
    app = "module and name of the Tasks object, such as shop.jobs:tasks"
    parser.add_argument("app", metavar="MODULE:NAME", help=app)
    add = functools.partial(add_option, parser)
    add(
        "--group",
        TUBE,
        GROUP,
        "tube for the plans; all schedulers of a program must share it, and nothing else may use it",
    )
    add("--ahead", SOME_SECONDS, AHEAD, "time planned ahead; all schedulers may be down for three quarters of it")
    add("--hold", SOME_SECONDS, HOLD, "time after a firing is done until the same firing may be put again")
    parser.add_argument("--once", action="store_true", help="plan once, then exit")
    parser.add_argument("--list", action="store_true", help="print the schedules and their next firings, then exit")
    add_common_options(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan until a stop signal; return the exit status."""
    return run_program(make_parser(), _run, arguments, END_WITHIN)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    tasks = find_tasks(options.app)
    keep_log()  # the program may have configured logging
    if not tasks.schedules:
        raise UsageError(f"{options.app} has no schedules")
    try:
        scheduler = Scheduler(
            tasks.connect, tasks.schedules, group=options.group, ahead=options.ahead, hold=options.hold
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    if options.list:
        sys.stdout.writelines(f"{_shown(schedule)}\n" for schedule in tasks.schedules)
        return 0
    with server_of(tasks):
        run_until_signal(scheduler, options.once)
    return 0


def _shown(schedule: Schedule) -> str:
    """A line for people: by this machine's clock, as no server is asked."""
    moment = schedule.moments.after(int(time.time()))
    fires = "no further firing" if moment is None else f"next {schedule.moments.spelled(moment)}"
    return f"{schedule.name}: {fires} ({schedule.moments.text()}, missed {schedule.missed}, tube {schedule.task.tube})"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
