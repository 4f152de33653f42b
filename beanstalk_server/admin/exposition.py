"""Formats metrics as text: Prometheus's format 0.0.4, or OpenMetrics 1.0 for clients that accept it.

The two formats differ in the names of families, in the types and in the last line. This module does not depend on what
is measured or how the text is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"
SUMMARY: Final = "summary"
INFO: Final = "info"

SUFFIXES: Final = {COUNTER: "_total", INFO: "_info"}
"""What the names of samples end with, which OpenMetrics does not count as a part of the family's name."""


class Family(NamedTuple):
    """Some samples of one name."""

    name: str
    """As the samples have it: that of a counter ends with `_total`, that of an info with `_info`."""
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


class Format(NamedTuple):
    """One of the two formats."""

    content_type: str
    is_open: bool
    """It is OpenMetrics."""
    end: str
    """The last line."""

    def head(self, family: Family) -> str:
        """The lines before the samples of a family."""
        name, kind = family.name, family.kind
        if self.is_open:
            name = name.removesuffix(SUFFIXES.get(kind, ""))
        elif kind == INFO:
            kind = GAUGE
        return f"# HELP {name} {escaped(family.meaning)}\n# TYPE {name} {kind}\n"


TEXT: Final = Format("text/plain; version=0.0.4; charset=utf-8", False, "")
OPEN_METRICS: Final = Format("application/openmetrics-text; version=1.0.0; charset=utf-8", True, "# EOF\n")

_OFFERS: Final = (
    (TEXT, "text/plain", ("", "0.0.4")),
    (OPEN_METRICS, "application/openmetrics-text", ("", "1.0.0", "0.0.1")),
)
"""Each format, its media type, and the versions of it that are accepted; the first of those that are wanted as much."""


def choose(accept: str) -> Format:
    """The format that the value of an Accept header wants most.

    A client that accepts neither gets text: every collector of metrics can read that.
    """
    best, most = TEXT, 0.0
    ranges = [_read_range(each) for each in accept.split(",")]
    for offer, media_type, versions in _OFFERS:
        wanted = 0.0
        is_named = False
        for name, parameters in ranges:
            if name == media_type and parameters.get("version", "") in versions:
                quality = _quality(parameters)
                wanted = max(wanted, quality) if is_named else quality
                is_named = True
            elif not is_named and name in ("*/*", media_type.partition("/")[0] + "/*"):
                wanted = max(wanted, _quality(parameters))
        if wanted > most:
            best, most = offer, wanted
    return best


def _read_range(text: str) -> tuple[str, dict[str, str]]:
    """A media range of an Accept header: its name and its parameters, in lower case."""
    name, *pairs = [part.strip().lower() for part in text.split(";")]
    parameters = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        parameters[key.strip()] = value.strip().strip('"')
    return name, parameters


def _quality(parameters: dict[str, str]) -> float:
    """How much a media range is wanted, from 0 to 1; 0 if that cannot be read."""
    try:
        return min(max(float(parameters.get("q", "1")), 0.0), 1.0)
    except ValueError:
        return 0.0


def escaped(text: str) -> str:
    """A text as it stands between quotes, or behind HELP: on one line."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def sample(name: str, value: float, **labels: str) -> str:
    """One line: a name, its labels, and a value."""
    if not labels:
        return f"{name} {number(value)}\n"
    pairs = ",".join([f'{label}="{escaped(text)}"' for label, text in labels.items()])
    return f"{name}{{{pairs}}} {number(value)}\n"


def number(value: float) -> str:
    """A value as both formats read it: a whole number as it is, and others as Python writes them."""
    return str(int(value)) if isinstance(value, int) else repr(value)


def histogram(name: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> str:
    """The lines of a histogram.

    Args:
        bounds: the upper bounds of its buckets, ascending, but for the last, which has none.
        counts: how many are in each bucket and those before it, the last included.
        total: the sum of all values.
    """
    lines = [f'{name}_bucket{{le="{float(bound)!r}"}} {count}\n' for bound, count in zip(bounds, counts, strict=False)]
    count = counts[-1]
    lines.append(f'{name}_bucket{{le="+Inf"}} {count}\n{name}_sum {number(float(total))}\n{name}_count {count}\n')
    return "".join(lines)
