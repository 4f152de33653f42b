"""The command line of the tools for a binlog: beanstalk-server binlog verify, dump, export (docs/binlog-tools.md).

What they find goes to the standard output; what is wrong, and how far a long one is, to the standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

from tqdm import tqdm

from beanstalk_server.config import Config, ConfigError
from beanstalk_server.storage.beanstalkd.export import export
from beanstalk_server.storage.binlog_reader import Damage
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import DAMAGED, UNUSABLE, StorageError
from beanstalk_server.storage.inspection import Count, Inspection, inspect, shown_job

BAD_OPTION: Final = 5
"""The exit status for an option that cannot be; as the server's."""

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as a shell has it."""

NOBODY_READS: Final = 141
"""The exit status when whoever reads the output has gone (`| head`), as a shell has it."""

DELAY: Final = 1
"""How many seconds something takes before a bar shows how far it is."""

_ROW: Final = "{:<20} {:>10} {:>10} {:>10} {:>8} {:>13}  {}"


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments after `binlog` say; return the exit status."""
    try:
        options = _parser().parse_args(arguments)
        status: int = options.run(options)
        sys.stdout.flush()
    except ConfigError as error:
        return _fail(error, BAD_OPTION)
    except StorageError as error:
        return _fail(error, error.status)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the exit
        return NOBODY_READS
    except OSError as error:
        return _fail(f"standard output: {error.strerror}", UNUSABLE)
    return status


def _fail(error: object, status: int) -> int:
    print(f"beanstalk-server binlog: {error}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> _Parser:
    parser = _Parser(
        prog="beanstalk-server binlog",
        description="Tools for the directory of a binlog that no server uses meanwhile. None of them changes it.",
        epilog=f"Exit status: {DAMAGED} when there is damage, {UNUSABLE} when the directory cannot be used.",
        allow_abbrev=False,
    )
    tools = parser.add_subparsers(metavar="TOOL", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], meaning: str) -> argparse.ArgumentParser:
        tool = tools.add_parser(name, help=meaning, description=meaning[0].upper() + meaning[1:] + ".")
        tool.add_argument("directory", metavar="DIR", help="the directory, as in beanstalk-server -b DIR")
        tool.set_defaults(run=run)
        return tool

    add("verify", _verify, "check every record, and say what each segment holds")
    dump = add("dump", _dump, "print every record as a line of JSON")
    dump.add_argument("--live", action="store_true", help="print every live job instead")
    back = add("export", _export, "write the jobs into files that beanstalkd can start on")
    back.add_argument("--to", metavar="DIR2", required=True, help="the directory to write to; made if it is not there")
    return parser


def _verify(options: argparse.Namespace) -> int:
    with inspect(RealDirectory(options.directory)) as binlog, _progress(binlog) as on_progress:
        counts = binlog.count(on_progress)
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
    print(_row(total, f"damaged at {damages} places" if damages > 1 else "damaged" if damages else "whole"))
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

    def tell(damage: Damage) -> None:
        damages.append(damage)
        sys.stdout.flush()
        print(f"{options.directory}/{damage.segment}: {damage}", file=sys.stderr)

    with inspect(RealDirectory(options.directory)) as binlog, _progress(binlog, sys.stdout.isatty()) as on_progress:
        if options.live:
            for job in binlog.live(tell, on_progress):
                print(json.dumps(shown_job(job)))
        else:
            for record in binlog.records(tell, on_progress):
                print(json.dumps(record))
        _tell_torn(binlog)
    return DAMAGED if damages else 0


def _export(options: argparse.Namespace) -> int:
    with inspect(RealDirectory(options.directory)) as binlog, _progress(binlog) as on_progress:
        written = export(binlog, RealDirectory(options.to), on_progress)
        _tell_torn(binlog)
    print(f"{written.jobs} jobs written to {options.to}, in {written.files} files of {written.size} bytes together")
    if written.keyed:
        print(f"{written.keyed} of them had a key, which beanstalkd does not know: the keys are lost")
    if written.body_limit > Config.max_job_size:
        print(
            f"beanstalkd needs -z {written.body_limit} at least: it does not read longer bodies, nor what follows them"
        )
    return 0


def _tell_torn(binlog: Inspection) -> None:
    if binlog.tail is not None and binlog.tail.torn:
        _, name = binlog.segments[-1]
        torn = f"{binlog.tail.torn} bytes at offset {binlog.tail.end}"
        print(
            f"{binlog.directory.path}/{name}: torn tail left out, which was never acknowledged: {torn}", file=sys.stderr
        )


@contextmanager
def _progress(binlog: Inspection, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar of the bytes read, when the standard error is a terminal and it takes long."""
    with tqdm(
        total=binlog.size(),
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        delay=DELAY,
        leave=False,
        disable=quiet or not sys.stderr.isatty(),
        file=sys.stderr,
    ) as bar:
        yield lambda done: bar.update(done - bar.n)
