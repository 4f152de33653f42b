"""Carries the jobs of a binlog from a directory into an engine, and back: all of them, or none.

With one shard, the files are copied as they are, so they come back byte for byte. With more, the jobs are divided among
them, and joined again (division.py). Nodes may lead and write while files are read: what is written once in a segment
never changes, so a copy of a shard is whole as soon as no segment has gone while it was made.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from beanstalk_server.cluster.commit_sender import CommitSender
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.division import divide, join
from beanstalk_server.cluster.engine.interface import (
    LARGEST,
    Connect,
    Engine,
    File,
    Lease,
    LeaseCall,
    made,
    observe,
    release,
    renew,
    take,
)
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.table import IdTable
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.beanstalkd.reader import take_over
from beanstalk_server.storage.binlog_reader import find_tail
from beanstalk_server.storage.disk import Directory, RealDirectory, write_file
from beanstalk_server.storage.errors import DAMAGED, StorageError, lock_directory, unusable
from beanstalk_server.storage.inspection import inspect
from beanstalk_server.storage.rewriting import COMPLETE, REWRITING, finish_rewriting
from beanstalk_server.storage.segment import segment_names
from beanstalk_server.storage.stopped import STOPPED

CHUNK: Final = 8 << 20
"""Bytes that are copied at once."""

RENEWAL_INTERVAL: Final = 0.5
"""Seconds after which the lease is renewed, so that no node takes it while files are carried."""

WATCH: Final = 10.0
"""Seconds for which a leader is watched that may be gone: as many as a lease lasts by default."""

ATTEMPTS: Final = 100
"""How often what has changed meanwhile is copied."""

NO_JOBS: Final = "the engine has no jobs"

Progress = Callable[[int, int], None]
"""Called now and then with the number of bytes that have been copied, and with that of all bytes."""


class _Progress:
    """How much has been copied."""

    def __init__(self, report: Progress | None) -> None:
        self._report = report
        self.done = 0
        self.total = 0

    def add(self, size: int) -> None:
        self.done += size
        if self._report is not None:
            self._report(self.done, self.total)


# From the engine


def copy_segments(
    engine: Engine, shard: int, to: Directory, inside: str = "", on_progress: Progress | None = None
) -> list[str]:
    """Copy all segments of a shard into a directory, as they were at some moment; return their names.

    A shard that has never had a job has none, also if a node has led it.

    Args:
        inside: the subdirectory of `to` that gets them.

    Raises:
        StorageError: the engine is being taken over.
        OSError: the directory cannot be written to.
        EngineError: the engine cannot be reached.
    """
    copied: dict[str, int] = {}  # bytes of each
    progress = _Progress(on_progress)
    for _ in range(ATTEMPTS):
        files = _segments(engine, shard)
        progress.total = progress.done + sum(file.length - copied.get(name, 0) for name, file in files.items())
        for name in [name for name in copied if name not in files]:
            to.remove(_path(inside, name))
            del copied[name]
        for name in sorted(files):
            copied[name] = _copy(engine, shard, to, inside, name, copied.get(name, -1), files[name], progress)
        there = engine.files(shard)
        if all(name in there for name in files):
            to.sync(inside)
            to.sync()
            return sorted(files)
    raise StorageError(
        f"segments were removed from the engine during each of {ATTEMPTS} attempts to copy them: try again later"
    )


def export_jobs(connect: Connect, shards: int, to: Directory, on_progress: Progress | None = None) -> int:
    """Make a directory that a server can start on with -b, with the jobs of all shards; return its number of segments.

    Each shard is as it was at some moment, and ids are what they were.

    Raises:
        StorageError: the directory is not empty, or cannot be written to, or the engine cannot be exported.
        EngineError: the engine cannot be reached.
    """
    if shards == 1:
        with closing(connect()) as engine, _made_empty(to):
            _export_segments(engine, to, on_progress)
            return len(segment_names(to))
    with TemporaryDirectory(prefix="beanstalk-server-") as path:
        copies = []
        with closing(connect()) as engine:
            for shard in range(shards):
                copy = RealDirectory(Path(path) / str(shard))
                copy.make()
                if copy_segments(engine, shard, copy, on_progress=on_progress):
                    copies.append(copy)
        if not copies:
            raise StorageError(NO_JOBS)
        with _made_empty(to):
            join(copies, to)
            return len(segment_names(to))


def copy_mark(engine: Engine, shard: int, to: Directory) -> None:
    """Copy the mark of a clean stop, if there is one, before the segments: any later change makes it void."""
    files = engine.files(shard)
    if STOPPED in files:
        _copy(engine, shard, to, "", STOPPED, -1, files[STOPPED], _Progress(None))


@contextmanager
def _made_empty(to: Directory) -> Iterator[None]:
    """Make a directory, or find it empty; remove what is rewritten there if what follows fails.

    Raises:
        StorageError: it is not empty, or cannot be written to.
    """
    try:
        is_new = to.make()
        if to.names():
            raise StorageError(f"{to.path}: not empty: name another directory")
        try:
            yield
        except BaseException:
            with suppress(OSError):
                for name in to.names(REWRITING):
                    to.remove(f"{REWRITING}/{name}")
                to.remove(REWRITING)
                if is_new:
                    to.discard()
            raise
    except OSError as error:
        raise unusable(to, error) from error


def _export_segments(engine: Engine, to: Directory, on_progress: Progress | None) -> None:
    """Write the segments of a shard into an empty directory as they are: all of them, or none."""
    to.make_directory(REWRITING)
    if not copy_segments(engine, 0, to, REWRITING, on_progress):
        raise StorageError(NO_JOBS)
    write_file(to, COMPLETE, json.dumps({"aside": REWRITING, "kept": [], "removed": []}).encode())
    to.sync(REWRITING)
    finish_rewriting(to)


def _segments(engine: Engine, shard: int) -> dict[str, File]:
    directory = EngineDirectory(engine, None)
    files = engine.files(shard)
    directory.adopt(files)
    names = directory.names()
    if old := file_names(names):
        raise StorageError(f"the engine has files of beanstalkd ({old[0]}): start a node to take over their jobs")
    if "complete" in directory.names(REWRITING):
        raise StorageError("the start of a node was interrupted: start a node again to finish it")
    return {name: files[name] for _, name in segment_names(directory)}


def _copy(
    engine: Engine, shard: int, to: Directory, inside: str, name: str, done: int, there: File, progress: _Progress
) -> int:
    """Copy a file from the byte `done` on, or all of it if that is below 0; return how many bytes the copy has.

    The zeros at its end take no room, but a record may end with them.
    """
    path = _path(inside, name)
    file = to.create(path) if done < 0 else to.open(path, write=True)
    done = max(done, 0)
    with closing(file):
        while done < there.length:
            data = engine.read(shard, name, done, min(CHUNK, there.length - done))
            if not data:  # it has gone
                break
            file.write(done, data)
            done += len(data)
            progress.add(len(data))
        if file.size() < there.size:
            file.truncate(there.size)
        file.sync()
    return done


def _path(inside: str, name: str) -> str:
    return f"{inside}/{name}" if inside else name


# Into the engine


def import_jobs(
    connect: Connect,
    shards: int,
    replicas: int,
    source: Directory,
    on_progress: Progress | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Bring the jobs of a binlog, of this server or of beanstalkd, into an engine without jobs.

    With one shard, the files are copied as they are. With more, the job with the id n gets the id n · shards + s in the
    shard s of its tube.

    Args:
        shards: how many the engine has, or is to have if that is not fixed.
        replicas: how many must have everything.
        source: a directory that no server uses meanwhile.

    Returns:
        The names of the files that were read.

    Raises:
        StorageError: a node uses the engine, the engine has jobs or another number of shards, or there are none in the
            source.
        EngineError: the engine cannot be reached.
    """
    with ExitStack() as stack:
        if shards == 1:
            names = stack.enter_context(_checked(source))
            parts: list[tuple[Directory, list[str]]] = [(source, names)]
        else:
            with _checked(source) as names:
                pass  # it is not used again when its jobs have been divided
            path = Path(stack.enter_context(TemporaryDirectory(prefix="beanstalk-server-")))
            directories = [RealDirectory(path / str(shard)) for shard in range(shards)]
            divide(source, directories)
            parts = [(each, [name for _, name in segment_names(each)]) for each in directories]
        progress = _Progress(on_progress)
        progress.total = sum(_size_of(each, name) for each, found in parts for name in found)
        engine = connect()
        stack.callback(engine.close)
        leases = stack.enter_context(_leading(engine, shards, clock, sleep))
        renewed = clock()

        def on_copied(size: int) -> None:
            nonlocal renewed
            progress.add(size)
            if clock() - renewed >= RENEWAL_INTERVAL:
                renewed = clock()
                _perform(engine, [renew(shard, lease) for shard, lease in enumerate(leases)])

        written = [
            stack.enter_context(_written(engine, shard, CommitSender(lease, replicas), *part, on_copied))
            for shard, (lease, part) in enumerate(zip(leases, parts, strict=True))
        ]
        for to, (_, found) in zip(written, parts, strict=True):
            for name in found:
                to.rename(f"{REWRITING}/{name}", name)
            to.sync()
    return names


