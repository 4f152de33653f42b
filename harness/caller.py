"""A client on a plain socket, which sends any bytes and reads exactly as much as the caller asks for."""

from __future__ import annotations

import re
import socket
from typing import Final

Address = tuple[str, int] | str
"""Host and port, or the path of a UNIX socket."""

TIMEOUT: Final = 60.0
"""Seconds that a server may take to accept, to answer, or to read."""


def connect(address: Address) -> socket.socket:
    """Open a connection that sends everything at once, without Nagle's delay."""
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT)
        sock.connect(address)
        return sock
    sock = socket.create_connection(address, TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Caller:
    """One connection, closed at the latest when nothing refers to it any more.

    An operation that takes longer than TIMEOUT raises TimeoutError.
    """

    def __init__(self, address: Address) -> None:
        self.socket = connect(address)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> bytes:
        """The next line with its end, or a part of it if the server closes."""
        return self._file.readline()

    def read(self, count: int) -> bytes:
        return self._file.read(count)

    def ask(self, data: bytes) -> bytes:
        """Send a command and read one line."""
        self.send(data)
        return self.line()

    def stats(self) -> dict[str, str]:
        """What the server answers to `stats`, by key.

        Raises:
            ValueError: it does not answer as a beanstalk server.
        """
        reply = self.ask(b"stats\r\n")
        if not re.fullmatch(rb"OK \d+\r\n", reply):
            raise ValueError(f"not the answer of a beanstalk server: {reply!r}")
        lines = self.read(int(reply[3:]) + 2).decode().splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    def rest(self) -> bytes:
        """Everything until the server closes."""
        return self._file.read()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # it has connected
            self.close()
