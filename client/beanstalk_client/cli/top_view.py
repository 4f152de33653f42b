"""What the person at `beanstalk top` has chosen to see: order, prefix, selection, and what is on the screen in front.

A key changes it, and may be an order: something that has to be done elsewhere. As long as no one has moved the
selection, it is on whichever tube comes first, and that may change between a look and a key: so everything that changes
a tube asks then, and names it.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from beanstalk_client.cli.top_samples import (
    BURIED,
    COLUMNS,
    DELAYED,
    PAUSE_LEFT,
    READY,
    SORT_KEYS,
    Figures,
    Samples,
    Tube,
)
from beanstalk_client.cli.top_terminal import BACKSPACE, ENTER, ESCAPE

LISTED: Final = 1000
"""How many tubes can be scrolled through: the first ones by the order that was chosen."""

PAUSE: Final = 3600
"""For how many seconds a tube is paused."""

PREFIX: Final = r"([A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199})?"
"""What may be typed as a prefix: the beginning of a tube's name, or nothing."""


class Mode(Enum):
    """What is on the screen in front."""

    TUBES = auto()
    PREFIX = auto()
    """The tubes, and a prefix is being typed."""
    QUESTION = auto()
    """The tubes, and a question."""
    JOBS = auto()
    """The jobs of one tube."""
    HELP = auto()


class Order(NamedTuple):
    """What has to be done elsewhere.

    Attributes:
        act: "pause" for `number` seconds (0 resumes), "kick" `number` jobs, "clear" or "look" into the tube `name`;
            "refresh", "redraw" or "quit".
    """

    act: str
    name: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class JobsOfTube:
    """The first jobs of a tube as the server describes them, and the bodies of some of them by id.

    Attributes:
        moment: when they were fetched, in seconds.
        error: why they could not be, or "".
        percentiles: how long the latest jobs of the tube waited and ran and how late they were, if it measures that.
    """

    name: str
    moment: float
    jobs: Sequence[Figures] = ()
    bodies: Mapping[int, bytes] = field(default_factory=dict)
    error: str = ""
    percentiles: str = ""