@contextmanager
def _checked(source: Directory) -> Iterator[list[str]]:
    """Keep servers out of a directory, and check its files; yield the names of those that hold jobs."""
    names = _names(source)
    if file_names(names):
        has_lock = "lock" in source.names()
        if has_lock:
            lock_directory(source)
        try:
            take_over(source, Replay(IdTable()), salvage=False)
            yield names
        except OSError as error:
            raise unusable(source, error) from error
        finally:
            if has_lock:
                source.unlock()
    else:
        with inspect(source) as binlog:
            for count in binlog.count():
                for damage in count.damages:
                    raise StorageError(f"{source.path}/{count.name}: {damage}", DAMAGED)
            yield names


def _names(source: Directory) -> list[str]:
    """The names of the files that hold jobs."""
    try:
        found = source.names()
        segments = [name for _, name in segment_names(source)]
    except OSError as error:
        raise unusable(source, error) from error
    old = file_names(found)
    if segments and old:
        raise StorageError(
            f"{source.path}: holds files of beanstalkd ({old[0]}) and of this server ({segments[0]}): remove "
            "the files whose jobs you do not need"
        )
    if REWRITING in found:
        raise StorageError(
            f"{source.path}/{REWRITING}: the start of beanstalk-server was interrupted: start it again to finish it"
        )
    if not segments and not old:
        raise StorageError(f"{source.path}: holds no jobs: name the directory that is given to -b")
    return [*segments, *old, *[name for name in (STOPPED,) if name in found]]


