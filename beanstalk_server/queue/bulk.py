"""Work left over from a command that concerns any number of jobs: what is still to be done, and for whom.

It stands in the wheel as overdue, so that `Broker.advance` goes on with it, a slice at a time, with other
commands served in between. What is done with it, the broker knows; an operation only remembers.
"""

from __future__ import annotations

from beanstalk_server.queue.client import Client
from beanstalk_server.queue.ring import UNLINKED, Ring
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import Timer


class BulkOperation(Timer):
    """Work left over from a command that concerns many jobs. It is overdue until it is done."""

    __slots__ = ("client",)

    def __init__(self, client: Client) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.client = client


class BulkKick(BulkOperation):
    """What is left of a kick: of one tube, its buried jobs or else its delayed ones."""

    __slots__ = ("buried", "count", "left", "tube")

    def __init__(self, client: Client, tube: Tube, bound: int) -> None:
        super().__init__(client)
        self.tube = tube
        self.buried = tube.buried_count > 0
        # No more than there are now: what is buried again meanwhile is not kicked twice.
        self.left = min(bound, tube.buried_count or len(tube.delayed.jobs))
        self.count = 0


class BulkClear(BulkOperation):
    """What is left of a clear: jobs that are in no queue any more, and that nobody can find by their id or key."""

    __slots__ = ("buried", "count", "delayed", "owes", "ready", "tube")

    def __init__(self, client: Client, tube: Tube) -> None:
        super().__init__(client)
        self.tube = tube
        self.count = len(tube.ready.jobs) + len(tube.delayed.jobs) + tube.buried_count
        self.ready = tube.ready.jobs
        self.delayed = tube.delayed.jobs
        self.buried = Ring()
        self.buried.take_all_of(tube.buried)
        self.owes = False  # the client waits for the answer


class BulkDisconnect(BulkOperation):
    """What is left of a client that has disconnected: the jobs it held, and the tubes it watched and waited in."""

    __slots__ = ("waited",)

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.waited = client.waiting
