"""Shows results as tables: on the terminal, and between markers in the documents.

A document has `<!-- bench: NAME -->` and `<!-- end of bench: NAME -->`; only this module writes what is between them.
NAME is a scenario, `targets`, `headline` or `about`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.doors import BEHIND_STUNNEL, CARRIED, CLUSTERED, WITH_TLS
from bench.results import Point, Results
from bench.samples import Spread, generator_was_busier
from bench.servers import SYNCED
from bench.targets import TARGETS

Rows = list[list[str]]
BUSIER = "\\*"  # beside a rate that the generator limited


@dataclass(frozen=True)
class Column:
    """One figure of a point: its heading, its measure, how it is written, and whether with its spread."""

    head: str
    measure: str
    form: str
    spread: bool = False


@dataclass(frozen=True)
class Table:
    """How a scenario is shown: what its size counts, its columns, and the measures shown as ratios.

    A ratio is "better" in the sense that is written: `cpu` turned round, as commands for each second of CPU time.
    """

    size: str
    columns: tuple[Column, ...]
    ratios: tuple[str, ...] = ()


RATE = Column("commands/s", "rate", "{:,.0f}")
CPU = Column("CPU, µs a command", "cpu", "{:.2f}", spread=True)
LATENCIES = (
    Column("p50, ms", "p50", "{:.2f}"),
    Column("p99", "p99", "{:.2f}"),
    Column("p99.9", "p999", "{:.2f}"),
)
CYCLE = (
    RATE,
    CPU,
    Column("user", "user", "{:.2f}"),
    Column("system", "system", "{:.2f}"),
    *LATENCIES,
    Column("server busy", "server_busy", "{:.0%}"),
    Column("generator", "generator_busy", "{:.0%}"),
)

TABLES = {
    "request-response": Table("connections", CYCLE, ("cpu", "rate")),
    "in-flight": Table("in flight", CYCLE, ("cpu", "rate")),
    "compiled": Table("in flight", CYCLE, ("cpu", "rate")),
    "bodies": Table("bytes", CYCLE, ("cpu", "rate")),
    "halves": Table("", CYCLE, ("cpu", "rate")),
    "other-tubes": Table("other tubes", (RATE, CPU, *LATENCIES)),
    "waiting": Table("workers", (RATE, CPU, *LATENCIES), ("cpu", "rate")),
    "delayed": Table(
        "jobs",
        (RATE, CPU, Column("p99, ms", "p99", "{:.2f}"), Column("bytes a job", "bytes_per_job", "{:.0f}")),
        ("cpu", "rate"),
    ),
    "come-and-go": Table("jobs", (Column("grown since the first tenth, MB", "grown", "{:,.1f}"),)),
    "clear": Table(
        "jobs", (Column("seconds", "seconds", "{:.2f}"), Column("another waited, ms at most", "most", "{:.1f}"))
    ),
    "timers": Table(
        "timers",
        (
            Column("early", "early", "{:.0f}"),
            Column("late: p50, ms", "p50", "{:.1f}"),
            Column("p99", "p99", "{:.1f}"),
            Column("p99.9", "p999", "{:.1f}"),
            Column("most", "most", "{:.1f}"),
            Column("another's answer: p99, ms", "other_p99", "{:.2f}"),
        ),
    ),
    "idle": Table(
        "",
        (
            Column("CPU, ms", "cpu_ms", "{:.3f}"),
            Column("woken", "woken", "{:.0f}"),
            Column("in, s", "seconds", "{:.1f}"),
        ),
    ),
    "binlog": Table("in flight", CYCLE, ("rate", "cpu")),
    "binlog-memory": Table(
        "jobs",
        (
            Column("bytes a job", "bytes_per_job", "{:,.0f}", spread=True),
            Column("MB on disk", "megabytes", "{:,.0f}"),
            RATE,
            CPU,
        ),
    ),
    "start": Table(
        "jobs",
        (
            Column("seconds", "seconds", "{:.2f}", spread=True),
            Column("bytes a job", "bytes_per_job", "{:.0f}"),
            Column("MB on disk", "megabytes", "{:.0f}"),
        ),
        ("seconds",),
    ),
    "launch": Table(
        "",
        (
            Column("to the first answer, ms", "to_first_answer", "{:.1f}", spread=True),
            Column("CPU, ms", "cpu_ms", "{:.1f}"),
        ),
    ),
    "hostile": Table(
        "",
        (
            Column("worst answer, ms", "most", "{:,.1f}", spread=True),
            Column("p99", "p99", "{:,.1f}"),
            Column("p50", "p50", "{:,.2f}"),
            Column("answers", "answers", "{:,.0f}"),
            Column("memory, MB at most", "peak", "{:,.0f}"),
            Column("attacks", "attacks", "{:,.0f}"),
        ),
        ("most",),
    ),
    "tls": Table("in flight", CYCLE, ("cpu", "rate")),
    "io-processes": Table(
        "connections",
        (RATE, CPU, Column("engine process, µs a command", "engine_cpu", "{:.2f}", spread=True), *LATENCIES),
        ("cpu",),
    ),
    "cluster": Table(
        "in flight",
        (
            RATE,
            CPU,
            Column("engine's CPU, µs a command", "engine_cpu", "{:.2f}", spread=True),
            *LATENCIES,
            Column("next leader's first answer, ms", "to_first_answer", "{:,.0f}", spread=True),
        ),
        ("cpu", "rate"),
    ),
    "shards": Table(
        "in flight",
        (
            RATE,
            CPU,
            Column("leader's or engine's CPU, µs a command", "engine_cpu", "{:.2f}", spread=True),
            *LATENCIES,
            Column("at rest: CPU, ms", "cpu_ms", "{:.1f}"),
            Column("leader's or engine's, ms", "engine_ms", "{:.1f}"),
            Column("in, s", "seconds", "{:.0f}"),
        ),
        ("cpu",),
    ),
    "policies": Table(
        "",
        (
            RATE,
            CPU,
            *LATENCIES,
            Column("most", "most", "{:.1f}", spread=True),
        ),
        ("cpu",),
    ),
    "metrics": Table(
        "",
        (
            RATE,
            CPU,
            *LATENCIES,
            Column("most", "most", "{:.1f}", spread=True),
            Column("scrapes", "scrapes", "{:,.0f}"),
            Column("bytes each", "scrape_bytes", "{:,.0f}"),
        ),
        ("cpu",),
    ),
    "arrivals": Table(
        "",
        (
            Column("a second", "attack_rate", "{:,.0f}"),
            Column("loop held: its own CPU time, ms at the most", "held_cpu", "{:.1f}", spread=True),
            Column("held, ms at the longest", "longest", "{:.1f}"),
            Column("another waits, ms: p50", "p50", "{:.2f}"),
            Column("p99", "p99", "{:.1f}"),
            Column("CPU, µs a client", "cpu", "{:.0f}"),
            Column("memory grown, MB", "grown", "{:.1f}"),
        ),
    ),
    "clients": Table(
        "",
        (
            Column("jobs/s", "rate", "{:,.0f}", spread=True),
            Column("client's CPU, µs a job", "client_cpu", "{:.1f}", spread=True),
            Column("server's", "server_cpu", "{:.1f}"),
        ),
        ("client_cpu", "rate"),
    ),
    "stalls": Table(
        "",
        (
            Column("its own CPU time, ms at the most", "cpu", "{:.1f}"),
            Column("held, ms at the longest", "longest", "{:.1f}"),
        ),
    ),
}
"""By scenario; `OWN_TABLES` has the others."""

RATIOS: dict[str, tuple[str, bool]] = {
    "cpu": ("commands a CPU second", True),
    "client_cpu": ("jobs a CPU second", True),
    "rate": ("rate", False),
    "seconds": ("time", False),
    "most": ("worst answer", False),
}
"""The name of each ratio, and whether it is inverted."""

MEGABYTES = {"grown", "peak"}


def points_table(results: Results, scenario: str) -> Rows:
    """A scenario's points, a row for each, with the ratios to the first server that did the same at the same size."""
    if scenario in OWN_TABLES:
        return OWN_TABLES[scenario](results)
    table = TABLES[scenario]
    points = results.select(scenario)
    works = any(point.work for point in points)
    measures = {measure for point in points for sample in point.samples for measure in sample}
    columns = [column for column in table.columns if column.measure in measures]
    ratios = [measure for measure in table.ratios if len({point.server for point in points}) > 1]
    head = [*(["work"] if works else []), *([table.size] if table.size else []), "server"]
    head += [column.head for column in columns] + [f"× {RATIOS[measure][0]}" for measure in ratios]
    rows = [head]
    points = sorted(points, key=lambda point: (_order(results, point), point.size))
    for point in points:
        row = [*([point.work] if works else []), *([f"{point.size:,}"] if table.size else []), point.server]
        row += [_cell(point, column) for column in columns]
        other = _measure_of(results, point)
        row += [_ratio_cell(results, point, other, measure) for measure in ratios]
        rows.append(row)
    return rows


