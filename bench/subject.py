"""A server under load or attack, as its clients see it: a port, a protocol, and the processes whose cost counts."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import ssl
import struct
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from bench import process
from bench.protocols import PROTOCOLS, QueueProtocol
from harness import servers

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
BUFFER = 1 << 16  # above 128 KiB, each recv would map memory and give it back

REPLY_WITHIN = 60
"""Seconds until a reply, or the next part of one, must come."""

clock = time.perf_counter_ns


@dataclass
class Subject:
    """A server under load.

    Args:
        name: its name in the results.
        peer: which of the peers it is.
        ca: the authority of its certificate, a file; "" where it speaks plain.
        cert: the certificate and the key that a client shows there, a file.
        engine: the process that keeps its journal, or has its jobs; its CPU time is measured apart. 0: none.
        url: of its engine.
        tubes: the beginning of the names of the tubes that are used.
        http: the port of its metrics.
        directory: where it keeps its jobs.
        running: its process, where it is known; loads do not have it.
    """

    name: str
    port: int
    pid: int
    peer: str = ""
    protocol: str = "beanstalk"
    ca: str = ""
    cert: str = ""
    engine: int = 0
    url: str = ""
    tubes: str = ""
    http: int = 0
    directory: Path | None = None
    running: servers.Process | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"running": None}

    def open(self) -> AbstractContextManager[Subject]:
        """It runs already: see `run.Fresh`."""
        return contextlib.nullcontext(self)

    @property
    def process(self) -> servers.Process:
        assert self.running is not None
        return self.running

    @property
    def commands(self) -> QueueProtocol:
        return PROTOCOLS[self.protocol]

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A timeout of Python's own would be a system call before each recv.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", REPLY_WITHIN, 0))
        return client_context(self.ca, self.cert).wrap_socket(sock, server_hostname="localhost") if self.ca else sock

    def resident(self) -> int:
        return process.resident(self.pid)

    def size_on_disk(self) -> int:
        """Bytes of all files in which it keeps its jobs."""
        found = 0
        for file in self.directory.iterdir() if self.directory else ():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found += file.stat().st_size
        return found


@functools.cache
def client_context(ca: str, cert: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if cert:
        context.load_cert_chain(cert)
    return context


class UnexpectedReplyError(Exception):
    """The server gave a reply that a load does not expect."""


def no_reply() -> NoReturn:
    raise UnexpectedReplyError(f"no reply within {REPLY_WITHIN} s")


def receive(sock: socket.socket, size: int = BUFFER) -> bytes:
    """Receive what has come.

    Raises:
        UnexpectedReplyError: the server has closed the connection.
    """
    data = sock.recv(size)
    if not data:
        raise UnexpectedReplyError("the server closed a connection")
    return data


def ask(sock: socket.socket, data: bytes, lines: int = 1) -> bytes:
    """Send commands, and wait for this many lines of replies."""
    sock.sendall(data)
    received = receive(sock)
    left = lines - received.count(b"\n")
    if left > 0:
        pieces = [received]
        while left > 0:
            pieces.append(receive(sock))
            left -= pieces[-1].count(b"\n")
        received = b"".join(pieces)
    return received


def statistic(sock: socket.socket, command: bytes, name: bytes) -> int:
    """A figure in the reply to `stats` or `stats-tube`; 0 if the server does not have it."""
    reply = ask(sock, command + b"\r\n")
    while not re.match(rb"[^O]|OK .*\r\n---\n(.*\n)*\r\n", reply):
        reply += receive(sock)
    found = re.search(rb"^%b: (\d+)" % name, reply, re.MULTILINE)
    return int(found[1]) if found else 0
