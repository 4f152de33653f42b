"""Computes when a schedule fires: the moments of a cron expression in a time zone, or of an interval.

Moments are whole seconds of Unix time. Every call returns the same ones: nothing here depends on when a program was
started. An expression that names its minute and its hour (`30 2 * * *`) fires once for each of them, as cron does:
where a clock is set forward over 02:30, at the first moment after the gap; where 02:30 comes twice, at the first of the
two. One whose minute or hour begins with a star fires whenever the zone's clock shows a time that fits, also in both of
two hours that are called the same.

The library knows what fits an expression, on a clock that is never set. What becomes of it on clocks that are set is
found here: left to itself, the library loses or repeats moments where an hour's change begins at midnight, or where it
is half an hour.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from beanstalk_client.commands import MAX_SECONDS, Duration, seconds_of, text_of

if TYPE_CHECKING:
    from cronsim import CronSim

LONG_AGO: Final = 946_684_800
"""The year 2000, in Unix time: an expression that has not fired in the 50 years from then on never does."""

HOUR: Final = 3600
DAY: Final = 24 * HOUR
"""In seconds. No clock is set back or forward by more."""

EPOCH: Final = datetime.datetime(1970, 1, 1)


class Moments(Protocol):
    """The moments of a schedule, without an end.

    Example:
        def preview(moments: Moments) -> str:
            return moments.spelled(moments.after(int(time.time())))
    """

    def after(self, moment: int) -> int | None:
        """The first moment after this one, in Unix time; None if there is none in the 50 years that follow."""

    def text(self) -> str:
        """What tells these moments from others: equal texts, equal moments."""

    def spelled(self, moment: int) -> str:
        """One of the moments as a person writes it, with its offset from UTC: "2027-02-01T06:00:00+01:00"."""


class Cron:
    """The moments of a cron expression.

    Example:
        first = Cron("0 8 * * mon", "Europe/Berlin").after(int(time.time()))

    Args:
        expression: minute, hour, day of the month, month and day of the week, as cron reads them.
        tz: the name of a time zone ("Europe/Berlin").

    Raises:
        ValueError: the expression is none, or never fires; there is no such zone on this machine.
        ImportError: the extra `cron` is not installed.
    """

    def __init__(self, expression: str, tz: str = "UTC") -> None:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError:
            raise ImportError(
                "cron expressions need an extra: pip install './client[cron]' in a clone of beanstalk-server"
            ) from None
        self.expression: str = " ".join(text_of(expression, "expression").split())
        self.tz: str = text_of(tz, "tz")
        self.zone: datetime.tzinfo = _zone(tz)
        self._parse: type[CronSim] = CronSim
        self._names_its_hour = not any(field.startswith("*") for field in self.expression.split()[:2])
        if self.expression.count(" ") != 4:  # newer versions of the library take seconds as well, older ones do not
            raise ValueError(
                f"cron expression {expression!r}: must have five fields, from the minute to the day of the week"
            )
        try:
            first = self.after(LONG_AGO)
        except CronSimError as error:
            raise ValueError(f"cron expression {expression!r}: {error}") from None
        if first is None:
            raise ValueError(f"cron expression {expression!r} never fires")

    def after(self, moment: int) -> int | None:
        found = self._once_after(moment) if self._names_its_hour else self._each_after(moment)
        rewind = None if self._names_its_hour else self._rewind_after(moment)
        if rewind is None:
            return found
        again = self._walls_after(_wall(rewind - 1, self._offset(rewind)))  # what the clock shows for a second time
        repeated = next((_instant(wall, self._offset(rewind)) for wall in again), None)
        return repeated if found is None else found if repeated is None else min(found, repeated)

    def _once_after(self, moment: int) -> int | None:
        """Each day's hours once: a time that does not exist counts as the end of the gap, of two the first counts."""
        for wall in self._walls_after(_wall(moment, self._offset(moment))):
            found = round(wall.replace(tzinfo=self.zone).timestamp())
            if _wall(found, self._offset(found)) != wall:
                found = self._change(found - DAY, found)
            if found > moment:
                return found
        return None

    def _each_after(self, moment: int) -> int | None:
        """The first moment that the zone's clock shows a time that fits and is later than what it shows now."""
        for wall in self._walls_after(_wall(moment, self._offset(moment))):
            for fold in (0, 1):
                found = round(wall.replace(tzinfo=self.zone, fold=fold).timestamp())
                if found > moment and _wall(found, self._offset(found)) == wall:
                    return found
        return None

    def _rewind_after(self, moment: int) -> int | None:
        """The moment within the next day at which the zone's clock is set back; None if it is not."""
        if self._offset(moment + DAY) >= self._offset(moment):
            return None
        return self._change(moment, moment + DAY)

    def _change(self, before: int, until: int) -> int:
        """The moment at which the zone's offset changes, between two moments whose offsets differ."""
        offset = self._offset(before)
        while until - before > 1:
            middle = (before + until) // 2
            if self._offset(middle) == offset:
                before = middle
            else:
                until = middle
        return until

    def _offset(self, moment: int) -> datetime.timedelta:
        offset = datetime.datetime.fromtimestamp(moment, self.zone).utcoffset()
        assert offset is not None
        return offset

    def _walls_after(self, wall: datetime.datetime) -> Iterator[datetime.datetime]:
        """The times that fit the expression, as a clock shows them that is never set."""
        return iter(self._parse(self.expression, wall))

    def text(self) -> str:
        return f"cron {self.expression} {self.tz}"

    def spelled(self, moment: int) -> str:
        return datetime.datetime.fromtimestamp(moment, self.zone).isoformat()


