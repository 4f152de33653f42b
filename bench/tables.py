"""Shows results as tables: on the terminal, and between markers in the documents.

A document has `<!-- bench: NAME -->` and `<!-- end of bench: NAME -->`; only this module writes what is between them.
NAME is a scenario, `targets`, `headline` or `about`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.results import Point, Results, Spread
from bench.servers import SYNCED
from bench.targets import TARGETS

Rows = list[list[str]]
NOT_MEASURED = "not measured"
BUSIER = "\\*"  # beside a rate that the generator limited


class Measure(NamedTuple):
    """How a measure is shown: its heading, its format, and whether with its spread; and what it is multiplied by."""

    head: str
    form: str
    spread: bool = False
    scale: float = 1.0


MEASURES = {
    "rate": Measure("per second", ",.0f"),
    "cpu": Measure("CPU, µs each", ".2f", spread=True),
    "user": Measure("user", ".2f"),
    "system": Measure("system", ".2f"),
    "instructions": Measure("instructions", ",.0f", spread=True),
    "engine_cpu": Measure("engine's CPU, µs each", ".2f", spread=True),
    "client_cpu": Measure("client's CPU, µs each", ".1f", spread=True),
    "server_cpu": Measure("server's CPU, µs each", ".1f"),
    "put_cpu": Measure("enqueue: CPU, µs per task", ".0f", spread=True),
    "put_server_cpu": Measure("enqueue: server's CPU, µs per task", ".0f"),
    "seconds": Measure("seconds", ",.2f", spread=True),
    "early": Measure("early", ".0f"),
    "p50": Measure("p50, ms", ".2f"),
    "p99": Measure("p99, ms", ".2f"),
    "p999": Measure("p99.9, ms", ".2f"),
    "most": Measure("worst, ms", ",.1f", spread=True),
    "other_p99": Measure("other client's reply: p99, ms", ".2f"),
    "answers": Measure("answers", ",.0f"),
    "attacks": Measure("attacks", ",.0f"),
    "attack_rate": Measure("attacks per second", ",.0f"),
    "held_cpu": Measure("event loop stall: max CPU, ms", ".1f", spread=True),
    "longest": Measure("event loop stall: max, ms", ".1f"),
    "to_first_answer": Measure("time to first reply, ms", ",.1f", spread=True),
    "cpu_ms": Measure("CPU, ms", ".3f"),
    "engine_ms": Measure("engine's CPU, ms", ".1f"),
    "woken": Measure("woken", ".0f"),
    "bytes_per_job": Measure("bytes per job", ",.0f", spread=True),
    "counted": Measure("bytes per job, as the server counts", ",.0f"),
    "peak": Measure("peak memory, MB", ",.0f", scale=1e-6),
    "left": Measure("memory afterwards, MB", ",.0f", scale=1e-6),
    "grown": Measure("memory growth, MB", ",.1f", scale=1e-6),
    "megabytes": Measure("MB on disk", ",.0f"),
    "scrapes": Measure("scrapes", ",.0f"),
    "scrape_bytes": Measure("bytes per scrape", ",.0f"),
    "without_ms": Measure("server's CPU without viewers, ms per second", ".2f"),
    "one_ms": Measure("added by one viewer, ms per second", ".2f", spread=True),
    "many_ms": Measure("added by fifty viewers, ms per second", ".2f", spread=True),
    "own_ms": Measure("console's CPU, fifty viewers, ms per second", ".2f"),
    "first_page": Measure("first page, s", ".3f", spread=True),
    "page": Measure("page with fifty viewers (median), s", ".3f"),
    "page_again": Measure("page after a pause, s", ".3f"),
    "server_busy": Measure("server busy", ".0%"),
    "generator_busy": Measure("generator", ".0%"),
}
"""In the order of the columns."""

INVERTED = {"cpu": "per CPU second", "client_cpu": "per CPU second", "put_cpu": "enqueued per CPU second"}
"""Ratios of a cost are shown turned round, as what is done for it."""

LATENCIES = "p50 p99 p999"
CYCLE = f"rate cpu user system {LATENCIES} server_busy generator_busy"


@dataclass(frozen=True)
class Layout:
    """How a scenario is shown.

    Args:
        measures: the names of its columns.
        size: what the size of a point counts.
        ratios: the measures that are compared.
        first: whether all servers are compared with the first one, and not with themselves without what is added.
        ahead: whether a ratio says how far the first one is ahead.
    """

    measures: str
    size: str = ""
    ratios: str = ""
    first: bool = False
    ahead: bool = False


def points_table(results: Results, scenario: str, layout: Layout) -> Rows:
    """A scenario's points, a row for each, with the ratios to the server that each is compared with."""
    points = results.select(scenario)
    order = list(dict.fromkeys(point.work for point in points))
    works = any(order)
    columns = [name for name in MEASURES if name in layout.measures.split() and any(p.values(name) for p in points)]
    ratios = layout.ratios.split() if len({point.server for point in points}) > 1 else []
    head = [*(["work"] if works else []), *([layout.size] if layout.size else []), "server"]
    head += [MEASURES[name].head for name in columns]
    rows = [head + [f"× {INVERTED.get(name, MEASURES[name].head)}" for name in ratios]]
    for point in sorted(points, key=lambda point: (order.index(point.work), point.size)):
        row = [*([point.work] if works else []), *([f"{point.size:,}"] if layout.size else []), point.server]
        row += [_cell(point, name) for name in columns]
        other = _compared(results, point, layout.first)
        for name in ratios:
            found = ""
            if other and point.values(name) and other.values(name):
                turned = (name in INVERTED) != layout.ahead
                found = written(other.ratio(point, name) if turned else point.ratio(other, name), "×")
            row.append(found)
        rows.append(row)
    return rows


