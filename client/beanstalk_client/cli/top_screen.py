"""Draws `beanstalk top`: what is known and what is chosen, as lines of a screen of any size.

    summary     the server, its jobs, its rates, sparklines
    notice      what is wrong, or how fresh all this is
    headings    of the columns; those that do not fit are left out, the least important first
    tubes       one a line
    foot        a question, what is being typed, what was said last, or the keys

A figure that the server does not send is shown as `-`. A tube that has not been asked about for a while is dim, and the
last column says how old its row is. On a terminal without UTF-8, everything is drawn in ASCII.

What comes from a server is never taken for markup, nor for what steers a terminal.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from beanstalk_client.cli.output import safe
from beanstalk_client.cli.top_samples import (
    BURIED,
    COMMANDS,
    CPU,
    DELAYED,
    PAUSE_LEFT,
    READY,
    RESERVED,
    SORT_KEYS,
    WAITING,
    Figures,
    Samples,
    Tube,
    number,
)
from beanstalk_client.cli.top_terminal import ENTER, ESCAPE
from beanstalk_client.cli.top_view import KEYS, JobsOfTube, Mode, View

BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.:-=+*#"

MISSING: Final = "-"
"""What is shown for a figure that is not known."""

SPARKLINE: Final = 16
"""How many values the sparkline of a tube has."""

NAME: Final = 12
"""The least width of the column of names."""

STALE: Final = 3.0
"""After how many intervals a row is dim, and says its age."""

BODY: Final = 200
"""How many bytes of a body are looked at."""

ERROR: Final = "bold white on red"


@dataclass(frozen=True, slots=True)
class Status:
    """What is to be drawn beside samples and view.

    Attributes:
        target: the server, as the user writes it.
        clock: the time of day, as text.
        interval: seconds between two samples.
        notice: what is wrong, or "".
        whole: whether every tube has been asked about since the prefix was chosen.
        live: whether there are keys: a selection, and a foot.
    """

    target: str
    clock: str = ""
    interval: float = 1.0
    notice: str = ""
    whole: bool = True
    live: bool = True

    def is_stale(self, age: float) -> bool:
        """Whether what was so `age` seconds ago is shown as old."""
        return age > self.interval * STALE


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, its width, how important it is (0 stays longest), what is in it, what it sorts by."""

    heading: str
    width: int
    rank: int
    text: Callable[[Tube], str]
    sort: str = ""
    style: Callable[[Tube], str] = lambda _: ""


def amount(number: float | None) -> str:
    """A number in at most six characters: 12345, 123k, 12.3M."""
    if number is None:
        return MISSING
    if abs(number) < 99_999.5:
        return str(round(number))
    for unit in "kMGTPE":
        number /= 1000
        if abs(number) < 999.5:
            return f"{number:.0f}{unit}" if abs(number) >= 99.95 else f"{number:.1f}{unit}"
    return f"{number:.0e}"


def rate(number: float | None) -> str:
    """A rate a second in at most six characters: with a decimal below 100."""
    return MISSING if number is None else f"{number:.1f}" if abs(number) < 99.95 else amount(number)


def growth(number: float | None) -> str:
    """A trend a second in at most seven characters: with its sign."""
    if number is None:
        return MISSING
    return "0.0" if abs(number) < 0.05 else f"{'+' if number > 0 else ''}{rate(number)}"


def span(seconds: float | None, missing: str = MISSING) -> str:
    """A time in at most four characters: 59s, 59m, 47h, 999d."""
    if seconds is None:
        return missing
    for size, unit, until in ((1, "s", 100), (60, "m", 100), (3600, "h", 48)):
        if seconds < size * until:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86400)}d"


def sparkline(values: Sequence[float | None], width: int, bars: str = BARS) -> str:
    """The latest values as bars, the newest at the right; a gap where there is none. 0 is the lowest bar, the largest
    of the values the highest.
    """
    width = max(width, 0)
    shown = list(islice(values, max(len(values) - width, 0), None))
    highest = max((value for value in shown if value is not None), default=0)
    last = len(bars) - 1

    def bar(value: float | None) -> str:
        if value is None:
            return " "
        return bars[round(min(max(value / highest, 0.0), 1.0) * last) if highest > 0 else 0]

    return "".join(map(bar, shown)).rjust(width)


