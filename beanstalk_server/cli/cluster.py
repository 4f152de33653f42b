"""The command `beanstalk-server cluster`: runs the tools for the journal of a cluster (docs/cluster.md).

Results go to standard output, errors and progress to standard error.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory
from typing import Final

from beanstalk_server.cli.logs import printable
from beanstalk_server.cli.tool import ToolParser, run_tool
from beanstalk_server.cluster.engine.interface import Connect, Engine, EngineError, Lease, made, move, observe
from beanstalk_server.settings.declaration import ConfigError
from beanstalk_server.settings.options import Config
from beanstalk_server.storage.errors import DAMAGED, UNUSABLE, StorageError

VARIABLES: Final[Mapping[str, str]] = {
    "url": "BEANSTALK_SERVER_CLUSTER",
    "name": "BEANSTALK_SERVER_CLUSTER_NAME",
    "replicas": "BEANSTALK_SERVER_REPLICAS",
}
"""The variables that set what the command line of a tool does not: those of the server's options."""

_ROW: Final = "{:<10} {}"


def main(arguments: Sequence[str]) -> int:
    """Run the tool that the arguments after `cluster` name; return the exit status."""
    return run_tool(_parser(), arguments, (EngineError,))


def _parser() -> ToolParser:
    parser = ToolParser(
        prog="beanstalk-server cluster",
        description="Tools for the journal of a cluster, which is in its engine.",
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
            help="URL of the engine, as for --cluster "
            f"(default: {VARIABLES['url']}, which keeps the password off the command line)",
        )
        tool.add_argument(
            "--cluster-name",
            metavar="NAME",
            default=os.environ.get(VARIABLES["name"], "beanstalk"),
            help="name of the cluster (default: %(default)s)",
        )
        tool.add_argument(
            "--replicas",
            metavar="R",
            type=int,
            default=os.environ.get(VARIABLES["replicas"], "1"),
            help="number of replicas that must confirm a change (default: %(default)s)",
        )
        tool.set_defaults(run=run)
        return tool

    def add_with_directory(
        name: str, run: Callable[[argparse.Namespace], int], meaning: str, what: str
    ) -> argparse.ArgumentParser:
        tool = add(name, run, meaning)
        tool.add_argument("directory", metavar="DIR", help=what)
        return tool

    add("status", _status, "show leaders, standbys and the state of the engine")
    move = add("move", _move, "hand a shard over to another node")
    move.add_argument("shard", metavar="SHARD", type=int, help="number of the shard, from 0")
    move.add_argument("node", metavar="NODE", help="address or id of the node, as shown by status")
    add_with_directory(
        "import",
        _import,
        "copy the jobs of a binlog of this server or beanstalkd to an empty engine",
        "directory, as in beanstalk-server -b DIR; it is not changed",
    ).add_argument(
        "--shards",
        metavar="S",
        type=int,
        default=0,
        help="number of shards of a new cluster; with several, job n of shard s gets the id n·S + s (default: 1)",
    )
    add_with_directory(
        "export",
        _export,
        "copy the jobs of an engine to a binlog directory; nodes may be running",
        "directory to write to; created if it is missing",
    )
    add("verify", _verify, "check every record in an engine, and print a summary of each segment")
    return parser


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Connect]:
    """Connect to the engine that the options of a tool name.

    Raises:
        ConfigError: they are bad.
    """
    from beanstalk_server.settings.system import missing_for_engine

    mistakes = missing_for_engine(options.url)
    if mistakes:
        raise ConfigError(*[mistake.said for mistake in mistakes])
    from beanstalk_server.cluster.engine.choice import connect_to

    given = {"cluster_name": options.cluster_name, "replicas": options.replicas}
    if getattr(options, "shards", 0):
        given["shards"] = options.shards
    Config(**given)  # which checks them
    try:
        connect = connect_to(options.url, options.cluster_name, options.replicas)
    except ValueError as error:
        raise ConfigError(f"URL: {error}") from error
    yield connect


def _status(options: argparse.Namespace) -> int:
    with opened(options) as connect, closing(connect()) as engine:
        shards = engine.shards(0) or 1
        conditions = engine.inspect()
        leases = [made(each) for each in engine.perform([observe(shard) for shard in range(shards)])]
        members = sorted(engine.members(), key=lambda each: each.address)
        journals = [_journal(engine, shard) for shard in range(shards)]
        faults = engine.check()
    for condition in conditions:
        limit = f" of {_counted(condition.limit, 'byte')}" if condition.limit else ""
        _show("engine", f"{condition.name} at {condition.host}, {_counted(condition.memory, 'byte')} in use{limit}")
        for replica in condition.replicas:
            behind = (
                f"{_counted(replica.lag, 'byte')} behind"
                if replica.is_online
                else "offline, or in a full resynchronization"
            )
            _show("replica", f"{replica.host}, {behind}")
    if shards == 1:
        _show("leader", _leader(leases[0]))
        for member in members:
            if member.node != leases[0].node:
                _show("standby", f"{member.address}, seen {member.seen:.1f} s ago, node {member.node}")
        _show("position", _position(leases[0]))
        _show("journal", journals[0])
    else:
        for member in members:
            load = member.load
            has = f"{_counted(load.shards, 'shard')}, {_counted(load.jobs, 'job')} of {_counted(load.size, 'byte')}"
            _show("node", f"{member.address}, leads {has}, seen {member.seen:.1f} s ago, node {member.node}")
        for shard, (lease, journal) in enumerate(zip(leases, journals, strict=True)):
            asked = f", asked to hand over to node {lease.successor}" if lease.node and lease.successor else ""
            _show(f"shard {shard}", f"{_leader(lease)}{asked}, position {_position(lease)}, {journal}")
    for fault in faults:
        _show("warning", fault)
    return 0