def _compared(results: Results, point: Point, first: bool) -> Point | None:
    """The same server without what was added last to its name; or the first one under the same sync policy."""
    same = results.select(point.scenario, work=point.work, size=point.size)
    plain = None if first else results.find(point.scenario, point.server.rpartition(", ")[0], point.work, point.size)
    found = plain or next(each for each in same if first or _policy(each) == _policy(point))
    return None if found is point else found


def _policy(point: Point) -> str:
    """The sync policy under which it was measured: a fork's -D promises what -f0 does, and is compared with it."""
    found = re.search(r" (-D|-F|-f\d+)$", point.server)
    policy = found[1] if found else ""
    return SYNCED[0] if policy in SYNCED else policy


def _cell(point: Point, name: str) -> str:
    if not point.values(name):
        return ""
    _, form, with_spread, scale = MEASURES[name]
    median, low, high = (format(value * scale, form) for value in point.spread(name))
    text = f"{median} ({low} to {high})" if with_spread and low != high else median
    return f"{text} {BUSIER}" if name == "rate" and point.limited_by_generator() else text


def written(figure: Spread, unit: str) -> str:
    """A figure with its unit and spread."""
    digits = 2 if unit in ("×", "µs") else 1 if unit == "ms" else 0
    median, low, high = (f"{value:,.{digits}f}" for value in figure)
    return f"{median} {unit}" if low == high else f"{median} {unit} ({low} to {high})"


def targets_table(results: Results) -> Rows:
    """The targets, and how far this run is."""
    rows = [["work", "found", "first", "", "then", ""]]
    for target in TARGETS:
        if not target.is_about(results):
            continue
        figure = target.found(results)
        row = [target.work, written(figure, target.unit) if figure else NOT_MEASURED]
        for wanted in (target.first, target.then):
            row.append("" if wanted is None else f"{wanted:g} {target.unit}")
            row.append("" if figure is None or wanted is None else "yes" if target.reached(figure, wanted) else "no")
        rows.append(row)
    return rows


def headline(results: Results) -> Rows:
    """The figures with a target, as this run measured them, without the targets."""
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
        text += " This was a quick run: do not quote it."
    if results.missing:
        text += "\n\nNot measured: " + "; ".join(f"{name} ({why})" for name, why in results.missing.items()) + "."
    return text


def markdown(rows: Rows) -> str:
    """A table in Markdown."""
    head, *body = rows
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in body])


def sections(results: Results, layouts: dict[str, Layout]) -> dict[str, Callable[[], str]]:
    """Everything that may stand between markers, by name.

    A run of some scenarios alone says below their tables what it is, and leaves what is said of the whole page to a
    whole run.
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
    for name, layout in layouts.items():
        if results.select(name):
            made[name] = lambda name=name, layout=layout: markdown(points_table(results, name, layout)) + below  # type: ignore[misc]
    return made


def write_into(document: Path, results: Results, layouts: dict[str, Layout]) -> list[str]:
    """Write between the markers of a document; return the names of those without results."""
    made = sections(results, layouts)
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
