"""Reads the command line of `beanstalk`, calls the function of the command, and reports its errors.

It imports each of them only when it is needed: a script that calls `beanstalk ping` each second pays for nothing else.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from beanstalk_client import names
from beanstalk_client.address import VISIBLE_TOKEN, has_token
from beanstalk_client.cli.output import (
    OUTPUT_FAILED,
    UNAVAILABLE,
    OperatorError,
    OutputError,
    abandon_output,
    safe,
    settle_errors,
)
from beanstalk_client.cli.parser import make_parser
from beanstalk_client.cli.target import METRICS_TOKEN_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, which is 128 + SIGINT, as in a shell."""

LIBRARIES: Final = {"rich": "cli", "shtab": "cli", "jinja2": "console", "starlette": "console", "uvicorn": "console"}
"""What the commands need beyond Python, and the extra that has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit status."""
    if sys.stderr is None:  # then print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        return _main(arguments)
    finally:
        settle_errors()


def _main(arguments: Sequence[str] | None) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036  # the rest of the client runs on 3.9
        return _fail("beanstalk", "needs Python 3.11 or newer", UNAVAILABLE)
    parser = make_parser()
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    names.program = parser.prog
    name = f"{parser.prog} {options.name}"
    if has_token(options.server or "") or has_token(getattr(options, "url", None) or ""):
        _fail(name, f"{VISIBLE_TOKEN} --token-file, {TOKEN_VARIABLE} or {SERVER_VARIABLE}", 0)
    if any(map(has_token, getattr(options, "metrics", None) or ())):
        _fail(name, f"{VISIBLE_TOKEN} {METRICS_TOKEN_VARIABLE}", 0)
    if sys.stdout is None:
        return _fail(name, "standard output is closed", OUTPUT_FAILED)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a body has need not be in the locale's encoding
    try:
        command = importlib.import_module(f"beanstalk_client.cli.{options.module}")
        status: int = getattr(command, options.function)(options)
        sys.stdout.flush()
    except OperatorError as error:
        return _fail(name, error, error.status)
    except ModuleNotFoundError as error:
        if error.name not in LIBRARIES:
            raise
        return _fail(
            name,
            f"needs {error.name}: pip install './client[{LIBRARIES[error.name]}]' in a clone of beanstalk-server",
            UNAVAILABLE,
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except OutputError as error:
        return _closed(name, error.__cause__)
    except OSError as error:  # what has to do with the server is an OperatorError
        return _closed(name, error)
    return status


def _closed(name: str, error: BaseException | None) -> int:
    """Say that standard output cannot be written to, unless its reader has just gone."""
    closed = abandon_output()
    if isinstance(error, BrokenPipeError):
        return closed
    reason = error.strerror if isinstance(error, OSError) else error
    return _fail(name, f"cannot write to standard output: {reason}", OUTPUT_FAILED)


def _fail(name: str, message: object, status: int) -> int:
    with contextlib.suppress(OSError):  # only the exit status is left
        print(f"{name}: {safe(str(message))}", file=sys.stderr, flush=True)
    return status
