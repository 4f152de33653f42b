"""The command line of `python -m beanstalk_client.outbox`, and what `manage.py beanstalk_outbox` shares with it."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from beanstalk_client.logs import keep_log
from beanstalk_client.outbox.database import Database
from beanstalk_client.outbox.relay import BATCH, HOLD, POLL, Relay
from beanstalk_client.outbox.status import Status
from beanstalk_client.passes import END_WITHIN, described_of
from beanstalk_client.program import (
    COUNT,
    SOME_SECONDS,
    Kind,
    ProgramError,
    UsageError,
    add_common_options,
    add_option,
    run_program,
    run_until_signal,
    server_errors,
)
from beanstalk_client.worker.command import find_tasks


def add_relay_options(parser: Any) -> None:
    """Add the options of a relay."""
    add = functools.partial(add_option, parser)
    add("--name", Kind("NAME", str), "default", "name of the outbox in its status; a different one for each database")
    add("--poll", SOME_SECONDS, POLL, "time between polls of the table; PostgreSQL wakes the relay earlier")
    add("--hold", SOME_SECONDS, HOLD, "time for which the server remembers a put; a relay must restart within it")
    add("--batch", COUNT, BATCH, "maximum number of rows in a transaction")
    parser.add_argument("--once", action="store_true", help="send the rows that can be sent now, then exit")
    parser.add_argument("--status", action="store_true", help="print the number of rows and their age, then exit")
    parser.add_argument("--retry-failed", action="store_true", help="mark the failed rows to be sent again, then exit")


def run_relay(database: Database, connect: Callable[[], Any], options: Mapping[str, Any]) -> str:
    """Run the relay, or the action that an option names; return its output.

    Raises:
        ProgramError: the server refuses this, or the database fails.
        ValueError: an option is out of range.
    """
    named = {name: options[name] for name in ("name", "poll", "hold", "batch")}
    relay = Relay(database, connect, **named)
    try:
        if options["retry_failed"]:
            return f"{_counted(relay.retry_failed(), 'failed row')} will be sent again"
        if options["status"]:
            return _described(relay.status())
        with server_errors("the server"):
            run_until_signal(relay, options["once"])
    except database.errors as error:
        raise ProgramError(f"the database: {described_of(error)}") from error
    return ""


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _described(status: Status) -> str:
    waiting = f"{_counted(status.waiting, 'row')} waiting"
    lag = f", the oldest for {status.lag:.1f} s" if status.waiting else ""
    return f"{waiting}{lag}; {_counted(status.failed, 'row')} failed"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m beanstalk_client.outbox",
        description="Send the jobs of committed database transactions to the server. Any number of relays may run.",
        epilog="SIGTERM or SIGINT: stop after this pass. A second signal ends the process.",
    )
    url = (
        "SQLAlchemy database URL, such as postgresql+psycopg://shop@localhost/shop; $NAME reads it from the "
        "environment variable NAME"
    )
    parser.add_argument("database", metavar="DATABASE_URL", help=url)
    app = "module and name of the Tasks object, such as shop.jobs:tasks"
    parser.add_argument("app", metavar="MODULE:NAME", help=app)
    add_relay_options(parser)
    add_common_options(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Send rows until a stop signal; return the exit status."""
    return run_program(make_parser(), _run, arguments, END_WITHIN)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError

        from beanstalk_client.outbox.sqlalchemy import SqlalchemyDatabase
    except ModuleNotFoundError as error:
        if error.name != "sqlalchemy":
            raise
        raise UsageError(
            "the outbox needs SQLAlchemy: pip install './client[outbox]' in a clone of beanstalk-server"
        ) from None
    tasks = find_tasks(options.app)
    keep_log()  # the program may have configured logging
    url = _url_of(options.database)
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise UsageError(f"DATABASE_URL: {error}") from None
    except ValueError:  # it may quote a part of the password
        raise UsageError("DATABASE_URL: must be an SQLAlchemy URL") from None
    try:
        told = run_relay(SqlalchemyDatabase(engine), tasks.connect, vars(options))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if told:
        sys.stdout.write(f"{told}\n")
    return 0


def _url_of(text: str) -> str:
    """A URL, from the environment if it begins with $: the arguments of processes are public."""
    if not text.startswith("$"):
        return text
    if not (url := os.environ.get(text[1:], "")):
        raise UsageError(f"DATABASE_URL: the environment has no variable {text[1:]}")
    return url
