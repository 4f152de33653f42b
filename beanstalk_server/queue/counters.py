"""Counters of what policies have done: to all jobs of a queue, or to those of one tube."""

from __future__ import annotations

from typing import Final


class Counters:
    """How often each of these has happened."""

    __slots__ = (
        "dead",  # a job has gone to a dead tube; counted in the tube that it has left
        "expired",  # a job has expired, and was deleted or went to the dead tube
        "redriven",  # a job has gone back to where it came from; counted in the dead tube
        "refused_bytes",  # a put was refused because of max_bytes, and so on
        "refused_delay",
        "refused_jobs",
        "refused_size",
        "retried",  # a job has failed, and was delayed by a backoff
    )

    def __init__(self) -> None:
        self.dead = 0
        self.expired = 0
        self.redriven = 0
        self.refused_bytes = 0
        self.refused_delay = 0
        self.refused_jobs = 0
        self.refused_size = 0
        self.retried = 0


UNREAD: Final = Counters()
"""Shared by all tubes without a policy, whose counters nobody asks for: so counting needs no test."""
