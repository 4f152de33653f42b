"""The command `beanstalk-server cluster`: runs the tools for the journal of a cluster (docs/cluster.md).

Results go to standard output, errors and progress to standard error. Must never know how an engine is asked.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from beanstalk_server.cli.tool import ToolParser, run_tool
from beanstalk_server.cluster.engine import EngineError
from beanstalk_server.config import OPTIONS, ConfigError
from beanstalk_server.storage.errors import DAMAGED, UNUSABLE

if TYPE_CHECKING:
    from beanstalk_server.cluster.redis_engine import RedisEngine

VARIABLES: Final[Mapping[str, str]] = {
    "url": "BEANSTALK_SERVER_CLUSTER",
    "name": "BEANSTALK_SERVER_CLUSTER_NAME",
    "replicas": "BEANSTALK_SERVER_REPLICAS",
}
"""Where a tool finds what is not on its command line: the variables of the server's options."""

_ROW: Final = "{:<10} {}"


def main(arguments: Sequence[str]) -> int:
    """Run the tool that the arguments after `cluster` name; return the exit status."""
    return run_tool(_parser(), arguments, (EngineError,))


def _parser() -> ToolParser:
    parser = ToolParser(
        prog="beanstalk-server cluster",
        description="Tools for the journal of a cluster, in its engine.",
        epilog=f"Exit status: {DAMAGED} if a journal is damaged, {UNUSABLE} if an engine or directory cannot be used.",
        allow_abbrev=False,
    )
    tools = parser.add_subparsers(metavar="TOOL", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], meaning: str) -> argparse.ArgumentParser:
        tool = tools.add_parser(name, help=meaning, description=meaning[0].upper() + meaning[1:] + ".")
        tool.add_argument(
            "url",
            metavar="URL",
            nargs="?",
            default=os.environ.get(VARIABLES["url"], ""),
            help=f"the engine, as in beanstalk-server --cluster URL; {VARIABLES['url']} keeps its password from others",
        )
        tool.add_argument(
            "--cluster-name",
            metavar="NAME",
            default=os.environ.get(VARIABLES["name"], "beanstalk"),
            help="which cluster of the engine (%(default)s)",
        )
        tool.add_argument(
            "--replicas",
            metavar="R",
            type=int,
            default=os.environ.get(VARIABLES["replicas"], "1"),
            help="how many replicas must have what is durable (%(default)s)",
        )
        tool.set_defaults(run=run)
        return tool

    def add_with_directory(name: str, run: Callable[[argparse.Namespace], int], meaning: str, what: str) -> None:
        add(name, run, meaning).add_argument("directory", metavar="DIR", help=what)

    add("status", _status, "show who leads, which nodes stand by, and how the engine is")
    add_with_directory(
        "import",
        _import,
        "copy the jobs of a binlog, also of one that beanstalkd has written, into an engine that has none",
        "the directory, as in beanstalk-server -b DIR; it is not changed",
    )
    add_with_directory(
        "export",
        _export,
        "copy the jobs of an engine to a directory that beanstalk-server -b can start on; nodes may lead meanwhile",
        "the directory to write to; created if it is missing",
    )
    add("verify", _verify, "check every record in an engine, and report what each segment holds")
    return parser


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[RedisEngine]:
    """The engine that the options of a tool name.

    Raises:
        ConfigError: they are bad, or something is not installed.
    """
    from beanstalk_server.cluster.rules import missing

    mistakes = missing(options.url)
    if mistakes:
        raise ConfigError(*[mistake.said for mistake in mistakes])
    from beanstalk_server.cluster.redis_engine import open_engine

    given = {"cluster_name": options.cluster_name, "replicas": options.replicas}
    mistakes = [mistake for each in OPTIONS if each.name in given for mistake in each.mistakes(given[each.name])]
    if mistakes:
        raise ConfigError(*mistakes)
    try:
        engine = open_engine(options.url, options.cluster_name, options.replicas)
    except ValueError as error:
        raise ConfigError(f"URL: {error}") from error
    try:
        yield engine
    finally:
        engine.close()


def _status(options: argparse.Namespace) -> int:
    with opened(options) as engine:
        condition = engine.inspect()
        lease = engine.look()
        members = engine.members()
        files = engine.files()
        faults = engine.check()
    limit = f" of {_counted(condition.limit, 'byte')}" if condition.limit else ""
    _show("engine", f"{condition.name} at {condition.host}, {_counted(condition.memory, 'byte')} in use{limit}")
    for replica in condition.replicas:
        behind = f"{_counted(replica.lag, 'byte')} behind" if replica.is_online else "copies everything, or is away"
        _show("replica", f"{replica.host}, {behind}")
    if lease.node:
        renewals = _counted(lease.renewals, "renewal")
        _show("leader", f"{lease.address}, epoch {lease.epoch}, {renewals}, node {lease.node}")
    else:
        _show("leader", f"none since epoch {lease.epoch}" if lease.epoch else "none yet")
    for member in sorted(members, key=lambda each: each.address):
        if member.node != lease.node:
            _show("stands by", f"{member.address}, seen {member.seen:.1f} s ago, node {member.node}")
    _show("position", f"{lease.position.epoch}.{lease.position.number}")
    size = _counted(sum(file.size for file in files.values()), "byte")
    length = _counted(sum(file.length for file in files.values()), "byte")
    _show("journal", f"{_counted(len(files), 'file')} of {size}, {length} of them in memory")
    for fault in faults:
        _show("wrong", fault)
    return 0


def _import(options: argparse.Namespace) -> int:
    from beanstalk_server.cluster.transfer import import_files
    from beanstalk_server.storage.disk import RealDirectory

    with opened(options) as engine, _progress() as on_progress:
        names = import_files(engine, options.replicas, RealDirectory(options.directory), on_progress)
    print(f"imported {_counted(len(names), 'file')} from {options.directory}: nodes may start")
    return 0


def _export(options: argparse.Namespace) -> int:
    from beanstalk_server.cluster.transfer import export_segments
    from beanstalk_server.storage.disk import RealDirectory

    with opened(options) as engine, _progress() as on_progress:
        names = export_segments(engine, RealDirectory(options.directory), on_progress)
    print(f"exported {_counted(len(names), 'segment')} to {options.directory}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from beanstalk_server.cli.binlog import show_counts
    from beanstalk_server.cluster.transfer import copy_segments
    from beanstalk_server.storage.disk import RealDirectory
    from beanstalk_server.storage.inspection import inspect

    with TemporaryDirectory(prefix="beanstalk-server-") as path:
        with opened(options) as engine, _progress() as on_progress:
            copy_segments(engine, RealDirectory(path), on_progress=on_progress)
        with inspect(RealDirectory(path)) as binlog:
            counts = binlog.count()
    return show_counts(counts)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar of the bytes that are copied, if standard error is a terminal."""
    from beanstalk_server.cli.binlog import byte_bar

    with byte_bar(0) as bar:

        def on_progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield on_progress


def _show(what: str, text: str) -> None:
    print(_ROW.format(what, text))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
