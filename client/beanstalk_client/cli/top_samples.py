"""What `beanstalk top` has sampled: figures of the server and of its tubes, and the rates between two samples.

A counter becomes a rate when it has been seen at two moments; a figure becomes a trend. What is not known is None, and
never 0:

    a key that the server does not send (stock beanstalkd)     that figure, and what would follow from it
    a first sample                                              no rate yet
    a second sample within SHORTEST                             its figures; the rates of before, until one comes later
    a counter that has gone back                                the tube was gone in between and came again: no rate
    a server that was started in between (another `id`, or an   no rate of anything; what was known of tubes is
      `uptime` that has gone back)                              forgotten
    a tube that is gone                                         forgotten at once if it was asked for by its name, else
                                                                when a whole round has passed without it

Of each tube, the latest sample is kept, with the rates between it and the one before: some 400 bytes. A history, for
sparklines, has only what is watched, and is bounded.

Moments are in seconds of any clock that never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Figures: TypeAlias = Mapping[str, Any]
"""A reply to stats or stats-tube: keys, and values as numbers or text."""

History: TypeAlias = deque[float | None]
"""What a sparkline is drawn from: the latest values, the newest last; None where there was none."""

HISTORY: Final = 120
"""Maximum number of samples in a history."""

SHORTEST: Final = 0.05
"""The shortest time between two samples that makes a rate, in seconds: late replies would make nonsense of less."""

TUBE_FIGURES: Final = (
    "current-jobs-urgent",
    "current-jobs-ready",
    "current-jobs-reserved",
    "current-jobs-delayed",
    "current-jobs-buried",
    "current-using",
    "current-watching",
    "current-waiting",
    "pause-time-left",
    "total-jobs",
    "cmd-delete",
)
"""What is kept of a tube."""

URGENT, READY, RESERVED, DELAYED, BURIED, USING, WATCHING, WAITING, PAUSE_LEFT, PUTS, DELETES = range(len(TUBE_FIGURES))
"""Where each of them is in Tube.figures."""

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
"""No figure of a server reaches this; what does is as good as missing."""


class Tube:
    """A tube: its latest sample, and what follows from it and the one before.

    Attributes:
        moment: when it was sampled.
        figures: in the order of TUBE_FIGURES.
        puts, deletes: the rates, a second.
        growth: by how many ready jobs a second the tube grows; below 0, it shrinks.
        next_age: how many seconds ago the job was put that goes next, when that was asked last.
        round: in which round it was seen last.
        history: its ready jobs over time, if it is watched.
    """

    __slots__ = (
        "_base",  # the figures that the next rates begin with
        "_based",  # and their moment
        "deletes",
        "figures",
        "growth",
        "history",
        "moment",
        "name",
        "next_age",
        "puts",
        "round",
    )

    def __init__(self, name: str, moment: float, figures: tuple[int | None, ...], round_: int) -> None:
        self.name = name
        self.moment = self._based = moment
        self.figures = self._base = figures
        self.puts: float | None = None
        self.deletes: float | None = None
        self.growth: float | None = None
        self.next_age: int | None = None
        self.round = round_
        self.history: History | None = None

    def age(self, now: float) -> float:
        """How many seconds ago it was sampled."""
        return max(now - self.moment, 0.0)

    def take(self, moment: float, figures: tuple[int | None, ...], round_: int) -> None:
        """Take a newer sample."""
        self.moment, self.figures, self.round = max(moment, self.moment), figures, round_
        if self.history is not None:
            self.history.append(figures[READY])
        if not figures[READY]:
            self.next_age = None
        seconds = moment - self._based
        if seconds >= SHORTEST:
            changes = [_change(self._base[which], figures[which], seconds) for which in (PUTS, DELETES, READY)]
            if any(change is not None and change < 0 for change in changes[:2]):
                changes = [None] * 3
            self.puts, self.deletes, self.growth = changes
            self._base, self._based = figures, moment


COLUMNS: Final[Mapping[str, Callable[[Tube], float | str | None]]] = {
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

SORT_KEYS: Final = dict(zip("trvdbiogaw", COLUMNS, strict=True))
"""Which key sorts by which column."""


class Samples:
    """All that has been sampled of one server.

    Attributes:
        tubes: by name.
        figures: what the server has said of itself.
        rates: a second, by the names of SERVER_COUNTERS; those that are known.
        histories: of the same names, and of "ready".
    """

    def __init__(self, kept: int = HISTORY) -> None:
        self._kept = kept
        self._watched: set[str] = set()
        self._round = 0
        self._moment: float | None = None
        self._base: Figures = {}  # the figures that the next rates begin with, and their moment
        self._based = 0.0
        self.tubes: dict[str, Tube] = {}
        self.figures: Figures = {}
        self.rates: dict[str, float] = {}
        self.histories: dict[str, History] = {name: deque(maxlen=kept) for name in (*SERVER_COUNTERS, "ready")}

    def age(self, now: float) -> float | None:
        """How many seconds ago the server was sampled; None if it has never been."""
        return None if self._moment is None else max(now - self._moment, 0.0)

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
        for name, history in self.histories.items():
            history.append(self.rates.get(name))
        self.histories["ready"][-1] = number(figures, "current-jobs-ready")

    def take_tube(self, moment: float, name: str, figures: Figures) -> None:
        """Take a reply to stats-tube, or an entry of one to stats-tubes."""
        values = tuple(number(figures, key) for key in TUBE_FIGURES)
        if tube := self.tubes.get(name):
            tube.take(moment, values, self._round)
        else:
            self.tubes[name] = Tube(name, moment, values, self._round)

    def end_round(self, prefix: str) -> None:
        """Every tube whose name begins so has been asked about once more: those that were not seen are gone."""
        gone = [name for name, tube in self.tubes.items() if tube.round != self._round and name.startswith(prefix)]
        for name in gone:
            del self.tubes[name]
        self._round += 1

    def watch(self, names: Iterable[str]) -> None:
        """Keep histories of these tubes, and of no others."""
        watched = set(names)
        for name in self._watched - watched:
            if tube := self.tubes.get(name):
                tube.history = None
        for name in watched:
            if (tube := self.tubes.get(name)) and tube.history is None:
                tube.history = deque([tube.figures[READY]], self._kept)
        self._watched = watched

    def oldest(self, prefix: str, now: float) -> float:
        """How many seconds ago that tube was sampled which has waited longest, of those whose names begin so; 0.0 if
        there is none.
        """
        return max((now - tube.moment for name, tube in self.tubes.items() if name.startswith(prefix)), default=0.0)


def number(figures: Figures, key: str) -> int | None:
    """A figure as a number, or None if it is missing or is none."""
    try:
        value = int(figures[key])
    except (KeyError, ValueError):
        return None
    return value if abs(value) < LARGEST else None


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
