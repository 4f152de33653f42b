"""Finds TCP peers that are gone without a word: keepalive probes, and a limit on the time without an acknowledgement.

Linux copies these options from a listening socket to the connections that it accepts, so an accept costs nothing more.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from beanstalk_server.settings.kinds import keepalive_of

LONGEST: Final = (1 << 31) - 1
"""Milliseconds: the largest value of TCP_USER_TIMEOUT."""

_IDLE: Final = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # the name of macOS


def set_keepalive(sock: Any, keepalive: int | str) -> None:
    """Let a socket, and those that it accepts, find peers that are gone. Does nothing at a UNIX socket, nor for a
    connection that is lost already.

    Probes find a peer that is gone while nothing is on its way to it. While something is, the system sends that again
    in place of probes; TCP_USER_TIMEOUT bounds this by the same time.

    Args:
        sock: a socket, or what an event loop shows of one: None if the connection is lost.
        keepalive: the value of --keepalive.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    times = keepalive_of(keepalive)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(times is not None))
    idle, interval, count = times or (0, 0, 0)
    options = {"TCP_USER_TIMEOUT": min((idle + interval * count) * 1000, LONGEST)}
    if times is not None:
        options |= {_IDLE: idle, "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": count}
    for name, value in options.items():
        if hasattr(socket, name):  # each system has some of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
