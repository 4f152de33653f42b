"""Prints to standard output, which may be a full disk, or a pipe whose reader has gone: `… --help | head`."""

from __future__ import annotations

import os
import sys
from typing import Final

OUTPUT_CLOSED: Final = 141
"""The exit status when the reader has gone, which is 128 + SIGPIPE, as in a shell."""

OUTPUT_FAILED: Final = 74
"""The exit status when the output cannot be written for another reason (EX_IOERR of sysexits.h)."""


def show(text: str) -> int:
    """Print a text; return the exit status."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        return abandon_output()
    except OSError as error:
        abandon_output()
        print(f"beanstalk-server: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return OUTPUT_FAILED
    return 0


def abandon_output() -> int:
    """Discard the output that is left, so that the interpreter does not fail at its exit; return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OUTPUT_CLOSED
