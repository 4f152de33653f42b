"""Bounds how many lines of one kind the log gets: the first few of an interval, and how many were left out.

An event that may happen a thousand times a second asks here before it is logged, so that it fills no disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from beanstalk_server.events import event

REFUSALS: Final = 10
"""Refusals that have a line of their own in one interval."""

REFUSALS_INTERVAL: Final = 60
"""Seconds."""

log = logging.getLogger("beanstalk_server")


class BoundedLog:
    """Admits lines of one kind, from `start` to `stop`. Nothing wakes the event loop while there is nothing to log.

    Args:
        lines: this many in an interval, that about those left out before included.
        interval: its length, in seconds. It begins with the first line.
        tell: logs how many lines have been left out, at the end of an interval.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, lines: int, interval: float, tell: Callable[[int], None]) -> None:
        self._lines = lines
        self._interval = interval
        self._tell = tell
        self._count = 0  # of what was to be logged in this interval
        self._timer: asyncio.Handle | None = None  # the end of the interval, if one has begun

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the time by this event loop from now on."""
        self._loop = loop

    def stop(self) -> None:
        """Tell how many have been left out since the interval began."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_interval(goes_on=False)

    def admits(self) -> bool:
        """Count a line; return whether it may be logged."""
        self._count += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval, self._end_interval)
        return self._count <= self._lines

    def _end_interval(self, goes_on: bool = True) -> None:
        self._timer = None
        left_out = self._count - self._lines
        self._count = 0
        if left_out > 0:
            self._tell(left_out)
            if goes_on:
                self._count = 1  # what has just been told
                self._timer = self._loop.call_later(self._interval, self._end_interval)


class Refusals(BoundedLog):
    """Logs clients that are refused: the first few of an interval with their addresses and reasons, then a count."""

    def __init__(self) -> None:
        super().__init__(REFUSALS, REFUSALS_INTERVAL, _tell_of_refusals)

    def note(self, client: str, place: str, reason: str) -> None:
        """Log that a client is refused.

        Args:
            place: where it has connected to.
        """
        if self.admits():
            log.warning(
                "%(client)s refused at %(listener)s: %(reason)s",
                event("client-refused", client=client, listener=place, reason=reason),
            )


class MalformedPuts(BoundedLog):
    """Logs malformed puts: the first few of an interval with their clients, then a count."""

    def __init__(self) -> None:
        super().__init__(REFUSALS, REFUSALS_INTERVAL, _tell_of_malformed_puts)

    def note(self, client: str, place: str) -> None:
        """Log that a client has sent a put that is malformed, or whose body is not as long as the put says.

        Args:
            place: where it has connected to.
        """
        if self.admits():
            log.warning(
                "malformed put from %(client)s at %(listener)s",
                event("malformed-put", client=client, listener=place),
            )


class ForbiddenCommands(BoundedLog):
    """Logs commands that are answered FORBIDDEN: the first few of an interval with what they need, then a count."""

    def __init__(self) -> None:
        super().__init__(REFUSALS, REFUSALS_INTERVAL, _tell_of_forbidden_commands)

    def note(self, client: str, user: str, reason: str) -> None:
        """Log that a command of a user is forbidden.

        Args:
            client: its address; "" if the server does not keep it.
        """
        if self.admits():
            log.warning(
                "forbidden for user %(user)s at %(client)s: %(reason)s",
                event("command-forbidden", client=client or "an unnamed client", user=user, reason=reason),
            )


def _tell_of_forbidden_commands(more: int) -> None:
    log.warning(
        "%(count)d more command was forbidden within %(seconds)d s"
        if more == 1
        else "%(count)d more commands were forbidden within %(seconds)d s",
        event("commands-forbidden", count=more, seconds=REFUSALS_INTERVAL),
    )


def _tell_of_malformed_puts(more: int) -> None:
    log.warning(
        "%(count)d more malformed put within %(seconds)d s"
        if more == 1
        else "%(count)d more malformed puts within %(seconds)d s",
        event("malformed-puts", count=more, seconds=REFUSALS_INTERVAL),
    )


def _tell_of_refusals(more: int) -> None:
    log.warning(
        "%(count)d more client was refused within %(seconds)d s"
        if more == 1
        else "%(count)d more clients were refused within %(seconds)d s",
        event("clients-refused", count=more, seconds=REFUSALS_INTERVAL),
    )