def _order(results: Results, point: Point) -> int:
    """Where the work of a point first appears in its scenario."""
    works = list(dict.fromkeys(each.work for each in results.select(point.scenario)))
    return works.index(point.work)


def _measure_of(results: Results, point: Point) -> Point | None:
    """The point that this one is compared with: beanstalkd under the same policy, or the first server; with TLS
    in a cluster, or with an I/O process, the same server without."""
    for added in (WITH_TLS, BEHIND_STUNNEL, CLUSTERED, CARRIED):
        if point.server.endswith(added):
            return results.find(point.scenario, point.server.removesuffix(added), point.work, point.size)
    same = results.select(point.scenario, work=point.work, size=point.size)
    if point.work == "cancel":
        same = results.select(point.scenario, work="delete", size=point.size)
    policy = "" if point.scenario == "clients" else _policy(point)  # clients have none, and spaces in their names
    first = next((each for each in same if not policy or _policy(each) == policy), None)
    return None if first is None or first is point else first


def _policy(point: Point) -> str:
    """The sync policy under which it was measured: a fork's -D promises what -f0 does, and is compared with it."""
    policy = point.server.partition(" ")[2]
    return SYNCED[0] if policy in SYNCED else policy


def _cell(point: Point, column: Column) -> str:
    values = [sample[column.measure] for sample in point.samples if column.measure in sample]
    if not values:
        return ""
    scale = 1e-6 if column.measure in MEGABYTES else 1.0
    found = Point("", "", "", 0, [{"value": value * scale} for value in values]).spread("value")
    text = column.form.format(found.median)
    if column.spread and len(values) > 1:
        text += f" ({column.form.format(found.low)} to {column.form.format(found.high)})"
    if column.measure == "rate" and generator_was_busier(point.samples):
        text += f" {BUSIER}"
    return text


