"""The table of tubes, by name, in the order of list-tubes, and in the order of their names.

The list is kept as pages of bytes, one line for each tube, because a hundred thousand lines would take tens of
milliseconds to write. A tube that comes or goes costs the writing of one page; list-tubes joins the pages. The names
are divided among many dictionaries, because a single one holds the event loop when it grows: for 5 ms with a hundred
thousand tubes, and for 40 ms with a million. Their order is kept by sortedcontainers' SortedList, which is a list of
short lists: a name that comes or goes moves at most two thousand others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from sortedcontainers import SortedList

from beanstalk_server.queue.tube import Tube

DEFAULT: Final = "default"
"""The tube that every client starts with, and that is always there."""

PAGE: Final = 256
"""How many tubes are on one page of the list."""

DICTIONARIES: Final = 128
"""How many dictionaries there are: a power of two."""


class TubeTable:
    """Tubes by name: a mapping, as far as one is needed."""

    def __init__(self) -> None:
        self._by_name: list[dict[str, Tube]] = [{} for _ in range(DICTIONARIES)]  # by the last bits of their hashes
        self._names = SortedList()
        self._in_order: list[Tube] = []  # as in beanstalkd: the last takes the place of one that goes
        self._pages: list[bytes] = []  # their lines; b"" for a page that has to be written anew
        self.default = self.add(DEFAULT)

    def _with_hash_of(self, name: str) -> dict[str, Tube]:
        """The dictionary that has the tube of this name, if there is one."""
        return self._by_name[hash(name) & (DICTIONARIES - 1)]

    def get(self, name: str) -> Tube | None:
        return self._with_hash_of(name).get(name)

    def add(self, name: str) -> Tube:
        """Make a tube with a name that no tube has."""
        tube = Tube(name, len(self._in_order))
        self._with_hash_of(name)[name] = tube
        self._names.add(name)
        self._in_order.append(tube)
        if tube.position % PAGE == 0:
            if self._pages:
                self._write_page(len(self._pages) - 1)  # now, or the first list-tubes would have to write all pages
            self._pages.append(b"")
        else:
            self._pages[-1] = b""
        return tube

    def drop_unneeded(self, tube: Tube) -> bool:
        """Drop a tube if nothing keeps it alive; return whether it has gone. The default tube always stays."""
        if tube.is_needed() or tube is self.default or self.get(tube.name) is not tube:
            return False
        tube.buried.dissolve()
        tube.waiting.dissolve()
        del self._with_hash_of(tube.name)[tube.name]
        self._names.remove(tube.name)
        last = self._in_order.pop()
        if last.position % PAGE == 0:
            self._pages.pop()
        else:
            self._pages[-1] = b""
        if last is not tube:
            self._in_order[tube.position] = last
            last.position = tube.position
            self._pages[tube.position // PAGE] = b""
        return True

    def write_pages(self) -> int:
        count = 0
        for index, page in enumerate(self._pages):
            if not page:
                self._write_page(index)
                count += 1
        return count

    def pages(self) -> list[bytes]:
        """The lines of all tubes, in their order, as they are now. Call `write_pages` first."""
        return self._pages.copy()

    def _write_page(self, index: int) -> None:
        tubes = self._in_order[index * PAGE : (index + 1) * PAGE]
        self._pages[index] = b"".join([tube.entry for tube in tubes])

    def names_from(self, first: str, count: int) -> list[str]:
        """The names of this many tubes at most, in their order, from the first that is `first` or follows it."""
        return list(islice(self._names.irange(first), count))

    def at(self, position: int) -> Tube:
        return self._in_order[position]

    def values(self) -> Iterator[Tube]:
        return iter(self._in_order)

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[str]:
        return iter([tube.name for tube in self._in_order])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __getitem__(self, name: str) -> Tube:
        return self._with_hash_of(name)[name]

    def check(self) -> None:
        assert self[DEFAULT] is self.default, "the default tube is gone"
        assert sum(len(tubes) for tubes in self._by_name) == len(self._in_order)
        for position, tube in enumerate(self._in_order):
            assert tube.position == position, f"tube {tube.name} does not know its position"
            assert self[tube.name] is tube, f"tube {tube.name} is listed, but cannot be found"
        assert list(self._names) == sorted(tube.name for tube in self._in_order), "the names are not in order"
        self._names._check()
        assert len(self._pages) == -(-len(self._in_order) // PAGE), "the number of pages is wrong"
        for index, page in enumerate(self._pages):
            tubes = self._in_order[index * PAGE : (index + 1) * PAGE]
            assert not page or page == b"".join([tube.entry for tube in tubes]), f"page {index} is out of date"
