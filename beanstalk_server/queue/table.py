"""Jobs by id, and jobs by key: dictionaries in pages.

One dictionary of a million entries holds everybody up for 30 ms, and one of two million for 60, at the moment when it
has to grow. A page grows in well below a millisecond. Must never know what a job is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from beanstalk_server.queue.job import Job

PAGE: Final = 14  # bits of an id
FULL: Final = 1 << 13
"""How many keys a page has on average before there is one more."""


class JobTable:
    """Jobs by id: a mapping, as far as it is needed.

    Ids are given in order, so a page of neighbours fills up, and is gone again when the last of them is.
    """

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, Job]] = {}
        self._count = 0

    def get(self, job_id: int) -> Job | None:
        """The job with this id."""
        page = self._pages.get(job_id >> PAGE)
        return None if page is None else page.get(job_id)

    def add(self, job: Job) -> None:
        """Take a job in, in the place of the one with its id."""
        place = job.id >> PAGE
        page = self._pages.get(place)
        if page is None:
            page = self._pages[place] = {}
        before = len(page)
        page[job.id] = job
        self._count += len(page) - before

    def remove(self, job_id: int) -> None:
        """Let the job with this id go; nothing, when there is none."""
        page = self._pages.get(job_id >> PAGE)
        if page is not None and page.pop(job_id, None) is not None:
            self._count -= 1
            if not page:
                del self._pages[job_id >> PAGE]

    def values(self) -> Iterator[Job]:
        """The jobs, those that were taken in first more or less first."""
        for page in self._pages.values():
            yield from page.values()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for page in self._pages.values():
            yield from page

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and self.get(job_id) is not None

    def __getitem__(self, job_id: int) -> Job:
        return self._pages[job_id >> PAGE][job_id]

    def check(self) -> None:
        """Verify every invariant."""
        assert self._count == sum(len(page) for page in self._pages.values())
        for place, page in self._pages.items():
            assert page, "a page without jobs"
            for job_id, job in page.items():
                assert job.id == job_id and job_id >> PAGE == place


class KeyTable:
    """The jobs of a tube by key.

    Linear hashing (Litwin, "Linear hashing: a new tool for file and table addressing", 1980): when the pages are full
    on average, there is one more, and only the page that it shares its keys with is gone through.
    """

    def __init__(self) -> None:
        self._pages: list[dict[str, Job]] = [{}]
        self._mask = 0  # how many pages there were when all had been split the last time, less one
        self._count = 0

    def _page(self, key: str) -> dict[str, Job]:
        found = hash(key)
        place = found & (self._mask * 2 + 1)
        if place >= len(self._pages):  # that page has yet to be split off
            place = found & self._mask
        return self._pages[place]

    def get(self, key: str) -> Job | None:
        """The job with this key."""
        return self._page(key).get(key)

    def add(self, job: Job) -> None:
        """Take a job in, in the place of the one with its key."""
        page = self._page(job.key)
        before = len(page)
        page[job.key] = job
        self._count += len(page) - before
        if self._count > len(self._pages) * FULL:
            self._split()

    def remove(self, job: Job) -> None:
        """Let a job go; nothing, when another one has its key."""
        page = self._page(job.key)
        if page.get(job.key) is job:
            del page[job.key]
            self._count -= 1
            if not self._count:
                self._pages = [{}]
                self._mask = 0

    def _split(self) -> None:
        fresh: dict[str, Job] = {}
        place = len(self._pages)
        wide = self._mask * 2 + 1
        shared = self._pages[place & self._mask]
        stays: dict[str, Job] = {}
        for key, job in shared.items():
            if hash(key) & wide == place:
                fresh[key] = job
            else:
                stays[key] = job
        self._pages[place & self._mask] = stays
        self._pages.append(fresh)
        if place == wide:
            self._mask = wide

    def values(self) -> Iterator[Job]:
        """The jobs, in no order."""
        for page in self._pages:
            yield from page.values()

    def __len__(self) -> int:
        return self._count

    def check(self) -> None:
        """Verify every invariant."""
        assert self._count == sum(len(page) for page in self._pages)
        assert self._mask < len(self._pages) <= self._mask * 2 + 2
        for page in self._pages:
            for key, job in page.items():
                assert job.key == key and self._page(key) is page
