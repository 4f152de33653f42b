"""The server: sockets and the event loop around the sessions and the broker, which know neither.

One asyncio protocol for each connection hands bytes to its session and writes the replies of one read in one piece.
One timer drives the broker. A client that does not read is not read from: while its replies pile up in the transport,
its session is choked, and reading from it is paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import logging
import os
import pwd
import resource
import secrets
import socket
import stat
from time import monotonic_ns
from types import TracebackType
from typing import Final, Self, cast

from beanstalk_server.config import Config, option
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.wheel import NEVER
from beanstalk_server.version import VERSION
from beanstalk_server.wire.session import Session
from beanstalk_server.wire.stats import Process

INPUT_LIMIT: Final = 1 << 16
"""Bytes of commands that may pile up behind one that waits, before the client is not read from."""

OUTPUT_LIMIT: Final = 1 << 18
"""Bytes of replies that may pile up in front of a client, before it is not read from."""

BACKLOG: Final = 1024
FIRST_INHERITED: Final = 3  # sd_listen_fds(3)
MILLISECOND: Final = 1_000_000

log = logging.getLogger("beanstalk_server")


class StartError(Exception):
    """The server cannot start: one line that names the setting and its value. `status` is the exit status for it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Connection(asyncio.Protocol):
    """One client's socket, and the session behind it."""

    __slots__ = ("name", "reading", "scheduled", "server", "session", "transport")

    session: Session
    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reading = True
        self.scheduled = False
        self.name = ""

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self.server
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(OUTPUT_LIMIT)
        verbosity = server.config.verbosity
        if verbosity:
            self.name = _name_of_peer(self.transport)
            log.info("%s connected", self.name)
        self.session = Session(server.broker, server.process, self.on_answer, self.name, verbosity > 1)
        server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        server = self.server
        session = self.session
        session.receive(data, monotonic_ns())
        if session.replies:
            self._send()
        if session.input or session.closed:
            self._regulate()
        if server.answered:
            server.send_answers()
        if server.wheel.next_event < server.armed_for:
            server.arm()

    def eof_received(self) -> bool:
        self.session.end(monotonic_ns())
        self._settle()
        self.server.settle()
        return True  # replies may still have to be sent; `_regulate` closes

    def pause_writing(self) -> None:
        self.session.choked = True
        self._regulate()

    def resume_writing(self) -> None:
        self.session.choked = False
        self.go_on()
        self.server.settle()

    def connection_lost(self, error: Exception | None) -> None:
        if self.server.config.verbosity:
            log.info("%s disconnected", self.name)
        self._hang_up()
        self.server.connections.discard(self)
        if not self.server.connections:
            self.server.all_lost.set()
        self.server.settle()

    # What the session and the server call

    def on_answer(self) -> None:
        self.server.answered.append(self)

    def go_on(self) -> None:
        """Go on with what is left of the input, and send what there is to send."""
        self.scheduled = False
        self.session.run(monotonic_ns())
        self._settle()

    def _go_on_later(self) -> None:
        self.go_on()
        self.server.settle()

    def _settle(self) -> None:
        if self.session.replies:
            self._send()
        self._regulate()

    def _send(self) -> None:
        """Send the replies in one write."""
        replies = self.session.replies
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        replies.clear()  # before the write, which may call resume_writing, and so this again
        self.transport.write(data)

    def _regulate(self) -> None:
        """Close, read or not read, and come back or not, as the session's state has it."""
        session = self.session
        if session.closed:
            if not self.transport.is_closing():
                self._hang_up()
                self.transport.close()
            return
        if session.more and not session.choked and not self.scheduled:
            self.scheduled = True
            self.server.loop.call_soon(self._go_on_later)
        reading = not (session.choked or session.more or len(session.input) > INPUT_LIMIT)
        if reading is not self.reading and not self.transport.is_closing() and not session.ended:
            self.reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _hang_up(self) -> None:
        """Give back what the client holds, at once and once only."""
        session = self.session
        if session.on_answer == self.on_answer:
            session.disconnect(monotonic_ns())


