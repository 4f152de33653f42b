"""What the person at `beanstalk top` has chosen to see: order, prefix, selection, and what is on the screen in front.

A key changes it, and may be an order: something that has to be done elsewhere. As long as no one has moved the
selection, it is on whichever tube comes first, and that may change between a look and a key: so everything that changes
a tube asks then, and names it.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from beanstalk_client.cli.top_keys import BACKSPACE, BINDINGS, ENTER, ESCAPE, Action, SortBy
from beanstalk_client.cli.top_samples import (
    BURIED,
    DELAYED,
    READY,
    RESERVED,
    WAITING,
    Samples,
    TubeSamples,
)

LISTED: Final = 1000
"""How many tubes can be scrolled through: the first ones by the order that was chosen."""

PAUSE: Final = 3600
"""For how many seconds a tube is paused."""

PREFIX: Final = r"([A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199})?"
"""What may be typed as a prefix: the beginning of a tube's name, or nothing."""

Value = float | str | None

COLUMNS: Final[Mapping[str, Callable[[TubeSamples], Value]]] = {
    "tube": lambda tube: tube.name,
    "ready": lambda tube: tube.figures[READY],
    "reserved": lambda tube: tube.figures[RESERVED],
    "delayed": lambda tube: tube.figures[DELAYED],
    "buried": lambda tube: tube.figures[BURIED],
    "in": lambda tube: tube.puts,
    "out": lambda tube: tube.deletes,
    "growth": lambda tube: tube.growth,
    "age": lambda tube: tube.next_age,
    "waiting": lambda tube: tube.figures[WAITING],
}
"""What can be sorted by, from left to right. Names ascend; of all others, the largest come first."""


class Mode(Enum):
    """What is on the screen in front."""

    TUBES = "the tubes"
    PREFIX = "the tubes, and a prefix is being typed"
    QUESTION = "the tubes, and a question"
    JOBS = "the jobs of one tube"
    HELP = "the keys"


@dataclass(frozen=True, slots=True)
class PauseTube:
    """Pause a tube for this many seconds; 0 resumes it."""

    name: str
    seconds: int


