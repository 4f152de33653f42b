"""What `beanstalk top` has sampled: figures of the server and of its tubes, and what two samples of them say together.

A counter becomes a rate when it has been seen at two moments; a figure becomes a trend. What has no answer is None, and
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Figures: TypeAlias = Mapping[str, str]
"""A reply to stats or stats-tube: keys and values, without quotes."""

HISTORY: Final = 120
"""How many samples a history has at most."""

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
"""Where each of them is in TubeSamples.figures."""

SERVER_COUNTERS: Final[dict[str, str | tuple[str, ...]]] = {
    "puts": "total-jobs",
    "reserves": ("cmd-reserve", "cmd-reserve-with-timeout", "cmd-reserve-job", "cmd-reserve-batch"),
    "deletes": "cmd-delete",
    "timeouts": "job-timeouts",
    "connections": "total-connections",
}
"""The rates of a server, and the counters that each of them comes from: one, or a sum of those that there are."""

COMMANDS: Final = "commands"
"""The rate of all commands, from every counter whose key begins with `cmd-`."""

LARGEST: Final = 2**64
"""No figure of a server reaches this; what does is as good as missing."""

CPU: Final = "cpu"
"""The share of a processor that the server uses: 1.0 is one processor."""


class History:
    """What a sparkline is drawn from: the latest values, None where there was none."""

    __slots__ = ("_values",)

    def __init__(self, kept: int = HISTORY) -> None:
        self._values: deque[float | None] = deque(maxlen=kept)

    def add(self, value: float | None) -> None:
        self._values.append(value)

    def last(self, count: int) -> list[float | None]:
        """The latest values, at most this many, the newest last."""
        return list(self._values)[-count:] if count > 0 else []


class TubeSamples:
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
        self.name: str = name
        self.moment: float = moment
        self.figures: tuple[int | None, ...] = figures
        self._based, self._base = moment, figures
        self.puts: float | None = None
        self.deletes: float | None = None
        self.growth: float | None = None
        self.next_age: int | None = None
        self.round: int = round_
        self.history: History | None = None

    def take(self, moment: float, figures: tuple[int | None, ...]) -> None:
        """Take a newer sample."""
        self.moment, self.figures = max(moment, self.moment), figures
        if not figures[READY]:
            self.next_age = None
        seconds = moment - self._based
        if seconds < SHORTEST:
            return
        before, self._base, self._based = self._base, figures, moment
        if _went_back(before[PUTS], figures[PUTS]) or _went_back(before[DELETES], figures[DELETES]):
            self.puts = self.deletes = self.growth = None
        else:
            self.puts = _change(before[PUTS], figures[PUTS], seconds)
            self.deletes = _change(before[DELETES], figures[DELETES], seconds)
            self.growth = _change(before[READY], figures[READY], seconds)

    @property
    def is_paused(self) -> bool:
        return bool(self.figures[PAUSE_LEFT])


@dataclass(frozen=True, slots=True)
class Row:
    """A tube as it is shown.

    Attributes:
        age: how many seconds ago this was so.
        ready, …: what the server has said, or None if it did not.
        puts, deletes, growth, next_age: as in TubeSamples.
        history: its ready jobs over time, the newest last; empty if it is not watched.
    """

    name: str
    age: float
    urgent: int | None
    ready: int | None
    reserved: int | None
    delayed: int | None
    buried: int | None
    using: int | None
    watching: int | None
    waiting: int | None
    pause_left: int | None
    total: int | None
    puts: float | None
    deletes: float | None
    growth: float | None
    next_age: int | None
    history: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ServerRow:
    """The server as it is shown.

    Attributes:
        age: how many seconds ago this was so; None if it has never been sampled.
        figures: what the server has said of itself.
        rates: by the names of SERVER_COUNTERS, COMMANDS and CPU, a second; those that are known.
        histories: of the same names, and of "ready", the newest last.
    """

    age: float | None
    figures: Figures
    rates: Mapping[str, float]
    histories: Mapping[str, tuple[float | None, ...]]

    def number(self, key: str) -> int | None:
        """A figure, or None if the server has not sent it, or not as a number."""
        return number(self.figures, key)


class Samples:
    """All that has been sampled of one server."""

    __slots__ = (
        "_base",
        "_based",
        "_figures",
        "_histories",
        "_kept",
        "_moment",
        "_rates",
        "_round",
        "_tubes",
        "_watched",
        "restarts",
    )

    def __init__(self, kept: int = HISTORY) -> None:
        self._kept = kept
        self._tubes: dict[str, TubeSamples] = {}
        self._watched: set[str] = set()
        self._round = 0
        self._moment: float | None = None
        self._figures: Figures = {}
        self._base: Figures = {}  # the figures that the next rates begin with, and their moment
        self._based = 0.0
        self._rates: dict[str, float] = {}
        self._histories: dict[str, History] = {}
        self.restarts: int = 0

    @property
    def tubes(self) -> Mapping[str, TubeSamples]:
        """The tubes by name."""
        return self._tubes

    def take_server(self, moment: float, figures: Figures) -> None:
        """Take a reply to stats."""
        before = self._figures
        self._moment = moment if self._moment is None else max(moment, self._moment)
        self._figures = dict(figures)
        if before and _restarted(before, figures):
            self.restarts += 1
            self._tubes.clear()
            self._rates = {}
            self._base, self._based = self._figures, moment
        elif not self._base:
            self._base, self._based = self._figures, moment
        elif moment - self._based >= SHORTEST:
            self._rates = _rates(self._base, figures, moment - self._based)
            self._base, self._based = self._figures, moment
        else:
            return
        for name in (*SERVER_COUNTERS, COMMANDS, CPU):
            self._history(name).add(self._rates.get(name))
        self._history("ready").add(number(figures, "current-jobs-ready"))

    def _history(self, name: str) -> History:
        return self._histories.setdefault(name, History(self._kept))

    def take_tube(self, moment: float, name: str, figures: Figures) -> None:
        """Take a reply to stats-tube, or an entry of one to stats-tubes."""
        values = tuple(number(figures, key) for key in TUBE_FIGURES)
        tube = self._tubes.get(name)
        if tube is None:
            self._tubes[name] = TubeSamples(name, moment, values, self._round)
            return
        tube.take(moment, values)
        tube.round = self._round
        if tube.history is not None:
            tube.history.add(values[READY])

    def take_next_age(self, name: str, age: int | None) -> None:
        """Take the age of the job of a tube that goes next, in seconds; None if there is none, or nobody may know."""
        if tube := self._tubes.get(name):
            tube.next_age = age

    def forget(self, name: str) -> None:
        """A tube is gone."""
        self._tubes.pop(name, None)

    def end_round(self, prefix: str) -> None:
        """Every tube whose name begins so has been asked about once more: those that were not seen are gone."""
        gone = [name for name, tube in self._tubes.items() if tube.round != self._round and name.startswith(prefix)]
        for name in gone:
            del self._tubes[name]
        self._round += 1

    def watch(self, names: Iterable[str]) -> None:
        """Keep histories of these tubes, and of no others."""
        watched = set(names)
        for name in self._watched - watched:
            if tube := self._tubes.get(name):
                tube.history = None
        for name in watched:
            if (tube := self._tubes.get(name)) and tube.history is None:
                tube.history = History(self._kept)
                tube.history.add(tube.figures[READY])
        self._watched = watched

    def row(self, name: str, now: float) -> Row | None:
        """A tube as it is to be shown; None if it is gone."""
        tube = self._tubes.get(name)
        if tube is None:
            return None
        urgent, ready, reserved, delayed, buried, using, watching, waiting, pause_left, total, _ = tube.figures
        return Row(
            name=name,
            age=max(now - tube.moment, 0.0),
            urgent=urgent,
            ready=ready,
            reserved=reserved,
            delayed=delayed,
            buried=buried,
            using=using,
            watching=watching,
            waiting=waiting,
            pause_left=pause_left,
            total=total,
            puts=tube.puts,
            deletes=tube.deletes,
            growth=tube.growth,
            next_age=tube.next_age,
            history=tuple(tube.history.last(self._kept)) if tube.history else (),
        )

    def server(self, now: float) -> ServerRow:
        """The server as it is to be shown."""
        return ServerRow(
            age=None if self._moment is None else max(now - self._moment, 0.0),
            figures=self._figures,
            rates=dict(self._rates),
            histories={name: tuple(history.last(self._kept)) for name, history in self._histories.items()},
        )

    def oldest(self, prefix: str, now: float) -> float:
        """How many seconds ago that tube was sampled which has waited longest, of those whose names begin so; 0.0 if
        there is none.
        """
        return max((now - tube.moment for name, tube in self._tubes.items() if name.startswith(prefix)), default=0.0)


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


def _went_back(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < before


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    """How fast a counter goes up; None if it has gone back."""
    return None if _went_back(before, after) else _change(before, after, seconds)


def _change(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else (after - before) / seconds


def _restarted(before: Figures, after: Figures) -> bool:
    """Whether another process answers than before."""
    if "id" in before and "id" in after and before["id"] != after["id"]:
        return True
    return _went_back(_decimal(before, "uptime"), _decimal(after, "uptime"))


def _rates(before: Figures, after: Figures, seconds: float) -> dict[str, float]:
    rates = {}
    for name, keys in SERVER_COUNTERS.items():
        rate = _sum_of_rates(before, after, (keys,) if isinstance(keys, str) else keys, seconds)
        if rate is not None:
            rates[name] = rate
    commands = _sum_of_rates(before, after, tuple(key for key in after if key.startswith("cmd-")), seconds)
    if commands is not None:
        rates[COMMANDS] = commands
    cpu = _sum_of_rates(before, after, ("rusage-utime", "rusage-stime"), seconds)
    if cpu is not None:
        rates[CPU] = cpu
    return rates


def _sum_of_rates(before: Figures, after: Figures, keys: Sequence[str], seconds: float) -> float | None:
    """The rates of those counters that both samples have, together; None if there is none."""
    rates = [_rate(_decimal(before, key), _decimal(after, key), seconds) for key in keys]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
