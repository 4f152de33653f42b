"""Bulk operations: what is left to do of a kick, redrive, move, clear, disconnect or change of policies, and for whom.

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
        self.remaining = min(bound, tube.buried_count or tube.delayed_count())
        self.price = 1 if self.buried else KICK_COST  # of each job
        self.count = 0

    def answer(self) -> None:
        """Tell the client how many jobs there were."""
        self.client.on_kicked(self.count)


class BulkRedrive(BulkOperation):
    """A redrive of the dead letters of one tube."""

    __slots__ = ("count", "remaining", "tube", "visits")

    def __init__(self, client: Client, tube: Tube, bound: int) -> None:
        super().__init__(client)
        self.tube = tube
        # Not more than there are now: one that fails again meanwhile is not redriven twice, and one that is reserved,
        # and goes to the end, is not looked at again.
        self.visits = tube.letter_count
        self.remaining = bound
        self.count = 0

    def answer(self) -> None:
        """Tell the client how many jobs there were."""
        self.client.on_redriven(self.count)


class BulkMove(BulkOperation):
    """A move of the jobs of one tube that are in one state."""

    __slots__ = ("count", "remaining", "state", "target", "tube")

    def __init__(self, client: Client, tube: Tube, state: int, target: str, bound: int) -> None:
        super().__init__(client)
        self.tube = tube
        self.state = state
        self.target = target  # the name of the other tube, which may come and go meanwhile
        # Not more than there are now: those that come meanwhile may stay, or two moves to and fro would never end.
        self.remaining = min(bound, tube.count_of(state))
        self.count = 0

    def answer(self) -> None:
        """Tell the client how many jobs there were."""
        self.client.on_moved(self.count)


class BulkClear(BulkOperation):
    """A clear of one tube: jobs that have left their queues, and cannot be found by id or key any more, and keys that
    are not held any more."""

    __slots__ = ("buried", "count", "delayed", "held", "owes_answer", "ready", "timed", "tube")

    def __init__(self, client: Client, tube: Tube, timed: list[Job]) -> None:
        super().__init__(client)
        self.tube = tube
        self.count = len(tube.ready.jobs) + len(tube.delayed.jobs) + len(timed) + tube.buried_count
        self.ready = tube.ready.jobs
        self.delayed = tube.delayed.jobs
        self.timed = timed
        self.buried = Ring()
        self.buried.take_all_of(tube.buried)
        self.held = tube.held
        self.owes_answer = False  # the client still waits for the count


class BulkReview(Timer):
    """A review of all tubes after a change of policies, and then of their jobs, if any could live longer or shorter.

    The tubes are reviewed from the last to the first: the last one takes the place of a tube that goes, and new ones
    come at the end, so that none is passed over. The jobs are reviewed by the pages of their table: a heap would change
    its order meanwhile. No client waits for any of this.
    """

    __slots__ = (
        "concerns_jobs",  # a tube has another time to live
        "jobs",  # those left of the present page; some may be gone since
        "pages",  # the indexes of those that are still to come; None until all tubes have been reviewed
        "position",  # after the tube that is reviewed next
    )

    def __init__(self, tubes: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.position = tubes
        self.concerns_jobs = False
        self.pages: list[int] | None = None
        self.jobs: list[Job] = []

    def next_position(self, tubes: int) -> int:
        """The position of the tube that is reviewed next, among so many; -1 if none is left."""
        self.position = min(self.position, tubes) - 1
        return self.position


class BulkDisconnect(BulkOperation):
    """The disconnect of one client: its jobs, and the tubes that it watched and waited in."""

    __slots__ = (
        "has_left",  # by itself, and so its jobs have failed
        "jobs",  # the last is the one that it reserved first
        "waited",
    )

    def __init__(self, client: Client, has_left: bool) -> None:
        super().__init__(client)
        self.has_left = has_left
        self.jobs: list[Job] = []
        self.waited = client.waiting

    def collect_jobs(self) -> bool:
        """Collect a slice of the client's jobs; return whether none is left."""
        reserved = self.client.reserved
        reserved.move_last(self.jobs, COLLECT_SLICE)
        return not len(reserved)
