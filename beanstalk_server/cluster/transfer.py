"""Carries the files of a binlog from a directory into an engine, and back: all of them, or none.

The files are copied as they are, so they come back byte for byte. Nodes may lead and write while files are read: what
is written once in a segment never changes, so a copy is whole as soon as no segment has gone while it was made. Must
never know what is in a file.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine import Engine, File, Lease
from beanstalk_server.cluster.sender import Sender
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.table import JobTable
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.beanstalkd.takeover import take_over
from beanstalk_server.storage.disk import Directory
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

LARGEST: Final = 1 << 29
"""Bytes of a string of Redis at most."""

ATTEMPTS: Final = 100
"""How often what has changed meanwhile is copied."""

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


def copy_segments(engine: Engine, to: Directory, inside: str = "", on_progress: Progress | None = None) -> list[str]:
    """Copy all segments of the engine into a directory, as they were at some moment; return their names.

    Args:
        inside: the subdirectory of `to` that gets them.

    Raises:
        StorageError: the engine has no segments, or is being taken over.
        OSError: the directory cannot be written to.
        EngineError: the engine cannot be reached.
    """
    copied: dict[str, int] = {}  # bytes of each
    progress = _Progress(on_progress)
    for _ in range(ATTEMPTS):
        files = _segments(engine)
        progress.total = progress.done + sum(file.length - copied.get(name, 0) for name, file in files.items())
        for name in [name for name in copied if name not in files]:
            to.remove(_path(inside, name))
            del copied[name]
        for name in sorted(files):
            copied[name] = _copy(engine, to, inside, name, copied.get(name, -1), files[name].length, progress)
        there = engine.files()
        if all(name in there for name in files):
            to.sync(inside)
            to.sync()
            return sorted(files)
    raise StorageError(f"the engine: its segments go faster than they can be copied, {ATTEMPTS} times in a row")


def export_segments(engine: Engine, to: Directory, on_progress: Progress | None = None) -> list[str]:
    """Make a directory that a server can start on with -b; return the names of its segments.

    Raises:
        StorageError: the directory is not empty, or cannot be written to, or the engine cannot be exported.
        EngineError: the engine cannot be reached.
    """
    try:
        is_new = to.make()
        try:
            if to.names():
                raise StorageError(f"{to.path}: is not empty: name another directory")
            to.make_directory(REWRITING)
            names = copy_segments(engine, to, REWRITING, on_progress)
            complete = to.create(COMPLETE)
            complete.write(0, json.dumps({"aside": REWRITING, "kept": [], "removed": []}).encode())
            complete.sync()
            complete.close()
            to.sync(REWRITING)
            finish_rewriting(to)
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
    return names


def _segments(engine: Engine) -> dict[str, File]:
    directory = EngineDirectory(engine, None)
    files = engine.files()
    directory.adopt(files)
    names = directory.names()
    if old := file_names(names):
        raise StorageError(
            f"the engine: holds files of beanstalkd ({old[0]}): start a node, which takes over their jobs"
        )
    if "complete" in directory.names(REWRITING):
        raise StorageError("the engine: a start of a node was interrupted: start one again to finish")
    segments = {name: files[name] for _, name in segment_names(directory)}
    if not segments:
        raise StorageError("the engine: holds no jobs")
    return segments


def _copy(engine: Engine, to: Directory, inside: str, name: str, done: int, length: int, progress: _Progress) -> int:
    """Copy a file from the byte `done` on, or all of it if that is below 0; return how many bytes the copy has."""
    path = _path(inside, name)
    file = to.create(path) if done < 0 else to.open(path, write=True)
    done = max(done, 0)
    try:
        while done < length:
            data = engine.read(name, done, min(CHUNK, length - done))
            if not data:  # it has gone
                break
            file.write(done, data)
            done += len(data)
            progress.add(len(data))
        file.sync()
    finally:
        file.close()
    return done


def _path(inside: str, name: str) -> str:
    return f"{inside}/{name}" if inside else name


# Into the engine


def import_files(
    engine: Engine,
    replicas: int,
    source: Directory,
    on_progress: Progress | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Copy a binlog, of this server or of beanstalkd, into an engine without jobs; return the names of its files.

    Args:
        replicas: how many must have everything.
        source: a directory that no server uses meanwhile.

    Raises:
        StorageError: a node uses the engine, the engine has jobs, or there is none in the source.
        EngineError: the engine cannot be reached.
    """
    with _checked(source) as names, _leading(engine, clock, sleep) as lease:
        to = EngineDirectory(engine, Sender(lease.epoch, lease.position, replicas), may_exceed=False)
        try:
            to.lock()
            if held := [name for _, name in segment_names(to)] + file_names(to.names()):
                raise StorageError(f"the engine: holds a journal already ({held[0]}): name another cluster")
            for name in to.names(REWRITING):  # of an import that was interrupted
                to.remove(f"{REWRITING}/{name}")
            try:
                _write(engine, lease, source, names, to, _Progress(on_progress), clock)
            except OSError:
                _remove(to)
                raise
        except OSError as error:
            raise StorageError(f"the engine: cannot be written to: {error.strerror or error}") from error
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
            take_over(source, Replay(JobTable()), salvage=False)
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
        raise StorageError(f"{source.path}: holds files of beanstalkd ({old[0]}) and of this server ({segments[0]})")
    if REWRITING in found:
        raise StorageError(
            f"{source.path}/{REWRITING}: a start of beanstalk-server was interrupted: start it again to finish"
        )
    if not segments and not old:
        raise StorageError(f"{source.path}: holds no jobs: name the directory that is given to -b")
    return [*segments, *old, *[name for name in (STOPPED,) if name in found]]


