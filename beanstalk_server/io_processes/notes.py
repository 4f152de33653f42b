"""Encodes the notes of an I/O process to its engine process: that it is ready, and lines for the log."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Final

from beanstalk_server.events import NAME, event_of
from beanstalk_server.link.link import FRAME_LIMIT

READY: Final = b"R"
"""The settings that have come last are in effect."""

LINE: Final = b"L"
"""Before a line for the log: its level, in a byte, its logger, a zero byte, its fields as JSON, a zero byte, and the
text. An exception is the field of that name."""

FIELDS_LIMIT: Final = FRAME_LIMIT >> 1
"""Bytes of the fields; of more, only the event's name is sent, and the beginning of the exception."""

EXCEPTION: Final = "exception"

log = logging.getLogger("beanstalk_server")


def encode_line(record: logging.LogRecord) -> bytes:
    """A line for the log, as a note. One that is too long is cut."""
    fields = dict(event_of(record))
    if record.exc_info:
        fields[EXCEPTION] = logging.Formatter().formatException(record.exc_info)
    shown = json.dumps(fields, default=str)
    if len(shown) > FIELDS_LIMIT:
        cut = {NAME: fields.get(NAME, record.name), EXCEPTION: str(fields.get(EXCEPTION, ""))[: FIELDS_LIMIT >> 4]}
        shown = json.dumps(cut)
    beginning = LINE + bytes([min(record.levelno, 255)]) + record.name.encode() + b"\0" + shown.encode() + b"\0"
    return (beginning + record.getMessage().encode(errors="replace"))[:FRAME_LIMIT]


def log_line(note: bytes) -> None:
    """Log what `encode_line` has made.

    Raises:
        ValueError: it is something else.
    """
    name, _, rest = note[2:].partition(b"\0")
    shown, separator, text = rest.partition(b"\0")
    try:
        fields = json.loads(shown) if note[:1] == LINE and separator else None
    except RecursionError as error:
        raise ValueError("invalid log line: nested too deeply") from error
    if not isinstance(fields, dict) or not isinstance(fields.get(EXCEPTION, ""), str):
        raise ValueError("invalid log line")
    level = note[1]
    if log.isEnabledFor(level):  # no logger of that name: one that was made is never forgotten
        message = text.decode(errors="replace")
        line = {
            "name": name.decode(),
            "levelno": level,
            "levelname": logging.getLevelName(level),
            "exc_text": fields.pop(EXCEPTION, None),
            "msg": message.replace("%", "%%") if fields else message,
            "args": fields or (),
        }
        log.handle(logging.makeLogRecord(line))


class NoteHandler(logging.Handler):
    """A handler of the log that sends each line as a note.

    Args:
        send: sends a note; returns False without a link. Then the line goes to standard error.
    """

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        super().__init__(logging.INFO)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not self._send(encode_line(record)):
                sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)
