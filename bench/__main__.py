"""Measures this server beside its peers, on the same work, in one run: the command line of the bench."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import plots, tables
from bench.backlog import LARGEST_BODY, SMALLEST_BODY
from bench.generator import LoadError
from bench.results import Results
from bench.run import BACKLOG, Run
from bench.scenarios import ON_REQUEST, SCENARIOS
from bench.servers import DEFAULT_PEERS, PEERS, Peer, described, missing, parse_peer
from harness.servers import ROOT

QUICK = 0.1
"""The size of a quick run, as a share of the full one."""

DOCUMENTS = (ROOT / "bench" / "README.md", ROOT / "docs" / "performance.md")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument(
        "--scenario",
        action="append",
        choices=SCENARIOS,
        help=f"only this one; may be repeated (default: all but {', '.join(ON_REQUEST)})",
    )
    made.add_argument(
        "--peers",
        default=",".join(DEFAULT_PEERS),
        help=f"some of {', '.join(PEERS)}; ratios are to the first (default: %(default)s)",
    )
    made.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PROGRAM[,OPTION…]",
        help="also measure this server, which takes beanstalkd's -l, -p and -b; may be repeated "
        "(example: fork=/opt/fork/beanstalkd,-D)",
    )
    made.add_argument("--pairs", type=int, help="how often each peer is measured, in turn (default: 5; quick: 2)")
    made.add_argument("--quick", action="store_true", help="a tenth of the work: to try the bench, not to quote it")
    made.add_argument(
        "--directory",
        type=Path,
        default=ROOT,
        help="servers keep their jobs in a temporary directory in this one (default: this checkout)",
    )
    made.add_argument(
        "--jobs",
        type=int,
        default=BACKLOG[0],
        metavar="COUNT",
        help="how many jobs the scenario backlog puts (default: %(default)s)",
    )
    made.add_argument(
        "--body",
        type=int,
        default=BACKLOG[1],
        metavar="BYTES",
        help=f"how large each of them is, from {SMALLEST_BODY} to {LARGEST_BODY} (default: %(default)s)",
    )
    made.add_argument("--results", type=Path, help="where to write the results (default: bench/results/<date>.json)")
    made.add_argument(
        "--draw",
        type=Path,
        metavar="RESULTS",
        help="measure nothing: write the documents' tables and plots from these results",
    )
    return made


def main() -> int:
    command_line = parser()
    options = command_line.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 200)
    if options.draw:
        publish(Results.read(options.draw), console)
        return 0
    named: dict[str, Peer] = {}
    for each in options.peer:
        try:
            named.update([parse_peer(each, taken=named)])
        except ValueError as error:
            command_line.error(f"--peer: {error}")
    PEERS.update(named)
    asked = options.peers.split(",")
    asked += [peer for peer in named if peer not in asked]
    if unknown := set(asked) - set(PEERS):
        command_line.error(f"--peers: no such peer: {', '.join(sorted(unknown))}")
    if options.jobs < 1:
        command_line.error(f"--jobs: must be at least 1, not {options.jobs}")
    if not SMALLEST_BODY <= options.body <= LARGEST_BODY:
        command_line.error(f"--body: must be from {SMALLEST_BODY} to {LARGEST_BODY} bytes, not {options.body}")
    if options.results and not options.results.suffix:
        command_line.error(f"--results: must end in a suffix, such as {options.results}.json: plots are put beside it")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    results = Results()
    for peer in asked:
        if why := missing(peer):
            results.missing[peer] = why
            console.print(f"[yellow]{peer} will not be measured: {why}")
    peers = [peer for peer in asked if peer not in results.missing]
    pairs = options.pairs or (2 if options.quick else 5)
    started = time.monotonic()
    results.about = about_this_run(peers, pairs, options.quick)
    name = options.results or ROOT / "bench" / "results" / (
        f"{results.about['date'][:16].replace(':', '').replace(' ', '-')}{'-quick' if options.quick else ''}.json"
    )
    raise_file_limit()
    status = 0
    try:
        scenarios = options.scenario or [name for name in SCENARIOS if name not in ON_REQUEST]
        sizes = (options.jobs, options.body)
        measure(scenarios, peers, pairs, QUICK if options.quick else 1.0, options.directory, sizes, results, console)
    except KeyboardInterrupt:
        console.print("[yellow]stopped; all measurements so far are written")
        status = 130
    results.about["minutes"] = (time.monotonic() - started) / 60
    if results.points:
        results.write(name)
        show(results, console)
        drawn = plots.draw(results, name.with_suffix(""))
        console.print(f"{name}, and {len(drawn) // 2} plots beside it; --draw {name} writes them into docs/")
    return status


def measure(
    scenarios: list[str],
    peers: list[str],
    pairs: int,
    scale: float,
    directory: Path,
    backlog: tuple[int, int],
    results: Results,
    console: Console,
) -> None:
    """Run the scenarios one after the other."""
    columns = (
        SpinnerColumn(), TextColumn("{task.fields[scenario]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(scenarios), scenario="")
        run = Run(peers, pairs, scale, directory, lambda what: progress.update(task, description=what), results=results)
        run.backlog = backlog
        try:
            for name in scenarios:
                progress.update(task, scenario=name, description="")
                run.scenario = name
                started = time.monotonic()
                try:
                    SCENARIOS[name](run)
                except LoadError as error:
                    results.missing[f"{name}, at least in part"] = str(error)
                    console.print(f"[red]{name}: {error}")
                results.about["seconds"][name] = round(time.monotonic() - started, 1)
                progress.advance(task)
        finally:
            run.generator.stop()


def show(results: Results, console: Console) -> None:
    """Print every table."""
    shown = {name: tables.points_table(results, name) for name in SCENARIOS if results.select(name)}
    for name, rows in [*shown.items(), ("the figures to reach", tables.targets_table(results))]:
        table = Table(title=name, title_justify="left", title_style="bold", caption_justify="left")
        for number, head in enumerate(rows[0]):
            table.add_column(head, justify="left" if number == 0 or head == "server" else "right")
        for row in rows[1:]:
            table.add_row(*[cell.replace(tables.BUSIER, "*") for cell in row])
        if name in SCENARIOS:
            table.caption = SCENARIOS[name].__doc__
        console.print(table)
    console.print("* the generator was busier than the server: compare the CPU time, not the rate")
    console.print(tables.about(results))


def publish(results: Results, console: Console) -> None:
    """Write the documents' tables and plots."""
    drawn = plots.draw(results, ROOT / "docs" / "plots")
    console.print(f"{len(drawn)} plots in docs/plots")
    for document in DOCUMENTS:
        left = tables.write_into(document, results)
        console.print(f"{document}: written" + (f", but for {', '.join(left)}" if left else ""))


def about_this_run(peers: list[str], pairs: int, quick: bool) -> dict[str, Any]:
    """Describe the run: when, where, and what was measured."""
    versions = {peer: described(peer) for peer in peers}
    versions["python"] = f"CPython {platform.python_version()}"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "commit": commit(),
        "machine": machine(),
        "versions": {name: told for name, told in versions.items() if told},
        "peers": peers,
        "pairs": pairs,
        "quick": quick,
        "seconds": {},
    }


def commit() -> str:
    """The commit of this checkout, and whether it has changes."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def machine() -> str:
    """Processors, memory and kernel, in a few words."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{os.cpu_count()} processors ({model}), {gigabytes:.0f} GiB, Linux {platform.release().split('-')[0]}"


def raise_file_limit() -> None:
    """Raise the limit on open files, so that the generator and the servers can have thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
