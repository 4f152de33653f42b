"""Serves the console over HTTP, with a bounded number of connections: of those that `beanstalk console` accepts.

    accept    a connection beyond the maximum ends another one, of the address that has the most: the oldest without a
              complete request, which may be in its TLS handshake, or else the oldest
    request   HEADER_TIME until its headers are complete, BODY_TIME until its body is

So no client is kept out by the connections of others, and a proxy, through which all come, has no smaller bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from beanstalk_client.console.security import network_of, who_has_most

MAX_CONNECTIONS: Final = 1000
"""Maximum number of connections; half of the file descriptors, if those are fewer."""

ENDING: Final = 32
"""Connections that may still be closing when another one is accepted."""

HEADER_TIME = 10.0
BODY_TIME = 120.0
"""Seconds."""


class Accepted(socket.socket):
    """The socket of a client.

    Attributes:
        network: where it comes from.
        protocol: what reads requests; None during the TLS handshake.
        is_ending: it has been told to close.
    """

    connections: Connections
    network: str = ""
    protocol: Protocol | None = None
    is_ending: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether no complete request has come."""
        return self.protocol is None or self.protocol.is_waiting

    def end(self) -> None:
        self.is_ending = True
        if self.protocol is not None:
            self.protocol.transport.abort()
            return
        with contextlib.suppress(OSError):  # the client has gone
            self.shutdown(socket.SHUT_RDWR)  # the TLS handshake reads the end

    def close(self) -> None:
        self.connections.remove(self)
        super().close()


class Connections:
    """The connections that are open, the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, Accepted] = {}  # by descriptor

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, accepted: object) -> bool:
        return accepted in self._open.values()

    @property
    def is_full(self) -> bool:
        """Whether another one has to wait until those that are ending have closed."""
        return len(self._open) >= self._most + ENDING

    def find(self, descriptor: int) -> Accepted | None:
        return self._open.get(descriptor)

    def add(self, accepted: Accepted, peer: str) -> None:
        """Add a connection; end another one if there are too many."""
        accepted.connections = self
        accepted.network = network_of(peer)
        lasting = [each for each in self._open.values() if not each.is_ending]
        if len(lasting) >= self._most:
            greediest = who_has_most([*[each.network for each in lasting], accepted.network])
            theirs = [each for each in lasting if each.network == greediest]
            next((each for each in theirs if each.is_waiting), theirs[0]).end()
        self._open[accepted.fileno()] = accepted

    def remove(self, accepted: Accepted) -> None:
        self._open.pop(accepted.fileno(), None)


class Listener(socket.socket):
    """A socket whose connections are counted before anything is read from them."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        if self.connections.is_full:
            raise BlockingIOError  # the event loop asks again after it has closed some
        sock, address = super().accept()
        accepted = Accepted(fileno=sock.detach())
        self.connections.add(accepted, str(address[0]) if isinstance(address, tuple) else "")
        return accepted, address


class Protocol(H11Protocol):
    """HTTP over one connection, with a bound on the time until a request is complete."""

    _timer: asyncio.TimerHandle | None = None
    _state: Any = None

    @property
    def is_waiting(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        accepted = cast(Config, self.config).connections.find(transport.get_extra_info("socket").fileno())
        if accepted is not None:
            accepted.protocol = self
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Start the time of what is waited for, if that has changed."""
        state = self.conn.their_state
        if state is self._state:
            return
        self._state = state
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_waiting:
            limit = HEADER_TIME if state is h11.IDLE else BODY_TIME
            self._timer = self.loop.call_later(limit, self.transport.abort)


class Config(uvicorn.Config):
    """The settings of the HTTP server, and the connections of its listener."""

    connections: Connections


def make_server(
    app: Any, plain: socket.socket, *, certificate: str | None = None, key: str | None = None, most: int = 0
) -> tuple[uvicorn.Server, Listener]:
    """The HTTP server of a console, and its listener: `server.run(sockets=[listener])`.

    Args:
        plain: a socket that is bound; the listener takes its place.
        most: maximum number of connections; 0 for MAX_CONNECTIONS, or half of the file descriptors.
    """
    listener = Listener(fileno=plain.detach())
    config = Config(
        app,
        loop="asyncio",  # others do not accept with the listener's method
        http=Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_graceful_shutdown=1,
        lifespan="on",
    )
    config.connections = listener.connections = Connections(most or _most())
    return uvicorn.Server(config), listener


def _most() -> int:
    try:
        import resource
    except ModuleNotFoundError:  # not a POSIX system
        return MAX_CONNECTIONS
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(min(MAX_CONNECTIONS, descriptors // 2), 1)
