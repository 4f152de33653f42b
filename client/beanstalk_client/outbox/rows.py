"""Records commands as rows: the client that `Tasks` uses inside a transaction.

It has the commands that change jobs. They are checked as if they were sent, written as rows, and sent by a relay after
the commit. So a put returns 0, since there is no job yet, and a command about a job returns None: it is recorded.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from beanstalk_client.commands import make, seconds_of, unix_time_of
from beanstalk_client.job import Job

PUT = "put_with"
CHANGES = ("cancel", "cancel_keyed", "reschedule", "reschedule_keyed", "reprioritize", "reprioritize_keyed")
COMMANDS = (PUT, *CHANGES)
"""The commands of rows, by the names of the methods of clients."""

Write = Callable[[Mapping[str, Any]], Any]
"""Executes INSERT with these values in the current transaction; an asynchronous database returns an awaitable."""


class OutboxClient:
    """A client that writes rows instead of commands.

    Args:
        tube: that it uses.
        write: executes the statement of `insert_statement` with the values of a row.
        is_async: whether `write` returns an awaitable. Then the methods of this client do, too.
    """

    def __init__(self, tube: str, write: Write, is_async: bool = False) -> None:
        self.tube = tube
        self.is_async = is_async
        self._write = write

    def knows(self, command: str) -> bool:
        """The relay needs beanstalk-server, which knows put-with."""
        return command == "put-with"

    def put(self, *arguments: Any, **attributes: Any) -> Any:
        return self._record(PUT, *arguments, **attributes)

    def __getattr__(self, name: str) -> Any:
        if name in COMMANDS:
            return functools.partial(self._record, name)
        raise RuntimeError(
            f"{name} cannot be called inside a database transaction: its commands are sent after the commit. "
            "Call it before or after the transaction. Nothing was written for it."
        )

    def _record(self, command: str, *given: Any, **named: Any) -> Any:
        getattr(make, command)(*given, **named)  # which refuses bad ones
        arguments = _signature_of(command).bind(*given, **named)
        values = {**arguments.arguments, **arguments.kwargs}
        body = values.pop("body", b"")
        if "delay" in values:
            values["delay"] = float(seconds_of(values["delay"], "delay"))
        row = {
            "tube": self.tube,
            "job_key": values.get("key") or None,
            "command": command,
            "arguments": json.dumps(values, default=_plain),
            "body": body,
            "token": secrets.token_hex(16),
        }
        written = self._write(row)
        answer = 0 if command == PUT else None
        return _after(written, answer) if self.is_async else answer


@functools.cache
def _signature_of(command: str) -> inspect.Signature:
    return inspect.signature(getattr(make, command))


def _plain(value: Any) -> float:
    """What JSON has of an argument: a job, a moment or a duration."""
    if isinstance(value, Job):
        return value.id
    return float(unix_time_of(value) if isinstance(value, datetime.datetime) else seconds_of(value))


async def _after(written: Awaitable[Any], answer: Any) -> Any:
    await written
    return answer


def sent_arguments(row: Any, now: float, hold: float) -> dict[str, Any]:
    """Return the arguments of a row's command, as its relay sends it.

    Args:
        now: Unix time by the clock that `written` is of: what has passed of a delay is subtracted.
        hold: seconds for which the server remembers the put, so that it is not made twice.

    Raises:
        ValueError, TypeError, RecursionError, ArithmeticError: this version does not know the command, or cannot read
            its arguments.
    """
    if row.command not in COMMANDS:
        raise ValueError(f"unknown command {row.command!r}")
    arguments = dict(json.loads(row.arguments))
    if arguments.get("delay"):
        arguments["delay"] = max(arguments["delay"] - (now - row.written), 0)
    if row.command == PUT:
        once_ttl = max(hold, seconds_of(arguments.get("once_ttl") or 0))
        arguments = {"once": row.token, **arguments, "once_ttl": once_ttl, "body": bytes(row.body)}
    return arguments
