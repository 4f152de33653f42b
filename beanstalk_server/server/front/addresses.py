"""Names the addresses of listeners and clients, for the log and for messages."""

from __future__ import annotations

import asyncio
import os
import socket

Address = tuple[str, int] | str
"""Host and port, or the path of a UNIX socket."""


def address_of(sock: socket.socket) -> Address:
    """Where a listening socket listens. A name of Linux that is not a path is written as systemd writes it: @name."""
    name = sock.getsockname()
    if isinstance(name, bytes):
        return "@" + os.fsdecode(name[1:])
    return name if isinstance(name, str) else (name[0], name[1])


def name_of_address(address: Address) -> str:
    """An address as the log and the settings write it: host:port, [host]:port or unix:PATH."""
    if isinstance(address, str):
        return "unix:" + address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def name_of_peer(transport: asyncio.Transport) -> str:
    """What the log calls the client at the other end."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        return name_of_address((peer[0], peer[1]))
    return f"{'unix client' if is_unix(transport) else 'lost client'} {transport.get_extra_info('socket').fileno()}"


def is_unix(transport: asyncio.Transport) -> bool:
    """Whether a client has come through a UNIX socket. The address at the other end does not tell: a TCP client that
    is gone already has none."""
    family: int = transport.get_extra_info("socket").family
    return family == socket.AF_UNIX