def _figure(which: int) -> Callable[[Tube], str]:
    return lambda tube: amount(tube.figures[which])


def columns(bars: str, status: Status, now: float) -> list[Column]:
    """All columns but that of the names, from left to right."""

    def seen(tube: Tube) -> str:
        age = tube.age(now)
        return span(age) if status.is_stale(age) else ""

    return [
        Column("READY", 7, 0, _figure(READY), "ready"),
        Column("RESVD", 7, 2, _figure(RESERVED), "reserved"),
        Column("DELAY", 7, 3, _figure(DELAYED), "delayed"),
        Column("BURY", 7, 1, _figure(BURIED), "buried", lambda tube: "red" if tube.figures[BURIED] else ""),
        Column("IN/S", 7, 4, lambda tube: rate(tube.puts), "in"),
        Column("OUT/S", 7, 5, lambda tube: rate(tube.deletes), "out"),
        Column("TREND", 7, 6, lambda tube: growth(tube.growth), "growth"),
        Column("AGE", 5, 7, lambda tube: span(tube.next_age), "age"),
        Column("WAIT", 6, 10, _figure(WAITING), "waiting"),
        Column("PAUSE", 6, 9, lambda tube: span(tube.figures[PAUSE_LEFT] or None, ""), "", lambda _: "yellow"),
        Column("READY OVER TIME", SPARKLINE + 1, 11, lambda tube: sparkline(tube.history or (), SPARKLINE, bars)),
        Column("SEEN", 5, 8, seen),
    ]


def fitting(wanted: Sequence[Column], width: int) -> list[Column]:
    """Those of the columns that there is room for beside the names, in their order."""
    left = width - NAME
    chosen = set()
    for column in sorted(wanted, key=lambda column: column.rank):
        left -= column.width
        if left < 0:
            break
        chosen.add(column.rank)
    return [column for column in wanted if column.rank in chosen]


def draw(
    samples: Samples, view: View, status: Status, size: tuple[int, int], now: float, *, ascii_only: bool = False
) -> list[Text]:
    """The lines of a screen: exactly as many as it has, none wider than it is.

    Tells the view how many tubes there is room for.

    Args:
        size: width and height of the screen, in characters.
        now: the moment, as the samples have it.
    """
    width, height = max(size[0], 1), max(size[1], 1)
    bars = ASCII_BARS if ascii_only else BARS
    head = [] if view.mode is Mode.HELP else _summary(samples, status, width, bars, now)
    if view.mode is Mode.HELP:
        body = _help()
    else:
        view.fit(height - len(head) - 3)
        if view.mode is Mode.JOBS:
            body = _jobs(view, width, now)
        else:
            body = [_notice(samples, view, status, now), *_tubes(samples, view, status, width, now, bars)]
    lines = [*head, *body][: height - 1]
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(_foot(view, width) if status.live else Text())
    return [_cut(line, width, ascii_only) for line in lines]


def paint(lines: Sequence[Text], *, styled: bool, colours: bool = True) -> list[str]:
    """The lines as they are printed, without line ends.

    Args:
        styled: whether a terminal gets them: with escape sequences; colours: whether some of these may be colours.
    """
    console = Console(file=io.StringIO(), color_system=None)  # it only knows the themes here
    return [_painted(line, console, colours) if styled else line.plain for line in lines]


def _painted(line: Text, console: Console, colours: bool) -> str:
    parts = []
    for text, style, _ in line.render(console):
        if style is None or not text:
            parts.append(text)
        else:
            kept = style if colours else style.without_color
            parts.append(kept.render(text, color_system=ColorSystem.STANDARD))
    return "".join(parts)


