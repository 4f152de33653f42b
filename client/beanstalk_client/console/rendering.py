"""How values become text in a page.

All text in a page goes through `harmless`, and is then escaped: what comes from outside can neither be markup, nor
steer a terminal, nor turn the direction of a line. What stands in a form's text area is escaped only.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

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
    """A duration in its two largest units: 3m 12s."""
    if seconds is None:
        return NONE
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length}{unit}")
            left %= length
        if len(parts) == 2:
            break
    return " ".join(parts)


def moment(unix: float | None) -> str:
    """A moment, in UTC."""
    if unix is None:
        return NONE
    return datetime.datetime.fromtimestamp(unix, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
        moment=moment,
        compact=compact,
        json=in_json,
        signed=signed,
        long=long,
    )
    made.globals.update(sparkline=sparkline, chart=chart, version=VERSION)
    return made
