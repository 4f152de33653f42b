"""Why a command of `beanstalk` fails, in one sentence, and the exit status that follows."""

from __future__ import annotations

from typing import Final

REFUSED: Final = 1
"""The exit status when the server has refused, or there is no such job or tube."""

USAGE: Final = 2
"""The exit status when the command line is wrong."""

UNAVAILABLE: Final = 69
"""The exit status when there is no server, or it is lost (EX_UNAVAILABLE of sysexits.h)."""


class OperatorError(Exception):
    """What a command ends with.

    Attributes:
        status: the exit status.
    """

    def __init__(self, message: str, status: int = REFUSED) -> None:
        super().__init__(message)
        self.status = status
