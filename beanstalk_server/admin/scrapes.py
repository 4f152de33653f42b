"""Goes through all tubes for a page, a slice at a time, so that nobody who puts or reserves waits for it.

A slice is over when half a millisecond is; then the event loop looks for input, and the next one follows in its next
round. One page is being written at a time. Who asks meanwhile gets the next page of its kind, which all share that have
asked for it by then: it has nothing that was so before they asked.

A page is no snapshot: a tube that takes another's place in the list, because that has gone, may be missing in the sum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Final, NamedTuple, Protocol

from beanstalk_server.admin.metrics import Figures
from beanstalk_server.events import event
from beanstalk_server.queue.statistics import TubeStatistics
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.tubes import TubeTable

SLICE: Final = 500_000
"""Nanoseconds for which the event loop is held, give or take a chunk."""

CHUNK: Final = 16
"""Tubes between two looks at the clock."""

log = logging.getLogger("beanstalk_server")


class Table(NamedTuple):
    """The tubes of one broker."""

    tubes: TubeTable
    has_default: bool
    """Its default tube is that of the server; each shard of a cluster has one, and only one shard has that."""


class Source(Protocol):
    """What is shown."""

    def tables(self) -> list[Table]:
        """The tubes, of one broker or of several."""

    def figures(self) -> Figures:
        """Everything else."""


class Page(Protocol):
    """What is written."""

    content_type: str
    sums: bool

    def add(self, tube: TubeStatistics, age: int) -> None:
        """Take a tube."""

    def end_slice(self) -> None:
        """Join what has been written."""

    def finish(self, figures: Figures) -> list[bytes]:
        """All of it, in pieces."""


class Written(NamedTuple):
    """A page that is finished."""

    content_type: str
    pieces: Sequence[bytes]


class Failure:
    """A page cannot be written, because of a bug."""


Done = Callable[[Written | Failure], object]
"""What is called with the page."""


class Scrapes:
    """Writes pages, from `start` on.

    Args:
        source: what is shown.
        limit: how many tubes a page shows, each by itself.
        clock: nanoseconds.
    """

    def __init__(self, source: Source, limit: int, clock: Callable[[], int] = monotonic_ns) -> None:
        self._source = source
        self._limit = limit
        self._clock = clock
        self._call_soon: Callable[..., Any]
        self._waiting: dict[str, tuple[Callable[[], Page], list[Done]]] = {}  # by the kind of the page, first come
        self._walk: _Walk | None = None  # the page that is being written
        self._asking: list[Done] = []  # those who get it
        self.slices = 0  # so far

    def start(self, call_soon: Callable[..., Any]) -> None:
        """Write pages from now on.

        Args:
            call_soon: calls a function in the next round of the event loop.
        """
        self._call_soon = call_soon

    def ask(self, kind: str, make_page: Callable[[], Page], done: Done) -> None:
        """Have a page written.

        Args:
            kind: what names the page: who asks for the same gets the same.
            make_page: makes it, empty.
            done: called with the page, and not before this returns.
        """
        _, asking = self._waiting.setdefault(kind, (make_page, []))
        asking.append(done)
        if self._walk is None:
            self._begin()

    def _begin(self) -> None:
        kind = next(iter(self._waiting))
        make_page, self._asking = self._waiting.pop(kind)
        self._walk = _Walk(make_page(), self._source, self._limit)
        self._call_soon(self._go_on)

    def _go_on(self) -> None:
        """Do a slice."""
        walk = self._walk
        assert walk is not None, "a page is being written"
        self.slices += 1
        now = self._clock()
        end = now + SLICE
        try:
            while now < end and walk.step(now, CHUNK):
                now = self._clock()
            walk.page.end_slice()
        except Exception:
            self._fail()
            return
        self._call_soon(self._finish if walk.is_over else self._go_on)

    def _finish(self) -> None:
        """Write what is not about tubes, in a slice of its own, and hand the page out."""
        walk = self._walk
        assert walk is not None, "a page is being written"
        try:
            found = Written(walk.page.content_type, walk.page.finish(self._source.figures()))
        except Exception:
            self._fail()
            return
        self._hand_out(found)

    def _fail(self) -> None:
        log.exception("statistics cannot be shown; this is a bug in the server", event("bug-in-scrape"))
        self._hand_out(Failure())

    def _hand_out(self, found: Written | Failure) -> None:
        """Answer all who have asked, and begin the next page."""
        asking, self._asking = self._asking, []
        self._walk = None
        if self._waiting:
            self._begin()
        for done in asking:
            done(found)


class _Walk:
    """Goes through the tubes in their order."""

    def __init__(self, page: Page, source: Source, limit: int) -> None:
        self.page = page
        self.is_over = False  # there are no more tubes
        self._tables = source.tables()
        self._left = None if page.sums else limit  # how many more tubes the page wants; None for all
        self._position = 0  # in the first of the tables

    def step(self, now: int, count: int) -> bool:
        """Give some tubes to the page; return whether there are more."""
        for _ in range(count):
            tube = self._next()
            if tube is None:
                self.is_over = True
                return False
            self.page.add(TubeStatistics(tube, now), tube.next_ready_age(now))
        return True

    def _next(self) -> Tube | None:
        """The next tube of all tables; None if there is none."""
        if self._left is not None:
            if not self._left:
                return None
            self._left -= 1
        while self._tables:
            tubes, has_default = self._tables[0]
            while self._position < len(tubes):
                tube = tubes.at(self._position)
                self._position += 1
                if has_default or tube is not tubes.default:
                    return tube
            self._tables.pop(0)
            self._position = 0
        return None
