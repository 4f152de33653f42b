"""Reads the small files that a configuration names, which may also be pipes, devices or far too large."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

LARGEST_FILE: Final = 4 << 20
"""Bytes: about 20,000 users in a config file, which take two seconds to read."""

TOO_LONG: Final = f"too long: must be at most {LARGEST_FILE} bytes"


def read_file(path: str) -> bytes:
    """The content of a file; of one that is too long, one byte more than LARGEST_FILE.

    A pipe is empty if no process has it open for writing, because the wait for one might not end.

    Raises:
        OSError: it cannot be read, or all users of this machine may write it.
        ValueError: it cannot be a path.
    """
    with open(path, "rb", opener=_open) as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_nlink:  # pipes and files in memory have no name
            refuse_if_public(found.st_mode)
        return file.read(LARGEST_FILE + 1)


def refuse_if_public(mode: int) -> None:
    """Refuse a file or directory with this mode if all users of this machine may write it.

    Raises:
        PermissionError: they may.
    """
    if mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "every user of this machine can write to it: use chmod o-w")


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
