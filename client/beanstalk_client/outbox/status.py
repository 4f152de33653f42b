"""The status of an outbox, which its relays leave in the server for the console: a job that no client reserves."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from beanstalk_client.commands import MAX_SECONDS

TUBE: Final = "outbox"
"""The tube of status jobs."""

KEY: Final = "status/"
"""What their keys begin with; the name of the outbox follows."""

EVERY: Final = 10.0
"""Seconds between two writes of a relay."""


class Status(NamedTuple):
    """The status of an outbox.

    Example:
        status = relay.status()
        print(status.waiting, "rows wait, the oldest for", status.lag, "seconds")

    Attributes:
        waiting: rows that are not sent yet.
        failed: rows that the server refuses, which wait for an operator.
        lag: age of the oldest row that waits, in seconds; 0 if there is none.
        sent, dropped: rows that this relay has sent since its start, and those of which the server said that they are
            too late.
        time: when this was read, in Unix time by the clock of the database.
    """

    waiting: int
    failed: int
    lag: float
    sent: int
    dropped: int
    time: float

    def encode(self) -> bytes:
        """The body of a status job."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, body: bytes) -> Status:
        """The status that `encode` wrote.

        Raises:
            ValueError: it is none; any client can write a job.
        """
        try:
            values = json.loads(body)
            status = cls(**{name: kind(values[name]) for name, kind in _KINDS.items()})
        except (TypeError, KeyError, ValueError, OverflowError, RecursionError):
            status = None
        if status is None or not all(0 <= value <= MAX_SECONDS for value in status):
            raise ValueError(f"not the status of an outbox: {body[:100]!r}")
        return status


_KINDS = {"waiting": int, "failed": int, "lag": float, "sent": int, "dropped": int, "time": float}
