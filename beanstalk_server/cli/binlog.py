"""The command `beanstalk-server binlog`: runs the tools verify, dump and export (docs/binlog.md).

Results go to standard output, errors and progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

from tqdm import tqdm

from beanstalk_server.cli.tool import ToolParser, run_tool
from beanstalk_server.settings.options import Config
from beanstalk_server.storage.beanstalkd.writer import export
from beanstalk_server.storage.binlog_reader import Damage
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import DAMAGED, UNUSABLE
from beanstalk_server.storage.inspection import Count, Inspection, inspect
from beanstalk_server.storage.shown import shown_job

BAR_DELAY: Final = 1
"""Seconds until a progress bar appears."""

_ROW: Final = "{:<20} {:>10} {:>10} {:>10} {:>8} {:>13}  {}"


def main(arguments: Sequence[str]) -> int:
    """Run the tool that the arguments after `binlog` name; return the exit status."""
    return run_tool(_parser(), arguments)


def _parser() -> ToolParser:
    parser = ToolParser(
        prog="beanstalk-server binlog",
        description="Read-only tools for a binlog directory. No server can use the directory while they run.",
        epilog=f"Exit status: {DAMAGED} if the binlog is damaged, {UNUSABLE} if the directory cannot be used.",
        allow_abbrev=False,
    )
    tools = parser.add_subparsers(metavar="TOOL", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], meaning: str) -> argparse.ArgumentParser:
        tool = tools.add_parser(name, help=meaning, description=meaning[0].upper() + meaning[1:] + ".")
        tool.add_argument("directory", metavar="DIR", help="directory, as in beanstalk-server -b DIR")
        tool.set_defaults(run=run)
        return tool

    add("verify", _verify, "check every record, and print a summary of each segment")
    dump = add("dump", _dump, "print every record as a line of JSON")
    dump.add_argument("--live", action="store_true", help="print live jobs instead of records")
    back = add("export", _export, "write the jobs to files that beanstalkd can start from")
    back.add_argument("--to", metavar="DIR2", required=True, help="directory to write to; created if it is missing")
    return parser


def _verify(options: argparse.Namespace) -> int:
    with inspect(RealDirectory(options.directory)) as binlog, _progress(binlog) as on_progress:
        counts = binlog.count(on_progress)
    return show_counts(counts)


def show_counts(counts: list[Count]) -> int:
    """Print what each segment holds; return the exit status."""
    print(_ROW.format("segment", "records", "live", "dead", "commits", "bytes", "state"))
    for count in counts:
        first, *others = _states(count)
        print(_row(count, first))
        for other in others:
            print(_ROW.format("", "", "", "", "", "", other))
    damages = sum(len(count.damages) for count in counts)
    total = Count(
        "total",
        *(sum(getattr(count, name) for count in counts) for name in ("records", "live", "commits", "bytes", "torn")),
    )
    print(_row(total, f"damaged in {damages} places" if damages > 1 else "damaged" if damages else "whole"))
    return DAMAGED if damages else 0


def _row(count: Count, state: str) -> str:
    return _ROW.format(count.name, count.records, count.live, count.dead, count.commits, count.bytes, state)


def _states(count: Count) -> list[str]:
    states = [str(damage) for damage in count.damages]
    if count.torn:
        states.append(f"torn tail: {count.torn} bytes, never acknowledged")
    return states or ["whole"]


def _dump(options: argparse.Namespace) -> int:
    damages: list[Damage] = []

    def report(damage: Damage) -> None:
        damages.append(damage)
        sys.stdout.flush()
        print(f"{options.directory}/{damage.segment}: {damage}", file=sys.stderr)

    with inspect(RealDirectory(options.directory)) as binlog, _progress(binlog, sys.stdout.isatty()) as on_progress:
        if options.live:
            for job in binlog.live(report, on_progress):
                print(json.dumps(shown_job(job)))
        else:
            for record in binlog.records(report, on_progress):
                print(json.dumps(record))
        _report_torn(binlog)
    return DAMAGED if damages else 0


def _export(options: argparse.Namespace) -> int:
    with inspect(RealDirectory(options.directory)) as binlog, _progress(binlog) as on_progress:
        written = export(binlog, RealDirectory(options.to), on_progress)
        _report_torn(binlog)
    files = _counted(written.files, "file")
    print(f"exported {_counted(written.jobs, 'job')} to {options.to}: {files}, {_counted(written.size, 'byte')}")
    if written.keyed:
        print(f"dropped {_counted(written.keyed, 'key')}: beanstalkd has no keys")
    if written.held:
        print(f"dropped {_counted(written.held, 'held key')}")
    if written.paused:
        print(f"dropped {_counted(written.paused, 'tube pause')}")
    if written.waiting:
        print(f"{_counted(written.waiting, 'job')} waiting for a group: exported as delayed; kick them in beanstalkd")
    if written.with_terms:
        print(f"dropped the attributes of {_counted(written.with_terms, 'job')} (tries, ttl, origin and others)")
    if written.body_limit > Config.max_job_size:
        print(
            f"start beanstalkd with -z {written.body_limit} or more: otherwise it stops reading at the first "
            "longer body"
        )
    return 0


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _report_torn(binlog: Inspection) -> None:
    if binlog.tail is not None and binlog.tail.torn:
        _, name = binlog.segments[-1]
        torn = f"a torn tail of {binlog.tail.torn} bytes at offset {binlog.tail.end}, which was never acknowledged"
        print(f"{binlog.directory.path}/{name}: skipped {torn}", file=sys.stderr)


@contextmanager
def _progress(binlog: Inspection, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar of the bytes read, if standard error is a terminal."""
    with byte_bar(binlog.size(), quiet) as bar:
        yield lambda done: bar.update(done - bar.n)


def byte_bar(total: int, quiet: bool = False) -> tqdm[NoReturn]:
    """A progress bar of this many bytes, which is shown if standard error is a terminal."""
    return tqdm(
        total=total,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        delay=BAR_DELAY,
        leave=False,
        disable=quiet or not sys.stderr.isatty(),
        file=sys.stderr,
    )
