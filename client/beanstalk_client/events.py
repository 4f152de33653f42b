"""Logs events: a line for people, with an event name and fields that never change, for programs.

Each record has `event`, the name, and its fields as attributes (`record.event`, `record.job`): any formatter for JSON
writes them. The names are listed in docs/workers.md. A message is one line, also where it quotes other text.
Must never be given a body, a token or the arguments of a task.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Final

from beanstalk_client.errors import shown

LONGEST: Final = 4000
"""Characters of a message."""


def reason_of(error: BaseException) -> str:
    """What an exception says; its class, if it says nothing."""
    return str(error) or type(error).__name__


def tell(
    log: logging.Logger, level: int, event: str, message: str, error: BaseException | None = None, **fields: Any
) -> None:
    """Log an event.

    Args:
        event: its name, in kebab-case, which is never given to another event.
        message: what people read.
        error: an exception whose traceback belongs to it.
        fields: none may be called as an attribute of `logging.LogRecord` is.
    """
    if not log.isEnabledFor(level):
        return
    try:
        log.log(level, "%s", shown(message, LONGEST), exc_info=error, extra={"event": event, **fields})
    except Exception as trouble:  # of a handler of the application: it decides nothing about what is logged
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there may be no standard error
            sys.stderr.write(f"{shown(message, LONGEST)} (logging failed: {type(trouble).__name__})\n")
