"""The answer to list-tubes for a user that may not see all tubes, found in slices because there may be many.

It is the list as it was when the command was given, whatever becomes of the tubes meanwhile. Must never know whose turn
it is.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.access.user import ANY_RIGHT, User
from beanstalk_server.wire import replies
from beanstalk_server.wire.listing import Listing

SLICE: Final = 64
"""The most that a slice costs, in the unit of queue/costs.py: some 100 microseconds."""


class TubeListing(Listing):
    """A list of tubes that is under way.

    Args:
        user: whose tubes are listed.
        pages: the lines of all tubes.
    """

    __slots__ = (
        "_lines",  # those of the tubes that have been found
        "_names",  # what is left of the page in hand
        "_pages",  # what is left of them, the next one last
        "_user",
    )

    def __init__(self, user: User, pages: list[bytes]) -> None:
        super().__init__(b"list-tubes\r\n")
        self._user = user
        self._pages = pages[::-1]
        self._names: list[str] = []
        self._lines: list[bytes] = []

    def is_complete(self) -> bool:
        return not self._pages and not self._names

    def go_on(self, now: int) -> int:
        if not self._names:
            page = self._pages.pop().decode("ascii")
            self._names = page[len("- ") : -len("\n")].split("\n- ")
        names = self._names
        weight = self._user.weight  # of one name: a unit is good for 64 of these
        bound = max(SLICE * 64 // weight, 1)
        if len(names) > bound:
            self._names = names[bound:]
            names = names[:bound]
        else:
            self._names = []
        found = self._user.select(names, ANY_RIGHT)
        if found:
            self._lines.append(("- " + "\n- ".join(found) + "\n").encode("ascii"))
        return len(names) * weight >> 6

    def reply(self) -> bytes:
        return replies.ok_list(self._lines)
