"""The answer to list-jobs: a thousand jobs of a tube at most, in slices: the jobs are found first, and then described.

Must never know whose turn it is, or how jobs are found.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.interface import Queue
from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.job_search import JobSearch
from beanstalk_server.wire import replies
from beanstalk_server.wire.grammar import write_cursor
from beanstalk_server.wire.listing import Listing, page
from beanstalk_server.wire.statistics import job_entry

SLICE: Final = 32
"""The most jobs that are described in a slice: some 150 microseconds."""

JOB_COST: Final = 2
"""What an entry costs, in the unit of queue/costs.py."""


class JobPage(Listing):
    """A page of list-jobs that is under way.

    Args:
        queue: where the jobs are.
        search: finds them.
        name, state, position, count: what is asked for.
    """

    __slots__ = (
        "_described",  # how many of the jobs that have been found
        "_entries",
        "_queue",
        "_search",
    )

    def __init__(self, queue: Queue, search: JobSearch, name: str, state: int, position: list[int], count: int) -> None:
        cursor = write_cursor(position)
        super().__init__(f"list-jobs {name} {STATES[state]} {cursor} {count}\r\n".encode("ascii"), tells_of_jobs=True)
        self._queue = queue
        self._search = search
        self._described = 0
        self._entries: list[bytes] = []

    def is_complete(self) -> bool:
        return self._search.is_complete and self._described == len(self._search.found)

    def go_on(self, now: int) -> int:
        search = self._search
        if not search.is_complete:
            return search.go_on()
        found = search.found[self._described : self._described + SLICE]
        self._described += len(found)
        for entry in found:
            if search.is_here(entry):
                statistics = self._queue.job_statistics(entry[1], now)
                if statistics is not None:
                    self._entries.append(job_entry(statistics))
        return len(found) * JOB_COST

    def reply(self) -> bytes:
        position = self._search.next_position
        self._search.forget_found()
        return replies.ok(page(write_cursor(position) if position else "", "jobs", self._entries))
