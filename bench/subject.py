"""A server under load or attack, as a client of it knows it: on a socket, its replies counted by their lines."""

from __future__ import annotations

import functools
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from bench.protocols import PROTOCOLS, QueueProtocol

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
BUFFER = 1 << 16  # above 128 KiB, each recv would map memory and give it back

REPLY_WITHIN = 60
"""Seconds after which a reply, or the next part of one, will not come any more."""

clock = time.perf_counter_ns


@dataclass(frozen=True)
class Subject:
    """A server under load.

    Args:
        also: processes whose CPU time counts besides its own.
        ca: the authority of its certificate, a file, if it speaks TLS.
        cert: the certificate and the key that a client shows there, a file.
        engine: the process that keeps its journal, whose CPU time is measured apart; 0 if there is none.
    """

    port: int
    pid: int
    protocol: str = "beanstalk"
    also: Sequence[int] = ()
    ca: str = ""
    cert: str = ""
    engine: int = 0

    @property
    def commands(self) -> QueueProtocol:
        return PROTOCOLS[self.protocol]

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A timeout of Python's own would be a system call before each recv.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", REPLY_WITHIN, 0))
        return self.context.wrap_socket(sock, server_hostname="localhost") if self.ca else sock

    @property
    def context(self) -> ssl.SSLContext:
        """Of its clients."""
        return _client_context(self.ca, self.cert)


@functools.cache
def _client_context(ca: str, cert: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if cert:
        context.load_cert_chain(cert)
    return context


class UnexpectedReplyError(Exception):
    """The server gave a reply that a load does not expect."""


def none_came() -> NoReturn:
    """Say that no reply has come in time."""
    raise UnexpectedReplyError(f"no reply within {REPLY_WITHIN} s")


def ask(sock: socket.socket, data: bytes, lines: int = 1) -> bytes:
    """Send commands, and wait for this many lines of replies."""
    sock.sendall(data)
    received = sock.recv(BUFFER)
    if received.count(b"\n") < lines:
        pieces = [received]
        left = lines - received.count(b"\n")
        while left > 0:
            pieces.append(sock.recv(BUFFER))
            left -= pieces[-1].count(b"\n")
            if not pieces[-1]:
                raise UnexpectedReplyError("the server closed a connection")
        received = b"".join(pieces)
    return received
