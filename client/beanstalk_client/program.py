"""Runs the command line of a program: its options, its log, its signals, and the exit status that an error has."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

from beanstalk_client import names, signals
from beanstalk_client.errors import Error
from beanstalk_client.events import reason_of
from beanstalk_client.logs import add_log_options, complain, start_log
from beanstalk_client.passes import END_WITHIN, Passes
from beanstalk_client.version import VERSION

USAGE: Final = 2
FAILED: Final = 1


class ProgramError(Exception):
    """The program ends with exit status 1; the message says why, in one line."""

    status = FAILED


class UsageError(ProgramError):
    """The command line cannot be followed: exit status 2. The message says why, in one line."""

    status = USAGE


class Kind(NamedTuple):
    """What an option takes.

    Attributes:
        metavar: its placeholder in the help.
        read: converts the text. It raises argparse.ArgumentTypeError.
    """

    metavar: str
    read: Callable[[str], Any]


def whole(least: int, most: int = 0, name: str = "number") -> Callable[[str], int]:
    """Return a reader of whole numbers.

    Args:
        least, most: the bounds; 0 for no upper bound.
        name: what error messages call the number.
    """
    bounds = f"{least} to {most}" if most else f"{least} or more"

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= (most or 10**15)):
            raise argparse.ArgumentTypeError(f"{text!r} must be a {name}, {bounds}")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds, 0 or more")
    return seconds


def _some_seconds(text: str) -> float:
    seconds = _seconds(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds, more than 0")
    return seconds


COUNT: Final = Kind("N", whole(1))
NUMBER: Final = Kind("N", whole(0))
SECONDS: Final = Kind("SECONDS", _seconds)
SOME_SECONDS: Final = Kind("SECONDS", _some_seconds)
"""Seconds, more than 0."""
TUBE: Final = Kind("TUBE", str)


def add_option(to: Any, name: str, kind: Kind, default: Any, help: str, **more: Any) -> None:
    """Add an option whose help ends with its default, unless it names one itself or has none.

    Args:
        to: a parser or a group of it.
        default: None or [] for none.
        more: other arguments of `add_argument`, such as `action`.
    """
    text = help
    if default not in (None, []) and "default:" not in text:
        shown = f"{default:g}" if isinstance(default, float) else default
        text = f"{text[:-1]}; default: {shown})" if text.endswith(")") else f"{text} (default: {shown})"
    to.add_argument(name, metavar=kind.metavar, type=kind.read, default=default, help=text, **more)


def run_program(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace, Sequence[str]], int],
    arguments: Sequence[str] | None,
    exit_within: float,
) -> int:
    """Run what a command line says; return the exit status.

    Args:
        parser: without the options of the log and --version.
        run: is called with the options and the arguments. Its ProgramError becomes a message and the exit status.
        arguments: None for those of this process, whose signals and exit are then handled.
        exit_within: seconds for the exit after that. Then the process is ended by force.
    """
    if arguments is None:
        with signals.exiting(exit_within):
            return run_program(parser, run, sys.argv[1:], exit_within)
    options = parser.parse_args(arguments)
    names.program = parser.prog.replace("python -m beanstalk_client.", "beanstalk-")
    start_log(options)
    try:
        return run(options, arguments)
    except ProgramError as error:
        return complain(options, parser.prog.removeprefix("python -m "), str(error), error.status)


def add_common_options(parser: argparse.ArgumentParser, group: Any = None, more: str = "") -> None:
    """The options that each program has: those of the log, and --version.

    Args:
        group: the group of the options of the log.
        more: what else the help of --log-level says.
    """
    add_log_options((group or parser).add_argument, more)
    parser.add_argument("--version", action="version", version=f"beanstalk-client {VERSION}")


@contextlib.contextmanager
def server_errors(server: str, where: str = "") -> Iterator[None]:
    """Let a program end with a message if its server does not let it go on.

    Args:
        server: what the message calls the server.
        where: its address, which is not repeated.

    Raises:
        ProgramError: the block has raised an Error, an OSError or a ValueError.
    """
    try:
        yield
    except (Error, OSError, ValueError) as error:
        raise ProgramError(f"{server}: {reason_of(error).removeprefix(f'{where}: ')}") from error


def run_until_signal(passes: Passes, once: bool) -> None:
    """Make passes until SIGTERM or SIGINT, or only those that can be made now. A second signal ends the process.

    Raises:
        Error, OSError: as `run`, or `run_once`.
    """
    stops = 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stops
        stops += 1
        passes.stop()
        signals.end_within(END_WITHIN if stops == 1 else 0)  # the pass may wait for a silent server

    for number in (signal.SIGTERM, signal.SIGINT):
        signals.handle(number, stop)
    with signals.deadlines_kept():
        (passes.run_once if once else passes.run)()
