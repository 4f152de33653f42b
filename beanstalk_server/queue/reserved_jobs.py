"""The jobs that one client has reserved, in the order in which it reserved them: dictionaries, a page each.

A single dictionary of 350,000 jobs holds the event loop for 12 ms when it grows, and one of 700,000 for 25 ms. So the
last page takes new jobs until it is full, and then a new one does; a job knows the number of its page. Nearly all
clients need one page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from beanstalk_server.queue.job import Job

PAGE_JOBS: Final = 1 << 12
"""The most jobs of a page: it grows in a tenth of a millisecond."""

MAX_PAGES: Final = (1 << 15) - 1
"""The most pages, as many as a job has numbers for. The last one would grow further: from 134 million jobs on."""


class ReservedJobs:
    """Jobs in the order in which they were added; any of them can be removed."""

    def __init__(self) -> None:
        self._last: dict[int, Job] = {}  # the page that takes new jobs
        self._pages = [self._last]  # those that have become empty are replaced by new, small ones
        self._occupied = 0  # how many pages before the last have jobs

    def add(self, job: Job) -> None:
        page = self._last
        number = len(self._pages) - 1
        if len(page) >= PAGE_JOBS and number + 1 < MAX_PAGES:
            page = self._last = {}
            self._pages.append(page)
            self._occupied += 1
            number += 1
        job.page = number
        page[job.id] = job

    def remove(self, job: Job) -> None:
        number: int = job.page
        page = self._pages[number]
        del page[job.id]
        if not page and page is not self._last:
            self._pages[number] = {}
            self._occupied -= 1
            if not self._occupied:
                self._renumber()

    def replace(self, old: Job, job: Job) -> None:
        """Let a job take the place of one with the same id."""
        job.page = old.page
        self._pages[old.page][old.id] = job

    def _renumber(self) -> None:
        """Make the last page, the only one with jobs, the first."""
        self._pages = [self._last]
        for job in self._last.values():
            job.page = 0

    def move_last(self, jobs: list[Job], count: int) -> None:
        """Move this many jobs to the end of a list, the one that was added last first. Only this may be called then.

        They are taken from the end because, to find the first entry of a dictionary, Python walks over all entries that
        have been deleted before it, every time anew.
        """
        pages = self._pages
        while count and pages:
            page = pages[-1]
            if page:
                jobs.append(page.popitem()[1])
                count -= 1
            else:
                pages.pop()

    def last_page(self) -> int:
        """The number of the last page."""
        return len(self._pages) - 1

    def ids(self, page: int) -> list[int]:
        """The ids of the jobs of a page; none if there is no such page."""
        return list(self._pages[page]) if page < len(self._pages) else []

    def holds(self, job: Job) -> bool:
        return job.page < len(self._pages) and self._pages[job.page].get(job.id) is job

    def __iter__(self) -> Iterator[Job]:
        for page in self._pages:
            yield from page.values()

    def __len__(self) -> int:
        return sum([len(page) for page in self._pages])

    def check(self) -> None:
        assert self._pages[-1] is self._last
        assert self._occupied == sum(bool(page) for page in self._pages[:-1])
        assert self._occupied or len(self._pages) == 1, "there are empty pages before the only one with jobs"
        for number, page in enumerate(self._pages):
            for job_id, job in page.items():
                assert job.id == job_id and job.page == number, f"job {job.id} does not know its page"
