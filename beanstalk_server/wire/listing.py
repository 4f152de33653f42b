"""A long answer that is under way: what a session needs of one to give it in slices, in as many turns as it takes.

Must never know whose turn it is, or what is listed.
"""

from __future__ import annotations

from typing import Final

PAGE_ENTRIES: Final = 1000
"""The most entries of a page of list-jobs or stats-tubes."""


class Listing:
    """A long answer.

    Args:
        line: the command, as another server is to get it.
        tells_of_jobs: it says what has become of single jobs.
    """

    __slots__ = ("line", "tells_of_jobs")

    def __init__(self, line: bytes, tells_of_jobs: bool = False) -> None:
        self.line = line
        self.tells_of_jobs = tells_of_jobs

    def is_complete(self) -> bool:
        """Whether all of it has been found."""
        raise NotImplementedError

    def go_on(self, now: int) -> int:
        """Find the next slice; return what that has cost, in the unit of queue/costs.py.

        Args:
            now: the present, in nanoseconds.
        """
        raise NotImplementedError

    def reply(self) -> bytes:
        """The reply, when it is complete."""
        raise NotImplementedError


def page(next_page: str, name: str, entries: list[bytes]) -> bytes:
    """The YAML of a page: where the next one begins, "" if there is none, and a list of this name, an entry a line."""
    if not entries:
        return f'---\nnext: "{next_page}"\n{name}: []\n'.encode("ascii")
    return b"".join([f'---\nnext: "{next_page}"\n{name}:\n'.encode("ascii"), *entries])
