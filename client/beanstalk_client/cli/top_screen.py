"""Draws the screen of `beanstalk top` with rich, for a terminal of any size.

    summary     the server, its jobs, its rates, sparklines
    notice      the error, or how fresh the figures are
    tubes       a table; columns that do not fit are left out, the least important first. Or the jobs of a tube
    foot        the prefix that is typed, a message, or the keys

An unknown figure is `-`. A tube that has not been sampled for STALE intervals is dim, and its last column has the age
of its row. Text from a server is never taken for markup or for control sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.table import Table
from rich.text import Text

from beanstalk_client.cli.output import safe
from beanstalk_client.cli.top_keys import ENTER, ESCAPE
from beanstalk_client.cli.top_state import HELP, JobsOfTube, Mode, View
from beanstalk_client.commands import is_until_resumed
from beanstalk_client.observe.sampler import Sampler
from beanstalk_client.observe.samples import COMMANDS, CPU, SORT_KEYS, STATES, Figures, Tube, number

BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.:-=+*#"

MISSING: Final = "-"
"""An unknown figure."""

SPARKLINE: Final = 16
"""The width of the sparkline of a tube."""

NAME: Final = 12
"""The minimum width of the column of names."""

STALE: Final = 3.0
"""After this many intervals, a row is dim and has its age."""

BODY: Final = 200
"""Maximum bytes of a body on the screen."""

ABOVE: Final = 5
"""Lines above the table: summary and notice."""

ERROR: Final = "bold white on red"


@dataclass(frozen=True)
class Status:
    """What is drawn beside samples and view.

    Attributes:
        target: the server, as the user writes it.
        clock: the time of day, as text.
        interval: seconds between two samples.
        notice: an error, or "".
        live: whether there are keys: a selection, and a foot.
        encoding: of the terminal.
    """

    target: str
    clock: str = ""
    interval: float = 1.0
    notice: str = ""
    live: bool = True
    encoding: str = "utf-8"

    def is_stale(self, age: float) -> bool:
        """Whether figures of this age, in seconds, are old."""
        return age > self.interval * STALE

    def line(self, text: str) -> str:
        """Text of the server's on one line, without control characters and with what the terminal can show."""
        line = safe(text).replace("\n", "\\n").replace("\t", "\\t")
        return line.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def sparkline(self, values: Sequence[float | None]) -> str:
        """The values as bars from 0 to the largest of them; a gap where there is none."""
        bars = BARS if "utf" in self.encoding.lower() else ASCII_BARS
        highest = max((value for value in values if value is not None), default=0.0) or 1.0
        last = len(bars) - 1
        return "".join(" " if value is None else bars[round(max(value / highest, 0.0) * last)] for value in values)


@dataclass(frozen=True)
class Column:
    """A column: its heading, its width, its rank (0 stays longest), its text, its sort name and its style."""

    heading: str
    width: int
    rank: int
    text: Callable[[Tube], str]
    sort: str = ""
    style: str = ""


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


def rate(number: float | None, sign: str = "") -> str:
    """A rate a second in at most six characters, without the sign: with a decimal below 100."""
    if number is None:
        return MISSING
    text = f"{number:.1f}" if abs(number) < 99.95 else amount(number)
    return "0.0" if abs(number) < 0.05 else f"{sign if number > 0 else ''}{text}"


def span(seconds: float | None, missing: str = MISSING) -> str:
    """A time in at most four characters: 59s, 59m, 47h, 999d."""
    if seconds is None:
        return missing
    for size, unit, until in ((1, "s", 100), (60, "m", 100), (3600, "h", 48)):
        if seconds < size * until:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86400)}d"


def _columns(sampler: Sampler, status: Status, width: int) -> list[Column]:
    """The columns that fit beside the names, from left to right."""
    now = sampler.now

    def figure(name: str) -> Callable[[Tube], str]:
        return lambda tube: amount(getattr(tube, name))

    def seen(tube: Tube) -> str:
        age = tube.age(now)
        return span(age) if status.is_stale(age) else ""

    def pause(tube: Tube) -> str:
        return "on" if is_until_resumed(tube.pause_left or 0) else span(tube.pause_left or None, "")

    def over_time(tube: Tube) -> str:
        return status.sparkline(sampler.history("ready", tube.name, SPARKLINE))

    columns = [
        Column("READY", 6, 0, figure("ready"), "ready"),
        Column("RESVD", 6, 2, figure("reserved"), "reserved"),
        Column("DELAY", 6, 3, figure("delayed"), "delayed"),
        Column("BURY", 6, 1, figure("buried"), "buried", "red"),
        Column("IN/S", 6, 4, lambda tube: rate(tube.puts), "in"),
        Column("OUT/S", 6, 5, lambda tube: rate(tube.deletes), "out"),
        Column("TREND", 7, 6, lambda tube: rate(tube.growth, "+"), "growth"),
        Column("AGE", 4, 7, lambda tube: span(tube.next_age), "age"),
        Column("WAIT", 6, 10, figure("waiting"), "waiting"),
        Column("PAUSE", 5, 9, pause, "", "yellow"),
        Column("READY OVER TIME", SPARKLINE, 11, over_time),
        Column("SEEN", 4, 8, seen),
    ]
    left = width - NAME
    fitting = []
    for column in sorted(columns, key=lambda column: column.rank):
        left -= column.width + 1
        if left < 0:
            break
        fitting.append(column)
    return [column for column in columns if column in fitting]