class Server:
    """A server that is listening from `start` to `stop`, and as an asynchronous context manager in between.

    Args:
        config: its settings.
        journal: is told of each change that must outlive the process; without one, jobs live as long as it does.
    """

    def __init__(self, config: Config | None = None, *, journal: Journal | None = None) -> None:
        self.config = config or Config()
        now = monotonic_ns()
        self.broker = Broker(journal or Journal(), now, round(self.config.tick * MILLISECOND))
        self.wheel = self.broker.wheel
        self.process = this_process(self.config.max_job_size, now)
        self.connections: set[Connection] = set()
        self.all_lost = asyncio.Event()
        self.answered: list[Connection] = []
        self.armed_for = NEVER
        self._timer: asyncio.Handle | None = None
        self._listeners: list[asyncio.AbstractServer] = []
        self._addresses: list[tuple[str, int] | str] = []
        self._unlink: str = ""
        self.loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> tuple[str, int] | str:
        """Where it listens: host and port, or the path of a UNIX socket. The first, if there are several."""
        return self._addresses[0]

    async def start(self) -> None:
        """Open the sockets and serve.

        Raises:
            StartError: a socket cannot be opened, or there is no such user.
        """
        self.loop = asyncio.get_running_loop()
        sockets = inherited_sockets() or [self._open_socket()]
        if self.config.user:
            become(self.config.user)
        for sock in sockets:
            make = self.loop.create_unix_server if sock.family == socket.AF_UNIX else self.loop.create_server
            self._listeners.append(await make(lambda: Connection(self), sock=sock, backlog=BACKLOG))
            name = sock.getsockname()
            self._addresses.append(name if isinstance(name, str) else (name[0], name[1]))
        settings = ", ".join(f"{name}={value}" for name, value in self.config.changed().items()) or "default settings"
        places = ", ".join(_name_of_address(address) for address in self._addresses)
        log.info("beanstalk-server %s listens on %s (%s)", VERSION, places, settings)

    async def stop(self) -> None:
        """Close the sockets and every connection. Returns when all are closed."""
        for listener in self._listeners:
            listener.close()
        if self._unlink:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._unlink)
        if self._timer is not None:
            self._timer.cancel()
        count = len(self.connections)
        if count:
            self.all_lost.clear()
            for connection in list(self.connections):
                connection.transport.abort()
            await self.all_lost.wait()
        if self._timer is not None:
            self._timer.cancel()
        log.info("stopped; %d clients were connected, %d jobs are left", count, len(self.broker.jobs))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def drain(self) -> None:
        """Take no new jobs from now on: put answers DRAINING, all else goes on."""
        self.broker.draining = True
        log.info("draining: no new jobs are taken")

    # The broker's time and answers

    def settle(self) -> None:
        """Send what the broker has answered, and set the timer if something is due sooner than it is set for."""
        if self.answered:
            self.send_answers()
        if self.wheel.next_event < self.armed_for:
            self.arm()

    def send_answers(self) -> None:
        """Let the sessions whose wait is over go on. Those that this answers have their turn in the next round."""
        answered = self.answered
        self.answered = []
        for connection in answered:
            connection.go_on()
        if self.answered:
            self.loop.call_soon(self.settle)

    def arm(self) -> None:
        """Set the timer for the next event."""
        when = self.broker.next_event()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.armed_for = when
        if when >= NEVER:
            return
        left = when - monotonic_ns()
        if left <= 0:
            self._timer = self.loop.call_soon(self._advance)
        else:
            # Rounded up to the milliseconds that the event loop counts in, so as not to wake twice.
            self._timer = self.loop.call_later(-(-left // MILLISECOND) / 1000, self._advance)

    def _advance(self) -> None:
        self._timer = None
        self.broker.advance(monotonic_ns())
        if self.answered:
            self.send_answers()
        self.arm()

    # Sockets

    def _open_socket(self) -> socket.socket:
        listen = self.config.listen
        if listen.startswith("unix:"):
            path = listen.removeprefix("unix:")
            sock = open_unix_socket(path)
            self._unlink = path
            return sock
        return open_inet_socket(listen, self.config.port)


def this_process(max_job_size: int, now: int) -> Process:
    """What stats tells of the process that this is."""
    node = os.uname()
    return Process(
        pid=os.getpid(),
        version=VERSION,
        instance=secrets.token_hex(8),
        hostname=node.nodename,
        os=node.version,
        platform=node.machine,
        max_job_size=max_job_size,
        started_at=now,
        cpu_times=cpu_times,
    )


def cpu_times() -> tuple[float, float]:
    """Seconds that this process has spent in user and in system mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def inherited_sockets() -> list[socket.socket]:
    """The listening sockets that systemd has opened for this process, as sd_listen_fds(3) has it.

    Raises:
        StartError: one of them is no listening stream socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(os.environ.get("LISTEN_FDS", "0"))
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)
    sockets = []
    for descriptor in range(FIRST_INHERITED, FIRST_INHERITED + count):
        try:
            sock = socket.socket(fileno=descriptor)
            listens = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise StartError(f"LISTEN_FDS: file {descriptor} is no socket: {error.strerror}", 111) from error
        if not listens:
            raise StartError(f"LISTEN_FDS: file {descriptor} is no listening TCP or UNIX socket", 111)
        sock.setblocking(False)
        sockets.append(sock)
    return sockets


def open_inet_socket(host: str, port: int | str) -> socket.socket:
    """A listening TCP socket on the first address of the host that works.

    Raises:
        StartError: none does.
    """
    where = f"{option('listen')} {host} {option('port')} {port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StartError(f"{where}: {error.strerror}", 111) from error
    failure = OSError(errno.EADDRNOTAVAIL, "no such address")
    for family, kind, protocol, _, address in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its connections inherit these two
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
        except OSError as error:
            failure = error
            sock.close()
            continue
        return sock
    raise StartError(f"{where}: {failure.strerror}", 111)


def open_unix_socket(path: str) -> socket.socket:
    """A listening UNIX socket; one that a dead server has left at the path is replaced, a live one is not.

    Raises:
        StartError: something else is there, a server is alive there, or the path cannot be used.
    """
    where = f"{option('listen')} unix:{path}"
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
            raise StartError(f"{where}: another server listens there", 111)
        raise StartError(f"{where}: something that is no socket is there", 111)
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        log.info("%s: replacing the socket of a server that is gone", path)
        os.unlink(path)
    except OSError as error:
        raise StartError(f"{where}: {error.strerror or error}", 111) from error
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise StartError(f"{where}: {error.strerror or error}", 111) from error
    return sock


def become(user: str) -> None:
    """Become a user and its groups.

    Raises:
        StartError: there is no such user (status 33), or this process may not become it (34).
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise StartError(f"{option('user')} {user}: no such user", 33) from None
    try:
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except OSError as error:
        group = grp.getgrgid(entry.pw_gid).gr_name
        raise StartError(f"{option('user')} {user}: cannot become {user}:{group}: {error.strerror}", 34) from error


def _name_of_address(address: tuple[str, int] | str) -> str:
    if isinstance(address, str):
        return "unix:" + address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _name_of_peer(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        return _name_of_address((peer[0], peer[1]))
    return f"unix client {transport.get_extra_info('socket').fileno()}"