def _leader(lease: Lease) -> str:
    if lease.node:
        renewals = _counted(lease.renewals, "renewal")
        return f"{lease.address}, epoch {lease.epoch}, {renewals}, node {lease.node}"
    return f"none since epoch {lease.epoch}" if lease.epoch else "none yet"


def _position(lease: Lease) -> str:
    return f"{lease.position.epoch}.{lease.position.number}"


def _journal(engine: Engine, shard: int) -> str:
    """The number and the sizes of the files of a shard."""
    files = engine.files(shard)
    size = _counted(sum(file.size for file in files.values()), "byte")
    length = _counted(sum(file.length for file in files.values()), "byte")
    return f"{_counted(len(files), 'file')} of {size}, {length} of them in memory"


def _move(options: argparse.Namespace) -> int:
    with opened(options) as connect, closing(connect()) as engine:
        shards = engine.shards(0) or 1
        if not 0 <= options.shard < shards:
            raise ConfigError(f"SHARD: bad value {options.shard}: must be from 0 to {shards - 1}")
        members = engine.members()
        node = next((each for each in members if options.node in (each.node, each.address)), None)
        if node is None:
            raise StorageError(
                f"NODE: bad value {options.node}: no such node has reported to the engine within the last minute"
            )
        lease = made(engine.perform([move(options.shard, node.node)])[0])
        if lease.node == node.node:
            made(engine.perform([move(options.shard, "")])[0])  # and it is to go on
    if lease.node == node.node:
        _say(f"{node.address} already leads shard {options.shard}")
        return 0
    if lease.successor != node.node:
        raise StorageError(f"shard {options.shard} has no leader to hand it over")
    _say(f"asked {lease.address} to hand shard {options.shard} over to {node.address}")
    return 0


def _import(options: argparse.Namespace) -> int:
    from beanstalk_server.cluster.transfer import import_jobs
    from beanstalk_server.storage.disk import RealDirectory

    source = RealDirectory(options.directory)
    with opened(options) as connect, _progress() as on_progress:
        shards = options.shards or _shards(connect)
        names = import_jobs(connect, shards, options.replicas, source, on_progress)
    into = f" into {shards} shards, with new ids" if shards > 1 else ""
    print(f"imported {_counted(len(names), 'file')} from {options.directory}{into}: you can start the nodes")
    return 0


def _export(options: argparse.Namespace) -> int:
    from beanstalk_server.cluster.transfer import export_jobs
    from beanstalk_server.storage.disk import RealDirectory

    with opened(options) as connect, _progress() as on_progress:
        shards = _shards(connect)
        count = export_jobs(connect, shards, RealDirectory(options.directory), on_progress)
    of = f" with the jobs of {shards} shards" if shards > 1 else ""
    print(f"exported {_counted(count, 'segment')}{of} to {options.directory}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from beanstalk_server.cli.binlog import show_counts
    from beanstalk_server.cluster.transfer import NO_JOBS, copy_mark, copy_segments
    from beanstalk_server.storage.disk import RealDirectory
    from beanstalk_server.storage.errors import DAMAGED
    from beanstalk_server.storage.inspection import inspect

    status = 0
    with opened(options) as connect, closing(connect()) as engine, _progress() as on_progress:
        shards = engine.shards(0) or 1
        for shard in range(shards):
            with TemporaryDirectory(prefix="beanstalk-server-") as path:
                to = RealDirectory(path)
                if shards > 1:
                    print(f"shard {shard}")
                if damage := engine.damage(shard):
                    _say(f"damaged: {damage}")
                    status = DAMAGED
                    continue
                copy_mark(engine, shard, to)
                if not copy_segments(engine, shard, to, on_progress=on_progress):
                    if shards == 1:
                        raise StorageError(NO_JOBS)
                    print("no jobs yet")
                    continue
                with inspect(to) as binlog:
                    status = max(status, show_counts(binlog.count()))
    return status


def _shards(connect: Connect) -> int:
    """The number of shards of an engine; 1 if it is new."""
    with closing(connect()) as engine:
        return engine.shards(0) or 1


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
    _say(_ROW.format(what, text))


def _say(text: str) -> None:
    """Print a line, in which the engine may have control characters."""
    print(printable(text))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
