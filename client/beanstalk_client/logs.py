"""Formats the log of this package's programs: lines of text, or one JSON object a line, as beanstalk-server's.

    {"time": "2026-05-04T12:30:00.123Z", "level": "warning", "event": "task-failed", "message": "…", "job": 17}

The server has a formatter of its own, since its records keep their fields elsewhere, and no program here imports it.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any, Final

from beanstalk_client.events import tell

_OF_RECORDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes of a record that are not the fields of an event."""

log: logging.Logger = logging.getLogger("beanstalk_client")

_started: list[logging.Handler] = []
"""The handler of `start_log`."""


class JsonFormatter(logging.Formatter):
    """Writes a record as an object of JSON, in ASCII, on one line: with the names that beanstalk-server's log has."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _OF_RECORDS}
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "event": fields.pop("event", record.name),
            "message": record.getMessage().strip(),
            **fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def add_log_options(add: Any, more: str = "") -> None:
    """The options of a program's log.

    Args:
        add: `add_argument` of a parser or a group.
        more: what else the help of --log-level says.
    """
    add(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help=f"minimum log level{more} (default: info)",
    )
    add(
        "--log-format",
        default="text",
        choices=["text", "json"],
        help="lines of text, or one JSON object per line (default: text)",
    )


def start_log(options: argparse.Namespace) -> None:
    """Write the log to standard error from now on, as the options say."""
    handler = logging.StreamHandler(sys.stderr)
    is_json = options.log_format == "json"
    handler.setFormatter(JsonFormatter() if is_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
    if is_json:
        logging.captureWarnings(True)
    handler.setLevel(options.log_level.upper())
    _started[:] = [handler]


def keep_log() -> None:
    """Restore the logging of `start_log`, after other code may have configured logging.

    `logging.config.dictConfig` disables all existing loggers by default, and replaces the handlers
    and the level of the root.
    """
    if not _started:
        return
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and f"{name}.".startswith(f"{log.name}."):
            logger.disabled = False
    if not log.isEnabledFor(_started[0].level):
        log.setLevel(_started[0].level)
    if not log.hasHandlers():
        log.addHandler(_started[0])


def complain(options: argparse.Namespace, program: str, message: str, status: int) -> int:
    """Say why a program ends, as a line that begins with its name, or as one of the log; return the exit status."""
    if options.log_format == "json":
        tell(log, logging.CRITICAL, "program-failed", message, program=program, status=status)
    else:
        sys.stderr.write(f"{program}: {message}\n")
    return status
