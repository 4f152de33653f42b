"""The view state of `beanstalk top`: order, prefix, selection and mode, changed by keys."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from beanstalk_client.cli.top_keys import BACKSPACE, ENTER, ESCAPE
from beanstalk_client.observe.samples import COLUMNS, SORT_KEYS, Figures, Samples, Tube
from beanstalk_client.replies import is_name

LISTED: Final = 1000
"""Maximum number of tubes to scroll through: the first ones in the chosen order."""

HELP: Final = {
    "arrows, pages, home, end": "move the selection",
    **{key: f"sort by {column}" for key, column in SORT_KEYS.items()},
    "left, right, <, >": "sort by the column to the left or right",
    "!, the same column again": "reverse the order",
    "/": "only tubes with a prefix",
    "enter": "show the jobs of the tube",
    "space, ctrl-l": "refresh now",
    "?, h": "this help",
    "escape": "back",
    "q, ctrl-d, ctrl-c": "quit",
}
"""What keys do, for the help."""


class Mode(Enum):
    """What the screen shows."""

    TUBES = auto()
    PREFIX = auto()
    """The tubes, while a prefix is typed."""
    JOBS = auto()
    """The jobs of one tube."""
    HELP = auto()


class Action(Enum):
    """What a key asks the program to do."""

    QUIT = auto()
    SAMPLE = auto()
    FETCH = auto()
    """Fetch the jobs of the tube that is shown."""


@dataclass(frozen=True)
class JobsOfTube:
    """The first jobs of a tube, as the server describes them, and some bodies by job id.

    Attributes:
        moment: when they were fetched, in seconds.
        error: why they could not be fetched, or "".
        percentiles, ages: as of `observe.samples`.
    """

    name: str
    moment: float
    jobs: Sequence[Figures] = ()
    bodies: Mapping[int, bytes] = field(default_factory=dict)
    error: str = ""
    percentiles: Mapping[str, list[float]] = field(default_factory=dict)
    ages: Mapping[str, float] = field(default_factory=dict)


class View:
    """The state of the screen.

    Attributes:
        sort: a column of COLUMNS. backwards: against its usual order.
        prefix: only tubes with this prefix are shown.
        ranked: the names of the tubes, in order, at most LISTED. matching: how many tubes have the prefix.
        selected: the index of the selected tube in `ranked`.
        top: the index of the first visible tube. room: the number of lines for tubes.
        message: an answer to the last key, or "".
        tube: the tube whose jobs are shown. jobs: its jobs, or None while they are fetched. jobs_top: the first
            visible one.
    """

    def __init__(self, samples: Samples, sort: str = "ready", prefix: str = "") -> None:
        self._samples = samples
        self._followed = ""  # the name that the selection follows, once a key has moved it
        self.sort: str = sort
        self.backwards: bool = False
        self.prefix: str = prefix
        self.mode: Mode = Mode.TUBES
        self.ranked: list[str] = []
        self.matching: int = 0
        self.selected: int = 0
        self.top: int = 0
        self.room: int = 1
        self.message: str = ""
        self.tube: str = ""
        self.jobs: JobsOfTube | None = None
        self.jobs_top: int = 0

    def rank(self) -> None:
        """Put the tubes in order. The selection stays on its tube, or on its line if the tube is gone."""
        tubes = [tube for name, tube in self._samples.tubes.items() if name.startswith(self.prefix)]
        self.matching = len(tubes)
        value = COLUMNS[self.sort]
        sign = 1 if self.backwards else -1

        def order(tube: Tube) -> tuple[bool, float, str]:
            figure = value(tube)
            return figure is None, sign * (figure or 0), tube.name

        if self.sort == "tube" and self.backwards:
            self.ranked = heapq.nlargest(LISTED, (tube.name for tube in tubes))
        else:
            self.ranked = [tube.name for tube in heapq.nsmallest(LISTED, tubes, key=order)]
        if self._followed in self.ranked:
            self.selected = self.ranked.index(self._followed)
        else:
            self._followed = ""
        self._scroll()

    def fit(self, room: int) -> None:
        """Set the number of lines for tubes."""
        self.room = max(room, 1)
        self._scroll()

    @property
    def visible(self) -> list[str]:
        """The names of the tubes on the screen."""
        return self.ranked[self.top : self.top + self.room]

    @property
    def selected_name(self) -> str:
        """The selected tube, or "" if there are none."""
        return self.ranked[self.selected] if self.ranked else ""

    def press(self, key: str) -> Action | None:
        """Take a key; return what the program has to do."""
        self.message = ""
        if self.mode is Mode.PREFIX:
            self._type(key)
        elif self.mode is Mode.HELP:
            self.mode = Mode.TUBES
        elif steps := self._steps(key):
            self._move(steps)
        else:
            return self._act_among_jobs(key) if self.mode is Mode.JOBS else self._act(key)
        return None

    def show_jobs(self, jobs: JobsOfTube) -> None:
        """Take fetched jobs, if their tube is still shown."""
        if self.mode is Mode.JOBS and jobs.name == self.tube:
            self.jobs = jobs

    def _act(self, key: str) -> Action | None:
        """Take a key while nothing is typed; HELP describes them."""
        if key in SORT_KEYS:
            self._sort_by(SORT_KEYS[key])
        match key:
            case "left" | "<" | "right" | ">":
                columns = list(COLUMNS)
                step = -1 if key in ("left", "<") else 1
                self._sort_by(columns[(columns.index(self.sort) + step) % len(columns)])
            case "!":
                self._sort_by(self.sort)
            case "/":
                self.mode = Mode.PREFIX
            case "?" | "h":
                self.mode = Mode.HELP
            case "enter" if not self.ranked:
                self.message = "no tube is selected"
            case "enter":
                self.mode, self.tube, self.jobs, self.jobs_top = Mode.JOBS, self.selected_name, None, 0
                return Action.FETCH
            case " " | "ctrl-l":
                return Action.SAMPLE
            case "escape":
                self._filter("")
            case "q" | "ctrl-d":
                return Action.QUIT
        return None

    def _act_among_jobs(self, key: str) -> Action | None:
        if key in ("enter", " ", "ctrl-l"):
            return Action.FETCH
        if key in ("escape", "q", "ctrl-d"):
            self.mode, self.jobs = Mode.TUBES, None
        return None

    def _type(self, key: str) -> None:
        """Take a key of a prefix, which takes effect at once."""
        if key in (ENTER, ESCAPE):
            self.mode = Mode.TUBES
        if key in (ESCAPE, "ctrl-u"):
            self._filter("")
        elif key == BACKSPACE:
            self._filter(self.prefix[:-1])
        elif len(key) == 1 and is_name(self.prefix + key):
            self._filter(self.prefix + key)
        elif len(key) == 1:
            self.message = "no tube has this prefix"

    def _steps(self, key: str) -> int:
        """The lines to move by; 0 if the key is for something else."""
        moves = {"up": -1, "down": 1, "page-up": -self.room, "page-down": self.room, "home": -LISTED, "end": LISTED}
        return moves.get(key, 0)

    def _move(self, steps: int) -> None:
        if self.mode is Mode.JOBS:
            self.jobs_top = max(min(self.jobs_top + steps, len(self.jobs.jobs) - 1 if self.jobs else 0), 0)
            return
        self.selected += steps
        self._scroll()
        self._followed = self.selected_name

    def _sort_by(self, column: str) -> None:
        self.backwards = column == self.sort and not self.backwards
        self.sort = column
        self._rank_anew()

    def _filter(self, prefix: str) -> None:
        if prefix != self.prefix:
            self.prefix = prefix
            self._rank_anew()

    def _rank_anew(self) -> None:
        """Rank in another order, or other tubes: from the top."""
        self._followed, self.selected, self.top = "", 0, 0
        self.rank()

    def _scroll(self) -> None:
        """Keep the selection in range and on the screen."""
        self.selected = max(min(self.selected, len(self.ranked) - 1), 0)
        self.top = max(min(self.top, len(self.ranked) - self.room), 0)
        self.top = min(self.top, self.selected)
        self.top = max(self.top, self.selected - self.room + 1)
