"""Reads the small files that a configuration names, whatever they are: a pipe, a device, or far too large."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

LARGEST_FILE: Final = 4 << 20
"""Bytes: some twenty thousand users in a config file, and two seconds to read them. More is probably not meant."""

TOO_LONG: Final = f"too long: must be {LARGEST_FILE} bytes at most"


def read_file(path: str) -> bytes:
    """The content of a file; of one that is too long, one byte more than LARGEST_FILE.

    A pipe is empty if nobody has it open for writing: to wait for somebody might be to wait for ever.

    Raises:
        OSError: it cannot be read, or everybody on this machine may write it.
        ValueError: it cannot be a path.
    """
    with open(path, "rb", opener=_open) as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_nlink:  # pipes and files in memory have no name
            refuse_if_public(found.st_mode)
        return file.read(LARGEST_FILE + 1)


def refuse_if_public(mode: int) -> None:
    """Refuse a file or directory with this mode if everybody on this machine may write it.

    Raises:
        PermissionError: so it is.
    """
    if mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "everybody on this machine may write it (chmod o-w)")


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
