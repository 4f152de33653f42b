"""All jobs by id: a dictionary in pages.

One dictionary of a million entries holds everybody up for 30 ms, and one of two million for 60, at the moment when it
has to grow. Ids are given in order, so a page of neighbours fills up, and is gone again when the last of them is.
Must never know what a job is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from beanstalk_server.queue.job import Job

PAGE: Final = 14  # bits of an id; a page grows in well below a millisecond


class JobTable:
    """A mapping of ids to jobs, as far as it is needed."""

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, Job]] = {}
        self._count = 0

    def get(self, number: int) -> Job | None:
        """The job with this id."""
        page = self._pages.get(number >> PAGE)
        return None if page is None else page.get(number)

    def add(self, job: Job) -> None:
        """Take a job in, in the place of the one with its id."""
        place = job.id >> PAGE
        page = self._pages.get(place)
        if page is None:
            page = self._pages[place] = {}
        before = len(page)
        page[job.id] = job
        self._count += len(page) - before

    def remove(self, number: int) -> None:
        """Let the job with this id go; nothing, when there is none."""
        page = self._pages.get(number >> PAGE)
        if page is not None and page.pop(number, None) is not None:
            self._count -= 1
            if not page:
                del self._pages[number >> PAGE]

    def values(self) -> Iterator[Job]:
        """The jobs, those that were taken in first more or less first."""
        for page in self._pages.values():
            yield from page.values()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for page in self._pages.values():
            yield from page

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.get(number) is not None

    def __getitem__(self, number: int) -> Job:
        return self._pages[number >> PAGE][number]

    def check(self) -> None:
        """Verify every invariant."""
        assert self._count == sum(len(page) for page in self._pages.values())
        for place, page in self._pages.items():
            assert page, "a page without jobs"
            for number, job in page.items():
                assert job.id == number and number >> PAGE == place
