"""Tables of jobs, by id and by key: dictionaries that are divided into pages.

A single dictionary of a million jobs stalls the event loop for 30 ms when it grows, and one of two million for 60 ms. A
page grows in much less than a millisecond. Must never know what state a job is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from beanstalk_server.queue.job import Job

PAGE_BITS: Final = 14
"""A page of ids has 2^14 of them."""

PAGE_KEYS: Final = 1 << 13
"""The most keys that pages may have on average; then one more page is added."""


class JobTable:
    """Jobs by id: a mapping, as far as one is needed.

    Ids are given in ascending order: a page fills up with neighbours, and goes with the last of them.
    """

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, Job]] = {}
        self._count = 0

    def get(self, job_id: int) -> Job | None:
        """The job with this id."""
        page = self._pages.get(job_id >> PAGE_BITS)
        return None if page is None else page.get(job_id)

    def add(self, job: Job) -> None:
        """Add a job. It replaces the one with its id."""
        index = job.id >> PAGE_BITS
        page = self._pages.get(index)
        if page is None:
            page = self._pages[index] = {}
        before = len(page)
        page[job.id] = job
        self._count += len(page) - before

    def remove(self, job_id: int) -> None:
        """Remove the job with this id, if there is one."""
        page = self._pages.get(job_id >> PAGE_BITS)
        if page is not None and page.pop(job_id, None) is not None:
            self._count -= 1
            if not page:
                del self._pages[job_id >> PAGE_BITS]

    def values(self) -> Iterator[Job]:
        """The jobs, more or less in the order in which they were added."""
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
        return self._pages[job_id >> PAGE_BITS][job_id]

    def check(self) -> None:
        """Verify every invariant."""
        assert self._count == sum(len(page) for page in self._pages.values())
        for index, page in self._pages.items():
            assert page, f"page {index} is empty"
            for job_id, job in page.items():
                assert job.id == job_id and job_id >> PAGE_BITS == index


class KeyTable:
    """The jobs of a tube by key.

    Linear hashing (Litwin, "Linear hashing: a new tool for file and table addressing", 1980): when the pages are full
    on average, one of them is split in two, and only its own keys are moved.
    """

    def __init__(self) -> None:
        self._pages: list[dict[str, Job]] = [{}]
        self._mask = 0  # the number of pages, rounded down to a power of two, minus 1
        self._count = 0

    def _page(self, key: str) -> dict[str, Job]:
        found = hash(key)
        index = found & (self._mask * 2 + 1)
        if index >= len(self._pages):  # not split off yet
            index = found & self._mask
        return self._pages[index]

    def get(self, key: str) -> Job | None:
        """The job with this key."""
        return self._page(key).get(key)

    def add(self, job: Job) -> None:
        """Add a job. It replaces the one with its key."""
        page = self._page(job.key)
        before = len(page)
        page[job.key] = job
        self._count += len(page) - before
        if self._count > len(self._pages) * PAGE_KEYS:
            self._split()

    def remove(self, job: Job) -> None:
        """Remove a job, unless another one has taken its key."""
        page = self._page(job.key)
        if page.get(job.key) is job:
            del page[job.key]
            self._count -= 1
            if not self._count:
                self._pages = [{}]
                self._mask = 0

    def _split(self) -> None:
        fresh: dict[str, Job] = {}
        index = len(self._pages)
        wide = self._mask * 2 + 1
        shared = self._pages[index & self._mask]
        stays: dict[str, Job] = {}
        for key, job in shared.items():
            if hash(key) & wide == index:
                fresh[key] = job
            else:
                stays[key] = job
        self._pages[index & self._mask] = stays
        self._pages.append(fresh)
        if index == wide:
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
