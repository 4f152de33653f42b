"""The results of a run: a document from which tables and plots are drawn, at once or later.

A point is what one server did at one size of one scenario: a list of samples, one for each of its turns. Points of the
same scenario, work and size can be compared pair by pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.samples import Sample, Spread, ratio, spread

FORMAT = 1


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

    def spread(self, measure: str) -> Spread:
        return spread([sample[measure] for sample in self.samples])


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

    def forget(self, scenario: str, server: str, work: str, size: int) -> None:
        """Remove a point, if it is there."""
        if point := self.find(scenario, server, work, size):
            self.points.remove(point)

    def find(self, scenario: str, server: str, work: str, size: int) -> Point | None:
        """The point, if it was measured."""
        return next(self._points(scenario, server=server, work=work, size=size), None)

    def select(self, scenario: str, **wanted: object) -> list[Point]:
        """The points of a scenario with these attributes, in the order of their measurement."""
        return list(self._points(scenario, **wanted))

    def ratio(self, point: Point, other: Point, measure: str) -> Spread:
        """One point's measurements over another's, pair by pair."""
        return ratio(point.samples, other.samples, measure)

    def _points(self, scenario: str, **wanted: object) -> Iterator[Point]:
        for point in self.points:
            if point.scenario == scenario and all(getattr(point, name) == value for name, value in wanted.items()):
                yield point

    def write(self, path: Path) -> None:
        """Write the document: one line for each point."""
        points = ",\n".join("  " + json.dumps(asdict(point)) for point in self._rounded())
        head = json.dumps({"format": FORMAT, "about": self.about, "missing": self.missing}, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{head[:-2]},\n "points": [\n{points}\n ]\n}}\n')

    def _rounded(self) -> Iterator[Point]:
        for point in self.points:
            samples = [{name: float(f"{value:.6g}") for name, value in sample.items()} for sample in point.samples]
            yield Point(point.scenario, point.server, point.work, point.size, samples)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a document.

        Raises:
            ValueError: it is not a document of results.
        """
        document = json.loads(path.read_text())
        if document.get("format") != FORMAT:
            raise ValueError(f"{path}: not results of this bench: format {document.get('format')!r}, must be {FORMAT}")
        points = [Point(**point) for point in document["points"]]
        return cls(document["about"], points, document["missing"])
