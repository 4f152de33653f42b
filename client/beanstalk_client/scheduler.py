"""Plans the schedules of a program: `python -m beanstalk_client.scheduler`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from beanstalk_client import signals
from beanstalk_client.errors import Error
from beanstalk_client.logs import add_log_options, complain, keep_log, start_log
from beanstalk_client.schedules.schedule import Schedule
from beanstalk_client.schedules.scheduler import AHEAD, END_WITHIN, GROUP, HOLD, LONGEST, Scheduler
from beanstalk_client.version import VERSION
from beanstalk_client.worker.command import USAGE, UsageError, complain_of_server, find_tasks

PROGRAM = "beanstalk_client.scheduler"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m beanstalk_client.scheduler",
        description="Put the firings of a program's schedules into the server before they are due. "
        "Any number of schedulers may run at the same time.",
        epilog="SIGTERM or SIGINT: stop. Planned firings stay in the server.",
    )
    parser.add_argument("app", metavar="MODULE:NAME", help="module and name of the Tasks, such as shop.jobs:tasks")
    add_options(parser)
    parser.add_argument("--once", action="store_true", help="plan once, then exit")
    parser.add_argument("--list", action="store_true", help="print the schedules and their next firings, then exit")
    add_log_options(parser.add_argument)
    parser.add_argument("--version", action="version", version=f"beanstalk-client {VERSION}")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the scheduler."""
    parser.add_argument(
        "--group",
        metavar="TUBE",
        default=GROUP,
        help=f"tube for the plans; the same for all schedulers of a program, and only for these (default: {GROUP})",
    )
    parser.add_argument(
        "--ahead",
        metavar="SECONDS",
        type=_seconds,
        default=AHEAD,
        help=f"time planned ahead; all schedulers may be down for three quarters of it (default: {AHEAD:g})",
    )
    parser.add_argument(
        "--hold",
        metavar="SECONDS",
        type=_seconds,
        default=HOLD,
        help=f"time after a firing is done until the same firing may be put again (default: {HOLD:g})",
    )


def _seconds(text: str) -> float:
    """Seconds, more than 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds, more than 0")
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan until told to end; return the exit status."""
    return signals.run_program(_main, END_WITHIN) if arguments is None else _main(arguments)


def _main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    start_log(options)
    try:
        tasks = find_tasks(options.app)
        keep_log()  # the program may have configured logging
        if not tasks.schedules:
            raise UsageError(f"{options.app} has no schedule: there is nothing to do")
        scheduler = Scheduler(
            tasks.connect, tasks.schedules, group=options.group, ahead=options.ahead, hold=options.hold
        )
    except (UsageError, ValueError) as error:
        return complain(options, PROGRAM, str(error), USAGE)
    if options.list:
        sys.stdout.writelines(f"{_shown(schedule)}\n" for schedule in tasks.schedules)
        return 0
    told = 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal told
        told += 1
        scheduler.stop()
        signals.end_within(END_WITHIN if told == 1 else 0)  # the pass may wait for a silent server

    for number in (signal.SIGTERM, signal.SIGINT):
        signals.handle(number, stop)
    try:
        with signals.deadlines_kept():
            if options.once:
                scheduler.run_once()
            else:
                scheduler.run()
    except (Error, OSError, ValueError) as error:
        return complain_of_server(options, PROGRAM, tasks, error)
    return 0


def _shown(schedule: Schedule) -> str:
    """A line for people: by this machine's clock, as no server is asked."""
    moment = schedule.moments.after(int(time.time()))
    fires = "never again" if moment is None else f"next {schedule.moments.spelled(moment)}"
    return f"{schedule.name}: {fires} ({schedule.moments.text()}, missed {schedule.missed}, tube {schedule.task.tube})"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
