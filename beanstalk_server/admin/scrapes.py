"""Writes pages of statistics over all tubes in slices, so that clients of the queue do not wait for a page.

A slice takes half a millisecond, and each round of the event loop runs one slice. One page is written at a time.
Requests that arrive meanwhile share the next page of their kind, which shows nothing older than these requests.

A page is no snapshot: a tube that moves in the list, because another one is removed, may be missing in the sum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from time import monotonic_ns
from typing import Any, Final, NamedTuple, Protocol

from beanstalk_server.admin.metrics import Figures
from beanstalk_server.events import event
from beanstalk_server.queue.oldest import OldestSearch
from beanstalk_server.queue.state import QueueState
from beanstalk_server.queue.statistics import TubeStatistics
from beanstalk_server.queue.tube import Tube

SLICE: Final = 500_000
"""Nanoseconds for which the event loop is held, give or take a chunk."""

CHUNK: Final = 16
"""Tubes between two looks at the clock."""

log = logging.getLogger("beanstalk_server")


class Table(NamedTuple):
    """The queue of one broker."""

    queue: QueueState
    has_default: bool
    """Its default tube is that of the server; each shard of a cluster has one, and only one shard has that."""


class Source(Protocol):
    """Supplies the figures of a page."""

    def tables(self) -> list[Table]:
        """The tubes, of one broker or of several."""

    def figures(self) -> Figures:
        """Everything else."""


class Page(Protocol):
    """A page that is being written."""

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


Done = Callable[[Written | None], object]
"""What is called with the page; with None if it cannot be written, because of a bug."""


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
        self._page: Page | None = None  # that is being written
        self._tubes: Iterator[tuple[Tube, Table, int] | None]  # those that it does not have yet, as `_tubes_of`
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
        if self._page is None:
            self._begin_page()

    def _begin_page(self) -> None:
        kind = next(iter(self._waiting))
        make_page, self._asking = self._waiting.pop(kind)
        page = self._page = make_page()
        self._tubes = _tubes_of(self._source.tables(), None if page.sums else self._limit)
        self._call_soon(self._write_slice, page)

    def _write_slice(self, page: Page) -> None:
        """Do a slice."""
        self.slices += 1
        now = self._clock()
        end = now + SLICE
        is_over = False
        try:
            while now < end and not is_over:
                is_over = self._add_chunk(page, now)
                now = self._clock()
            page.end_slice()
        except Exception:
            self._fail()
            return
        self._call_soon(self._finish if is_over else self._write_slice, page)

    def _add_chunk(self, page: Page, now: int) -> bool:
        """Add up to CHUNK tubes to the page, or do a slice of a search; return whether no tube is left."""
        for _ in range(CHUNK):
            found = next(self._tubes, _END)
            if found is _END:
                return True
            if found is None:
                break
            tube, table, oldest = found
            page.add(TubeStatistics(tube, now, oldest, table.queue.wall.offset), tube.next_ready_age(now))
        return False

    def _finish(self, page: Page) -> None:
        """Write what is not about tubes, in a slice of its own, and hand the page out."""
        try:
            found = Written(page.content_type, page.finish(self._source.figures()))
        except Exception:
            self._fail()
            return
        self._hand_out(found)

    def _fail(self) -> None:
        log.exception("statistics cannot be shown; this is a bug in the server", event("bug-in-scrape"))
        self._hand_out(None)

    def _hand_out(self, found: Written | None) -> None:
        """Answer all who have asked, and begin the next page."""
        asking, self._asking = self._asking, []
        self._page = None
        if self._waiting:
            self._begin_page()
        for done in asking:
            done(found)


def _tubes_of(tables: list[Table], limit: int | None) -> Iterator[tuple[Tube, Table, int] | None]:
    """The tubes of all tables in their order, which may change meanwhile; None after each slice of a search.

    A tube comes with its table and the moment since when its oldest ready job has been ready, in nanoseconds. That is 0
    if there is none, or if the tube is not measured. The search for that job precedes its tube.

    Args:
        limit: maximum number of tubes; None for all.
    """
    count = 0
    for table in tables:
        tubes = table.queue.tubes
        position = 0
        while position < len(tubes) and (limit is None or count < limit):
            tube = tubes.at(position)
            position += 1
            if not table.has_default and tube is tubes.default:
                continue
            count += 1
            oldest = 0
            if tube.durations is not None:
                search = OldestSearch(table.queue.jobs, tube)
                while not search.is_complete():
                    search.go_on()
                    yield None
                oldest = search.since
            yield tube, table, oldest


_END: Final[Any] = object()
"""Instead of a tube: no tube is left."""
