"""Formats values for pages, and makes the environment of the templates.

All text in a page goes through `harmless`, and is then escaped: what comes from outside can neither be markup, nor
steer a terminal, nor turn the direction of a line. What stands in a form's text area is escaped only.
"""

from __future__ import annotations

import datetime
import itertools
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from beanstalk_client.commands import is_until_resumed
from beanstalk_client.console.bodies import in_json
from beanstalk_client.console.charts import NONE, chart, compact, sparkline
from beanstalk_client.errors import shown
from beanstalk_client.version import VERSION

TEMPLATES: Final = Path(__file__).parent / "templates"

LONGEST: Final = 4000
"""Characters of a text that are shown, and of a line of a body."""


def harmless(value: Any) -> Any:
    """What may be put into a page for a value."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    return shown(value, LONGEST)


def line(value: str) -> str:
    """A line of a body, whose tabs are spaces."""
    return shown(value.replace("\t", "    "), LONGEST)


def exact(value: str) -> Markup:
    """A text that goes back as it is, in a form."""
    return escape(value)


def number(value: Any) -> str:
    """A number with commas, or a dash for none."""
    return NONE if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """A rate, a second, in at most five characters."""
    if value is None:
        return NONE
    return "0" if value < 0.05 else compact(value)


def size(value: float | None) -> str:
    """Bytes with a unit."""
    if value is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def age(seconds: float | None) -> str:
    """A duration in its largest unit and the next smaller one, rounded down: 3m 12s, 4h 0m, 1d 0h."""
    if seconds is None:
        return NONE
    left = int(seconds)
    for (unit, length), (smaller, rest) in itertools.pairwise((("d", 86400), ("h", 3600), ("m", 60), ("s", 1))):
        if left >= length:
            return f"{left // length}{unit} {left % length // rest}{smaller}"
    return f"{left}s"


def pause(left: float) -> str:
    """How long a tube is still paused: for 9m 59s more, until resumed."""
    return "until resumed" if is_until_resumed(left) else f"for {age(left)} more"


def moment(when: float | str | datetime.datetime | None) -> str:
    """A moment in UTC, of seconds since 1970 or of ISO 8601. Text that is not a moment with a zone stays as it is."""
    if when is None or when == "":
        return NONE
    if isinstance(when, str):
        try:
            read = datetime.datetime.fromisoformat(when)
        except ValueError:
            return when
        if read.tzinfo is None:
            return f"{when} (zone unknown)"
        when = read
    elif not isinstance(when, datetime.datetime):
        when = datetime.datetime.fromtimestamp(when, datetime.UTC)
    try:
        return when.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except OverflowError:  # the year 0 or 10000, in UTC
        return when.isoformat()


def due(job: Mapping[str, Any]) -> str:
    """When a job is ready, or when its reservation ends; "" for a job without a time, as one that waits for a group."""
    left = job["time-left"] if job["state"] in ("delayed", "reserved") else 0
    return moment(time.time() + left) if left else ""


def signed(value: float | None) -> str:
    """A rate that may be below 0."""
    return rate(value) if value is None or value >= 0 else f"\u2212{rate(-value)}"


def long(seconds: float | None) -> str:
    """A short time: 0.21 ms, 1.5 s."""
    if seconds is None:
        return NONE
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.0f} \u00b5s"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def make_environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        line=line,
        exact=exact,
        num=number,
        rate=rate,
        bytes=size,
        age=age,
        pause=pause,
        moment=moment,
        due=due,
        compact=compact,
        json=in_json,
        signed=signed,
        long=long,
    )
    made.globals.update(shell=shlex.quote, sparkline=sparkline, chart=chart, version=VERSION)
    return made
