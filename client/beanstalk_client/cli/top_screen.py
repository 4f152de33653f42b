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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from beanstalk_client.cli.output import safe
from beanstalk_client.cli.top_keys import BINDINGS, ENTER, ESCAPE, SORT_KEYS, Action
from beanstalk_client.cli.top_samples import COMMANDS, CPU, Row, Samples, ServerRow
from beanstalk_client.cli.top_view import JobRow, Mode, View

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


@dataclass(frozen=True, slots=True)
class Status:
    """What is to be drawn beside samples and view.

    Attributes:
        target: the server, as the user writes it.
        clock: the time of day, as text.
        interval: seconds between two samples.
        notice: what is wrong, or "".
        whole: whether every tube has been asked about since the prefix was chosen.
        round: how many seconds the oldest row is old.
        live: whether there are keys: a selection, and a foot.
    """

    target: str
    clock: str = ""
    interval: float = 1.0
    notice: str = ""
    whole: bool = True
    round: float = 0.0
    live: bool = True


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, its width, what is in it, how important it is (0 stays longest), what it sorts by."""

    heading: str
    width: int
    text: Callable[[Row], str]
    rank: int
    sort: str = ""
    style: Callable[[Row], str] = lambda _: ""


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


def span(seconds: float | None) -> str:
    """A time in at most four characters: 59s, 59m, 47h, 999d."""
    if seconds is None:
        return MISSING
    for size, unit, until in ((1, "s", 100), (60, "m", 100), (3600, "h", 48)):
        if seconds < size * until:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86400)}d"


def sparkline(values: Sequence[float | None], width: int, bars: str = BARS) -> str:
    """The latest values as bars, the newest at the right; a gap where there is none. 0 is the lowest bar, the largest
    of the values the highest.
    """
    shown = values[-width:] if width > 0 else ()
    highest = max((value for value in shown if value is not None), default=0)
    drawn = []
    for value in shown:
        if value is None:
            drawn.append(" ")
        else:
            share = min(max(value / highest, 0.0), 1.0) if highest > 0 else 0.0
            drawn.append(bars[min(round(share * (len(bars) - 1)), len(bars) - 1)])
    return "".join(drawn).rjust(max(width, 0))


def _plain(key: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        return amount(getattr(row, key))

    return text


def _red(row: Row) -> str:
    return "red" if row.buried else ""


def columns(bars: str, interval: float) -> list[Column]:
    """All columns but that of the names, from left to right."""
    return [
        Column("READY", 7, _plain("ready"), 0, "ready"),
        Column("RESVD", 7, _plain("reserved"), 2, "reserved"),
        Column("DELAY", 7, _plain("delayed"), 3, "delayed"),
        Column("BURY", 7, _plain("buried"), 1, "buried", _red),
        Column("IN/S", 7, lambda row: rate(row.puts), 4, "in"),
        Column("OUT/S", 7, lambda row: rate(row.deletes), 5, "out"),
        Column("TREND", 7, lambda row: growth(row.growth), 6, "growth"),
        Column("AGE", 5, lambda row: span(row.next_age), 7, "age"),
        Column("WAIT", 6, _plain("waiting"), 10, "waiting"),
        Column("PAUSE", 6, lambda row: span(row.pause_left) if row.pause_left else "", 9, "", lambda _: "yellow"),
        Column("READY OVER TIME", SPARKLINE + 1, lambda row: sparkline(row.history, SPARKLINE, bars), 11),
        Column("SEEN", 5, lambda row: span(row.age) if row.age > interval * STALE else "", 8),
    ]


def fitting(wanted: Sequence[Column], width: int) -> list[Column]:
    """Those of the columns that there is room for beside the names, in their order."""
    chosen: set[int] = set()
    left = width - NAME
    for index in sorted(range(len(wanted)), key=lambda index: wanted[index].rank):
        if wanted[index].width > left:
            break
        left -= wanted[index].width
        chosen.add(index)
    return [column for index, column in enumerate(wanted) if index in chosen]


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
    head = [] if view.mode is Mode.HELP else _summary(samples.server(now), status, width, bars)
    foot = _foot(view, width) if status.live else Text()
    match view.mode:
        case Mode.HELP:
            body = _help()
        case Mode.JOBS:
            view.fit(height - len(head) - 3)
            body = _jobs(view, width, now)
        case _:
            view.fit(height - len(head) - 3)
            body = [_notice(view, status), *_tubes(samples, view, status, width, now, bars)]
    lines = [*head, *body][: max(height - 1, 0)]
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(foot)
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


def _summary(server: ServerRow, status: Status, width: int, bars: str) -> list[Text]:
    """The server in three or four lines."""
    version = server.figures.get("server") or server.figures.get("version", "")
    uptime = f"up {span(server.number('uptime'))}" if server.age is not None else "nothing is known of it yet"
    first = Text("beanstalk top", style="bold")
    first.append(f"  {_one_line(status.target)}", style="bold cyan")
    first.append(f"  {_one_line(version)}  {uptime}")
    if server.figures.get("draining") == "true":
        first.append("  DRAINING", style="bold yellow")
    if server.age is not None and server.age > status.interval * STALE:
        first.append(f"  {span(server.age)} ago", style="bold red")
    gap = width - cell_len(first.plain) - len(status.clock)
    if gap > 1:
        first.append(" " * gap + status.clock)

    states = Text("jobs  ")
    for state in ("ready", "reserved", "delayed", "buried"):
        states.append(f"{amount(server.number(f'current-jobs-{state}'))} ", style="bold")
        states.append(f"{state}  ")
    states.append(f"   tubes {amount(server.number('current-tubes'))}")
    states.append(f"   clients {amount(server.number('current-connections'))}")
    states.append(f" ({amount(server.number('current-waiting'))} waiting)")
    if memory := server.number("current-memory"):
        states.append(f"   memory {amount(memory)}B")

    rates = Text("rates ")
    for name, label in (("puts", "in"), ("reserves", "reserves"), ("deletes", "out"), (COMMANDS, "commands")):
        rates.append(f"{rate(server.rates.get(name))}/s ", style="bold")
        rates.append(f"{label}  ")
    if server.rates.get("timeouts"):
        rates.append(f"{rate(server.rates['timeouts'])}/s timeouts  ", style="yellow")
    cpu = server.rates.get(CPU)
    rates.append(f"   CPU {MISSING if cpu is None else f'{cpu:.0%}'}")

    each = max((width - len("ready   in   out ") - 2) // 3, 0)
    graphs = Text()
    for name, label, style in (("ready", "ready", "cyan"), ("puts", "in", "green"), ("deletes", "out", "magenta")):
        graphs.append(f"{label} ")
        graphs.append(sparkline(server.histories.get(name, ()), each, bars), style=style)
        graphs.append("  ")
    return [first, states, rates, graphs]


def _notice(view: View, status: Status) -> Text:
    """One line: what is wrong, or how much is shown and how fresh it is."""
    if status.notice:
        return Text(_one_line(status.notice), style="bold white on red")
    text = Text(style="dim")
    last = min(view.top + view.room, len(view.ranked))
    text.append(f"tubes {view.top + 1 if view.ranked else 0} to {last} of {view.matching:,}")
    text.append(f" by {view.sort}{', reversed' if view.backwards else ''}")
    if view.prefix:
        text.append(f", beginning with {view.prefix}", style="not dim bold")
    if view.matching > len(view.ranked):
        text.append(f" (the first {len(view.ranked):,} can be scrolled)")
    if not status.whole:
        text.append("; not all tubes have been asked about yet")
    elif status.round > status.interval * STALE:
        text.append(f"; those that are not visible are up to {span(status.round)} old")
    return text


def _tubes(samples: Samples, view: View, status: Status, width: int, now: float, bars: str) -> list[Text]:
    shown = fitting(columns(bars, status.interval), width)
    name_width = max(width - sum(column.width for column in shown), 1)
    heading = Text(style="reverse")
    heading.append(set_cell_size("TUBE", name_width), style="bold" if view.sort == "tube" else "")
    for column in shown:
        title = column.heading.rjust(column.width)
        heading.append(title, style="bold underline" if column.sort == view.sort else "")
    lines = [heading]
    selected = view.selected_name if status.live else None
    for name in view.visible:
        row = samples.row(name, now)
        if row is None:
            lines.append(Text(f"{_one_line(name)}  (gone)", style="dim"))
            continue
        line = Text(style="reverse" if name == selected else "dim" if row.age > status.interval * STALE else "")
        line.append(_fit(_one_line(name), name_width))
        for column in shown:
            line.append(column.text(row).rjust(column.width), style=column.style(row))
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
    jobs = view.jobs
    title = Text(f"the first jobs of {_one_line(view.looked_into)} in each state", style="bold")
    if jobs is None:
        return [title, Text("they are being fetched", style="dim")]
    title.append(f", as they were {span(max(now - jobs.moment, 0.0))} ago", style="not bold dim")
    if jobs.error:
        return [title, Text(_one_line(jobs.error), style="bold white on red")]
    heading = Text(_job_line(JOB_COLUMNS, width), style="reverse")
    if not jobs.jobs:
        return [title, heading, Text("no jobs", style="dim")]
    shown = jobs.jobs[view.jobs_top : view.jobs_top + view.room]
    return [title, heading, *(Text(_job_line(_job_cells(job, jobs.bodies), width)) for job in shown)]


def _job_cells(job: JobRow, bodies: Mapping[int, bytes]) -> tuple[str, ...]:
    notes = [job.key, job.reason and f"({job.reason})"]
    if job.id in bodies:
        notes.append(bodies[job.id][:BODY].decode("utf-8", "backslashreplace"))
    return (
        str(job.id),
        job.state,
        MISSING if job.priority is None else str(job.priority),
        span(job.age),
        span(job.delay),
        span(job.ttr),
        span(job.time_left),
        amount(job.size),
        amount(job.reserves),
        _one_line(" ".join(note for note in notes if note)),
    )


def _job_line(cells: Sequence[str], width: int) -> str:
    identity, state, priority, *numbers, notes = cells
    line = f"{identity:>12}  {state:<9}{priority:>11}" + "".join(f"{number:>9}" for number in numbers) + f"  {notes}"
    return set_cell_size(line, width)


def _help() -> list[Text]:
    """The keys, from the table that they are read with."""
    by_action: dict[str, list[str]] = {}
    for key, action in BINDINGS.items():
        if isinstance(action, Action):
            by_action.setdefault(action.value, []).append("space" if key == " " else key)
    lines = [Text("keys", style="bold")]
    lines += [Text(f"  {', '.join(keys):<22}{meaning}") for meaning, keys in by_action.items()]
    sorts = ", ".join(f"{key} {column}" for key, column in SORT_KEYS.items())
    return [*lines, Text(f"  sort by: {sorts}"), Text("  the same column again reverses the order")]


def _foot(view: View, width: int) -> Text:
    """The last line."""
    match view.mode:
        case Mode.QUESTION if view.question is not None:
            return Text(_one_line(view.question.text), style="bold yellow")
        case Mode.PREFIX:
            text = Text(f"tubes that begin with: {view.typed}", style="bold")
            text.append("_", style="blink")
            text.append(f"  {view.message or f'{ENTER} keeps it, {ESCAPE} drops it'}", style="not bold dim")
            return text
        case Mode.JOBS if not view.message:
            return Text(f"{ESCAPE} back   space fetches them again   up and down scroll", style="dim")
        case Mode.HELP:
            return Text("any key goes back", style="dim")
    if view.message:
        return Text(_one_line(view.message), style="bold")
    keys = f"q quit  ? help  / prefix  {ENTER} jobs  P pause  K kick  C clear  sort: "
    return Text(keys + " ".join(SORT_KEYS)[: max(width, 0)], style="dim")