def _ratio_cell(results: Results, point: Point, other: Point | None, measure: str) -> str:
    if other is None or not all(measure in sample for sample in point.samples + other.samples):
        return ""
    turned = RATIOS[measure][1]
    found = results.ratio(other, point, measure) if turned else results.ratio(point, other, measure)
    return written(found, "×")


def written(figure: Spread, unit: str) -> str:
    """A figure with its unit and spread."""
    digits = 2 if unit in ("×", "µs") else 1 if unit == "ms" else 0
    text = f"{figure.median:,.{digits}f} {unit}"
    low, high = f"{figure.low:,.{digits}f}", f"{figure.high:,.{digits}f}"
    return text if low == high else f"{text} ({low} to {high})"


def _steady(results: Results) -> Rows:
    rows = [["server", "commands/s", "p50, ms", "p99", "MB", "p50 in the last third", "p99", "MB"]]
    for point in results.select("steady"):
        third = max(len(point.samples) // 3, 1)
        row = [point.server, f"{point.spread('rate').median:,.0f}"]
        for part in (point.samples[:third], point.samples[-third:]):
            of = Point("", "", "", 0, part)
            row += [f"{of.spread('p50').median:.2f}", f"{of.spread('p99').median:.2f}"]
            row.append(f"{of.spread('resident').median / 1e6:.1f}")
        rows.append(row)
    return rows


def _backlog(results: Results) -> Rows:
    """A row for each phase, as it was at its end and at its worst."""
    head = ["server", "phase", "jobs", "seconds", "jobs/s", "CPU, µs a job", "memory, MB at most", "MB at the end"]
    rows = [[*head, "bytes for each job left", "directory, MB at most", "MB at the end"]]
    for server in dict.fromkeys(point.server for point in results.select("backlog")):
        points = results.select("backlog", server=server)
        empty, left = points[0].samples[0]["resident"], 0.0
        for number, point in enumerate(points):
            end = point.samples[-1]
            done = end["jobs"]
            left += -done if number else done
            most = {measure: max(sample[measure] for sample in point.samples) for measure in ("resident", "directory")}
            row = [server, point.work, f"{done:,.0f}", f"{end['seconds']:,.1f}", f"{done / end['seconds']:,.0f}"]
            row += [f"{end['cpu'] / max(done, 1) * 1e6:.1f}", f"{most['resident'] / 1e6:,.0f}"]
            row += [f"{end['resident'] / 1e6:,.0f}", f"{(end['resident'] - empty) / left:,.0f}" if left else ""]
            rows.append([*row, f"{most['directory'] / 1e6:,.0f}", f"{end['directory'] / 1e6:,.0f}"])
    return rows


def _workers(results: Results) -> Rows:
    """A row for each task queue, and how far the first is ahead of it."""
    head = ["task queue", "tasks/s", "worker's CPU, µs a task", "broker's", "enqueueing: CPU, µs a task", "broker's"]
    rows = [[*head, "ours beside it: tasks/s", "tasks a CPU second of the worker", "enqueued a CPU second"]]
    points = results.select("workers")
    for point in points:
        row = [point.server, spread_of(point, "rate", "{:,.0f}"), spread_of(point, "cpu", "{:,.0f}")]
        row += [f"{point.spread('server_cpu').median:,.0f}", spread_of(point, "put_cpu", "{:,.0f}")]
        row.append(f"{point.spread('put_server_cpu').median:,.0f}")
        if point is points[0]:
            row += [""] * 3
        else:
            ahead = [results.ratio(points[0], point, "rate")]
            ahead += [results.ratio(point, points[0], measure) for measure in ("cpu", "put_cpu")]
            row += [written(figure, "×") for figure in ahead]
        rows.append(row)
    return rows


def spread_of(point: Point, measure: str, form: str) -> str:
    """The median of a measure, with the smallest and the largest."""
    found = point.spread(measure)
    median, low, high = (form.format(value) for value in found)
    return median if low == high else f"{median} ({low} to {high})"


BACKLOG_PLOT = "![memory, files and rate over the phases](plots/backlog.svg)"

OWN_TABLES = {"steady": _steady, "backlog": _backlog, "workers": _workers}
"""Scenarios whose samples were taken over time, and one that compares each with the first."""


def targets_table(results: Results) -> Rows:
    """The figures to reach, and how far this run is."""
    rows = [["work", "found", "first", "", "then", ""]]
    for target in TARGETS:
        if not target.is_about(results):
            continue
        figure = target.found(results)
        row = [target.work, written(figure, target.unit) if figure else "not measured"]
        for wanted in (target.first, target.then):
            row.append("" if wanted is None else f"{wanted:g} {target.unit}")
            row.append("" if figure is None or wanted is None else "yes" if target.reached(figure, wanted) else "no")
        rows.append(row)
    return rows


def headline(results: Results) -> Rows:
    """The figures to reach as this run measured them, without the targets."""
    figures = [(target, target.found(results)) for target in TARGETS]
    return [["work", "found"], *([target.work, written(figure, target.unit)] for target, figure in figures if figure)]


def about(results: Results) -> str:
    """Describe when and where the run was done, and what it measured, in one paragraph."""
    told = results.about
    versions = ", ".join(told.get("versions", {}).values())
    text = (
        f"Commit {told['commit']}, {told['date']}: {told['machine']}. {versions}. "
        f"{told['pairs']} measurements of each server, in turn; {told['minutes']:.0f} minutes in all."
    )
    if told.get("quick"):
        text += " A quick run, not to be quoted."
    if results.missing:
        text += "\n\nNot measured: " + "; ".join(f"{name} ({why})" for name, why in results.missing.items()) + "."
    return text


def markdown(rows: Rows) -> str:
    """A table in Markdown, for the documents."""
    head, *body = rows
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in body])


