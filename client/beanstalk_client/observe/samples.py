"""Samples of a server and its tubes, and the rates between two samples.

Two values of a counter make a rate; two values of a figure make a trend. An unknown value is None, never 0:

    a key that the server does not send (stock beanstalkd)     no figure, and no rate from it
    a first sample                                              no rate yet
    a second sample within SHORTEST                             its figures, and the rates of the samples before
    a counter that has gone back                                the tube was deleted and created again: no rate
    another `id`, or an `uptime` that has gone back             the server has restarted: no rates, and all tubes are
                                                                removed
    a deleted tube                                              removed at once if it was asked for by its name, else
                                                                after a whole round without it

Of each tube, the latest sample and its rates are kept: some 400 bytes. Moments are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

Figures: TypeAlias = Mapping[str, Any]
"""A reply to stats or stats-tube: keys, and values as numbers or text."""

SHORTEST: Final = 0.05
"""The shortest time between two samples that makes a rate, in seconds: a late reply distorts a shorter one."""

STATES: Final = ("ready", "reserved", "delayed", "buried")

TUBE_FIGURES: Final = {
    **{name: f"current-jobs-{name}" for name in ("urgent", *STATES)},
    **{name: f"current-{name}" for name in ("using", "watching", "waiting")},
    "total": "total-jobs",
    "pause_left": "pause-time-left",
    "deleted": "cmd-delete",
}
"""The attributes of a Tube, and their keys in stats-tube."""

COMMANDS: Final = "commands"
"""The rate of all commands, from every counter whose key begins with `cmd-`."""

CPU: Final = "cpu"
"""The share of a processor that the server uses: 1.0 is one processor."""

SERVER_COUNTERS: Final[Mapping[str, Sequence[str]]] = {
    "puts": ("total-jobs",),
    "reserves": ("cmd-reserve", "cmd-reserve-with-timeout", "cmd-reserve-job", "cmd-reserve-batch"),
    "deletes": ("cmd-delete",),
    "timeouts": ("job-timeouts",),
    "connections": ("total-connections",),
    COMMANDS: (),
    CPU: ("rusage-utime", "rusage-stime"),
}
"""The rates of a server, and the counters that each is the sum of, as far as the server has them."""

LARGEST: Final = 2**64
"""No figure of a server reaches this: a value that does is treated as missing."""


@dataclass(slots=True, eq=False, repr=False)
class Tube:
    """A tube: its latest sample, and what follows from it and the one before. Unknown figures are None.

    Attributes:
        moment: when it was sampled.
        puts, deletes: the rates, a second.
        growth: by how many ready jobs a second the tube grows; below 0, it shrinks.
        next_age: how many seconds ago the job was put that goes next, when that was asked last.
        round: in which round it was seen last.
    """

    name: str
    moment: float
    figures: InitVar[Figures]
    round: int
    urgent: int | None = None
    ready: int | None = None
    reserved: int | None = None
    delayed: int | None = None
    buried: int | None = None
    using: int | None = None
    watching: int | None = None
    waiting: int | None = None
    total: int | None = None
    pause_left: int | None = None
    deleted: int | None = None
    puts: float | None = None
    deletes: float | None = None
    growth: float | None = None
    next_age: int | None = None
    _base: tuple[int | None, ...] = (None, None, None)  # the figures that the next rates begin with
    _based: float = -math.inf  # and their moment

    def __post_init__(self, figures: Figures) -> None:
        self.take(self.moment, figures, self.round)

    def age(self, now: float) -> float:
        """Seconds since it was sampled."""
        return max(now - self.moment, 0.0)

    def take(self, moment: float, figures: Figures, round_: int) -> None:
        """Take a newer sample."""
        self.moment, self.round = max(moment, self.moment), round_
        for name, key in TUBE_FIGURES.items():
            setattr(self, name, number(figures, key))
        if not self.ready:
            self.next_age = None
        seconds = moment - self._based
        if seconds >= SHORTEST:
            counts = (self.total, self.deleted, self.ready)
            changes = [_change(before, after, seconds) for before, after in zip(self._base, counts, strict=True)]
            if any(change is not None and change < 0 for change in changes[:2]):
                changes = [None] * 3
            self.puts, self.deletes, self.growth = changes
            self._base, self._based = counts, moment


COLUMNS: Final[Mapping[str, Callable[[Tube], float | None]]] = {
    "tube": lambda _: 0,  # equal figures are in the order of the names
    **{state: attrgetter(state) for state in STATES},
    "in": attrgetter("puts"),
    "out": attrgetter("deletes"),
    "growth": attrgetter("growth"),
    "age": attrgetter("next_age"),
    "waiting": attrgetter("waiting"),
}
"""The sort columns, from left to right. Names ascend; of all others, the largest come first."""

SORT_KEYS: Final = dict(zip("trvdbiogaw", COLUMNS, strict=True))
"""Which key sorts by which column."""


class Samples:
    """All that has been sampled of one server.

    Attributes:
        tubes: by name.
        figures: what the server has said of itself.
        rates: a second, by the names of SERVER_COUNTERS; those that are known.
    """

    def __init__(self) -> None:
        self._round = 0
        self._moment: float | None = None
        self._base: Figures = {}  # the figures that the next rates begin with, and their moment
        self._based = 0.0
        self.tubes: dict[str, Tube] = {}
        self.figures: Figures = {}
        self.rates: dict[str, float] = {}

    def age(self, now: float) -> float | None:
        """Seconds since the server was sampled; None if it has never been."""
        return None if self._moment is None else max(now - self._moment, 0.0)

    def number(self, key: str) -> int | None:
        """A figure of the server as a number, or None if the server has not sent it."""
        return number(self.figures, key)

    def take_server(self, moment: float, figures: Figures) -> None:
        """Take a reply to stats."""
        restarted = _restarted(self.figures, figures)
        self._moment = max(moment, self._moment or moment)
        self.figures = figures
        if restarted:
            self.tubes.clear()
            self.rates = {}
        elif self._base:
            if moment - self._based < SHORTEST:
                return
            self.rates = _rates(self._base, figures, moment - self._based)
        self._base, self._based = figures, moment

    def take_tube(self, moment: float, name: str, figures: Figures) -> None:
        """Take a reply to stats-tube, or an entry of one to stats-tubes."""
        if tube := self.tubes.get(name):
            tube.take(moment, figures, self._round)
        else:
            self.tubes[name] = Tube(name, moment, figures, self._round)

    def end_round(self, prefix: str) -> None:
        """End a round of the tubes with this prefix: remove those that were not seen in it."""
        gone = [name for name, tube in self.tubes.items() if tube.round != self._round and name.startswith(prefix)]
        for name in gone:
            del self.tubes[name]
        self._round += 1

    def oldest(self, prefix: str, now: float) -> float:
        """The age of the oldest sample of a tube with this prefix, in seconds; 0.0 if there is none."""
        return max((now - tube.moment for name, tube in self.tubes.items() if name.startswith(prefix)), default=0.0)


def number(figures: Figures, key: str) -> int | None:
    """A figure as a number, or None if it is missing or is none."""
    try:
        value = int(figures[key])
    except (KeyError, ValueError):
        return None
    return value if abs(value) < LARGEST else None


def percentiles(figures: Figures) -> dict[str, list[float]]:
    """The 50th, 95th and 99th percentile of how long the latest jobs of a tube waited and ran and how late they were,
    in seconds; {} unless its policy measures them.
    """
    if "wait-p50" not in figures:
        return {}
    measured = {"waited": "wait", "ran": "run", "late": "lateness"}
    return {text: [float(figures[f"{key}-p{share}"]) for share in (50, 95, 99)] for text, key in measured.items()}


def ages(figures: Figures) -> dict[str, float]:
    """How long the oldest ready job of a tube has been ready, and its first delayed job due, in seconds; {} unless its
    policy measures them.
    """
    measured = {"oldest ready": "oldest-ready", "overdue": "overdue"}
    return {text: float(figures[key]) for text, key in measured.items() if key in figures}


def _decimal(figures: Figures, key: str) -> float | None:
    try:
        value = float(figures[key])
    except (KeyError, ValueError):
        return None
    return value if abs(value) < LARGEST else None  # which is false of what is not a number


def _change(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else (after - before) / seconds


def _restarted(before: Figures, after: Figures) -> bool:
    """Whether another process answers than before."""
    if "id" in before and "id" in after and before["id"] != after["id"]:
        return True
    return (_change(_decimal(before, "uptime"), _decimal(after, "uptime"), 1) or 0) < 0


def _rates(before: Figures, after: Figures, seconds: float) -> dict[str, float]:
    """The sum of the rates of those counters that both samples have; one that has gone back has none."""
    rates = {}
    for name, keys in SERVER_COUNTERS.items():
        counters = keys or [key for key in after if key.startswith("cmd-")]
        changes = [_change(_decimal(before, key), _decimal(after, key), seconds) for key in counters]
        known = [change for change in changes if change is not None and change >= 0]
        if known:
            rates[name] = sum(known)
    return rates