class Every:
    """The moments of an interval: its multiples, counted from the beginning of Unix time (1970-01-01T00:00Z).

    Example:
        first = Every("5m").after(int(time.time()))

    Args:
        interval: whole seconds, at least one and at most 136 years; or as "5m", or a timedelta.

    Raises:
        ValueError: the interval is none of these.
    """

    def __init__(self, interval: Duration) -> None:
        seconds = round(seconds_of(interval, "interval"), 6)
        if not 1 <= seconds <= MAX_SECONDS or seconds % 1:
            raise ValueError(f"bad interval {interval}: must be whole seconds, from 1 to {MAX_SECONDS}")
        self.seconds: int = int(seconds)

    def after(self, moment: int) -> int:
        return (moment // self.seconds + 1) * self.seconds

    def text(self) -> str:
        return f"every {self.seconds} s"

    def spelled(self, moment: int) -> str:
        return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).isoformat()


def between(moments: Moments, after: int, until: int) -> Iterator[int]:
    """The moments after one moment and until another, which is included."""
    moment = moments.after(after)
    while moment is not None and moment <= until:
        yield moment
        moment = moments.after(moment)


def last(moments: Moments, after: int, until: int) -> int | None:
    """The last moment after one moment and until another, which is included; None if there is none.

    It is looked for backwards, in stretches that grow: a year of minutes is not gone through for the last of them.
    """
    stretch = HOUR
    end = until
    while end > after:
        begin = max(end - stretch, after)
        found = None
        for found in between(moments, begin, end):  # noqa: B007 - the last of them is wanted
            pass
        if found is not None:
            return found
        end = begin
        stretch *= 4
    return None


def _wall(moment: int, offset: datetime.timedelta) -> datetime.datetime:
    """What a clock with this offset shows at a moment."""
    return EPOCH + datetime.timedelta(seconds=moment) + offset


def _instant(wall: datetime.datetime, offset: datetime.timedelta) -> int:
    """The moment at which a clock with this offset shows this."""
    return (wall - offset - EPOCH) // datetime.timedelta(seconds=1)


def _zone(name: str) -> datetime.tzinfo:
    """The time zone of this name.

    Raises:
        ValueError: this machine knows none.
    """
    if name == "UTC":
        return datetime.timezone.utc  # which needs no data
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {name!r}: check the name, or install the package tzdata") from None