class View:
    """What is to be seen.

    Attributes:
        sort: a column of COLUMNS; backwards: whether against its usual order.
        prefix: only tubes whose names begin so.
        question: what is asked, the key that is the answer, and what is ordered then.
        ranked: the names of the tubes, in order, at most LISTED.
        matching: of how many these are the first.
        selected: the index of the selected one.
        top: the index of the first one on the screen; room: how many there are at most.
        message: what was said last: the outcome of an order, or "".
        jobs: the tube that is looked into; None while it is fetched.
    """

    def __init__(self, samples: Samples, sort: str = "ready", prefix: str = "") -> None:
        self._samples = samples
        self._chosen: str | None = None  # the name that the selection follows, once somebody has moved it
        self.sort: str = sort
        self.backwards: bool = False
        self.prefix: str = prefix
        self.mode: Mode = Mode.TUBES
        self.question: tuple[str, str, Order] | None = None
        self.ranked: list[str] = []
        self.matching: int = 0
        self.selected: int = 0
        self.top: int = 0
        self.room: int = 1
        self.message: str = ""
        self.looked_into: str = ""
        self.jobs: JobsOfTube | None = None
        self.jobs_top: int = 0

    def rank(self) -> None:
        """Put the tubes in order; the selection stays on its tube, or where it was if that has gone."""
        tubes = [tube for name, tube in self._samples.tubes.items() if name.startswith(self.prefix)]
        self.matching = len(tubes)
        value = COLUMNS[self.sort]
        known = [tube for tube in tubes if value(tube) is not None]
        down = (self.sort != "tube") != self.backwards

        def order(tube: Tube) -> tuple[float, str]:
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
        if self._chosen is not None and self._chosen in names:
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

    def press(self, key: str) -> Order | None:
        """Take a key; return what has to be done elsewhere."""
        self.message = ""
        if key == "ctrl-c":
            return Order("quit")
        if self.mode is Mode.PREFIX:
            self._type(key)
            return None
        if self.mode is Mode.QUESTION:
            return self._answer(key)
        if key == "ctrl-l":
            return Order("redraw")
        if self.mode is Mode.HELP:
            self.mode = Mode.TUBES
        elif (binding := BINDINGS.get(key)) and (binding.among_jobs or self.mode is Mode.TUBES):
            return binding.act(self)
        return None

    def show_jobs(self, jobs: JobsOfTube) -> None:
        """The jobs of a tube have been fetched: they are shown if they are still wanted."""
        if self.mode is Mode.JOBS and jobs.name == self.looked_into:
            self.jobs = jobs

    def _type(self, key: str) -> None:
        """A prefix is being typed: it takes effect at once, so that one sees what it finds."""
        if key in (ENTER, ESCAPE):
            self.mode = Mode.TUBES
        if key in (ESCAPE, "ctrl-u"):
            self._filter("")
        elif key == BACKSPACE:
            self._filter(self.prefix[:-1])
        elif len(key) == 1 and re.fullmatch(PREFIX, self.prefix + key):
            self._filter(self.prefix + key)
        elif len(key) == 1:
            self.message = "no name of a tube begins so"

    def _answer(self, key: str) -> Order | None:
        question, self.question, self.mode = self.question, None, Mode.TUBES
        if question is not None and key == question[1]:
            return question[2]
        self.message = "nothing was done"
        return None

    # What the keys do (BINDINGS)

    def _begin_prefix(self) -> None:
        self.mode = Mode.PREFIX

    def _show_help(self) -> None:
        self.mode = Mode.HELP

    def _refresh(self) -> Order:
        return Order("look", self.looked_into) if self.mode is Mode.JOBS else Order("refresh")

    def _quit(self) -> Order | None:
        if self.mode is not Mode.JOBS:
            return Order("quit")
        self.mode, self.jobs = Mode.TUBES, None
        return None

    def _back(self) -> None:
        if self.mode is Mode.JOBS:
            self._quit()
        elif self.prefix:
            self._filter("")

    def _move(self, steps: int) -> None:
        if self.mode is Mode.JOBS:
            self.jobs_top = max(min(self.jobs_top + steps, len(self.jobs.jobs) - 1 if self.jobs else 0), 0)
            return
        self.selected += steps
        self._scroll()
        self._chosen = self.selected_name

    def _sort_beside(self, step: int) -> None:
        columns = list(COLUMNS)
        self._sort_by(columns[(columns.index(self.sort) + step) % len(columns)])

    def _sort_by(self, column: str) -> None:
        self.backwards = column == self.sort and not self.backwards
        self.sort = column
        self._rank_anew()

    def _filter(self, prefix: str) -> None:
        self.prefix = prefix
        self._rank_anew()

    def _rank_anew(self) -> None:
        """Another order, or other tubes: from the top."""
        self._chosen, self.selected, self.top = None, 0, 0
        self.rank()

    def _scroll(self) -> None:
        """The selection exists, and is on the screen."""
        self.selected = max(min(self.selected, len(self.ranked) - 1), 0)
        self.top = max(min(self.top, len(self.ranked) - self.room), 0)
        self.top = min(self.top, self.selected)
        self.top = max(self.top, self.selected - self.room + 1)

    def _look(self) -> Order | None:
        if self.mode is Mode.JOBS:
            return self._refresh()
        name = self.selected_name
        if name is None:
            self.message = "no tube is selected"
            return None
        self.mode, self.looked_into, self.jobs, self.jobs_top = Mode.JOBS, name, None, 0
        return Order("look", name)

    def _selected_tube(self) -> Tube | None:
        """The selected tube, if there is one; otherwise say so."""
        name = self.selected_name
        tube = self._samples.tubes.get(name) if name else None
        if tube is None:
            self.message = f"{name} has gone" if name else "no tube is selected"
        return tube

    def _pause(self) -> Order | None:
        if (tube := self._selected_tube()) is None:
            return None
        pause = Order("pause", tube.name, 0 if tube.figures[PAUSE_LEFT] else PAUSE)
        if self._chosen == tube.name:
            return pause
        self._ask(f"{'Pause' if pause.number else 'Resume'} {tube.name}? y does it.", "y", pause)
        return None

    def _kick(self) -> None:
        if (tube := self._selected_tube()) is None:
            return
        buried, delayed = tube.figures[BURIED] or 0, tube.figures[DELAYED] or 0
        if count := buried or delayed:
            words = jobs(count, "buried" if buried else "delayed")
            self._ask(f"Kick the {words} of {tube.name}? y kicks.", "y", Order("kick", tube.name, count))
        else:
            self.message = f"{tube.name} has no buried and no delayed jobs to kick"

    def _clear(self) -> None:
        if (tube := self._selected_tube()) is None:
            return
        if count := sum(tube.figures[which] or 0 for which in (READY, DELAYED, BURIED)):
            text = f"Delete the {jobs(count)} of {tube.name} that no one has reserved? Y (a capital) deletes them."
            self._ask(text, "Y", Order("clear", tube.name))
        else:
            self.message = f"{tube.name} has no jobs to delete but those that are reserved"

    def _ask(self, text: str, key: str, order: Order) -> None:
        self.mode, self.question = Mode.QUESTION, (text, key, order)


