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

from bench import tables
from bench.generator import LoadError
from bench.results import Results
from bench.run import Run
from bench.scenarios import SCENARIOS
from bench.servers import DEFAULT_PEERS, PEERS, Peer, beside, described, missing, parse_peer
from harness.servers import ROOT

QUICK = 0.1
"""The size of a quick run, as a share of the full one."""

DOCUMENTS = (ROOT / "bench" / "README.md", ROOT / "docs" / "performance.md")
BESIDE = "beside"
ON_REQUEST = [name for name, scenario in SCENARIOS.items() if scenario.on_request]
LAYOUTS = {name: scenario.layout for name, scenario in SCENARIOS.items()}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument(
        "--scenario",
        action="append",
        choices=SCENARIOS,
        help=f"scenario to run; repeatable (default: all except {', '.join(ON_REQUEST)})",
    )
    made.add_argument(
        "--peers",
        default=",".join(DEFAULT_PEERS),
        help=f"servers to measure, out of {', '.join(PEERS)}; ratios are relative to the first (default: %(default)s)",
    )
    made.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PROGRAM[,OPTION…]",
        help="also measure this server, which takes beanstalkd's -l, -p and -b; repeatable "
        "(example: fork=/opt/fork/beanstalkd,-D)",
    )
    made.add_argument(
        "--beside",
        type=Path,
        metavar="CHECKOUT",
        help=f"also measure the server installed in another checkout; it comes first, under the name {BESIDE}",
    )
    made.add_argument("--pairs", type=int, help="number of measurements of each peer, in turn (default: 5; quick: 2)")
    made.add_argument(
        "--quick", action="store_true", help="do a tenth of the work, as a trial run; do not quote the results"
    )
    made.add_argument(
        "--directory",
        type=Path,
        default=ROOT,
        help="parent of the servers' temporary data directories (default: this checkout)",
    )
    made.add_argument("--results", type=Path, help="file for the results (default: bench/results/<date>.json)")
    made.add_argument(
        "--draw", type=Path, metavar="RESULTS", help="measure nothing: write the documents' tables from these results"
    )
    return made


def main() -> int:
    command_line = parser()
    options = command_line.parse_args()
    if options.draw:
        results = Results.read(options.draw)
        for document in DOCUMENTS:
            left = tables.write_into(document, results, LAYOUTS)
            print(f"{document}: written" + (f", except for {', '.join(left)}" if left else ""))
        return 0
    named: dict[str, Peer] = {}
    try:
        if options.beside:
            named[BESIDE] = beside(options.beside)
        for each in options.peer:
            named.update([parse_peer(each, taken=named)])
    except ValueError as error:
        command_line.error(str(error))
    PEERS.update(named)
    asked = [*([BESIDE] if options.beside else []), *options.peers.split(",")]
    asked += [peer for peer in named if peer not in asked]
    if unknown := set(asked) - set(PEERS):
        command_line.error(f"--peers: no such peer: {', '.join(sorted(unknown))}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    results = Results(missing={peer: why for peer in asked if (why := missing(peer))})
    for peer, why in results.missing.items():
        print(f"{peer} will not be measured: {why}")
    peers = [peer for peer in asked if peer not in results.missing]
    pairs = options.pairs or (2 if options.quick else 5)
    results.about = about_this_run(peers, pairs, options.quick)
    date = results.about["date"][:16].replace(":", "").replace(" ", "-")
    path = options.results or ROOT / "bench" / "results" / f"{date}{'-quick' if options.quick else ''}.json"
    raise_file_limit()
    run = Run(peers, pairs, QUICK if options.quick else 1.0, options.directory, tell, results=results)
    status = 0
    started = time.monotonic()
    try:
        measure(run, options.scenario or [name for name in SCENARIOS if name not in ON_REQUEST])
    except KeyboardInterrupt:
        print("stopped; all measurements so far are written")
        status = 130
    finally:
        run.generator.close()
    results.about["minutes"] = (time.monotonic() - started) / 60
    if results.points:
        results.write(path)
        show(results)
        print(f"\nresults written to {path}; --draw {path} writes the tables of the documents from them")
    return status


def tell(what: str) -> None:
    """Show what is being done, in place of what was done before."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def measure(run: Run, scenarios: list[str]) -> None:
    """Run the scenarios one after the other."""
    for number, name in enumerate(scenarios):
        tell("")
        print(f"{name}, {number + 1} of {len(scenarios)}", flush=True)
        run.scenario = name
        started = time.monotonic()
        try:
            SCENARIOS[name].measure(run)
        except LoadError as error:
            run.results.missing[f"{name}, at least in part"] = str(error)
        run.results.about["seconds"][name] = round(time.monotonic() - started, 1)
    tell("")


def show(results: Results) -> None:
    """Print every table."""
    for name, scenario in SCENARIOS.items():
        if results.select(name):
            print(f"\n{name}: {' '.join((scenario.measure.__doc__ or '').split())}\n")
            print_aligned(tables.points_table(results, name, scenario.layout))
    print("\nTargets:\n")
    print_aligned([row for row in tables.targets_table(results) if row[1] != tables.NOT_MEASURED])
    print("\n* the generator was busier than the server: compare the CPU time, not the rate\n")
    print(tables.about(results))


def print_aligned(rows: tables.Rows) -> None:
    """Print a table whose columns have a width."""
    rows = [[cell.replace(tables.BUSIER, "*") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def about_this_run(peers: list[str], pairs: int, quick: bool) -> dict[str, Any]:
    """Describe the run: when, where, and what was measured."""
    versions = {peer: described(peer) for peer in peers} | {"python": f"CPython {platform.python_version()}"}
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "commit": commit or "unknown",
        "machine": machine(),
        "versions": {name: told for name, told in versions.items() if told},
        "peers": peers,
        "pairs": pairs,
        "quick": quick,
        "seconds": {},
    }


def machine() -> str:
    """Processors, memory and kernel, in a few words."""
    told = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    model = next((value.strip() for name, value in told if name.strip() == "model name"), "unknown processor")
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{os.cpu_count()} processors ({model}), {gigabytes:.0f} GiB, Linux {platform.release().split('-')[0]}"


def raise_file_limit() -> None:
    """Raise the limit on open files, so that the generator and the servers can have thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
