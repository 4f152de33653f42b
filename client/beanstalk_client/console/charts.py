"""Draws charts as SVG: sparklines, and lines over the last hour.

What is drawn has attributes and classes only: the Content-Security-Policy lets no style stand in a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup, escape

from beanstalk_client.observe.sampler import STEP

Values = Sequence[float | None]
"""The newest last; None where nothing is known."""

SHORTEST: Final = 30
"""Minimum number of values on the time axis: five minutes."""

NONE: Final = "\u2013"
"""What stands for a figure that is not known."""

COLOURED: Final = ("ready", "reserved", "delayed", "buried", "failures")
"""Lines that have a colour of their own, which is that of the cards; others have one of three that stand for none."""

WIDTH: Final = 640
HEIGHT: Final = 120


def compact(value: float | None) -> str:
    """A number in at most five characters: 950, 12.3k, 4.5M."""
    if value is None:
        return NONE
    size = abs(value)
    if size < 10 and value != int(value):
        return f"{value:.1f}"
    if size < 1000:
        return f"{value:.0f}"
    for unit in "kMGT":
        value /= 1000
        if abs(value) < 999.5 or unit == "T":
            return f"{value:.{1 if abs(value) < 99.95 else 0}f}{unit}"
    raise AssertionError


def recent(*lines: Values) -> list[list[float | None]]:
    """Lines of the same length without the time before the first known value, but for the last minutes."""
    length = max(map(len, lines), default=0)
    known = [number for line in lines for number, value in enumerate(line) if value is not None]
    first = min([*known, max(length - SHORTEST, 0)])
    return [list(line[first:]) for line in lines]


def sparkline(values: Values, label: str = "", width: int = 96, height: int = 20) -> Markup:
    """A line without axes; nothing where fewer than two values are known."""
    (values,) = recent(values)
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    top = max(known) or 1.0
    runs = _runs(values, top, width, height, 1)
    lines = Markup("").join(Markup('<polyline points="{}"/>').format(run) for run in runs)
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
    ).format(width, height, label, lines)


def chart(title: str, lines: Sequence[tuple[str, Values]], unit: str = "") -> Markup:
    """Lines over time with one axis, a legend, and the latest value of each.

    Args:
        lines: a name and values of each; at most three that are not COLOURED. The last value is of now.
    """
    cut = recent(*[values for _, values in lines])
    lines = [(name, values) for (name, _), values in zip(lines, cut, strict=True)]
    seconds = STEP * max(map(len, cut), default=0)
    span = f"{seconds / 3600:.0f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
    known = [value for _, values in lines for value in values if value is not None]
    top = nice(max(known, default=0.0))
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = round(HEIGHT - 2 - share * (HEIGHT - 12), 1)
        parts.append(Markup('<line class="grid" x1="0" x2="{}" y1="{}" y2="{}"/>').format(WIDTH, y, y))
    classes = [name if name in COLOURED else f"l{number}" for number, (name, _) in enumerate(lines)]
    for shown_as, (_, values) in zip(classes, lines, strict=True):
        runs = _runs(values, top, WIDTH, HEIGHT - 12, 2, 10)
        parts += [Markup('<polyline class="{}" points="{}"/>').format(shown_as, run) for run in runs]
    latest = [(name, next((value for value in reversed(values) if value is not None), None)) for name, values in lines]
    told = ", ".join(f"{name} {compact(value)}{unit}" for name, value in latest)
    legend = Markup("").join(
        Markup('<li class="{}"><span>{}</span> <b>{}</b></li>').format(shown_as, name, compact(value) + unit)
        for shown_as, (name, value) in zip(classes, latest, strict=True)
    )
    drawn = Markup("").join(parts)
    return Markup(
        '<figure class="chart"><figcaption>{title}<ul>{legend}</ul></figcaption>'
        '<div class="plot"><svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        'aria-label="{title}, last {span}: {told}">{drawn}</svg><span class="top">{top}</span>'
        '<span class="from">\u2212{span}</span><span class="to">now</span></div></figure>'
    ).format(
        title=title, legend=legend, width=WIDTH, height=HEIGHT, span=escape(span), told=told, drawn=drawn,
        top=compact(top) + unit,
    )  # fmt: skip


def nice(value: float) -> float:
    """The next number of 1, 2 and 5 times a power of ten."""
    power = 1.0
    if value <= 1:
        return 1.0
    while power * 10 < value:
        power *= 10
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _runs(values: Values, top: float, width: int, height: int, margin: int, above: int = 0) -> list[str]:
    """The points of each stretch in which all values are known."""
    step = width / max(len(values) - 1, 1)
    runs: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            if runs[-1]:
                runs.append([])
            continue
        y = above + height - margin - max(value, 0.0) / top * (height - 2 * margin)
        runs[-1].append(f"{number * step:.1f},{y:.1f}")
    return [" ".join(run if len(run) > 1 else run * 2) for run in runs if run]
