"""What an I/O process tells its engine process, besides what clients say: that it is ready, and lines for the log.

Must never know a link: notes are bytes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Final

from beanstalk_server.link.link import FRAME_LIMIT

READY: Final = b"R"
"""The settings that have come last are in effect."""

LINE: Final = b"L"
"""Before a line for the log: its level, in a byte, its logger, a zero byte, and the text."""

log = logging.getLogger("beanstalk_server")


def encode_line(record: logging.LogRecord, text: str) -> bytes:
    """A line for the log, as a note. One that is too long is cut."""
    beginning = LINE + bytes([min(record.levelno, 255)]) + record.name.encode() + b"\0"
    return (beginning + text.encode(errors="replace"))[:FRAME_LIMIT]


def log_line(note: bytes) -> None:
    """Log what `encode_line` has made.

    Raises:
        ValueError: it is something else.
    """
    name, separator, text = note[2:].partition(b"\0")
    if note[:1] != LINE or not separator:
        raise ValueError("it is no line for the log")
    logging.getLogger(name.decode()).log(note[1], "%s", text.decode(errors="replace"))


class NoteHandler(logging.Handler):
    """A handler of the log that sends each line as a note.

    Args:
        send: sends a note; returns False if nobody would get it. Then the line goes to standard error.
    """

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        super().__init__(logging.INFO)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if not self._send(encode_line(record, text)):
                sys.stderr.write(text + "\n")
        except Exception:
            self.handleError(record)
