"""Finds the oldest ready job of a tube, in slices: since when it has been ready.

A heap orders ready jobs by priority. An order by age is not kept, because it would make each put slower. So the search
looks at all ready jobs of the tube: at those of a small heap at once, at others through the table of all jobs, one page
in each slice. Jobs that become ready during the search are younger, so it need not find them.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.costs import LOOK_SHIFT
from beanstalk_server.queue.job import READY, Job
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.tube import Tube

AT_ONCE: Final = 2048
"""Maximum number of ready jobs that are looked at without slices: about a tenth of a millisecond."""


class OldestSearch:
    """A search that is under way.

    Args:
        table: all jobs.
        tube: the tube whose oldest ready job is searched for.
    """

    def __init__(self, table: IdTable[Job], tube: Tube) -> None:
        self._table = table
        self._tube = tube
        self._pages: list[int] = []  # of the table, those left
        self.since = 0  # when it is complete: since when the oldest job is ready, in nanoseconds; 0 if none is ready
        ready = tube.ready
        if ready.count() == len(ready.jobs) <= AT_ONCE:
            self._look_at(ready.jobs)
        else:
            self._pages = table.page_indexes()

    def is_complete(self) -> bool:
        return not self._pages

    def go_on(self) -> int:
        """Do the next slice; return what it has cost, in the unit of costs.py."""
        jobs = self._table.page_jobs(self._pages.pop())
        self._look_at(jobs)
        return 1 + (len(jobs) >> LOOK_SHIFT)

    def _look_at(self, jobs: list[Job]) -> None:
        tube = self._tube
        oldest = self.since
        for job in jobs:
            if job.state == READY and job.tube is tube and not tube.is_cleared(job):
                since = job.ready_since()
                if not oldest or since < oldest:
                    oldest = since
        self.since = oldest
