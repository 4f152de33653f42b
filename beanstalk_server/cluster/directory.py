"""Implements a directory of the binlog in the engine: its writes become commits, in the same order.

Names and sizes of all files are known here; changes to them are collected as operations. There are two ways to go on
from there:

- *direct*, for recovery and tools: `sync` sends what was collected, and returns when it is durable. It waits for an
  engine that cannot be reached, but not for ever. All errors are OSErrors.
- *collected*, for a server that serves: nothing here asks the engine, so nothing waits. The caller takes the
  operations (`take`), and makes a commit of them. Files are not read then: all bodies are in memory.

Zeros are never sent: a file is as long as its creator says, and the engine keeps only what was written.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from beanstalk_server.cluster.commit_sender import CommitSender, DivergedError, FencedError
from beanstalk_server.cluster.engine import interface
from beanstalk_server.storage.disk import Directory, fill_with_zeros
from beanstalk_server.storage.errors import DAMAGED, HOW_TO_SALVAGE, StorageError

PIECE: Final = 1 << 20
"""Bytes of operations that are collected in the direct way before they are sent, with or without a sync."""

ENGINE_TIMEOUT: Final = 10.0
"""Timeout in seconds of the direct way, while the engine is unreachable."""

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5
"""Seconds between two attempts: each pause is twice as long as the one before."""

FULL: Final = "the engine has reached its memory limit"

T = TypeVar("T")


class _Entry:
    """A file, as the collected operations leave it."""

    def __init__(self, name: str, size: int, length: int = 0) -> None:
        self.name = name
        self.size = size
        self.length = length  # what follows these bytes is zeros


class EngineFile:
    """A file in the engine; a rename does not change this object."""

    def __init__(self, directory: EngineDirectory, entry: _Entry) -> None:
        self._directory = directory
        self._entry = entry

    def read(self, offset: int, size: int) -> bytes:
        entry = self._entry
        size = max(min(size, entry.size - offset), 0)
        there = max(min(size, entry.length - offset), 0)
        data = self._directory.read(entry.name, offset, there) if there else b""
        return data + bytes(size - len(data)) if len(data) < size else data

    def read_cached(self, offset: int, size: int) -> bytes | None:  # noqa: ARG002
        return None

    def size(self) -> int:
        return self._entry.size

    def write(self, offset: int, data: bytes) -> None:
        entry = self._entry
        end = offset + len(data)
        if end > entry.length:
            entry.length = end
            if end > entry.size:
                entry.size = end
        self._directory.collect((interface.WRITE, entry.name, offset, data), len(data))

    def erase(self, offset: int, size: int) -> None:
        entry = self._entry
        if offset >= entry.length:
            return
        if offset + size < entry.length:
            fill_with_zeros(self, size, offset)
            return
        whole = entry.size
        self.truncate(offset)
        self.truncate(whole)

    def truncate(self, size: int) -> None:
        entry = self._entry
        entry.size = size
        entry.length = min(entry.length, size)
        self._directory.collect((interface.RESIZE, entry.name, size), 0)

    def sync(self) -> None:
        self._directory.sync()

    def close(self) -> None:
        """Nothing: the engine knows no open files."""


class EngineDirectory:
    """The files of a cluster's binlog, as `storage.disk.Directory` has them.

    Args:
        engine: used by one thread at a time.
        sender: makes the commits; None for a directory that is only read.
        path: for messages.
        shard: its number.
        may_exceed: whether what the direct way sends may go beyond the engine's limit of memory.
        timeout: seconds for which the direct way waits for the engine.
    """

    def __init__(
        self,
        engine: interface.Engine,
        sender: CommitSender | None,
        path: str = "engine",
        *,
        shard: int = 0,
        may_exceed: bool = True,
        timeout: float = ENGINE_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = Path(path)
        self.tears_writes = False  # the engine makes a commit as a whole: what is broken is damage
        self.shard = shard
        self.is_direct = True
        self.is_full = False
        """Set by the sender of what is collected: nothing new is created."""
        self.may_exceed = may_exceed
        self.on_refusal: Callable[[], None] | None = None
        """Called when nothing could be created because the engine is full."""
        self._engine = engine
        self.sender = sender
        self._new_retries = partial(_Retries, timeout, clock, sleep)
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._operations: list[interface.Operation] = []  # not sent yet
        self._size = 0  # bytes of them

    # What storage asks for

    def make(self) -> bool:
        return False

    def discard(self) -> None:
        """Nothing: a directory in the engine is there as long as it has files."""

    def is_same(self, other: Directory) -> bool:
        return other is self

    def lock(self) -> bool:
        """Find out what the engine holds. The epoch keeps other nodes out."""
        self.adopt(self._ask(self.fetch))
        if damage := self._ask(lambda: self._engine.damage(self.shard)):
            raise StorageError(f"{self.path}: damaged: {damage}; {HOW_TO_SALVAGE}", DAMAGED)
        return True

    def keeps_lock(self) -> bool:
        return True  # the engine checks the epoch of each commit

    def unlock(self) -> None:
        """Nothing: the epoch ends with the lease."""

    def names(self, inside: str = "") -> list[str]:
        prefix = f"{inside}/" if inside else ""
        return list({name[len(prefix) :].split("/")[0] for name in self._entries if name.startswith(prefix)})

    def open(self, name: str, *, write: bool = False) -> EngineFile:  # noqa: ARG002
        return EngineFile(self, self._entry(name))

    def create(self, name: str, size: int = 0, *, fill: bool = True) -> EngineFile:  # noqa: ARG002
        if name in self._entries:
            raise FileExistsError(errno.EEXIST, "the file already exists", name)
        if size and self.is_direct:
            self._create_now(name, size)
        else:
            if size and self.is_full:
                if self.on_refusal is not None:
                    self.on_refusal()
                raise OSError(errno.ENOSPC, FULL)
            self.collect((interface.CREATE, name, size), 0)
        entry = self._entries[name] = _Entry(name, size)
        return EngineFile(self, entry)

    def make_directory(self, name: str) -> None:
        """Nothing: a subdirectory is there as long as it has files."""

    def rename(self, old: str, new: str) -> None:
        entry = self._entry(old)
        del self._entries[old]
        entry.name = new
        self._entries[new] = entry
        self.collect((interface.RENAME, old, new), 0)

    def remove(self, name: str) -> None:
        if self._entries.pop(name, None) is not None:
            self.collect((interface.REMOVE, name), 0)

    def sync(self, inside: str = "") -> None:  # noqa: ARG002
        if self.is_direct:
            self._send()

    # What is collected

    def collect(self, operation: interface.Operation, size: int) -> None:
        """Add an operation with this many bytes of data."""
        self._operations.append(operation)
        self._size += size
        if self.is_direct and self._size >= PIECE:
            self._send()

    def take(self) -> tuple[list[interface.Operation], int]:
        """Hand out what was collected, and how many bytes that is."""
        taken = self._operations, self._size
        self._operations = []
        self._size = 0
        return taken

    def fetch(self) -> dict[str, interface.File]:
        """The files that the engine has now.

        Raises:
            EngineError: it does not say.
        """
        return self._engine.files(self.shard)

    def adopt(self, files: dict[str, interface.File]) -> None:
        """Begin with these files, which the engine has; what was collected is void."""
        self.take()
        self._entries = {name: _Entry(name, file.size, file.length) for name, file in files.items()}

    def disconnect(self) -> None:
        """Close the connection to the engine."""
        self._engine.close()

    def all_names(self) -> list[str]:
        """The names of all files, those in subdirectories included."""
        return list(self._entries)

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "the engine has no such file", name)
        return entry

    # The direct way

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Read bytes that the file has.

        Raises:
            OSError: the engine cannot be reached, or has lost them.
        """
        if not self.is_direct:
            raise OSError(errno.EIO, "the engine cannot be read while the file is being written", name)
        self._send()
        data = self._ask(lambda: self._engine.read(self.shard, name, offset, size))
        if len(data) < size:
            raise OSError(errno.EIO, "the engine has lost part of the file", name)
        return data

    def _create_now(self, name: str, size: int) -> None:
        """Create a file, unless the engine is full: even what may exceed its limit must not plan to."""
        self._send()
        self.collect((interface.CREATE, name, size), 0)
        if self._send():
            self.collect((interface.REMOVE, name), 0)
            raise OSError(errno.ENOSPC, FULL)

    def _send(self) -> bool:
        """Send what was collected, and wait until it is durable; return whether the engine was full."""
        sender = self.sender
        if self._operations:
            if sender is None:
                raise OSError(errno.EROFS, "the engine is open read-only")
            sender.add(*self.take())
        if sender is None or sender.next() is None:  # else something is left of a call that has failed
            return False
        retries = self._new_retries()
        exceeds = False
        while (commit := sender.next()) is not None:
            reply = self._engine.append([interface.CommitCall(self.shard, commit, exceeds)])[0]
            if isinstance(reply, interface.EngineRefusedError):
                raise OSError(errno.EACCES, str(reply)) from reply
            is_full = isinstance(reply, interface.EngineFullError)
            if is_full and not self.may_exceed:
                raise OSError(errno.ENOSPC, FULL)
            try:
                shortage = sender.on_reply(reply, exceeds, self._clock())
            except (FencedError, DivergedError) as error:
                raise OSError(errno.ESTALE, str(error)) from error
            exceeds = exceeds or is_full
            if shortage:
                retries.wait(shortage)
        return exceeds

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the engine something, again and again while it cannot be reached."""
        retries = self._new_retries()
        while True:
            try:
                return question()
            except interface.EngineRefusedError as error:
                raise OSError(errno.EACCES, str(error)) from error
            except interface.EngineError as error:
                retries.wait(str(error))


class _Retries:
    """The retries of one call, with a growing pause."""

    def __init__(self, seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._until = clock() + seconds
        self._pause = FIRST_PAUSE

    def wait(self, what: str) -> None:
        """Pause before the next attempt, or raise an OSError with what is wrong."""
        if self._clock() + self._pause > self._until:
            raise OSError(errno.ETIMEDOUT, what)
        self._sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
