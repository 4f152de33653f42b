"""The answer to stats-tubes: the statistics of a thousand tubes at most, in the order of their names, in slices.

Tubes may come and go between two slices, so a slice goes on from a name, whether there is such a tube or not: whatever
else comes and goes, a tube that stays is in the page. Must never know whose turn it is.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.access.user import INSPECT, User
from beanstalk_server.queue.interface import Queue
from beanstalk_server.wire import replies
from beanstalk_server.wire.listing import PAGE_ENTRIES, Listing, page
from beanstalk_server.wire.statistics import tube_entry

SLICE: Final = 16
"""The most tubes of a slice: some 100 microseconds."""

TUBE_COST: Final = 3
"""What an entry costs, in the unit of queue/costs.py."""


class TubePage(Listing):
    """A page of stats-tubes that is under way.

    Args:
        queue: where the tubes are.
        user: lists those that it may inspect; None for all of them.
        first: the name from which on.
        count: the most tubes.
    """

    __slots__ = (
        "_count",
        "_entries",
        "_is_complete",
        "_next",  # the name from which on tubes have not been looked at
        "_queue",
        "_user",
    )

    def __init__(self, queue: Queue, user: User | None, first: str, count: int) -> None:
        super().__init__(f"stats-tubes {first or '-'} {count}\r\n".encode("ascii"))
        self._queue = queue
        self._user = None if user is None or user.everywhere & INSPECT else user
        self._count = min(count, PAGE_ENTRIES)
        self._next = first
        self._is_complete = False
        self._entries: list[bytes] = []

    def is_complete(self) -> bool:
        return self._is_complete

    def go_on(self, now: int) -> int:
        names = self._queue.tube_names(self._next, SLICE + 1)
        cost = 1
        after = names.pop() if len(names) > SLICE else ""
        user = self._user
        if user is not None:
            cost += len(names) * user.weight >> 6
            names = user.select(names, INSPECT)
        for name in names:
            if len(self._entries) == self._count:
                self._next = name
                self._is_complete = True
                return cost
            tube = self._queue.tube_statistics(name, now)
            if tube is not None:
                self._entries.append(tube_entry(tube))
                cost += TUBE_COST
        self._next = after
        self._is_complete = not after
        return cost

    def reply(self) -> bytes:
        return replies.ok(page(self._next, "tubes", self._entries))
