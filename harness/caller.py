"""A client on a plain socket, which sends any bytes and reads exactly as much as the caller asks for."""

from __future__ import annotations

import re

from conformance.address import Address, connect


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
            raise ValueError(f"not the reply of a beanstalk server: {reply!r}")
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