@dataclass(frozen=True, slots=True)
class KickJobs:
    """Kick this many jobs of a tube."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ClearTube:
    """Delete the jobs of a tube."""

    name: str


@dataclass(frozen=True, slots=True)
class LookInto:
    """Fetch the first jobs of a tube."""

    name: str


class Ask(Enum):
    """Orders that concern no tube."""

    REFRESH = "sample now"
    REDRAW = "draw everything anew"
    QUIT = "end"


Order = PauseTube | KickJobs | ClearTube | LookInto | Ask


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before something is done.

    Attributes:
        order: what is done if the answer is this key, and not if it is any other.
    """

    text: str
    key: str
    order: Order


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as a tube is looked into; None is what the server does not say."""

    id: int
    state: str
    priority: int | None = None
    age: int | None = None
    delay: int | None = None
    ttr: int | None = None
    time_left: int | None = None
    size: int | None = None
    reserves: int | None = None
    reason: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class JobsOfTube:
    """The first jobs of a tube, and the bodies of some of them by id.

    Attributes:
        moment: when they were fetched, in seconds.
        error: why they could not be, or "".
    """

    name: str
    moment: float
    jobs: Sequence[JobRow] = ()
    bodies: Mapping[int, bytes] = ()  # type: ignore[assignment]
    error: str = ""


class View:
    """What is to be seen.

    Attributes:
        sort: a column of COLUMNS; backwards: whether against its usual order.
        prefix: only tubes whose names begin so.
        typed: what is being typed.
        ranked: the names of the tubes, in order, at most LISTED.
        matching: of how many these are the first.
        selected: the index of the selected one.
        top: the index of the first one on the screen; room: how many there are at most.
        message: what was said last: the outcome of an order, or "".
        jobs: the tube that is looked into; None while it is fetched.
    """

    __slots__ = (
        "_chosen",
        "backwards",
        "jobs",
        "jobs_top",
        "looked_into",
        "matching",
        "message",
        "mode",
        "prefix",
        "question",
        "ranked",
        "room",
        "selected",
        "sort",
        "top",
        "typed",
    )

    def __init__(self, sort: str = "ready", prefix: str = "") -> None:
        self.sort: str = sort
        self.backwards: bool = False
        self.prefix: str = prefix
        self.mode: Mode = Mode.TUBES
        self.typed: str = ""
        self.question: Question | None = None
        self.ranked: list[str] = []
        self.matching: int = 0
        self.selected: int = 0
        self._chosen: str | None = None  # the name that the selection follows, once somebody has moved it
        self.top: int = 0
        self.room: int = 1
        self.message: str = ""
        self.looked_into: str = ""
        self.jobs: JobsOfTube | None = None
        self.jobs_top: int = 0

    def rank(self, samples: Samples) -> None:
        """Put the tubes in order; the selection stays on its tube, or where it was if that has gone."""
        tubes = [tube for name, tube in samples.tubes.items() if name.startswith(self.prefix)]
        self.matching = len(tubes)
        value = COLUMNS[self.sort]
        known = [tube for tube in tubes if value(tube) is not None]
        down = (self.sort != "tube") != self.backwards

        def order(tube: TubeSamples) -> tuple[float, str]:
            found = value(tube)
            return (-found if down else found, tube.name) if isinstance(found, (int, float)) else (0, tube.name)

        if self.sort == "tube" and down:
            names = heapq.nlargest(LISTED, (tube.name for tube in known))
        else:
            names = [tube.name for tube in heapq.nsmallest(LISTED, known, key=order)]
        if len(names) < LISTED and len(known) < len(tubes):
            unknown = (tube.name for tube in tubes if value(tube) is None)
            names += heapq.nsmallest(LISTED - len(names), unknown)
        self.ranked = names
        if self._chosen is not None:
            if self._chosen in names:
                self.selected = names.index(self._chosen)
            else:
                self._chosen = None
        self._scroll()

    def fit(self, room: int) -> None:
        """The screen has room for this many tubes."""
        self.room = max(room, 1)
        self._scroll()

    @property
    def visible(self) -> list[str]:
        """The names of the tubes on the screen."""
        return self.ranked[self.top : self.top + self.room]

    @property
    def selected_name(self) -> str | None:
        """The selected tube, or None if there are none."""
        return self.ranked[self.selected] if self.ranked else None

    def press(self, key: str, samples: Samples) -> Order | None:
        """Take a key; return what has to be done elsewhere."""
        self.message = ""
        if key == "ctrl-c":
            return Ask.QUIT
        match self.mode:
            case Mode.PREFIX:
                return self._type(key, samples)
            case Mode.QUESTION:
                return self._answer(key)
        action = BINDINGS.get(key)
        if action is Action.REDRAW:
            return Ask.REDRAW
        match self.mode:
            case Mode.HELP:
                self.mode = Mode.TUBES
                return None
            case Mode.JOBS:
                return self._press_among_jobs(action)
            case _:
                return self._press_among_tubes(action, samples)

    def show_jobs(self, jobs: JobsOfTube) -> None:
        """The jobs of a tube have been fetched: they are shown if they are still wanted."""
        if self.mode is Mode.JOBS and jobs.name == self.looked_into:
            self.jobs = jobs

    def _press_among_tubes(self, action: Action | SortBy | None, samples: Samples) -> Order | None:
        if isinstance(action, SortBy):
            self._sort_by(action.column, samples)
            return None
        name = self.selected_name
        match action:
            case Action.UP | Action.DOWN | Action.PAGE_UP | Action.PAGE_DOWN | Action.FIRST | Action.LAST:
                self._move(action)
            case Action.SORT_LEFT | Action.SORT_RIGHT:
                columns = list(COLUMNS)
                step = 1 if action is Action.SORT_RIGHT else -1
                self._sort_by(columns[(columns.index(self.sort) + step) % len(columns)], samples)
            case Action.REVERSE:
                self._sort_by(self.sort, samples)
            case Action.FILTER:
                self.mode, self.typed = Mode.PREFIX, self.prefix
            case Action.BACK if self.prefix:
                self._filter("", samples)
            case Action.HELP:
                self.mode = Mode.HELP
            case Action.REFRESH:
                return Ask.REFRESH
            case Action.QUIT:
                return Ask.QUIT
            case Action.LOOK | Action.PAUSE | Action.KICK | Action.CLEAR if name is None:
                self.message = "no tube is selected"
            case Action.LOOK | Action.PAUSE | Action.KICK | Action.CLEAR if name is not None:
                return self._order(action, samples.tubes.get(name), name)
        return None

    def _order(self, action: Action, tube: TubeSamples | None, name: str) -> Order | None:
        """What an action on the selected tube comes to: an order, or a question before it."""
        figures = tube.figures if tube else None
        if action is Action.LOOK:
            self.mode, self.looked_into, self.jobs, self.jobs_top = Mode.JOBS, name, None, 0
            return LookInto(name)
        if figures is None or tube is None:
            self.message = f"{name} has gone"
        elif action is Action.PAUSE:
            pause = PauseTube(name, 0 if tube.is_paused else PAUSE)
            if self._chosen == name:
                return pause
            self._ask(f"{'Pause' if pause.seconds else 'Resume'} {name}? y does it.", "y", pause)
        elif action is Action.CLEAR:
            self._ask_to_clear(name, sum(figures[which] or 0 for which in (READY, DELAYED, BURIED)))
        elif count := figures[BURIED] or figures[DELAYED] or 0:
            state = "buried" if figures[BURIED] else "delayed"
            self._ask(f"Kick the {jobs(count, state)} of {name}? y kicks.", "y", KickJobs(name, count))
        else:
            self.message = f"{name} has no buried and no delayed jobs to kick"
        return None

    def _ask_to_clear(self, name: str, count: int) -> None:
        if count:
            text = f"Delete the {jobs(count)} of {name} that no one has reserved? Y (a capital) deletes them."
            self._ask(text, "Y", ClearTube(name))
        else:
            self.message = f"{name} has no jobs to delete but those that are reserved"

    def _ask(self, text: str, key: str, order: Order) -> None:
        self.mode, self.question = Mode.QUESTION, Question(text, key, order)

    def _answer(self, key: str) -> Order | None:
        question, self.question, self.mode = self.question, None, Mode.TUBES
        if question is not None and key == question.key:
            return question.order
        self.message = "nothing was done"
        return None

    def _type(self, key: str, samples: Samples) -> Order | None:
        """A prefix is being typed: it takes effect at once, so that one sees what it finds."""
        match key:
            case _ if key == ENTER:
                self.mode = Mode.TUBES
            case _ if key == ESCAPE:
                self.mode = Mode.TUBES
                self._filter("", samples)
            case _ if key == BACKSPACE:
                self.typed = self.typed[:-1]
                self._filter(self.typed, samples)
            case "ctrl-u":
                self.typed = ""
                self._filter("", samples)
            case _ if len(key) == 1 and re.fullmatch(PREFIX, self.typed + key):
                self.typed += key
                self._filter(self.typed, samples)
            case _:
                self.message = "no name of a tube begins so" if len(key) == 1 else ""
        return None

    def _press_among_jobs(self, action: Action | SortBy | None) -> Order | None:
        match action:
            case Action.BACK | Action.QUIT:
                self.mode, self.jobs = Mode.TUBES, None
            case Action.REFRESH | Action.LOOK:
                return LookInto(self.looked_into)
            case Action.UP:
                self.jobs_top = max(self.jobs_top - 1, 0)
            case Action.DOWN:
                self.jobs_top += 1
            case Action.PAGE_UP:
                self.jobs_top = max(self.jobs_top - self.room, 0)
            case Action.PAGE_DOWN:
                self.jobs_top += self.room
            case Action.FIRST:
                self.jobs_top = 0
        if self.jobs is not None:
            self.jobs_top = max(min(self.jobs_top, len(self.jobs.jobs) - 1), 0)
        return None

    def _sort_by(self, column: str, samples: Samples) -> None:
        self.backwards = column == self.sort and not self.backwards
        self.sort = column
        self._again(samples)

    def _filter(self, prefix: str, samples: Samples) -> None:
        self.prefix = prefix
        self._again(samples)

    def _again(self, samples: Samples) -> None:
        """Another order, or other tubes: from the top."""
        self._chosen, self.selected, self.top = None, 0, 0
        self.rank(samples)

    def _move(self, action: Action) -> None:
        last = max(len(self.ranked) - 1, 0)
        steps = {
            Action.UP: -1,
            Action.DOWN: 1,
            Action.PAGE_UP: -self.room,
            Action.PAGE_DOWN: self.room,
            Action.FIRST: -last,
            Action.LAST: last,
        }
        self.selected = max(min(self.selected + steps[action], last), 0)
        self._chosen = self.selected_name
        self._scroll()

    def _scroll(self) -> None:
        """The selection exists, and is on the screen."""
        self.selected = max(min(self.selected, len(self.ranked) - 1), 0)
        self.top = max(min(self.top, len(self.ranked) - self.room), 0)
        self.top = min(self.top, self.selected)
        self.top = max(self.top, self.selected - self.room + 1)


def jobs(count: int, state: str = "") -> str:
    """A number of jobs, in words."""
    return f"{count:,} {state + ' ' if state else ''}job{'' if count == 1 else 's'}"
