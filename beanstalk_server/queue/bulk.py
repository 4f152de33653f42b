"""What is left of an operation that concerns any number of jobs: what is still to be done, and for whom.

A bulk operation stands in the wheel as overdue, so that `Broker.advance` continues it, one slice at a time, while other
commands are served in between. It only remembers: how it is continued, the broker knows.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.client import Client
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.ring import UNLINKED, Ring
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import Timer

COLLECT_SLICE: Final = 4096
"""How many jobs of a client that has disconnected are collected at a time, in a fifth of a millisecond."""


class BulkOperation(Timer):
    """What is left of an operation of one client."""

    __slots__ = ("client",)

    def __init__(self, client: Client) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.client = client


class BulkKick(BulkOperation):
    """What is left of a kick: of one tube, the buried jobs, or if there were none the delayed ones."""

    __slots__ = ("buried", "count", "remaining", "tube")

    def __init__(self, client: Client, tube: Tube, bound: int) -> None:
        super().__init__(client)
        self.tube = tube
        self.buried = tube.buried_count > 0
        # No more than there are now: a job that is buried again meanwhile is not kicked twice.
        self.remaining = min(bound, tube.buried_count or len(tube.delayed.jobs))
        self.count = 0


class BulkClear(BulkOperation):
    """What is left of a clear: jobs that are in no queue any more, and that nobody finds by their id or key."""

    __slots__ = ("buried", "count", "delayed", "owes_answer", "ready", "tube")

    def __init__(self, client: Client, tube: Tube) -> None:
        super().__init__(client)
        self.tube = tube
        self.count = len(tube.ready.jobs) + len(tube.delayed.jobs) + tube.buried_count
        self.ready = tube.ready.jobs
        self.delayed = tube.delayed.jobs
        self.buried = Ring()
        self.buried.take_all_of(tube.buried)
        self.owes_answer = False  # the client has not been told the count yet, and waits for it


class BulkDisconnect(BulkOperation):
    """What is left of a client that has disconnected: its jobs, and the tubes that it watched and waited in.

    Its jobs are collected from the end of what it has reserved, because a dictionary whose first entries have been
    deleted is walked through from the beginning each time that its first one is looked for.
    """

    __slots__ = (
        "jobs",  # the first one that it reserved is the last one here
        "waited",
    )

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.jobs: list[Job] = []
        self.waited = client.waiting

    def collect_jobs(self) -> bool:
        """Collect a slice of the client's jobs; return whether that was the rest."""
        reserved = self.client.reserved
        for _ in range(min(len(reserved), COLLECT_SLICE)):
            self.jobs.append(reserved.popitem()[1])
        return not reserved