class Binding(NamedTuple):
    """What keys do.

    Attributes:
        keys: separated by spaces; "space" is the space bar.
        among_jobs: whether also while a tube is looked into.
    """

    keys: str
    meaning: str
    act: Callable[[View], Order | None]
    among_jobs: bool = False


def _sorting(column: str) -> Callable[[View], None]:
    return lambda view: view._sort_by(column)


KEYS: Final = (
    Binding("up", "one up", lambda view: view._move(-1), True),
    Binding("down", "one down", lambda view: view._move(1), True),
    Binding("page-up", "a page up", lambda view: view._move(-view.room), True),
    Binding("page-down", "a page down", lambda view: view._move(view.room), True),
    Binding("home", "to the first", lambda view: view._move(-LISTED), True),
    Binding("end", "to the last", lambda view: view._move(LISTED), True),
    Binding("left <", "sort by the column to the left", lambda view: view._sort_beside(-1)),
    Binding("right >", "sort by the column to the right", lambda view: view._sort_beside(1)),
    Binding("!", "reverse the order", lambda view: view._sort_by(view.sort)),
    Binding("/", "only tubes whose names begin so", View._begin_prefix),
    Binding(ENTER, "look into the tube", View._look, True),
    Binding("P", "pause the tube, or resume it", View._pause),
    Binding("K", "kick its buried jobs, or its delayed ones (asks)", View._kick),
    Binding("C", "delete all its jobs (asks)", View._clear),
    Binding("space", "sample now", View._refresh, True),
    Binding("ctrl-l", "draw everything anew", lambda _: Order("redraw"), True),
    Binding("? h", "this help", View._show_help),
    Binding(ESCAPE, "back", View._back, True),
    Binding("q ctrl-c ctrl-d", "quit", View._quit, True),
)
"""What keys do where nothing is typed. Capital letters change something at the server."""

BINDINGS: Final[Mapping[str, Binding]] = {
    **{" " if key == "space" else key: binding for binding in KEYS for key in binding.keys.split()},
    **{key: Binding(key, column, _sorting(column)) for key, column in SORT_KEYS.items()},
}
"""The same by key, and those that sort."""


def jobs(count: int, state: str = "") -> str:
    """A number of jobs, in words."""
    return f"{count:,} {state + ' ' if state else ''}job{'' if count == 1 else 's'}"