@contextmanager
def _leading(
    engine: Engine, shards: int, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[list[Lease]]:
    """Hold the leases of all shards, so that no node leads meanwhile."""
    if members := engine.members():
        raise StorageError(f"the node at {members[0].address} uses the engine: stop all nodes, and wait for a minute")
    found = engine.shards(shards)
    if found != shards:
        raise StorageError(
            f"--shards {shards}: the engine has {found} shard{'s' if found != 1 else ''}: must be {found}"
        )
    looks = [observe(shard) for shard in range(shards)]
    seen = _perform(engine, looks)
    until = clock() + WATCH
    while any(each.node for each in seen) and clock() < until:  # perhaps they are gone
        sleep(RENEWAL_INTERVAL)
        for before, lease in zip(seen, _perform(engine, looks), strict=True):
            if (lease.epoch, lease.renewals) != (before.epoch, before.renewals):
                raise _leads(lease)
    node, secret = f"import-{secrets.token_hex(4)}", secrets.token_hex(16)
    claims = [Lease(each.epoch + 1, 0, node, "", secret, lineage=each.next_lineage()) for each in seen]
    leases: list[Lease] = []
    try:
        calls = [take(shard, before, claim) for shard, (before, claim) in enumerate(zip(seen, claims, strict=True))]
        leases = _perform(engine, calls)
        for lease, claim in zip(leases, claims, strict=True):
            if (lease.epoch, lease.secret) != (claim.epoch, claim.secret):
                raise _leads(lease)
        yield leases
    finally:
        engine.perform([release(shard, lease) for shard, lease in enumerate(leases) if lease.node == node])


def _leads(lease: Lease) -> StorageError:
    return StorageError(f"the node at {lease.address} leads a shard: stop all nodes, and wait for a minute")


def _perform(engine: Engine, calls: list[LeaseCall]) -> list[Lease]:
    """Make calls that must all succeed."""
    return [made(lease) for lease in engine.perform(calls)]


def _size_of(source: Directory, name: str) -> int:
    """Bytes of a file that is imported."""
    file = source.open(name)
    size = file.size()
    file.close()
    if size > LARGEST:
        raise StorageError(f"{source.path}/{name}: {size} bytes: the limit of an engine is {LARGEST} bytes per file")
    return size


@contextmanager
def _written(
    engine: Engine,
    shard: int,
    sender: CommitSender,
    source: Directory,
    names: list[str],
    on_copied: Callable[[int], None],
) -> Iterator[EngineDirectory]:
    """Write the files of a shard, where no node looks for them yet; remove them if what follows fails."""
    to = EngineDirectory(engine, sender, shard=shard, may_exceed=False)
    try:
        to.lock()
        if held := [name for _, name in segment_names(to)] + file_names(to.names()):
            raise StorageError(f"the engine already has a journal ({held[0]}): use another --cluster-name")
        for name in to.names(REWRITING):  # of an import that was interrupted
            to.remove(f"{REWRITING}/{name}")
        try:
            newest = [name for _, name in segment_names(source)][-1:]
            for name in names:
                _write(source, name, to, on_copied, is_newest=name in newest)
            to.sync()
            yield to
        except BaseException:  # also when others have their files in their places
            _remove(to, names)
            raise
    except OSError as error:
        raise StorageError(f"cannot write to the engine: {error.strerror or error}") from error


def _write(
    source: Directory, name: str, to: EngineDirectory, on_copied: Callable[[int], None], *, is_newest: bool
) -> None:
    """Write a file into the engine, without the torn tail that the newest segment may have."""
    with closing(source.open(name)) as file:
        size = file.size()
        tail = find_tail(file, name) if is_newest else None
        end = size if tail is None else tail.end
        copy = to.create(f"{REWRITING}/{name}", size)
        for offset in range(0, size, CHUNK):
            data = file.read(offset, min(CHUNK, size - offset))
            if content := data[: max(end - offset, 0)].rstrip(b"\0"):
                copy.write(offset, content)
                copy.sync()
            on_copied(len(data))


def _remove(to: EngineDirectory, files: list[str]) -> None:
    """Remove what was written of an import that has failed, wherever it is by now."""
    to.may_exceed = True
    with suppress(OSError):
        for _ in range(2):  # the first time, the commit that did not fit may come first
            to.take()
            to.lock()
            for name in files:
                to.remove(name)
                to.remove(f"{REWRITING}/{name}")
            to.sync()
