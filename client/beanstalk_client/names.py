"""Makes the names that clients give themselves, by which operators know them: `<program>/<host>/<process id>`.

    shop-worker/web-3/4711      /srv/shop-worker.py, or `python -m shop-worker`
    gunicorn/web-3/4712         what runs an application
    python/web-3/4713           an interactive session

A process that was forked has a name of its own, as it has another id.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
from pathlib import Path
from typing import Final

LONGEST: Final = 100
"""Characters of a program's name, so that the whole name is as short as it must be: host names have 64 at most."""

program: str = ""
"""The name of the program of this process; "" for that of its file. The programs of this package set it."""


def own_name(role: str = "") -> str:
    """The name of a client of this process.

    Args:
        role: what takes the place of the program's name.
    """
    return _name(role or program or _file(), os.getpid())


@functools.lru_cache(16)
def _name(program: str, process: int) -> str:
    host = socket.gethostname().partition(".")[0]
    return f"{_allowed(program) or 'python'}/{_allowed(host) or 'localhost'}/{process}"


def _allowed(text: str) -> str:
    """A text with only the characters that names may have."""
    return re.sub(r"[^A-Za-z0-9+;.$_()-]", "-", text[:LONGEST]).lstrip("-")


def _file() -> str:
    """The name of the file that runs, or of the package of a `__main__.py`."""
    path = Path(next(iter(sys.argv), ""))
    if path.name == "__main__.py":
        return path.absolute().parent.name
    return "" if path.name == "-c" else path.name.removesuffix(".py")