@contextmanager
def _leading(engine: Engine, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[Lease]:
    """Hold the lease, so that no node leads meanwhile."""
    seen = engine.look()
    if members := engine.members():
        raise StorageError(
            f"the engine: the node at {members[0].address} uses it: stop all nodes, and wait for a minute"
        )
    until = clock() + WATCH
    while seen.node and clock() < until:  # perhaps it is gone
        sleep(RENEWAL_INTERVAL)
        lease = engine.look()
        if (lease.epoch, lease.renewals) != (seen.epoch, seen.renewals):
            raise StorageError(f"the engine: the node at {lease.address} leads: stop all nodes, and wait for a minute")
    claim = Lease(seen.epoch + 1, 0, f"import-{secrets.token_hex(4)}", "", secrets.token_hex(16))
    lease = engine.take(seen, claim)
    if (lease.epoch, lease.secret) != (claim.epoch, claim.secret):
        raise StorageError(f"the engine: the node at {lease.address} leads: stop all nodes, and wait for a minute")
    try:
        yield lease
    finally:
        engine.release(lease)


def _write(
    engine: Engine,
    lease: Lease,
    source: Directory,
    names: list[str],
    to: EngineDirectory,
    progress: _Progress,
    clock: Callable[[], float],
) -> None:
    renewed = clock()
    for name in names:
        file = source.open(name)
        size = file.size()
        file.close()
        if size > LARGEST:
            raise StorageError(
                f"{source.path}/{name}: has {size} bytes, and an engine takes {LARGEST} in a file at most"
            )
        progress.total += size
    for name in names:
        file = source.open(name)
        try:
            size = file.size()
            copy = to.create(f"{REWRITING}/{name}", size)
            for offset in range(0, size, CHUNK):
                data = file.read(offset, min(CHUNK, size - offset))
                if content := data.rstrip(b"\0"):
                    copy.write(offset, content)
                    copy.sync()
                progress.add(len(data))
                if clock() - renewed >= RENEWAL_INTERVAL:
                    renewed = clock()
                    engine.renew(lease)
        finally:
            file.close()
    for name in names:
        to.rename(f"{REWRITING}/{name}", name)
    to.sync()


def _remove(to: EngineDirectory) -> None:
    """Remove what was written of an import that has failed."""
    to.may_exceed = True
    with suppress(OSError):
        for _ in range(2):  # the first time, the commit that did not fit may come first
            to.take()
            to.lock()
            for name in to.names(REWRITING):
                to.remove(f"{REWRITING}/{name}")
            to.sync()
