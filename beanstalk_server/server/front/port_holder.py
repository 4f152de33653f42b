"""Finds out which process listens at a TCP port, for the error of a start that cannot have it.

Linux only, and only processes that this user may look into; elsewhere it finds nobody.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")

LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


def port_holder(port: int) -> str:
    """Return the name and the id of the process that listens at this port, as an error says them; or ""."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{words[9]}]")
    for process in PROC.glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # it has ended, or is another user's
            if any(_target(file) in sockets for file in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _target(file: Path) -> str:
    with suppress(OSError):  # it has been closed
        return os.readlink(file)
    return ""
