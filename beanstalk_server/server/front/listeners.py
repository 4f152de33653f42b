"""Opens or inherits listening sockets, and accepts connections from them, within the limit on connections.

This is not left to the event loop, because uvloop accepts one connection a round: when a thousand workers reconnect to
a busy server, the last of them would wait for a thousand rounds.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from beanstalk_server.events import event
from beanstalk_server.server.bounded import BoundedLog, ForbiddenCommands, MalformedPuts, Refusals
from beanstalk_server.server.front.addresses import Address, address_of
from beanstalk_server.server.keepalive import set_keepalive
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.options import NO_SERVICE, Config, option
from beanstalk_server.settings.sections import ListenerConfig

if TYPE_CHECKING:
    from beanstalk_server.server.front.connection_counts import ConnectionCounts
    from beanstalk_server.server.front.listener_policy import ListenerPolicy
    from beanstalk_server.server.front.pending import PendingConnections
    from beanstalk_server.server.turns import Turns

BACKLOG: Final = 1024
"""Connections that the system keeps for each socket until they are accepted."""

ACCEPTS: Final = 64
"""Connections accepted from one socket in one round of the event loop."""

LEAVE_TO_OTHERS: Final = 0.001
"""Seconds for which a process that has more clients than another leaves new ones to the others."""

CROWD_PAUSE: Final = 0.001
"""Seconds without accepting while those who have come wait for their turn."""

ACCEPT_PAUSE: Final = 1
"""Seconds without accepting after the system had no file descriptor or memory for a connection."""

FULL_LOG_INTERVAL: Final = 60
"""Seconds between two warnings that all connections are taken, at least."""

OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
FIRST_INHERITED: Final = 3  # sd_listen_fds(3)

PROC: Final = "/proc"
LISTENS: Final = "0A"
"""The state of a listening socket in /proc/net/tcp."""

Log = TypeVar("Log", bound=BoundedLog)

log = logging.getLogger("beanstalk_server")


class Listener:
    """One listening socket.

    Args:
        where: names it in messages: the options, or the address in the config file.
        path: of a UNIX socket that this server has made, and must remove; else "".
        inherited: systemd has opened it.
    """

    policy: ListenerPolicy
    """What it asks of its clients."""
    make_protocol: Callable[[], Any]
    is_crowded: Callable[[], bool] | None
    """Whether new clients should wait in the backlog; None if they never need to."""

    def __init__(
        self, config: ListenerConfig, sock: socket.socket, where: str, path: str = "", inherited: bool = False
    ) -> None:
        self.config = config
        self.inherited = inherited
        self.is_crowded = None
        self.sock = sock
        self.where = where
        self.address = address_of(sock)
        self._path = path
        self._inode = os.stat(path).st_ino if path else 0

    def listen(self) -> None:
        """Let clients connect from now on. Does nothing if they can already.

        Raises:
            StartError: another server has taken the address first.
        """
        try:
            self.sock.listen(BACKLOG)
        except OSError as error:
            raise StartError(f"{self.where}: {error.strerror}") from error

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def remove_path(self) -> None:
        """Remove the path of a UNIX socket that this server has made, unless another server has replaced it."""
        if not self._path:
            return
        try:
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning(
                "%(path)s: cannot remove the socket's path: %(error)s",
                event("socket-path-left", path=self._path, error=error.strerror),
            )


class Listeners:
    """All listening sockets of a server, and the limit on the connections that come through them.

    Args:
        accepts: how many connections are accepted from one socket in one round of the event loop, at most.
        counts: what this process has, and others that accept at the same sockets; None if there are none.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, accepts: int = ACCEPTS, counts: ConnectionCounts | None = None) -> None:
        self._accepts = accepts
        self._process_counts = counts
        self._started = False  # connections are accepted here, and not by other processes
        self.limit = sys.maxsize  # how many connections the limit on open files allows at a time
        self.max_connections = 0  # how many the settings allow in all processes that accept here; 0: any number
        self._most = sys.maxsize  # how many of these in this process
        self.taken = 0  # how many there are, with those that are being set up
        self.shortages = 0  # how often clients had to wait, because of the file limit or for lack of resources
        self.all: list[Listener] = []
        self._accepting: set[asyncio.Task[None]] = set()  # connections that are being set up
        self.malformed_puts = 0  # how many puts were malformed, or had a body that was not as long as they said
        self._logs: dict[Callable[[], Any], Any] = {}  # each from its first line on
        self._full = False  # nothing is accepted, because all connections are taken
        self._full_logged_at = -float(FULL_LOG_INTERVAL)
        self.pending: PendingConnections | None = None  # if a listener needs more than a connection of its clients
        self._past_failures = 0  # of closed listeners
        self._turns: Turns
        self._client_maker: Callable[[], Callable[..., Any]] | None = None

    def serve(self, turns: Turns, client_maker: Callable[[], Callable[..., Any]]) -> None:
        """Accept clients in this process. Without this call, other processes accept them from the same sockets.

        Args:
            turns: of pending connections.
            client_maker: returns what makes the protocol of an admitted client, from its policy, user and name.
        """
        self._turns = turns
        self._client_maker = client_maker

    @property
    def listener_policies(self) -> list[ListenerPolicy]:
        """What the listeners require of their clients, in their order."""
        return [listener.policy for listener in self.all]

    @property
    def failures(self) -> int:
        """How many clients have been refused here because of what they gave as a proof, or gave instead."""
        return self._past_failures + sum([listener_policy.failures for listener_policy in self.listener_policies])

    @property
    def addresses(self) -> list[Address]:
        """Where clients may connect."""
        return [listener.address for listener in self.all]

    @property
    def allowed(self) -> int:
        """How many connections there may be at a time."""
        return min(self.limit, self._most)

    def allow(self, max_connections: int) -> None:
        """Accept at most this many connections from now on, in all processes that accept here; 0: any number."""
        self.max_connections = max_connections
        if not max_connections:
            self._most = sys.maxsize
        else:
            self._most = (
                max_connections if self._process_counts is None else self._process_counts.part_of(max_connections)
            )
        self._resume()

    def refuse_http(self, listener_policy: ListenerPolicy, name: str) -> None:
        """Count and log that a client speaks HTTP, which a browser does if any page tells it to."""
        listener_policy.failures += 1
        self._log_of(Refusals).note(name, listener_policy.place, "HTTP request")

    def note_malformed_puts(self, count: int, listener_policy: ListenerPolicy, name: str) -> None:
        """Count malformed puts of a client, and log one of them."""
        self.malformed_puts += count
        self._log_of(MalformedPuts).note(name, listener_policy.place)

    def note_forbidden(self, client: str, user: str, reason: str) -> None:
        """Log that a command is forbidden."""
        self._log_of(ForbiddenCommands).note(client, user, reason)

    def _log_of(self, kind: Callable[[], Log]) -> Log:
        found: Log | None = self._logs.get(kind)
        if found is None:
            found = self._logs[kind] = kind()
            found.start(asyncio.get_running_loop())
        return found

    def listen(self) -> None:
        """Let clients connect from now on. None is accepted before `start`.

        Raises:
            StartError: another server has taken the address first.
        """
        for listener in self.all:
            listener.listen()

    def start(self, loop: asyncio.AbstractEventLoop, headroom: int) -> None:
        """Accept connections from now on, if this process serves them.

        Args:
            headroom: how many file descriptors no connection gets, because the process may need them.
        """
        if self._client_maker is None:
            return
        for listener in self.all:
            self._prepare(listener, self._client_maker)
        self._loop = loop
        self._started = True
        self.limit = connections_allowed(headroom)
        for listener in self.all:
            loop.add_reader(listener.sock.fileno(), self.accept, listener)

    def _prepare(self, listener: Listener, client_maker: Callable[[], Callable[..., Any]]) -> None:
        """Let a listener make what its policy requires: a connection at once, or first a pending connection."""
        listener_policy = listener.policy
        if not listener_policy.asks:
            listener.make_protocol = functools.partial(client_maker(), listener_policy)
            listener.is_crowded = None
            return
        # Most servers need neither.
        from beanstalk_server.server.front.pending import PendingConnection, PendingConnections

        if self.pending is None:
            self.pending = PendingConnections(self._turns, client_maker(), lambda: self.allowed, self.connection_closed)
            self.pending.start(asyncio.get_running_loop())
        listener.make_protocol = functools.partial(PendingConnection, self.pending, listener_policy)
        listener.is_crowded = self.pending.is_crowded

    def change(self, opened: Sequence[tuple[Listener, ListenerPolicy]]) -> None:
        """Accept connections at these listeners from now on, each by its policy, and close all others.

        Args:
            opened: new ones must listen already.
        """
        old = set(self.all)
        new = []
        for listener, listener_policy in opened:
            listener.config = listener_policy.config
            if listener not in old:
                listener.policy = listener_policy
                new.append(listener)
            elif not listener.policy.become(listener_policy):
                self._abort_pending(listener.policy)
            old.discard(listener)
            if self._client_maker is not None:
                self._prepare(listener, self._client_maker)
        for listener in old:
            listener.policy.closed = True
            self._past_failures += listener.policy.failures
            self._abort_pending(listener.policy)
            if self._started:
                self._loop.remove_reader(listener.sock.fileno())
            listener.close()
            listener.remove_path()
        if self.limit != sys.maxsize:
            self.limit = max(self.limit + len(self.all) - len(opened), 1)
        self.all = [listener for listener, _ in opened]
        if self._started and not self._full:
            for listener in new:
                self._loop.add_reader(listener.sock.fileno(), self.accept, listener)

    def _abort_pending(self, listener_policy: ListenerPolicy) -> None:
        if self.pending is not None:
            self.pending.abort(self.pending.at(listener_policy))

    async def stop(self) -> None:
        """Accept nothing more; return when no connection is being set up."""
        if self._started:
            for listener in self.all:
                self._loop.remove_reader(listener.sock.fileno())
        self.close()
        for bounded in self._logs.values():
            bounded.stop()
        await asyncio.gather(*self._accepting)

    def close(self) -> None:
        """Close the sockets."""
        for listener in self.all:
            listener.close()

    def remove_paths(self) -> None:
        """Remove the paths of the UNIX sockets that this server has made."""
        for listener in self.all:
            listener.remove_path()

    def connection_closed(self) -> None:
        """Note that a connection is gone: one that waits may take its place."""
        self.taken -= 1
        if self._process_counts is not None:
            self._process_counts.note(self.taken)
        self._resume()

    def _resume(self) -> None:
        """Accept again, if all connections were taken and one is free now."""
        if self._full and self.taken < self.allowed:
            self._full = False
            for listener in self.all:
                self._loop.call_soon(self.accept_again, listener)

    def accept(self, listener: Listener) -> None:
        """Accept the connections that wait at a listener, up to a bound, or leave them to another process."""
        if listener.is_crowded is not None and listener.is_crowded():
            self._pause(listener, CROWD_PAUSE)
        elif self._process_counts is not None and self._process_counts.is_ahead():
            self._pause(listener, LEAVE_TO_OTHERS, takes_what_is_left=True)
        else:
            self._accept(listener)

    def _pause(self, listener: Listener, seconds: float, *, takes_what_is_left: bool = False) -> None:
        """Accept nothing at a listener for a while.

        Args:
            takes_what_is_left: accept then what no other process has taken, without a look at these.
        """
        self._loop.remove_reader(listener.sock.fileno())
        self._loop.call_later(seconds, self.accept_again, listener, takes_what_is_left)

    def _accept(self, listener: Listener) -> None:
        sock = listener.sock
        for _ in range(self._accepts):
            if self.taken >= self.allowed:
                self._pause_until_one_is_gone()
                return
            try:
                accepted, _ = sock.accept()
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:  # no client waits any more, or it has gone away again
                    return
                self.shortages += 1
                # The connections that wait stay in the backlog.
                log.warning(
                    "cannot accept connections, trying again in %(seconds)d s: %(error)s",
                    event("accept-failed", seconds=ACCEPT_PAUSE, error=error.strerror),
                )
                self._pause(listener, ACCEPT_PAUSE)
                return
            accepted.setblocking(False)
            self.taken += 1
            if self._process_counts is not None:
                self._process_counts.note(self.taken)
            task = self._loop.create_task(self._set_up(listener, accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def accept_again(self, listener: Listener, at_once: bool = False) -> None:
        """Go on accepting at a listener, unless it has been closed or all connections are taken."""
        descriptor = listener.sock.fileno()
        if descriptor >= 0 and not self._full:
            self._loop.add_reader(descriptor, self.accept, listener)
            if at_once:
                self._accept(listener)

    def _pause_until_one_is_gone(self) -> None:
        """Accept nothing until a connection closes: no more are allowed. New clients wait in the backlog."""
        self._full = True
        for listener in self.all:
            self._loop.remove_reader(listener.sock.fileno())
        taken, limit = self.taken, "the limit on open files"
        if self._most < self.limit:
            limit = option("max_connections")
            if self._process_counts is not None:
                taken = self._process_counts.total()
                if taken < self.max_connections:
                    return  # another process accepts
        self.shortages += 1
        now = monotonic()
        if now - self._full_logged_at >= FULL_LOG_INTERVAL:
            self._full_logged_at = now
            log.warning(
                "%(connections)d connections, the maximum set by %(limit)s; new clients wait until one closes",
                event("connections-exhausted", connections=taken, limit=limit),
            )

    async def _set_up(self, listener: Listener, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(listener.make_protocol, accepted)
        except OSError as error:
            log.info(
                "a client disconnected before it was served: %(error)s", event("client-gone", error=error.strerror)
            )
            accepted.close()
            self.connection_closed()


def where_of(config: ListenerConfig, settings: Config) -> str:
    """How messages name a listener: as it was given, by the options or in the config file."""
    if settings.listeners and config != settings.http_listener():
        return f"listener {config.address}"
    if config.is_http:
        return f"{settings.place('http')} {config.address}"
    if config.path:
        return f"{settings.place('listen')} {config.address}"
    return f"{settings.place('listen')} {config.host} {settings.place('port')} {config.port}"


def open_listener(config: ListenerConfig, settings: Config) -> Listener:
    """A listener whose socket is bound. Clients cannot connect yet.

    Raises:
        StartError: the socket cannot be opened.
    """
    where = where_of(config, settings)
    if config.path:
        return Listener(config, open_unix_socket(config.path, where), where, config.path)
    listener = Listener(config, open_inet_socket(config.host, config.port, where), where)
    set_keepalive(listener.sock, settings.keepalive)
    return listener


def inherited_sockets() -> list[socket.socket]:
    """The listening sockets that systemd has opened for this process, as sd_listen_fds(3) has it.

    Raises:
        StartError: one of them is not a listening stream socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    given = os.environ.get("LISTEN_FDS", "0")
    if not (given.isascii() and given.isdecimal()):
        raise StartError(f"LISTEN_FDS: {given!r} is not a number")
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)
    sockets = []
    for descriptor in range(FIRST_INHERITED, FIRST_INHERITED + int(given)):
        try:
            sock = socket.socket(fileno=descriptor)
            listens = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise StartError(f"LISTEN_FDS: file {descriptor} is not a socket: {error.strerror}") from error
        if not listens:
            raise StartError(f"LISTEN_FDS: file {descriptor} is not a listening TCP or UNIX socket")
        sock.setblocking(False)
        sockets.append(sock)
    return sockets


def open_inet_socket(host: str, port: int | str, where: str) -> socket.socket:
    """A TCP socket that is bound to the first address of the host that works.

    Raises:
        StartError: no address works.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_SERVICE:
            raise StartError(f"{where}: {NO_SERVICE}") from error
        raise StartError(f"{where}: {getattr(error, 'strerror', None) or 'no such host'}") from error
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
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections inherit this
            sock.bind(address)
        except OSError as error:
            failure = error
            sock.close()
            continue
        return sock
    raise StartError(f"{where}: {failure.strerror}{_by_whom(failure, found[0][4][1])}")


def _by_whom(failure: OSError, port: int | str | bytes) -> str:
    """Who has the port already, if that is the failure, as an error says it."""
    if failure.errno != errno.EADDRINUSE:
        return ""
    holder = port_holder(int(port))
    return holder and f" by {holder}"


def port_holder(port: int) -> str:
    """Return the name and the id of the process that listens at this port, as an error says them; or "".

    Linux only, and only processes that this user may look into; elsewhere it returns "".
    """
    from pathlib import Path  # most starts have their port

    proc = Path(PROC)
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{words[9]}]")
    for process in proc.glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # it has ended, or is another user's
            if any(_target(file) in sockets for file in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _target(file: os.PathLike[str]) -> str:
    with suppress(OSError):  # it has been closed
        return os.readlink(file)
    return ""


def open_unix_socket(path: str, where: str) -> socket.socket:
    """A UNIX socket that is bound to a path. It replaces the socket of a dead server, but not that of a live one.

    Raises:
        StartError: a live server or something else has the path, or the path cannot be used.
    """
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            if _is_alive(path):
                raise StartError(f"{where}: another server is listening there")
            log.info("%(path)s: replacing the socket of a server that has exited", event("socket-replaced", path=path))
            os.unlink(path)
        else:
            raise StartError(f"{where}: exists, but is not a socket")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StartError(f"{where}: {error.strerror or error}") from error
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise StartError(f"{where}: {error.strerror or error}") from error
    return sock


def _is_alive(path: str) -> bool:
    """Whether a server listens on this UNIX socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # it listens, and its backlog is full
            return True
    return True


def connections_allowed(headroom: int) -> int:
    """How many connections this process may have besides the files that it has open now; at least one.

    Args:
        headroom: how many file descriptors it will need for other things.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        taken = len(os.listdir("/dev/fd")) - 1  # without the one that reads the directory
    except OSError:
        taken = FIRST_INHERITED
    return max(limit - taken - headroom, 1)
