"""Bulk operations: what is left to do of a kick, a clear or a disconnect, and for which client.

A bulk operation is a timer that is always overdue, so that `Broker.advance` continues it one slice at a time, and other
commands are served between the slices. It only holds its progress; the broker does the work.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.client import Client
from beanstalk_server.queue.costs import KICK_COST
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.ring import UNLINKED, Ring
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import Timer

COLLECT_SLICE: Final = 4096
"""The most jobs of a disconnected client that are collected at a time, in a fifth of a millisecond."""


class BulkOperation(Timer):
    """What is left of one operation for one client."""

    __slots__ = ("client",)

    def __init__(self, client: Client) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.client = client


class BulkKick(BulkOperation):
    """A kick of one tube: of its buried jobs or, if it has none, of its delayed jobs."""

    __slots__ = ("buried", "count", "price", "remaining", "tube")

    def __init__(self, client: Client, tube: Tube, bound: int) -> None:
        super().__init__(client)
        self.tube = tube
        self.buried = tube.buried_count > 0
        # Not more than there are now: a job that is buried again meanwhile is not kicked twice.
        self.remaining = min(bound, tube.buried_count or len(tube.delayed.jobs))
        self.price = 1 if self.buried else KICK_COST  # of each job
        self.count = 0


class BulkClear(BulkOperation):
    """A clear of one tube: jobs that have left their queues, and cannot be found by id or key any more."""

    __slots__ = ("buried", "count", "delayed", "owes_answer", "ready", "tube")

    def __init__(self, client: Client, tube: Tube) -> None:
        super().__init__(client)
        self.tube = tube
        self.count = len(tube.ready.jobs) + len(tube.delayed.jobs) + tube.buried_count
        self.ready = tube.ready.jobs
        self.delayed = tube.delayed.jobs
        self.buried = Ring()
        self.buried.take_all_of(tube.buried)
        self.owes_answer = False  # the client still waits for the count


class BulkDisconnect(BulkOperation):
    """The disconnect of one client: its jobs, and the tubes that it watched and waited in."""

    __slots__ = (
        "jobs",  # the last is the one that it reserved first
        "waited",
    )

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.jobs: list[Job] = []
        self.waited = client.waiting

    def collect_jobs(self) -> bool:
        """Collect a slice of the client's jobs; return whether none is left."""
        reserved = self.client.reserved
        reserved.move_last(self.jobs, COLLECT_SLICE)
        return not len(reserved)
