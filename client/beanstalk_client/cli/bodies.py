"""Reads and prints bodies of jobs: unchanged into a pipe, escaped on a terminal, complete in JSON."""

from __future__ import annotations

import base64
import os
import sys
from typing import Any

from beanstalk_client.cli.output import USAGE, OperatorError, on_terminal, safe


def as_json(body: bytes) -> dict[str, Any]:
    """A body as members of a JSON object: `body` as text, or `body-base64` if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body-base64": base64.b64encode(body).decode()}


def show_body(body: bytes) -> None:
    """Print a body: byte for byte into a pipe or a file, escaped and with a line's end on a terminal."""
    if on_terminal():
        print(safe(body.decode("utf-8", "backslashreplace")))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()


def read_body(argument: str | None) -> bytes:
    """The body that an argument gives: itself, or standard input for "-" and for none."""
    if argument is None or argument == "-":
        if sys.stdin is None:
            raise OperatorError("no body given, and standard input is closed", USAGE)
        return sys.stdin.buffer.read()
    return os.fsencode(argument)
