"""Plans which tubes to sample in each interval, within a budget that 100,000 tubes do not exceed.

The busiest tubes are found by sampling all of them; to sample 100,000 once a second would take half of a server's time.
So three kinds of tubes are sampled, each within a budget of tubes a second:

    the visible ones    those on the screen, at each interval, so that they are fresh. At most VISIBLE.
    the others          in rounds, in the order of their names, SURVEYED a second. A round of 100,000 tubes takes 200
                        seconds. What is known of a tube is as old as the round, and its row says how old. Its rates are
                        those between two looks: from one round to the next for a tube that is not visible, so that a
                        tube which has been busy for a while rises into view, and from then on it is fresh.
    the next jobs       of the visible tubes that have ready jobs, in rotation, NEXT_JOBS a second: their ages.

What sorts a tube into view is therefore known after one round if it is a figure (ready, buried), and after two if it is
a rate. A prefix narrows the rounds: with `mail-`, only tubes of that name are sampled.

A server with `stats-tubes` is asked for pages of at most PAGE tubes, one after the other, so that it is never asked for
more than it has answered. If all tubes fit into one interval's budget, each interval is a round, and the visible ones
are not asked for once more.

Stock beanstalkd has neither pages nor an index: its list-tubes names all tubes at once, and a stats-tube compares the
name with those of all tubes. There, COMPARISONS bounds how many tubes are asked about, visible ones first, in one
write; and the list is asked for when a round begins, at most once in as many seconds as it has LISTED tubes.

Moments are in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from beanstalk_client.errors import BadFormatError, Error, NotFoundError, UnknownCommandError
from beanstalk_client.observe.samples import Figures, Samples, number
from beanstalk_client.statistics import read_names, read_page, read_statistics

SURVEYED: Final = 500
"""Tubes that are sampled in rounds, a second: some ms of a server's time (`bench --scenario watching`)."""

PAGE: Final = 1000
"""The longest page of `stats-tubes`, in tubes."""

PAGES: Final = 5
"""The most pages in an interval, however long it is."""

VISIBLE: Final = 100
"""The most visible tubes that are asked about a second; those on top come first."""

NEXT_JOBS: Final = 10
"""Tubes whose next job is asked for, a second."""

COMPARISONS: Final = 500_000
"""Names that stock beanstalkd may compare, a second: 2 to 5 ms of its time."""

LISTED: Final = 2000
"""The list of tubes of stock beanstalkd is asked for at most once in as many seconds as it has this many tubes."""

BEGINNING: Final = "-"
"""Where the first page begins: no tube's name does."""

READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "stats": read_statistics,
    "stats-tube": read_statistics,
    "stats-tubes": read_page,
    "list-jobs": read_page,
    "list-tubes": read_names,
}
"""How the answers to questions are read, by their commands."""


class Survey:
    """What is asked in each interval, as commands without line ends; what is answered goes into the samples.

    Call `begin`, ask what it returns, give each answer to `take`, and go on with what `more` returns until that is
    nothing.

    Attributes:
        has_pages: whether the server knows `stats-tubes`; None before it has been asked.
        is_refused: whether this user may not see the figures of the server.
        is_complete: whether a round has been completed since the prefix was chosen.
    """

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

    def begin(self, now: float, interval: float, visible: Sequence[str], prefix: str) -> list[str]:
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
        questions = ["stats"]
        if self.has_pages is False:
            return questions + self._stock(now)
        self._allowed = max(round(SURVEYED * interval), 1)
        questions += self._page()
        if self.has_pages and not self._whole:
            shown = visible[: max(min(round(VISIBLE * interval), VISIBLE), 1)]
            questions += [f"stats-tube {name}" for name in shown]
        return questions + self._next_jobs()

    def more(self, now: float) -> list[str]:
        """What remains to be asked in this interval, when everything before has been answered."""
        return self._stock(now) if self.has_pages is False else self._page()

    def take(self, moment: float, question: str, answer: Any) -> None:
        """Take the answer to a question, as READERS read it, or an Error."""
        command, *arguments = question.split(" ")
        unknown = isinstance(answer, (UnknownCommandError, BadFormatError))  # beanstalkd reads stats-tubes as a stats
        failed = isinstance(answer, Error)
        match command:
            case "stats":
                self.is_refused = failed
                if not failed:
                    self._samples.take_server(moment, answer)
            case "stats-tubes" if failed:
                self._allowed = 0
                self.has_pages = False if unknown else self.has_pages
            case "stats-tubes":
                self._take_page(moment, arguments[0], int(arguments[1]), *answer)
            case "stats-tube" if isinstance(answer, NotFoundError):
                self._samples.tubes.pop(arguments[0], None)
            case "stats-tube" if not failed:
                self._samples.take_tube(moment, arguments[0], answer)
            case "list-tubes":
                self._listed_at = moment
                if not failed:
                    self._names = sorted(name for name in answer if name.startswith(self._prefix))
                    self._position = 0
            case "list-jobs" if unknown:
                self._has_next_jobs = False
            case "list-jobs" if not failed:
                if tube := self._samples.tubes.get(arguments[0]):
                    tube.next_age = next((number(job, "age") for job in answer[1]), None)

    def _page(self) -> list[str]:
        if self._ended or self._allowed <= 0 or self._asked_pages >= PAGES:
            return []
        self._asked_pages += 1
        self._began |= self._next == (self._prefix or BEGINNING)
        return [f"stats-tubes {self._next} {min(self._allowed, PAGE)}"]

    def _take_page(self, moment: float, first: str, count: int, following: str, tubes: Sequence[Figures]) -> None:
        self.has_pages = True
        self._allowed -= count
        for tube in tubes:
            name = str(tube.get("name", ""))
            if not name.startswith(self._prefix):
                following = ""  # those that follow do not either
                break
            self._samples.take_tube(moment, name, tube)
        goes_on = first == BEGINNING or following > first
        if following.startswith(self._prefix) and following and goes_on:
            self._next, self._whole = following, False
        else:
            self._next, self._whole = self._prefix or BEGINNING, self._began
            self._end_round()

    def _end_round(self) -> None:
        self._samples.end_round(self._prefix)
        self._ended = self.is_complete = True

    def _next_jobs(self) -> list[str]:
        if not self._has_next_jobs:
            return []
        tubes = self._samples.tubes
        names = [name for name in self._visible if name in tubes and tubes[name].ready]
        count = min(len(names), NEXT_JOBS, max(round(NEXT_JOBS * self._interval), 1))
        first = self._next_job % len(names) if names else 0
        self._next_job = first + count
        return [f"list-jobs {name} ready 0 1" for name in (names[first:] + names[:first])[:count]]

    def _stock(self, now: float) -> list[str]:
        """The names of all tubes, if a round begins; then, once in an interval, the tubes to ask about one by one."""
        if self._asked_tubes:
            self._end_stock_round()
            return []
        due = self._listed_at is None or now - self._listed_at >= len(self._names) / LISTED
        if self._position == 0 and due and not self._asked_names:
            self._asked_names = True
            return ["list-tubes"]
        self._asked_tubes = True
        total = number(self._samples.figures, "current-tubes") or 0
        names = self._stock_tubes(max(total, len(self._names), 1))
        if not names:
            self._end_stock_round()
        return [f"stats-tube {name}" for name in names]

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
