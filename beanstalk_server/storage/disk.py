"""Gives access to a directory and its files: storage uses the file system only through this module.

Names are relative to the directory. All methods raise OSError, as the system does. Tests use a directory in memory
instead, which forgets what was not synced, tears writes, and runs out of space (tests/memory_disk.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

from beanstalk_server.settings.files import refuse_if_public

BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
"""Of each file that is opened. A symbolic link is none of the binlog's, and may lead to a file of another user."""

ZEROS: Final = bytes(1 << 20)

READ_IF_CACHED: Final[int] = getattr(os, "RWF_NOWAIT", 0)
"""A flag that only Linux knows; 0 elsewhere."""


class ReadableFile(Protocol):
    """A file that is open for reading."""

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file."""

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """Read `size` bytes without waiting for the disk; None if the system does not have all of them in memory."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class File(ReadableFile, Protocol):
    """A file that is open for reading and writing."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of the data, in one piece if the system can."""

    def erase(self, offset: int, size: int) -> None:
        """Make this part of the file zeros again."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when the data is on the disk."""


class Directory(Protocol):
    """A directory that only one server uses at a time."""

    path: Path
    """Its path, for messages."""
    tears_writes: bool
    """Whether a crash may leave a part of a write."""

    def make(self) -> bool:
        """Make the directory, durably; return whether it was missing. Its parent must exist."""

    def discard(self) -> None:
        """Remove the directory, which must be empty."""

    def is_same(self, other: Directory) -> bool:
        """Whether both are the same directory."""

    def lock(self) -> bool:
        """Make the directory if needed, and keep other servers out until `unlock`; False if one is using it already."""

    def keeps_lock(self) -> bool:
        """Whether the file that `lock` has locked is still in place; if not, another server may use the directory."""

    def unlock(self) -> None: ...

    def names(self, inside: str = "") -> list[str]:
        """The names in this directory, or in its subdirectory `inside`; none if that does not exist."""

    def open(self, name: str, *, write: bool = False) -> File: ...

    def create(self, name: str, size: int = 0, *, fill: bool = True) -> File:
        """Make a new file of `size` zero bytes, and allocate its space now.

        Args:
            fill: write the zeros, so that later syncs have no metadata to write; else only allocate, which is quick.
        """

    def make_directory(self, name: str) -> None:
        """Make a subdirectory, unless it exists."""

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None:
        """Remove a file or an empty directory."""

    def sync(self, inside: str = "") -> None:
        """Make durable what was created, renamed and removed here, or in the subdirectory `inside`."""


def boot_id() -> bytes:
    """16 bytes that identify the present boot of this machine, or random ones if the system has no id of it."""
    try:
        return bytes.fromhex(BOOT.read_text().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return secrets.token_bytes(16)


def fill_with_zeros(file: File, size: int, start: int = 0) -> None:
    """Write `size` zeros from the offset `start` on, a mebibyte at a time."""
    for done in range(0, size, len(ZEROS)):
        file.write(start + done, ZEROS[: size - done])


def write_file(directory: Directory, name: str, content: bytes) -> None:
    """Make a new file with this content, and return when the content is on the disk."""
    with closing(directory.create(name)) as file:
        file.write(0, content)
        file.sync()


class RealFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_cached(self, offset: int, size: int) -> bytes | None:
        if not READ_IF_CACHED:
            return None
        data = bytearray(size)
        try:
            count = os.preadv(self._descriptor, [data], offset, READ_IF_CACHED)
        except OSError:  # the disk would be needed; or this file system cannot tell, or has an error to report later
            return None
        return bytes(data) if count == size else None

    def write(self, offset: int, data: bytes) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], offset + written)

    def erase(self, offset: int, size: int) -> None:
        fill_with_zeros(self, size, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class RealDirectory:
    """A directory of the operating system."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.tears_writes = True
        self._lock_path = str(self.path / "lock")
        self._lock = -1
        self._identity: tuple[int, int] | None = None  # of the lock file

    def make(self) -> bool:
        if self.path.exists():
            return False
        parent = self.path.parent
        if not parent.exists():  # of a file system that is not mounted, a new directory would be an empty binlog
            raise OSError(errno.ENOENT, f"{parent} does not exist; create or mount it first", str(self.path))
        os.mkdir(self.path, 0o755)
        _sync(parent)
        return True

    def discard(self) -> None:
        self.path.rmdir()

    def is_same(self, other: Directory) -> bool:
        return self.path.samefile(other.path)

    def lock(self) -> bool:
        self.make()
        refuse_if_public(os.stat(self.path).st_mode)
        # beanstalkd locks the same file with lockf, so lockf keeps out a beanstalkd, too. It does not keep out another
        # server in this process, but flock does. A process that opens and closes the file once more loses its lockf
        # lock, so `_locked` says which files not to open.
        own = _identity(self._lock_path)
        if own is not None and own in _locked:
            return False
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        self._lock = descriptor
        found = os.fstat(descriptor)
        self._identity = found.st_dev, found.st_ino
        _locked.add(self._identity)
        return True

    def keeps_lock(self) -> bool:
        return _identity(self._lock_path) == self._identity

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            if self._identity is not None:
                _locked.discard(self._identity)

    def names(self, inside: str = "") -> list[str]:
        try:
            return os.listdir(self.path / inside)
        except FileNotFoundError:
            if inside:
                return []
            raise

    def open(self, name: str, *, write: bool = False) -> RealFile:
        return RealFile(os.open(self.path / name, (os.O_RDWR if write else os.O_RDONLY) | FLAGS))

    def create(self, name: str, size: int = 0, *, fill: bool = True) -> RealFile:
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o600)
        file = RealFile(descriptor)
        try:
            if size:  # first, so that a disk with too little room is not filled up with zeros
                os.posix_fallocate(descriptor, 0, size)
            if fill:
                fill_with_zeros(file, size)
        except OSError:
            file.close()
            os.unlink(self.path / name)
            raise
        return file

    def make_directory(self, name: str) -> None:
        os.makedirs(self.path / name, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path / old, self.path / new)

    def remove(self, name: str) -> None:
        path = self.path / name
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()

    def sync(self, inside: str = "") -> None:
        _sync(self.path / inside)


_locked: Final[set[tuple[int, int]]] = set()
"""The lock files that this process has locked, as device and inode."""


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
