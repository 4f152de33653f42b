"""Formats the log of a process: lines of text for people, or one object of JSON a line for programs.

    {"time": "2026-05-04T12:30:00.123Z", "level": "info", "event": "draining", "message": "draining: new jobs …"}

The formatter is ours, because the configuration of python-json-logger would be as long.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from beanstalk_server.events import NAME, event, event_of

TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
"""A line for people."""

OTHERS: Final = {"asyncio": "uncaught", "py.warnings": "python-warning"}
"""The events of loggers that name none, by logger; of any other, the logger names the event."""

log = logging.getLogger("beanstalk_server")


class TextFormatter(logging.Formatter):
    """Writes a line for people. Control characters are escaped, so that no client can forge a line of the log, or send
    an escape sequence to a terminal."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # its name in the standard library
        return printable(super().formatMessage(record))


def printable(text: str) -> str:
    """A text on one line, with escapes in place of what cannot be printed."""
    return text if text.isprintable() else "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text])


class JsonFormatter(logging.Formatter):
    """Writes a line of the log as an object of JSON, in ASCII and on one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = event_of(record)
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            NAME: fields.get(NAME) or OTHERS.get(record.name, record.name),
            "message": record.getMessage().strip(),
        }
        if hasattr(record, "shard"):
            line["shard"] = record.shard
        line.update(fields)
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(line, default=str)


def start_log(log_format: str, level: str) -> None:
    """Write the log to standard error from now on.

    Args:
        log_format: text or json. With json, Python's warnings and unhandled exceptions are lines of it.
        level: the minimum level of lines that are written.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = lambda _, error, __: _log(error)
        threading.excepthook = lambda uncaught: _log(uncaught.exc_value)
        sys.unraisablehook = lambda uncaught: _log(uncaught.exc_value)


def log_start_failure(mistakes: Iterable[str], status: int, log_format: str) -> None:
    """Report why the server does not start: one line for each mistake.

    Args:
        log_format: text, for a line that begins with the name of the command, or json.
    """
    for mistake in mistakes:
        if log_format == "json":
            log.critical("%(mistake)s", event("start-failed", mistake=mistake, status=status))
        else:
            print(f"beanstalk-server: {printable(mistake)}", file=sys.stderr)


def _log(error: BaseException | None) -> None:
    kind = type(error).__name__
    log.critical("unhandled exception: %(error)s", event("uncaught", error=kind), exc_info=error)
