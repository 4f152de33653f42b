"""Which tubes `beanstalk top` asks about in an interval, so that even 100,000 of them cost the server next to nothing.

To find the busiest tubes, one has to look at all of them; to look at 100,000 once a second would take a server half of
its time. So three kinds of tubes are asked about, each within a budget that counts tubes a second, not an interval:

    the visible ones    those on the screen, at each interval: what one looks at is fresh. At most VISIBLE.
    the others          in rounds, in the order of their names, SURVEYED a second. A round of 100,000 tubes takes 200
                        seconds. What is known of a tube is as old as the round, and its row says how old. Its rates are
                        those between two looks: from one round to the next for a tube that is not visible, so that a
                        tube which has been busy for a while rises into view, and from then on it is fresh.
    the next jobs       of the visible tubes that have ready jobs, in rotation, NEXT_JOBS a second: their ages.

What sorts a tube into view is therefore known after one round if it is a figure (ready, buried), and after two if it is
a rate. A prefix (`/`) narrows the rounds too: who looks for `mail-` waits for the tubes of that name only.

A server with `stats-tubes` is asked for pages of at most PAGE tubes, one after the other, so that it is never asked for
more than it has answered. If all tubes fit into one interval's budget, each interval is a round, and the visible ones
are not asked for once more.

Stock beanstalkd has neither pages nor an index: its list-tubes names all tubes at once, and a stats-tube compares the
name with those of all tubes. There, COMPARISONS bounds how many tubes are asked about, visible ones first, in one
write; and the list is asked for when a round begins, at most once in as many seconds as it has LISTED tubes.

Moments are in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from beanstalk_client.cli.top_samples import READY, Samples, number

SURVEYED: Final = 500
"""How many tubes a second are asked about in rounds: some ms of a server's time (`python -m bench.watching`)."""

PAGE: Final = 1000
"""The longest page of `stats-tubes`, in tubes."""

PAGES: Final = 5
"""The most pages in an interval, however long it is."""

VISIBLE: Final = 100
"""The most visible tubes that are asked about a second; those on top come first."""

NEXT_JOBS: Final = 10
"""Of how many tubes a second the age of the next job is asked."""

COMPARISONS: Final = 500_000
"""How many names a second stock beanstalkd may compare: 2 to 5 ms of its time."""

LISTED: Final = 2000
"""The list of tubes of stock beanstalkd is asked for at most once in as many seconds as it has this many tubes."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Asks for the figures of the server."""


@dataclass(frozen=True, slots=True)
class Page:
    """Asks for the tubes from this name on, in order, or from the beginning."""

    first: str
    count: int


@dataclass(frozen=True, slots=True)
class Tube:
    """Asks for one tube."""

    name: str


@dataclass(frozen=True, slots=True)
class Names:
    """Asks for the names of all tubes."""


@dataclass(frozen=True, slots=True)
class NextJob:
    """Asks for the job of a tube that goes next."""

    name: str


Question = Stats | Page | Tube | Names | NextJob

BEGINNING: Final = "-"
"""Where the first page begins: no tube's name does."""


@dataclass(frozen=True, slots=True)
class PageOfTubes:
    """The answer to Page: the figures of each tube, and the name that the next page begins with, or ""."""

    tubes: Sequence[Mapping[str, str]]
    next: str


class Unknown:
    """The answer to a question that this server does not know."""


class Refused:
    """The answer to a question that this user has no right to ask, or that the server failed to answer."""


class Gone:
    """The answer to a question about a tube that does not exist."""


Answer = Mapping[str, str] | PageOfTubes | Sequence[str] | int | None | Unknown | Refused | Gone
"""What a question is answered with: figures; a page; names; the age of a job in seconds, or None if there is none."""