def sections(results: Results) -> dict[str, Callable[[], str]]:
    """Everything that may stand between markers, by name.

    A run of some scenarios alone says of itself what it is, below their tables, and leaves what is said of the whole
    page to a whole run.
    """
    is_whole = bool(results.select("request-response"))
    made: dict[str, Callable[[], str]] = {}
    if is_whole:
        made = {
            "about": lambda: about(results),
            "targets": lambda: markdown(targets_table(results)),
            "headline": lambda: markdown(headline(results)),
        }
    below = f"\n\n{about(results)}" if results.about and not is_whole else ""
    for scenario in [*TABLES, *OWN_TABLES]:
        if results.select(scenario):
            made[scenario] = lambda name=scenario: markdown(points_table(results, name)) + below  # type: ignore[misc]
    if "backlog" in made:  # not every run has it, and there is no plot before the first
        made["backlog"] = lambda: f"{BACKLOG_PLOT}\n\n{markdown(points_table(results, 'backlog'))}"
    return made


def write_into(document: Path, results: Results) -> list[str]:
    """Write between the markers of a document; return the names of those without results."""
    made = sections(results)
    left = []

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        if name not in made:
            left.append(name)
            return found[0]
        return f"<!-- bench: {name} -->\n\n{made[name]()}\n\n<!-- end of bench: {name} -->"

    text = document.read_text()
    document.write_text(re.sub(r"<!-- bench: (\S+) -->\n.*?<!-- end of bench: \1 -->", fill, text, flags=re.DOTALL))
    return left
