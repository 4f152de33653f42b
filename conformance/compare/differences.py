"""Reads the intended differences: the rows of the tables in docs/differences.md, by their first column.

A conversation that is not the same for all servers names one of them (`differs:`). They are defined in that page and
nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "differences.md"


@dataclass(frozen=True)
class Difference:
    """One row: its name, what one server does, what the other does, and why."""

    name: str
    columns: tuple[str, ...]


def read_differences(page: Path = PAGE) -> dict[str, list[Difference]]:
    """The rows of each table, by the header of the table."""
    tables: dict[str, list[Difference]] = {}
    rows: list[Difference] = []
    lines = page.read_text().split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|") or line.startswith("|-"):
            continue
        if following.startswith("|-"):
            rows = tables.setdefault(line, [])
            continue
        name, *columns = (cell.strip() for cell in line.strip("|").split("|"))
        rows.append(Difference(name, tuple(columns)))
    return tables


def names(page: Path = PAGE) -> set[str]:
    return {row.name for rows in read_differences(page).values() for row in rows}
