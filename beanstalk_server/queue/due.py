"""What timers ask of the queue when they are due.

It is below the jobs, tubes and clients that are timers: they know that there is a queue, and not how it does this. Each
method returns what is left of a budget, in the unit of costs.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beanstalk_server.queue.native import mypyc_attr

if TYPE_CHECKING:
    from beanstalk_server.queue.client import Client
    from beanstalk_server.queue.job import Expiry, HeldKey, Job
    from beanstalk_server.queue.throttle import Throttle
    from beanstalk_server.queue.tube import Tube
    from beanstalk_server.queue.wall_clock import WallCheck, WallClock


@mypyc_attr(allow_interpreted_subclasses=True)
class Due:
    """The interface; the queue has these methods in states.py."""

    __slots__ = ()

    def end_time(self, job: Job, now: int, budget: int) -> int:
        """A delay ends, a safety margin begins, or a time to run ends."""
        raise NotImplementedError

    def end_life(self, expiry: Expiry, now: int, budget: int) -> int:
        """A time to live ends."""
        raise NotImplementedError

    def end_hold(self, held: HeldKey, budget: int) -> int:
        """A held key becomes free."""
        raise NotImplementedError

    def end_timeout(self, client: Client, budget: int) -> int:
        """A client has waited long enough."""
        raise NotImplementedError

    def end_pause(self, tube: Tube, now: int, budget: int) -> int:
        """A pause ends, or clients are still to be served."""
        raise NotImplementedError

    def end_throttling(self, throttle: Throttle, now: int, budget: int) -> int:
        """There may be a token or a place."""
        raise NotImplementedError

    def begin_moment(self, wall: WallClock, now: int, budget: int) -> int:
        """The first job that waits for a moment of the wall clock is due."""
        raise NotImplementedError

    def check_wall_clock(self, check: WallCheck, now: int, budget: int) -> int:
        """The wall clock is to be looked at."""
        raise NotImplementedError
