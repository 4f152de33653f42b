"""Standard output whose reader has gone: `beanstalk-server --help | head`.

Must never know what was printed.
"""

from __future__ import annotations

import os
import sys
from typing import Final

OUTPUT_CLOSED: Final = 141
"""The exit status then, which is 128 + SIGPIPE, as in a shell."""


def abandon_output() -> int:
    """Keep the interpreter from writing what is left at its exit; return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OUTPUT_CLOSED
