"""Errors that stop the storage: each is one line that names the file and says what would help.

Every start of a server imports this module; only a start with a binlog imports the other modules of storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.journal import JournalError

if TYPE_CHECKING:
    from beanstalk_server.storage.disk import Directory

UNUSABLE: Final = 10
"""The exit status for a directory that cannot be used; the same as beanstalkd's."""

DAMAGED: Final = 65
"""The exit status for a binlog that is damaged (EX_DATAERR of sysexits.h)."""

HOW_TO_SALVAGE: Final = "use --salvage to start without the unreadable jobs"
"""What helps when a binlog is damaged."""


class StorageError(JournalError):
    """The binlog cannot be used."""

    def __init__(self, message: str, status: int = UNUSABLE) -> None:
        super().__init__(message, status)


def unusable(directory: Directory, error: OSError) -> StorageError:
    """Turn an error of the system into one line that names the file."""
    from pathlib import Path

    where = Path(error.filename) if error.filename else directory.path
    if not where.is_relative_to(directory.path):
        where = directory.path / where
    return StorageError(f"{where}: cannot be used: {error.strerror or error}")


def lock_directory(directory: Directory) -> None:
    """Lock a directory, or say why that is not possible.

    Raises:
        StorageError: another server uses the directory, or it cannot be written to.
    """
    try:
        if directory.lock():
            return
    except OSError as error:
        raise StorageError(f"{directory.path}: cannot be locked: {error.strerror}") from error
    raise StorageError(f"{directory.path}: another server uses this directory")
