"""Tables of jobs and of held keys, by id and by key, which are divided into pages.

A single dictionary of a million jobs stalls the event loop for 30 ms when it grows, and one of two million for 60 ms. A
page grows in much less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from beanstalk_server.queue.job import Holder

Kind = TypeVar("Kind", bound=Holder)

PAGE_BITS: Final = 12
"""A page of ids has 2^12 of them."""

PAGE_SIZE: Final = 1 << PAGE_BITS
PAGE_MASK: Final = PAGE_SIZE - 1

SPARSE: Final = PAGE_SIZE >> 4
"""The most jobs that a sparse page has: with more, a place for each id takes less than 128 bytes a job."""

DENSE: Final = SPARSE >> 1
"""The fewest jobs that a dense page has: so few that a page does not go back and forth."""

PAGE_KEYS: Final = 1 << 13
"""The most keys that pages may have on average; then one more page is added."""


class ForeignJobError(Exception):
    """A job that belongs in another table."""


class IdPage(Generic[Kind]):
    """The jobs with neighbouring ids: while there are few, a list in the order of their ids; else a place for each id.

    So a job costs 8 bytes while most of its neighbours are there, and little more when they are gone. Its id is not
    kept a second time. The number of an id, which decides its place, is `id // stride`: no two ids here share one.
    """

    def __init__(self, stride: int) -> None:
        self.count = 0
        self._stride = stride
        self._jobs: list[Kind] = []  # while it is sparse
        self._found = 0  # where the last search has ended: a job that is found is often removed next
        self._places: list[Kind | None] | None = None  # while it is dense

    def get(self, number: int, job_id: int) -> Kind | None:
        places = self._places
        if places is not None:
            return places[number & PAGE_MASK]
        jobs = self._jobs
        index = self._search(job_id)
        if index == len(jobs):
            return None
        job = jobs[index]
        return job if job.id == job_id else None

    def add(self, number: int, job: Kind) -> None:
        """Add a job. It replaces the one with its id."""
        places = self._places
        if places is not None:
            index = number & PAGE_MASK
            if places[index] is None:
                self.count += 1
            places[index] = job
            return
        jobs = self._jobs
        if not jobs or jobs[-1].id < job.id:
            jobs.append(job)
        else:
            index = self._search(job.id)
            if jobs[index].id == job.id:
                jobs[index] = job
                return
            jobs.insert(index, job)
        self.count += 1
        if self.count > SPARSE:
            self._become_dense()

    def remove(self, number: int, job_id: int) -> bool:
        places = self._places
        if places is not None:
            index = number & PAGE_MASK
            if places[index] is None:
                return False
            places[index] = None
            self.count -= 1
            if self.count < DENSE:
                self._become_sparse(places)
            return True
        jobs = self._jobs
        index = self._search(job_id)
        if index == len(jobs) or jobs[index].id != job_id:
            return False
        jobs.pop(index)
        self.count -= 1
        return True

    def _search(self, job_id: int) -> int:
        """The index, while it is sparse, of the first job with this id or a greater one."""
        jobs = self._jobs
        found = self._found
        if found < len(jobs) and jobs[found].id == job_id:
            return found
        low = 0
        high = len(jobs)
        while low < high:
            middle = (low + high) >> 1
            if jobs[middle].id < job_id:
                low = middle + 1
            else:
                high = middle
        self._found = low
        return low

    def _become_dense(self) -> None:
        places: list[Kind | None] = [None] * PAGE_SIZE
        stride = self._stride
        for job in self._jobs:
            places[job.id // stride & PAGE_MASK] = job
        self._places = places
        self._jobs = []

    def _become_sparse(self, places: list[Kind | None]) -> None:
        self._jobs = [job for job in places if job is not None]
        self._places = None

    def values(self) -> list[Kind]:
        places = self._places
        return list(self._jobs) if places is None else [job for job in places if job is not None]

    def check(self) -> None:
        jobs = self.values()
        assert len(jobs) == self.count
        assert [job.id for job in jobs] == sorted({job.id for job in jobs}), "the ids are not in order"
        if self._places is None:
            assert self.count <= SPARSE, "many jobs are in a sparse page"
        else:
            assert self.count >= DENSE and not self._jobs, "few jobs are in a dense page"
            for job in jobs:
                assert self._places[job.id // self._stride & PAGE_MASK] is job, "a job is in the place of another"


class IdTable(Generic[Kind]):
    """Jobs by id: a mapping, as far as one is needed.

    Ids are given in ascending order: a page fills up with neighbours, and goes with the last of them.

    Args:
        stride, offset: all ids are `offset` more than a multiple of `stride`, so that as many jobs share a page as if
            these ids were all there are.
    """

    def __init__(self, stride: int = 1, offset: int = 0) -> None:
        self.stride = stride
        self.offset = offset
        self._pages: dict[int, IdPage[Kind]] = {}
        self._count = 0
        # The page that was used last: the next job is often on it.
        self._last_index = -1
        self._last: IdPage[Kind] | None = None

    def _page(self, index: int) -> IdPage[Kind] | None:
        if index == self._last_index:
            return self._last
        page = self._pages.get(index)
        if page is not None:
            self._last_index = index
            self._last = page
        return page

    def get(self, job_id: int) -> Kind | None:
        number = job_id
        if self.stride != 1:
            number = self._number(job_id)
            if number < 0:
                return None
        page = self._page(number >> PAGE_BITS)
        return None if page is None else page.get(number, job_id)

    def _number(self, job_id: int) -> int:
        """The number of an id among those that there may be here; -1 if it is none of them."""
        number = job_id // self.stride
        return number if number * self.stride + self.offset == job_id else -1

    def add(self, job: Kind) -> None:
        """Add a job. It replaces the one with its id.

        Raises:
            ForeignJobError: a job with this id cannot be here.
        """
        number = job.id
        if self.stride != 1:
            number = self._number(job.id)
            if number < 0:
                raise ForeignJobError(f"job {job.id} does not belong to shard {self.offset} of {self.stride}")
        index = number >> PAGE_BITS
        page = self._page(index)
        if page is None:
            page = self._pages[index] = IdPage(self.stride)
        before = page.count
        page.add(number, job)
        self._count += page.count - before

    def remove(self, job_id: int) -> None:
        number = job_id
        if self.stride != 1:
            number = self._number(job_id)
            if number < 0:
                return
        index = number >> PAGE_BITS
        page = self._page(index)
        if page is not None and page.remove(number, job_id):
            self._count -= 1
            if not page.count:
                del self._pages[index]
                self._last_index = -1
                self._last = None

    def index_of(self, job_id: int) -> int:
        """The index of the page that this id is on, if it is on any; ids on pages before it are smaller."""
        return job_id // self.stride >> PAGE_BITS

    def page_indexes(self) -> list[int]:
        """The indexes of all pages. What is added later may be on others."""
        return list(self._pages)

    def page_jobs(self, index: int) -> list[Kind]:
        """The jobs of a page; [] if it is gone."""
        page = self._pages.get(index)
        return [] if page is None else page.values()

    def pop_page(self) -> list[Kind]:
        """Remove a page of jobs, and return them; [] when there are none left."""
        if not self._pages:
            return []
        _, page = self._pages.popitem()
        self._count -= page.count
        self._last_index = -1
        self._last = None
        return page.values()

    def values(self) -> Iterator[Kind]:
        """The jobs: page by page, and on each in the order of their ids."""
        for page in self._pages.values():
            yield from page.values()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for job in self.values():
            yield job.id

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and self.get(job_id) is not None

    def __getitem__(self, job_id: int) -> Kind:
        job = self.get(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

    def check(self) -> None:
        assert self._count == sum(page.count for page in self._pages.values())
        assert self._last is None or self._pages[self._last_index] is self._last
        for index, page in self._pages.items():
            assert page.count, f"page {index} is empty"
            page.check()
            assert all(job.id // self.stride >> PAGE_BITS == index for job in page.values())
            assert all(job.id % self.stride == self.offset for job in page.values()), "a job is of another shard"


class KeyTable:
    """The jobs and the held keys of a tube by key.

    Linear hashing (Litwin, "Linear hashing: a new tool for file and table addressing", 1980): when the pages are full
    on average, one of them is split in two, and only its own keys are moved.
    """

    def __init__(self) -> None:
        self._pages: list[dict[str, Holder]] = [{}]
        self._mask = 0  # the number of pages, rounded down to a power of two, minus 1
        self._count = 0

    def _page(self, key: str) -> dict[str, Holder]:
        found = hash(key)
        index = found & (self._mask * 2 + 1)
        if index >= len(self._pages):  # not split off yet
            index = found & self._mask
        return self._pages[index]

    def get(self, key: str) -> Holder | None:
        return self._page(key).get(key)

    def add(self, job: Holder) -> None:
        """Add a job. It replaces the one with its key."""
        page = self._page(job.key)
        before = len(page)
        page[job.key] = job
        self._count += len(page) - before
        if self._count > len(self._pages) * PAGE_KEYS:
            self._split()

    def remove(self, job: Holder) -> None:
        """Remove a job, unless another one has taken its key."""
        page = self._page(job.key)
        if page.get(job.key) is job:
            del page[job.key]
            self._count -= 1
            if not self._count:
                self._pages = [{}]
                self._mask = 0

    def _split(self) -> None:
        fresh: dict[str, Holder] = {}
        index = len(self._pages)
        wide = self._mask * 2 + 1
        shared = self._pages[index & self._mask]
        stays: dict[str, Holder] = {}
        for key, job in shared.items():
            if hash(key) & wide == index:
                fresh[key] = job
            else:
                stays[key] = job
        self._pages[index & self._mask] = stays
        self._pages.append(fresh)
        if index == wide:
            self._mask = wide

    def take_page(self) -> list[Holder]:
        """Remove a page of keys, of a table that is no longer needed, and return what has them; [] if it is empty."""
        while self._pages:
            page = self._pages.pop()
            if page:
                return list(page.values())
        return []

    def pop_page(self) -> bool:
        """Forget a page of keys, of a table that is no longer needed; return whether there was one."""
        if not self._pages:
            return False
        self._pages.pop()
        return True

    def values(self) -> Iterator[Holder]:
        for page in self._pages:
            yield from page.values()

    def __len__(self) -> int:
        return self._count

    def check(self) -> None:
        assert self._count == sum(len(page) for page in self._pages)
        assert self._mask < len(self._pages) <= self._mask * 2 + 2
        for page in self._pages:
            for key, job in page.items():
                assert job.key == key and self._page(key) is page
