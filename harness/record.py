"""Runs the open-ended tests for some minutes, and adds what they have covered to the table of docs/tested.md.

python -m harness.record --minutes 30

Simulations go on with the seed after the last one. A test that fails is counted, and its output is shown.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from harness.servers import ROOT

PAGE: Final = ROOT / "docs" / "tested.md"
HEAD: Final = "| test | amount | virtual hours | failed | last run | commit |"

SIMULATION: Final = (
    r"(?P<amount>[\d,]+) seeds in .*?, (?P<hours>[\d.]+) h of virtual time: .*?; (?P<failed>\d+) seeds failed"
)
KILLS: Final = r"killed (?P<amount>[\d,]+) times"
FUZZ: Final = r"s: (?P<amount>[\d,]+) scripts, .*?(?P<failed>\d+) differences"

SECONDS_A_KILL: Final = 4.0
"""Rough time of a kill, to choose their number."""


class Kind(NamedTuple):
    """A test that can run for ever.

    Attributes:
        name: in the table.
        unit: what its amount counts.
        line: arguments of Python; {first} is the next seed, {seconds} the time, {kills} the number that fits into it.
        covered: an expression that finds the amount in the output, and perhaps virtual hours and failures.
    """

    name: str
    unit: str
    line: str
    covered: str


def _killed(name: str, file: str, which: str = "") -> Kind:
    line = f"-m pytest -q -rP --everything -m slow --timeout 7200 --kills {{kills}} {file}"
    return Kind(name, "kills", f"{line} -k {which}" if which else line, KILLS)


KINDS: Final = (
    Kind("simulated cluster", "seeds", "-m tests.cluster.simulation --first {first} --seconds {seconds}", SIMULATION),
    Kind(
        "simulated cluster with 8 shards",
        "seeds",
        "-m tests.cluster.simulation --shards 8 --first {first} --seconds {seconds}",
        SIMULATION,
    ),
    Kind(
        "simulated cluster, PostgreSQL",
        "seeds",
        "-m tests.cluster.simulation --locks --first {first} --seconds {seconds}",
        SIMULATION,
    ),
    Kind("differential fuzzing against beanstalkd", "scripts", "-m conformance.compare.fuzz --seconds {seconds}", FUZZ),
    _killed("server killed", "tests/server/test_killed.py"),
    _killed("leader killed, Redis", "tests/cluster/test_kills.py", "leader-alone"),
    _killed("primary killed, PostgreSQL", "tests/cluster/test_kills.py", "primary-promoting-postgresql"),
    _killed("outbox: relay, server and database killed", "tests/client/test_outbox_kills.py"),
)


class Row(NamedTuple):
    """What one kind has covered so far."""

    name: str
    amount: int = 0
    unit: str = ""
    hours: float = 0.0
    failed: int = 0
    date: str = ""
    commit: str = ""

    def __str__(self) -> str:
        hours = f"{self.hours:,.1f}" if self.hours else ""
        cells = (self.name, f"{self.amount:,} {self.unit}", hours, str(self.failed), self.date, self.commit)
        return f"| {' | '.join(cells)} |"


def read(page: str) -> dict[str, Row]:
    """The rows of the table of a page, by their names."""
    rows = {}
    for line in page.partition(HEAD)[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        name, amount, hours, failed, date, commit = [cell.strip() for cell in line.strip("|").split("|")]
        number, unit = amount.replace(",", "").split()
        rows[name] = Row(name, int(number), unit, float(hours.replace(",", "") or 0), int(failed), date, commit)
    return rows


def with_rows(page: str, rows: Sequence[Row]) -> str:
    """A page with another table."""
    before, _, after = page.partition(HEAD)
    rest = after.lstrip("\n").split("\n\n", 1)[1:]
    return "\n".join([before + HEAD, "|---" * HEAD.count("|", 1) + "|", *map(str, rows), "", *rest])


def added(row: Row, kind: Kind, output: str, status: int, date: str, commit: str) -> Row:
    """A row with what a run has covered.

    Raises:
        ValueError: the output does not say how much that is.
    """
    found = list(re.finditer(kind.covered, output))
    if not found:
        raise ValueError(f"{kind.name}: the output does not say how much was covered (exit status {status})")
    found = found[-1:] if kind.covered == FUZZ else found  # it reports again and again
    sums = dict.fromkeys(("amount", "hours", "failed"), 0.0)
    for each in found:
        for name, value in each.groupdict().items():
            sums[name] += float(value.replace(",", ""))
    failed = int(sums["failed"]) or int(status != 0)
    return Row(
        kind.name,
        row.amount + int(sums["amount"]),
        kind.unit,
        row.hours + sums["hours"],
        row.failed + failed,
        date,
        commit,
    )


def run(kind: Kind, row: Row, seconds: float) -> tuple[str, int]:
    """Run a test for about this long; return its output and its exit status."""
    values = {"first": row.amount + 1, "seconds": f"{seconds:.0f}", "kills": max(int(seconds / SECONDS_A_KILL), 1)}
    line = [sys.executable, *(word.format(**values) for word in kind.line.split())]
    done = subprocess.run(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout, done.returncode


def record(page: Path, kinds: Sequence[Kind], minutes: float) -> int:
    """Run all kinds, each for a part of the time, and write the page after each; return the number that failed."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    failures = 0
    for kind in kinds:
        rows = read(page.read_text())
        row = rows.get(kind.name, Row(kind.name))
        began = time.monotonic()
        output, status = run(kind, row, minutes * 60 / len(kinds))
        date = datetime.date.today().isoformat()
        rows[kind.name] = new = added(row, kind, output, status, date, commit)
        page.write_text(with_rows(page.read_text(), list(rows.values())))
        print(f"{kind.name}: {new.amount - row.amount:,} {kind.unit} in {time.monotonic() - began:.0f} s", flush=True)
        if status:
            failures += 1
            print(output, flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.record", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="approximate duration in minutes (default: 30)")
    parser.add_argument("--only", default="", help="run only the kinds of tests whose names contain this text")
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if options.only in kind.name]
    if not kinds:
        parser.error(
            f"--only {options.only}: must be part of the name of a kind: {', '.join(kind.name for kind in KINDS)}"
        )
    return int(record(PAGE, kinds, options.minutes) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
