"""The error that tells a person why a server cannot start."""

from __future__ import annotations


class StartError(Exception):
    """The server cannot start: one line that names the setting, its value, and what is wrong with it.

    Args:
        message: that line.
        status: the exit status for it.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
