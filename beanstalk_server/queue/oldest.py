"""Finds since when the oldest ready job of a tube has been ready, however many jobs there are.

A heap orders ready jobs by priority, and no order by age is kept, which would cost each put. So all ready jobs of the
tube are looked at: those of a small heap at once, others through the table of all jobs, a page in each slice. The job
that is found was the oldest while the search was under way: jobs that become ready meanwhile are younger.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.costs import LOOK_SHIFT
from beanstalk_server.queue.job import READY, Job
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.tube import Tube

AT_ONCE: Final = 2048
"""The most jobs that are looked at at once, in a tenth of a millisecond."""


class OldestSearch:
    """A search that is under way.

    Args:
        table: all jobs.
        tube: whose jobs.
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
