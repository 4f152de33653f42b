"""The results of a run: samples, their percentiles, spreads and ratios, and the file from which tables are drawn.

A sample is what one server did in one measurement, by name: CPU times in microseconds a command, latencies in
milliseconds, memory in bytes. A point has the samples of one server at one size of one scenario, one for each of its
turns. Points of the same scenario, work and size can be compared pair by pair.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Sample = dict[str, float]

FORMAT = 1
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "most": 1.0}


def percentiles(values: Sequence[float], unit: float) -> Sample:
    """The percentiles of values, each divided by the unit; empty without values."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {name: ordered[min(int(len(ordered) * part), last)] / unit for name, part in PERCENTILES.items() if ordered}


class Spread(NamedTuple):
    """The median of several measurements, with the smallest and the largest."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


@dataclass
class Point:
    """What one server did at one size of one scenario.

    Args:
        work: what was done, if the scenario does several things.
        size: the number of connections, jobs or so, if the scenario has several sizes; otherwise 0.
    """

    scenario: str
    server: str
    work: str
    size: int
    samples: list[Sample] = field(default_factory=list)

    def values(self, measure: str) -> list[float]:
        return [sample[measure] for sample in self.samples if measure in sample]

    def spread(self, measure: str) -> Spread:
        return spread(self.values(measure))

    def ratio(self, other: Point, measure: str) -> Spread:
        """Its measurements over those of another point, pair by pair, as they were taken in turn."""
        pairs = zip(self.values(measure), other.values(measure), strict=False)  # a run that was cut short lacks some
        return spread([mine / its for mine, its in pairs if its])

    def limited_by_generator(self) -> bool:
        """Whether its rate shows the limit of the generator, not of the server.

        Where both had time to spare, as with a disk that both wait for, it does not.
        """
        if not self.values("generator_busy"):
            return False
        return self.spread("generator_busy").median > max(0.6, self.spread("server_busy").median)


@dataclass
class Results:
    """A run.

    Args:
        about: when and where it was done, with which commit and versions, and how long each scenario took.
        missing: what could not be measured, by name, and why.
    """

    about: dict[str, Any] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, scenario: str, server: str, work: str, size: int, samples: Sequence[Sample]) -> None:
        point = self.find(scenario, server, work, size)
        if point is None:
            point = Point(scenario, server, work, size)
            self.points.append(point)
        point.samples += samples

    def find(self, scenario: str, server: str, work: str = "", size: int = 0) -> Point | None:
        """The point, if it was measured."""
        return next(iter(self.select(scenario, server=server, work=work, size=size)), None)

    def select(self, scenario: str, **wanted: object) -> list[Point]:
        """The points of a scenario with these attributes, in the order of their measurement."""
        return [
            point
            for point in self.points
            if point.scenario == scenario and all(getattr(point, name) == value for name, value in wanted.items())
        ]

    def write(self, path: Path) -> None:
        """Write the file: one line for each point."""
        lines = []
        for point in self.points:
            samples = [{name: float(f"{value:.6g}") for name, value in sample.items()} for sample in point.samples]
            lines.append("  " + json.dumps(asdict(point) | {"samples": samples}))
        head = json.dumps({"format": FORMAT, "about": self.about, "missing": self.missing}, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{head[:-2]},\n "points": [\n' + ",\n".join(lines) + "\n ]\n}\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file.

        Raises:
            ValueError: it is not one of results.
        """
        document = json.loads(path.read_text())
        if document.get("format") != FORMAT:
            raise ValueError(
                f"{path}: not a results file of this benchmark: format {document.get('format')!r}, must be {FORMAT}"
            )
        return cls(document["about"], [Point(**point) for point in document["points"]], document["missing"])
