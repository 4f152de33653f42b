"""Draws results as plots over the size, on logarithmic axes: a line that should be flat looks flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.results import Point, Results

COLOURS = {"ours": "C0", "beanstalkd": "C1", "redis": "C2", "redis-always": "C3", "interpreted": "C4"}


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a measure of some work, over the size."""

    title: str
    measure: str
    unit: str
    work: str = ""


@dataclass(frozen=True)
class Plot:
    """One picture of one scenario."""

    size: str
    panels: tuple[Panel, ...]


CPU = Panel("CPU time of the server, per command", "cpu", "µs")
LATE = Panel("latency, 99th percentile", "p99", "ms")

PLOTS = {
    "request-response": Plot("connections", (CPU, LATE)),
    "in-flight": Plot("commands in flight on each connection", (CPU, LATE)),
    "bodies": Plot("bytes of body", (CPU, LATE)),
    "other-tubes": Plot("other tubes", (CPU, LATE)),
    "waiting": Plot("waiting workers", (CPU, LATE)),
    "delayed": Plot(
        "delayed jobs in the tube",
        (
            Panel("put: CPU time per command", "cpu", "µs", "put"),
            Panel("memory", "bytes_per_job", "bytes a job", "put"),
            Panel("peek-delayed: CPU time", "cpu", "µs", "peek-delayed"),
            Panel("kick 1: CPU time", "cpu", "µs", "kick"),
        ),
    ),
    "clear": Plot(
        "jobs in the tube", (Panel("clear-tube", "seconds", "s"), Panel("another client waited at most", "most", "ms"))
    ),
    "timers": Plot(
        "timers within 10 s",
        (Panel("late, 99th percentile", "p99", "ms"), Panel("another client's answer, p99", "other_p99", "ms")),
    ),
    "binlog": Plot("commands in flight on each connection", (Panel("rate", "rate", "commands/s"), CPU)),
    "start": Plot(
        "live jobs", (Panel("start to first answer", "seconds", "s"), Panel("memory", "bytes_per_job", "bytes a job"))
    ),
}


def draw(results: Results, directory: Path) -> list[Path]:
    """Draw a plot for each scenario with results, as SVG and PNG; return the files."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 9, "axes.grid": True})
    mpl.rcParams.update({"grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for scenario, plot in PLOTS.items():
        if results.select(scenario):
            files += _save(_grown(results, scenario, plot), directory / scenario)
    if results.select("steady"):
        files += _save(_steady(results), directory / "steady")
    if results.select("backlog"):
        files += _save(_backlog(results), directory / "backlog")
    if results.select("stalls"):
        files += _save(_stalls(results), directory / "stalls")
    return files


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_suffix(".svg"), path.with_suffix(".png")]
    figure.savefig(files[0], metadata={"Date": None})  # the same results give the same file
    figure.savefig(files[1], dpi=80)
    return files


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, 2)
    rows = -(-count // columns)
    figure = Figure(figsize=(9, 3.2 * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _grown(results: Results, scenario: str, plot: Plot) -> Figure:
    figure, panels = _panels(len(plot.panels))
    for axes, panel in zip(panels, plot.panels, strict=False):
        points = results.select(scenario, work=panel.work)
        for server in dict.fromkeys(point.server for point in points):
            line = sorted((point for point in points if point.server == server), key=lambda point: point.size)
            line = [point for point in line if all(panel.measure in sample for sample in point.samples)]
            if line:
                _line(axes, server, _colour(results, server), line, panel.measure)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(_short))
            axis.set_minor_formatter(NullFormatter())
        axes.set_title(panel.title)
        axes.set_xlabel(plot.size)
        axes.set_ylabel(panel.unit)
        _room(axes)
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=7)
    return figure


def _short(value: float, _: object = None) -> str:
    """A number as an axis shows it: 0.5, 20, 100k, 1M."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def _colour(results: Results, server: str) -> str:
    """The colour of a server; those that the run has named have the next ones, in their order."""
    peer = server.partition(" ")[0]
    named = [each for each in results.about.get("peers", []) if each not in COLOURS]
    return COLOURS.get(peer) or f"C{len(COLOURS) + (named.index(peer) if peer in named else 0)}"