def draw(sampler: Sampler, view: View, status: Status, size: tuple[int, int]) -> Group:
    """The screen. Sets the number of lines that the view has for tubes.

    Args:
        size: width and height of the terminal, in characters.
    """
    width, height = size
    view.fit(height - ABOVE - 2)
    lines: list[Text | Table]
    if view.mode is Mode.HELP:
        lines = [Text("keys", style="bold"), *(Text(f"  {keys:<26}{meaning}") for keys, meaning in HELP.items())]
        used = len(lines)
    elif view.mode is Mode.JOBS:
        lines = [*_summary(sampler, status, width), *_jobs(view, status, width, sampler.now)]
        used = len(lines) + (min(len(view.jobs.jobs) - view.jobs_top, view.room) if view.jobs else 0)
    else:
        lines = [
            *_summary(sampler, status, width),
            _notice(sampler, view, status),
            _tubes(sampler, view, status, width),
        ]
        used = ABOVE + 1 + len(view.visible)
    if status.live:
        lines = [*lines[: height - 1], *[Text()] * (height - 1 - used), _foot(view)]
    for line in lines:
        if isinstance(line, Text):
            line.no_wrap, line.overflow = True, "crop"
    return Group(*lines)


def _summary(sampler: Sampler, status: Status, width: int) -> list[Text]:
    """The server in four lines."""
    server, age = sampler.samples, sampler.samples.age(sampler.now)

    def figure(key: str) -> str:
        return amount(server.number(key))

    version = str(server.figures.get("server") or server.figures.get("version", ""))
    uptime = "no sample yet" if age is None else f"up {span(server.number('uptime'))}"
    first = Text.assemble(
        ("beanstalk top", "bold"),
        (f"  {status.line(status.target)}", "bold cyan"),
        (f"  {status.line(version)}  {uptime}", "bold"),
    )
    if server.figures.get("draining") == "true":
        first.append("  DRAINING", "bold yellow")
    if age is not None and status.is_stale(age):
        first.append(f"  {span(age)} ago", "bold red")
    first.append(status.clock.rjust(max(width - first.cell_len, 0)) if first.cell_len < width else "", "bold")

    states = Text("jobs  ")
    for state in STATES:
        states.append(f"{figure(f'current-jobs-{state}')} ", "bold").append(f"{state}  ")
    clients = f"   clients {figure('current-connections')} ({figure('current-waiting')} waiting)"
    memory = f"   memory {figure('current-memory')}B" if server.number("current-memory") else ""
    states.append(f"   tubes {figure('current-tubes')}{clients}{memory}")

    rates = Text("rates ")
    for name, label in (("puts", "in"), ("reserves", "reserves"), ("deletes", "out"), (COMMANDS, "commands")):
        rates.append(f"{rate(server.rates.get(name))}/s ", "bold").append(f"{label}  ")
    if timeouts := server.rates.get("timeouts"):
        rates.append(f"{rate(timeouts)}/s timeouts  ", "yellow")
    cpu = server.rates.get(CPU)
    rates.append(f"   CPU {MISSING if cpu is None else f'{cpu:.0%}'}")

    each = max((width - len("ready   in   out ") - 2) // 3, 1)
    graphs = Text()
    for name, label, style in (("ready", "ready", "cyan"), ("puts", "in", "green"), ("deletes", "out", "magenta")):
        graphs.append(f"{label} ").append(status.sparkline(sampler.history(name, count=each)).rjust(each), style)
        graphs.append("  ")
    return [first, states, rates, graphs]


def _notice(sampler: Sampler, view: View, status: Status) -> Text:
    """The error, or which tubes are shown and how fresh they are."""
    if status.notice:
        return Text(status.line(status.notice), style=ERROR)
    last = min(view.top + view.room, len(view.ranked))
    text = Text(style="dim")
    text.append(f"tubes {view.top + 1 if view.ranked else 0} to {last} of {view.matching:,}")
    text.append(f" by {view.sort}{', reversed' if view.backwards else ''}")
    if view.prefix:
        text.append(f", beginning with {view.prefix}", style="not dim bold")
    if view.matching > len(view.ranked):
        text.append(f" (only the first {len(view.ranked):,} can be scrolled to)")
    oldest = sampler.samples.oldest(view.prefix, sampler.now)
    if not sampler.survey.is_complete:
        text.append("; not all tubes have been sampled yet")
    elif status.is_stale(oldest):
        text.append(f"; figures of tubes off the screen are up to {span(oldest)} old")
    return text


def _table() -> Table:
    return Table(box=None, expand=True, padding=(0, 0, 0, 1), pad_edge=False, header_style="reverse")


def _tubes(sampler: Sampler, view: View, status: Status, width: int) -> Table:
    columns = _columns(sampler, status, width)
    name_width = max(width - sum(column.width + 1 for column in columns), 1)
    table = _table()
    table.add_column(Text("TUBE", "bold" if view.sort == "tube" else ""), width=name_width, no_wrap=True)
    for column in columns:
        heading = Text(column.heading, "bold underline" if column.sort == view.sort else "")
        table.add_column(heading, width=column.width, justify="right", no_wrap=True)
    for name in view.visible:
        tube = sampler.samples.tubes.get(name)
        if tube is None:
            table.add_row(Text(_fitted(f"{status.line(name)} (deleted)", name_width)), style="dim")
            continue
        cells = [(column.text(tube), column.style) for column in columns]
        style = "dim" if status.is_stale(tube.age(sampler.now)) else ""
        table.add_row(
            Text(_fitted(status.line(name), name_width)),
            *(Text(text, style if text != "0" else "") for text, style in cells),
            style="reverse" if status.live and name == view.selected_name else style,
        )
    return table


def _fitted(text: str, width: int) -> str:
    """Text in this many cells; a tilde at the end if it is cut off."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 1, 0))}~"


JOB_COLUMNS: Final = {"ID": 12, "STATE": 8, "PRI": 10, "AGE": 4, "DELAY": 5, "TTR": 4, "LEFT": 4, "SIZE": 6, "TAKEN": 6}
"""The columns of a job and their widths; the last one is what identifies it."""


def _jobs(view: View, status: Status, width: int, now: float) -> list[Text | Table]:
    """The first jobs of a tube in each state."""
    found = view.jobs
    title = Text(f"the first jobs of {status.line(view.tube)} in each state", style="bold")
    if found is None or found.error:
        return [title, Text(status.line(found.error), ERROR) if found else Text("fetching", "dim")]
    title.append(f", {span(max(now - found.moment, 0.0))} ago", style="not bold dim")
    measured = [f"{text} {' / '.join(f'{value:.3g}' for value in each)} s" for text, each in found.percentiles.items()]
    ages = [f"{text} {span(age)}" for text, age in found.ages.items()]
    above: list[Text | Table] = [title, *(Text(", ".join(line)) for line in (measured, ages) if line)]
    table = _table()
    for heading, size in JOB_COLUMNS.items():
        table.add_column(heading, width=size, no_wrap=True, justify="left" if heading == "STATE" else "right")
    table.add_column(
        "KEY, REASON, BODY", width=max(width - sum(JOB_COLUMNS.values()) - len(JOB_COLUMNS), 1), no_wrap=True
    )
    for job in found.jobs[view.jobs_top :][: view.room + 1 - len(above)]:
        table.add_row(*(Text(status.line(cell), overflow="crop") for cell in _job_cells(job, found)))
    return [*above, table if found.jobs else Text("no jobs", "dim")]


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


def _foot(view: View) -> Text:
    """The last line."""
    match view.mode:
        case Mode.PREFIX:
            text = Text(f"tubes that begin with: {view.prefix}", style="bold").append("_", style="blink")
            return text.append(
                f"  {view.message or f'{ENTER} keeps the prefix, {ESCAPE} clears it'}", style="not bold dim"
            )
        case Mode.HELP:
            return Text("press any key to go back", style="dim")
        case Mode.JOBS:
            return Text(f"{ESCAPE} back   space refresh   up, down scroll", style="dim")
    if view.message:
        return Text(view.message, style="bold")
    return Text(f"q quit  ? help  / prefix  {ENTER} jobs  sort: {' '.join(SORT_KEYS)}", style="dim")
