"""What stats and stats-tube say, as JSON: numbers as numbers, and the tubes up to a bound."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from beanstalk_server.admin.metrics import Figures
from beanstalk_server.queue.statistics import TubeStatistics
from beanstalk_server.queue.units import SECOND
from beanstalk_server.wire.yaml import rows_of, stats_tube

TEXTS: Final = frozenset(
    {"cluster-leader", "cluster-role", "hostname", "id", "name", "os", "platform", "reason", "server", "version"}
)
"""The keys whose values are text, also where it looks like a number."""


class StatsPage:
    """A page of statistics that is being written.

    Args:
        limit: how many tubes it shows.
    """

    content_type = "application/json"
    sums = False
    """Whether it wants the tubes beyond the limit, too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: set[str] = set()
        self._lines: list[str] = []
        self._pieces: list[bytes] = []

    def add(self, tube: TubeStatistics, age: int) -> None:
        """Take a tube.

        Args:
            age: nanoseconds that its next ready job has been waiting.
        """
        if len(self._names) < self._limit and tube.name not in self._names:
            comma = ",\n" if self._names else ""
            self._names.add(tube.name)
            values = typed(rows_of(stats_tube(tube, '"')))
            values["next-job-age"] = age / SECOND
            self._lines.append(comma + json.dumps(values))

    def end_slice(self) -> None:
        """Join what has been written since the last slice."""
        if self._lines:
            self._pieces.append("".join(self._lines).encode())
            self._lines.clear()

    def finish(self, figures: Figures) -> list[bytes]:
        """The whole page, in pieces."""
        self.end_slice()
        server = json.dumps(typed(figures.statistics))
        head = f'{{"server": {server},\n"ready": {json.dumps(figures.is_ready)},\n"tube-limit": {self._limit},\n'
        return [head.encode(), b'"tubes": [\n', *self._pieces, b"\n]}\n"]


def typed(rows: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """Rows of statistics, with their values as what they are."""
    return {key: value.strip('"') if key in TEXTS else _typed(value) for key, value in rows.items()}


def _typed(value: str) -> str | int | float | bool:
    if value in ("true", "false"):
        return value == "true"
    if re.fullmatch(r"-?[0-9]{1,30}", value):
        return int(value)
    if re.fullmatch(r"-?[0-9]{1,30}\.[0-9]{1,30}", value):
        return float(value)
    return value.strip('"')
