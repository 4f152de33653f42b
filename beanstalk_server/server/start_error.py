"""The error that tells a person why a server cannot start."""

from __future__ import annotations

from typing import Final

CANNOT_OPEN: Final = 111
"""The exit status for a socket or a file that cannot be opened or used; the same as beanstalkd's."""


JOURNAL_FAILED: Final = 74
"""The exit status when the journal has failed after the jobs were restored (EX_IOERR of sysexits.h)."""


class StartError(Exception):
    """The server cannot start: one line that names the setting, its value, and what is wrong with it.

    Args:
        message: that line.
        status: the exit status for it.
    """

    def __init__(self, message: str, status: int = CANNOT_OPEN) -> None:
        super().__init__(message)
        self.status = status