class Survey:
    """What is asked in each interval; what is answered goes into the samples.

    Call `begin`, ask what it returns, give each answer to `take`, and go on with what `more` returns until that is
    nothing.

    Attributes:
        has_pages: whether the server knows `stats-tubes`; None before it has been asked.
        is_refused: whether this user may not see the figures of the server.
        tubes: how many tubes there are as far as is known, or None.
        is_complete: whether a round has been completed since the prefix was chosen.
    """

    __slots__ = (
        "_allowed",
        "_asked_names",
        "_asked_pages",
        "_asked_tubes",
        "_began",
        "_ended",
        "_has_next_jobs",
        "_interval",
        "_listed_at",
        "_names",
        "_next",
        "_next_job",
        "_position",
        "_prefix",
        "_samples",
        "_visible",
        "_whole",
        "has_pages",
        "is_complete",
        "is_refused",
        "tubes",
    )

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._prefix = ""
        self._next = BEGINNING  # where the next page begins
        self._whole = False  # whether the last round began and ended in one interval
        self._names: list[str] = []  # stock beanstalkd: the names of this round, and how many have been asked about
        self._position = 0
        self._listed_at: float | None = None
        self._next_job = 0  # how many of the ages of next jobs have been asked for
        self._has_next_jobs = True
        # Of the interval that is going on:
        self._interval = 1.0
        self._visible: Sequence[str] = ()
        self._allowed = 0  # how many tubes may still be asked for in pages
        self._asked_pages = 0
        self._asked_names = self._asked_tubes = False
        self._began = self._ended = False  # whether a round has
        self.has_pages: bool | None = None
        self.is_refused: bool = False
        self.is_complete: bool = False
        self.tubes: int | None = None

    def begin(self, now: float, interval: float, visible: Sequence[str], prefix: str) -> list[Question]:
        """Begin an interval.

        Args:
            interval: how long it is, in seconds.
            visible: the names of the tubes on the screen, from the top.
            prefix: only tubes whose names begin so are of interest.
        """
        if prefix != self._prefix:
            self._prefix, self._next = prefix, prefix or BEGINNING
            self.is_complete = self._whole = False
            self._names, self._position, self._listed_at = [], 0, None
        self._interval, self._visible = interval, visible
        self._asked_pages = 0
        self._began = self._ended = self._asked_names = self._asked_tubes = False
        questions: list[Question] = [Stats()]
        if self.has_pages is False:
            return questions + self._stock(now)
        self._allowed = max(round(SURVEYED * interval), 1)
        questions += self._page()
        if self.has_pages and not self._whole:
            questions += [Tube(name) for name in visible[: max(min(round(VISIBLE * interval), VISIBLE), 1)]]
        return questions + self._next_jobs()

    def more(self, now: float) -> list[Question]:
        """What remains to be asked in this interval, when everything before has been answered."""
        return self._stock(now) if self.has_pages is False else self._page()

    def take(self, moment: float, question: Question, answer: Answer) -> None:
        """Take the answer to a question."""
        match question, answer:
            case Stats(), Mapping():
                self._samples.take_server(moment, answer)
                self.is_refused, self.tubes = False, number(answer, "current-tubes")
            case Stats(), _:
                self.is_refused = True
            case Page(), PageOfTubes():
                self._take_page(moment, question, answer)
            case Page(), Unknown():
                self.has_pages = False
            case Page(), _:
                self._allowed = 0
            case Tube(name), Mapping():
                self._samples.take_tube(moment, name, answer)
            case Tube(name), Gone():
                self._samples.forget(name)
            case Names(), Sequence():
                self._names = sorted(str(name) for name in answer if str(name).startswith(self._prefix))
                self._position, self._listed_at = 0, moment
            case Names(), _:
                self._listed_at = moment
            case NextJob(name), int() | None:
                self._samples.take_next_age(name, answer)
            case NextJob(), Unknown():
                self._has_next_jobs = False

    def _page(self) -> list[Question]:
        if self._ended or self._allowed <= 0 or self._asked_pages >= PAGES:
            return []
        self._asked_pages += 1
        self._began |= self._next == (self._prefix or BEGINNING)
        return [Page(self._next, min(self._allowed, PAGE))]

    def _take_page(self, moment: float, question: Page, page: PageOfTubes) -> None:
        self.has_pages = True
        self._allowed -= question.count
        following = page.next
        for tube in page.tubes:
            name = tube.get("name", "")
            if not name.startswith(self._prefix):
                following = ""  # those that follow do not either
                break
            self._samples.take_tube(moment, name, tube)
        goes_on = question.first == BEGINNING or following > question.first
        if following.startswith(self._prefix) and following and goes_on:
            self._next, self._whole = following, False
        else:
            self._next, self._whole = self._prefix or BEGINNING, self._began
            self._end_round()

    def _end_round(self) -> None:
        self._samples.end_round(self._prefix)
        self._ended = self.is_complete = True

    def _next_jobs(self) -> list[Question]:
        if not self._has_next_jobs:
            return []
        tubes = self._samples.tubes
        names = [name for name in self._visible if name in tubes and tubes[name].figures[READY]]
        count = min(len(names), NEXT_JOBS, max(round(NEXT_JOBS * self._interval), 1))
        first = self._next_job % len(names) if names else 0
        self._next_job = first + count
        return [NextJob(name) for name in (names[first:] + names[:first])[:count]]

    def _stock(self, now: float) -> list[Question]:
        """The names of all tubes, if a round begins; then, once in an interval, the tubes to ask about one by one."""
        if self._asked_tubes:
            self._end_stock_round()
            return []
        due = self._listed_at is None or now - self._listed_at >= len(self._names) / LISTED
        if self._position == 0 and due and not self._asked_names:
            self._asked_names = True
            return [Names()]
        self._asked_tubes = True
        names = self._stock_tubes(max(self.tubes or 0, len(self._names), 1))
        if not names:
            self._end_stock_round()
        return [Tube(name) for name in names]

    def _stock_tubes(self, total: int) -> list[str]:
        bound = max(min(round(COMPARISONS * self._interval) // total, PAGE), 1)
        others = max(bound // 4, 1) if self._position < len(self._names) else 0  # some, or no round would ever end
        names = [name for name in self._visible if name.startswith(self._prefix)][: bound - others]
        seen = set(names)
        while len(names) < bound and self._position < len(self._names):
            name = self._names[self._position]
            self._position += 1
            if name not in seen:
                names.append(name)
        return names

    def _end_stock_round(self) -> None:
        if self._position >= len(self._names):
            self._position = 0
            self._end_round()