def _one_line(text: str) -> str:
    """A text of the server's as a line of a terminal may have it."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def _cut(line: Text, width: int, ascii_only: bool) -> Text:
    if ascii_only and not line.plain.isascii():
        line = Text(line.plain.encode("ascii", "replace").decode(), style=line.style, spans=line.spans)
    if cell_len(line.plain) > width:
        line = line.copy()
        line.truncate(width, overflow="crop")
    return line


def _summary(samples: Samples, status: Status, width: int, bars: str, now: float) -> list[Text]:
    """The server in four lines."""

    def figure(key: str) -> str:
        return amount(number(samples.figures, key))

    age = samples.age(now)
    version = str(samples.figures.get("server") or samples.figures.get("version", ""))
    uptime = "nothing is known of it yet" if age is None else f"up {span(number(samples.figures, 'uptime'))}"
    first = [("beanstalk top", "bold"), (f"  {_one_line(status.target)}", "bold cyan")]
    first.append((f"  {_one_line(version)}  {uptime}", "bold"))
    if samples.figures.get("draining") == "true":
        first.append(("  DRAINING", "bold yellow"))
    if age is not None and status.is_stale(age):
        first.append((f"  {span(age)} ago", "bold red"))
    gap = width - sum(cell_len(text) for text, _ in first) - len(status.clock)
    if gap > 1:
        first.append((" " * gap + status.clock, "bold"))

    states = [("jobs  ", "")]
    for state in ("ready", "reserved", "delayed", "buried"):
        states += [(f"{figure(f'current-jobs-{state}')} ", "bold"), (f"{state}  ", "")]
    memory = f"   memory {figure('current-memory')}B" if number(samples.figures, "current-memory") else ""
    clients = f"   clients {figure('current-connections')} ({figure('current-waiting')} waiting)"
    states.append((f"   tubes {figure('current-tubes')}{clients}{memory}", ""))

    rates = [("rates ", "")]
    for name, label in (("puts", "in"), ("reserves", "reserves"), ("deletes", "out"), (COMMANDS, "commands")):
        rates += [(f"{rate(samples.rates.get(name))}/s ", "bold"), (f"{label}  ", "")]
    if timeouts := samples.rates.get("timeouts"):
        rates.append((f"{rate(timeouts)}/s timeouts  ", "yellow"))
    cpu = samples.rates.get(CPU)
    rates.append((f"   CPU {MISSING if cpu is None else f'{cpu:.0%}'}", ""))

    each = max((width - len("ready   in   out ") - 2) // 3, 0)
    graphs = []
    for name, label, style in (("ready", "ready", "cyan"), ("puts", "in", "green"), ("deletes", "out", "magenta")):
        graphs += [(f"{label} ", ""), (sparkline(samples.histories[name], each, bars), style), ("  ", "")]
    return [Text.assemble(*parts) for parts in (first, states, rates, graphs)]


def _notice(samples: Samples, view: View, status: Status, now: float) -> Text:
    """One line: what is wrong, or how much is shown and how fresh it is."""
    if status.notice:
        return Text(_one_line(status.notice), style=ERROR)
    text = Text(style="dim")
    last = min(view.top + view.room, len(view.ranked))
    text.append(f"tubes {view.top + 1 if view.ranked else 0} to {last} of {view.matching:,}")
    text.append(f" by {view.sort}{', reversed' if view.backwards else ''}")
    if view.prefix:
        text.append(f", beginning with {view.prefix}", style="not dim bold")
    if view.matching > len(view.ranked):
        text.append(f" (the first {len(view.ranked):,} can be scrolled)")
    oldest = samples.oldest(view.prefix, now)
    if not status.whole:
        text.append("; not all tubes have been asked about yet")
    elif status.is_stale(oldest):
        text.append(f"; those that are not visible are up to {span(oldest)} old")
    return text


def _tubes(samples: Samples, view: View, status: Status, width: int, now: float, bars: str) -> list[Text]:
    shown = fitting(columns(bars, status, now), width)
    name_width = max(width - sum(column.width for column in shown), 1)
    heading = Text(style="reverse")
    heading.append(set_cell_size("TUBE", name_width), style="bold" if view.sort == "tube" else "")
    for column in shown:
        title = column.heading.rjust(column.width)
        heading.append(title, style="bold underline" if column.sort == view.sort else "")
    lines = [heading]
    selected = view.selected_name if status.live else None
    for name in view.visible:
        tube = samples.tubes.get(name)
        if tube is None:
            lines.append(Text(f"{_one_line(name)}  (gone)", style="dim"))
            continue
        line = Text(style="reverse" if name == selected else "dim" if status.is_stale(tube.age(now)) else "")
        line.append(_fit(_one_line(name), name_width))
        for column in shown:
            line.append(column.text(tube).rjust(column.width), style=column.style(tube))
        lines.append(line)
    return lines


def _fit(text: str, width: int) -> str:
    """A text in this many cells, the last of them a space if it is cut off after its beginning, which is shown."""
    if cell_len(text) < width:
        return set_cell_size(text, width)
    return set_cell_size(f"{set_cell_size(text, max(width - 2, 0))}~ ", width)


JOB_COLUMNS: Final = ("ID", "STATE", "PRI", "AGE", "DELAY", "TTR", "LEFT", "SIZE", "RESERVES", "KEY, REASON, BODY")


def _jobs(view: View, width: int, now: float) -> list[Text]:
    """The first jobs of a tube in each state."""
    found = view.jobs
    title = Text(f"the first jobs of {_one_line(view.looked_into)} in each state", style="bold")
    if found is None:
        return [title, Text("they are being fetched", style="dim")]
    title.append(f", as they were {span(max(now - found.moment, 0.0))} ago", style="not bold dim")
    if found.error:
        return [title, Text(_one_line(found.error), style=ERROR)]
    above = [title, *([Text(found.percentiles)] if found.percentiles else [])]
    heading = Text(_job_line(JOB_COLUMNS, width), style="reverse")
    if not found.jobs:
        return [*above, heading, Text("no jobs", style="dim")]
    shown = found.jobs[view.jobs_top : view.jobs_top + view.room + 1 - len(above)]
    return [*above, heading, *(Text(_job_line(_job_cells(job, found), width)) for job in shown)]


def _job_cells(job: Figures, found: JobsOfTube) -> tuple[str, ...]:
    priority = number(job, "pri")
    notes = [str(job.get("key", "")), f"({reason})" if (reason := job.get("reason")) else ""]
    notes.append(found.bodies.get(job["id"], b"")[:BODY].decode("utf-8", "backslashreplace"))
    return (
        str(job["id"]),
        str(job.get("state", "")),
        MISSING if priority is None else str(priority),
        *(span(number(job, key)) for key in ("age", "delay", "ttr", "time-left")),
        *(amount(number(job, key)) for key in ("size", "reserves")),
        " ".join(note for note in notes if note),
    )


def _job_line(cells: Sequence[str], width: int) -> str:
    identity, state, priority, *numbers, notes = map(_one_line, cells)
    line = f"{identity:>12}  {state:<9}{priority:>11}" + "".join(f"{cell:>9}" for cell in numbers) + f"  {notes}"
    return set_cell_size(line, width)


def _help() -> list[Text]:
    """The keys, from the table that they are read with."""
    lines = [Text("keys", style="bold")]
    lines += [Text(f"  {', '.join(binding.keys.split()):<22}{binding.meaning}") for binding in KEYS]
    sorts = ", ".join(f"{key} {column}" for key, column in SORT_KEYS.items())
    return [*lines, Text(f"  sort by: {sorts}"), Text("  the same column again reverses the order")]


def _foot(view: View, width: int) -> Text:
    """The last line."""
    if view.mode is Mode.QUESTION and view.question is not None:
        return Text(_one_line(view.question[0]), style="bold yellow")
    if view.mode is Mode.PREFIX:
        text = Text(f"tubes that begin with: {view.prefix}", style="bold")
        text.append("_", style="blink")
        text.append(f"  {view.message or f'{ENTER} keeps it, {ESCAPE} drops it'}", style="not bold dim")
        return text
    if view.mode is Mode.HELP:
        return Text("any key goes back", style="dim")
    if view.message:
        return Text(_one_line(view.message), style="bold")
    if view.mode is Mode.JOBS:
        return Text(f"{ESCAPE} back   space fetches them again   up and down scroll", style="dim")
    keys = f"q quit  ? help  / prefix  {ENTER} jobs  P pause  K kick  C clear  sort: "
    return Text(keys + " ".join(SORT_KEYS)[: max(width, 0)], style="dim")