def _line(axes: Axes, server: str, colour: str, points: Sequence[Point], measure: str) -> None:
    sizes = [point.size for point in points]
    spreads = [point.spread(measure) for point in points]
    style = "--" if server.endswith("-F") else ":" if server.endswith("-f50") else "-"
    axes.plot(sizes, [each.median for each in spreads], style, marker="o", markersize=4, color=colour, label=server)
    axes.fill_between(
        sizes, [each.low for each in spreads], [each.high for each in spreads], color=colour, alpha=0.15, linewidth=0
    )


def _room(axes: Axes) -> None:
    """At least a decade from bottom to top, so that noise does not look like growth."""
    bottom, top = axes.get_ylim()
    if bottom > 0 and top / bottom < 10:
        middle = (bottom * top) ** 0.5
        axes.set_ylim(middle / 10**0.5, middle * 10**0.5)


def _steady(results: Results) -> Figure:
    figure, panels = _panels(2)
    for axes, (title, measure, unit, scale) in zip(
        panels, (("memory", "resident", "MB", 1e-6), ("latency, 99th percentile", "p99", "ms", 1.0)), strict=True
    ):
        for point in results.select("steady"):
            at, ends = 0.0, []
            for sample in point.samples:
                at += sample["seconds"]
                ends.append(at)
            values = [sample[measure] * scale for sample in point.samples]
            axes.plot(ends, values, color=_colour(results, point.server), label=point.server)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_xlabel("seconds of steady load")
        axes.set_ylabel(unit)
    panels[0].legend(frameon=False)
    return figure


def _backlog(results: Results) -> Figure:
    """Memory, files and rate over the time of all phases, one below the other; dotted where the next phase begins."""
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    panels = list(figure.subplots(3, 1, sharex=True))
    for server in dict.fromkeys(point.server for point in results.select("backlog")):
        colour = _colour(results, server)
        at = 0.0
        times: list[float] = []
        rated: list[float] = []
        values: dict[str, list[float]] = {"resident": [], "directory": [], "rate": []}
        for point in results.select("backlog", server=server):
            above = panels[2].get_xaxis_transform()
            panels[2].text(at, 0.97, point.work, transform=above, rotation=90, va="top", color=colour, fontsize=7)
            before = point.samples[0]
            for sample in point.samples:
                times.append(at + sample["seconds"])
                values["resident"].append(sample["resident"] / 1e6)
                values["directory"].append(sample["directory"] / 1e6)
                if (passed := sample["seconds"] - before["seconds"]) > 0:
                    rated.append(times[-1])
                    values["rate"].append((sample["jobs"] - before["jobs"]) / passed)
                before = sample
            at += before["seconds"]
            for axes in panels:
                axes.axvline(at, color=colour, linestyle=":", linewidth=0.8)
        for axes, (measure, line) in zip(panels, values.items(), strict=True):
            axes.plot(rated if measure == "rate" else times, line, color=colour, label=server)
    for axes, title, unit in zip(panels, ("memory", "files", "rate"), ("MB", "MB", "jobs/s"), strict=True):
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_ylabel(unit)
    panels[2].set_xlabel("seconds")
    panels[0].legend(frameon=False)
    return figure


def _stalls(results: Results) -> Figure:
    points = results.select("stalls")
    figure = Figure(figsize=(9, 0.6 + 0.3 * len(points)), layout="constrained")
    axes = figure.subplots()
    places = range(len(points))
    axes.barh(places, [point.spread("longest").median for point in points], color="C7", label="held")
    axes.barh(places, [point.spread("cpu").median for point in points], color="C0", label="of its own CPU time")
    axes.set_yticks(places, [point.work for point in points])
    axes.invert_yaxis()
    axes.set_xlabel("ms, the longest of each load")
    axes.legend(frameon=False)
    return figure
