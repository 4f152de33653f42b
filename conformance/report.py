"""Reports the outcome of a run: a line for each group, what was not run and why, and each failure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Final

from .conversation import GROUPS
from .run import Run
from .runner import Outcome
from .servers import NOT_OFFERED

STATUSES: Final = {"passed": "passed", "failed": "failed", "skipped": "not run"}


def failures(runs: Sequence[Run]) -> str:
    """Each conversation that failed: what was sent (>) and came (<) before, what was expected, and what came."""
    lines = []
    for run in runs:
        for outcome in run.outcomes:
            if outcome.status == "failed":
                found = outcome.conversation
                server = f"{run.name}: " if len(runs) > 1 else ""
                lines += [f"{server}{found.group or '.'}/{found.place}: {found.title}"]
                lines += [f"    {line}" for line in outcome.transcript] + [""]
        lines += [f"log of {run.name}:\n{complaint}" for complaint in run.complaints]
    return "".join(line + "\n" for line in lines)


def summary(run: Run) -> str:
    """For each group, how many conversations passed, failed and were not run; then the reasons of the latter."""
    by_group: dict[str, list[Outcome]] = {}
    for group in (*GROUPS, ""):
        if found := [outcome for outcome in run.outcomes if outcome.conversation.group == group]:
            by_group[group or "others"] = found
    rows = [["", *STATUSES.values()]]
    for group, outcomes in by_group.items():
        counts = Counter(outcome.status for outcome in outcomes)
        rows.append([group, *(str(counts[status]) for status in STATUSES)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{first:<{widths[0]}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        for first, *rest in rows
    ]
    for group, outcomes in by_group.items():
        reasons = _reasons([outcome.reason for outcome in outcomes if outcome.status == "skipped"])
        if reasons:
            lines += ["", f"not run, {group}:"]
        for reason, count in reasons.most_common():
            lines += textwrap.wrap(reason, 100, initial_indent=f"{count:5}  ", subsequent_indent=" " * 9)
    return "\n".join(lines) + "\n"


def _reasons(reasons: list[str]) -> Counter[str]:
    """How often there is each reason; extensions that the server does not offer are one."""
    missing = sorted({name for reason in reasons for name in reason.partition(NOT_OFFERED)[2].split(", ") if name})
    all_missing = NOT_OFFERED + ", ".join(missing)
    return Counter(all_missing if reason.startswith(NOT_OFFERED) else reason for reason in reasons)
