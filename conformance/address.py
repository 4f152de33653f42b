"""Parses addresses, and connects to them."""

from __future__ import annotations

import socket
from typing import Final

Address = tuple[str, int] | str
"""Host and port, or the path of a UNIX socket."""

TIMEOUT: Final = 60.0
"""Seconds that a server may take to accept, to answer, or to read."""


class AddressError(ValueError):
    """A text is not an address."""


def parse(given: str) -> Address:
    """Parse an address from the command line: HOST:PORT, or unix:PATH.

    Raises:
        AddressError: it is not an address.
    """
    if given.startswith("unix:"):
        return given.removeprefix("unix:")
    host, _, port = given.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise AddressError(f"{given!r} is not an address: must be HOST:PORT or unix:PATH")
    return host.strip("[]") or "127.0.0.1", int(port)


def connect(address: Address, timeout: float = TIMEOUT) -> socket.socket:
    """Open a connection that sends everything at once, without Nagle's delay."""
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout)
        sock.connect(address)
        return sock
    sock = socket.create_connection(address, timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
