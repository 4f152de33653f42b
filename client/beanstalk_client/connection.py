"""One connection of the blocking client: a socket and the protocol, and how long a reply may take.

A reply must be whole within `timeout` seconds, beyond what the server was asked to wait; of several that are owed, each
has this time from the end of the one before. The kernel measures it (SO_RCVTIMEO) where it can: a timeout of Python's
own costs a system call more for each one that reads or writes. Only a reply in pieces needs a look at the clock.

Must never decide whether a command is said again, or where servers are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from beanstalk_client.commands import Command
from beanstalk_client.errors import ConnectionLostError, NoAnswerError, no_answer
from beanstalk_client.protocol import Done, Protocol
from beanstalk_client.session import Session

if TYPE_CHECKING:
    import ssl

READ: Final = 1 << 14
"""How many bytes are read at a time, if no more are known to come."""

READ_AT_MOST: Final = 1 << 20

WRITE: Final = 1 << 18
"""Bytes that are written at a time while replies may come."""

KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Seconds, and the number of probes without an answer."""

SILENT: Final = (BlockingIOError, socket.timeout)
"""What a socket raises when nothing has come for this long, or nothing has gone."""

CLOSED: Final = "the server closed it"
"""Why a connection is lost without an error."""

TLS_HINT: Final = "; the server may require TLS"
"""What may explain a plain connection that is lost before the first reply."""


class Connection:
    """A connection to a server.

    Args:
        sock: connected.
        name: what errors call the server.
        timeout: how many seconds a reply may take beyond what the server was asked to wait; None: for ever.

    Attributes:
        is_lost: there is no use in sending anything more.
        until: when all replies must be there, on the monotonic clock; None: each has its own time.
    """

    def __init__(self, sock: socket.socket, session: Session, name: str, timeout: float | None) -> None:
        self.protocol: Protocol = Protocol(session)
        self.name: str = name
        self._sock = sock
        self._is_kernel = type(sock) is socket.socket  # of a TLS socket, OpenSSL would try again for ever
        self._timeout = timeout
        self.until: float | None = None
        self._unsent = bytearray()  # commands for `flush`
        self.set_timeout(timeout)

    @property
    def is_lost(self) -> bool:
        return self.protocol.is_lost

    @property
    def makes_sense(self) -> bool:
        """Whether all replies were valid, so that another connection may do better."""
        return not self.protocol.is_nonsense

    def fileno(self) -> int:
        return self._sock.fileno()

    def set_timeout(self, timeout: float | None) -> None:
        """Let a reply take this many seconds."""
        self._timeout = timeout
        self._allow(timeout)

    def run(self, command: Command[Any], began: float, is_late: bool = False) -> Any:
        """Send a command, and wait for its reply; return its Result. Nothing else may be pending.

        Args:
            began: when the call began, whose time this is, on the monotonic clock.
            is_late: some of that time has passed already.
        """
        protocol = self.protocol
        data = protocol.send(command)
        is_long = len(data) > WRITE
        if is_long:
            began -= time.monotonic()
        try:
            self._sock.sendall(data)
        except SILENT:
            return self._lose(self._silence())[0][1]
        except OSError as error:
            return self._rest(error)[0][1]
        if is_long:
            began += time.monotonic()  # the time in which the server reads does not count
        try:
            done = [] if is_late else self._read()
        except SILENT:
            done = []
        done = done or self._receive(began)
        return done[0][1] if done else _closed()

    def run_all(self, commands: Sequence[Command[Any]], began: float | None = None) -> list[Any]:
        """Send commands in as few writes as there can be, and wait for all replies; return their Results.

        Replies are read while there is still something to write, so that any number of commands can be sent.

        Args:
            began: since when the time of the first reply runs, on the monotonic clock; None: now.
        """
        if began is None:
            began = time.monotonic()
        done: list[Done] = []
        for command in commands:
            self.say(command)
        try:
            self._sock.settimeout(0)
            done += self.flush()
            while self._unsent and not self.is_lost:
                if not self._wait_for_either(began):
                    done += self._lose(self._silence())
                    break
                left = len(self._unsent)
                come = self.take() + self.flush()
                done += come
                if come or len(self._unsent) < left:  # the server replies or reads: that is no silence
                    began = time.monotonic()
        except OSError as error:  # another thread has closed the socket
            done += self._lose(self._loss(error))
        finally:
            self._wait_again()
        while len(done) < len(commands):
            done += self._receive(began)
            began = time.monotonic()
            if self.is_lost:
                done += [(command, _closed()) for command in commands[len(done) :]]
        return [result for _, result in done]

    # Without waiting: for a socket whose timeout is 0

    def say(self, command: Command[Any]) -> None:
        """Let a command be sent by `flush`."""
        self._unsent += self.protocol.send(command)

    @property
    def unsent(self) -> int:
        """The bytes of commands that are not sent yet."""
        return len(self._unsent)

    def be_nonblocking(self) -> None:
        """Never wait from now on: only `say`, `flush`, `take` and `wait` may be used."""
        self._sock.settimeout(0)

    def flush(self) -> list[Done]:
        """Send what the socket takes at once; return what has become of all commands if the server takes no more."""
        try:
            while self._unsent:
                with memoryview(self._unsent) as data:
                    sent = self._sock.send(data[:WRITE])
                del self._unsent[:sent]
        except OSError as error:
            if not _would_block(error):
                return self._rest(error)
        return []

    def take(self) -> list[Done]:
        """Read what has come; return what has become of commands."""
        done: list[Done] = []
        with contextlib.suppress(OSError):  # nothing has come
            while not self.is_lost:
                done += self._read()
        return done

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is something to read, or room for what is not sent; return whether there is."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0))
            return bool(selector.select(timeout))

    # The end

    def is_alive(self) -> bool:
        """Whether the connection is there, as far as this machine knows. Nothing may be pending."""
        try:
            self._sock.settimeout(0)
            self._sock.recv(1)  # nothing was asked, so any reply ends the connection
        except OSError as error:
            return _would_block(error)
        finally:
            self._wait_again()
        return False

    def close(self) -> None:
        """End it. What is pending has no results; another thread that waits for them learns that at once."""
        if self.protocol.pending:
            with contextlib.suppress(OSError):  # it is lost already
                self._sock.shutdown(socket.SHUT_RDWR)
        self._lose(_closed())

    def abandon(self) -> None:
        """End it in a process that is a fork. Its parent may wait for a reply, so there is no shutdown."""
        self._lose(_closed())

    def quit(self) -> None:
        """End it, and let the server know."""
        if not self.is_lost:
            with contextlib.suppress(OSError):  # it is gone already
                self._sock.sendall(b"quit\r\n")
        self.close()

    # Replies, and the time that they may take

    def _read(self) -> list[Done]:
        """Read what has come; return what has become of commands.

        Raises:
            OSError: nothing has come for as long as the socket waits.
        """
        try:
            data = self._sock.recv(min(max(self.protocol.missing, READ), READ_AT_MOST))
        except OSError as error:
            if _would_block(error):
                raise
            return self._lose(self._loss(error))
        return self.protocol.receive(data) if data else self._lose(self._loss())

    def _receive(self, began: float) -> list[Done]:
        """Wait for the replies that are owed: return what has become of commands once the next reply is whole.

        Args:
            began: since when its time runs.
        """
        protocol = self.protocol
        first = protocol.first
        wait = first.wait if first is not None else 0
        has_begun = False
        allowed = self._timeout
        done: list[Done] = []
        while not done and not protocol.is_lost:
            now = time.monotonic()
            if wait is None and not has_begun:  # it may begin at any time, and must be whole in time then
                began, has_begun = now, protocol.is_in_reply
            left = self._left(began, wait or 0, now)
            if left is not None:
                if left <= 0:
                    return self._lose(self._silence(wait or 0))
                if allowed is None or left < 0.99 * allowed:
                    self._allow(left)
                    allowed = left
            try:
                done = self._read()
            except SILENT:
                continue
        if allowed != self._timeout:
            self._allow(self._timeout)
        return done

    def _left(self, began: float, wait: float, now: float) -> float | None:
        """The seconds until a reply must be whole, whose time runs since `began`; None for no end."""
        left = None if self._timeout is None else began + self._timeout + wait - now
        if self.until is not None:
            left = self.until - now if left is None else min(left, self.until - now)
        return left

    def _rest(self, error: OSError) -> list[Done]:
        """What the server has said before it would take no more."""
        done: list[Done] = []
        while not self.is_lost:
            try:
                self._allow(0.1)
                data = self._sock.recv(READ_AT_MOST)
            except OSError:
                data = b""
            done += self.protocol.receive(data) if data else self._lose(self._loss(error))
        return done

    def _wait_for_either(self, began: float) -> bool:
        """Wait until something can be written or read; return whether it can before the time since `began` is over."""
        first = self.protocol.first
        wait = first.wait if first else 0
        longest = None if wait is None else self._left(began, wait, time.monotonic())
        return (longest is None or longest > 0) and self.wait(longest)

    def _allow(self, silence: float | None) -> None:
        """Let the socket raise one of SILENT after this many seconds."""
        if self.is_lost:
            return
        if self._is_kernel:
            whole = 0.0 if silence is None else max(silence, 1e-6)
            value = struct.pack("@ll", int(whole), int(whole % 1 * 1e6))
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
            except OSError:  # this system has other ideas of a time
                self._is_kernel = False
            else:
                self._sock.settimeout(None)
        if not self._is_kernel:
            self._sock.settimeout(silence)

    def _wait_again(self) -> None:
        """Let the socket wait as it did before it was told not to."""
        if self._sock.fileno() >= 0:
            self._sock.settimeout(None if self._is_kernel else self._timeout)

    def _lose(self, error: ConnectionLostError) -> list[tuple[Command[Any], ConnectionLostError]]:
        self._sock.close()
        return self.protocol.lose(error)

    def _loss(self, error: OSError | None = None) -> ConnectionLostError:
        reason = str(error.strerror or error) if error else CLOSED
        if not self.protocol.has_replied and type(self._sock) is socket.socket:
            reason += TLS_HINT
        return ConnectionLostError(f"{self.name}: connection lost: {reason}", reason=reason, maybe_done=True)

    def _silence(self, wait: float = 0) -> NoAnswerError:
        return no_answer(self.name, (self._timeout or 0) + wait)


def open_socket(address: tuple[str, int] | str, timeout: float) -> socket.socket:
    """Connect to a host and a port, or to the path of a UNIX socket.

    A name may have several IP addresses, of which the first may be those that do not answer: each gets its share of the
    time that is left.

    Raises:
        OSError: that cannot be done.
    """
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = _connect_to_any(socket.getaddrinfo(*address, type=socket.SOCK_STREAM), timeout)
    keep_alive(sock)
    return sock


def keep_alive(sock: socket.socket) -> None:
    """Let a TCP connection send at once, and notice within two minutes that the server's machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _connect_to_any(found: list[Any], timeout: float) -> socket.socket:
    until = time.monotonic() + timeout
    failure: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(found):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # IPv6, where there is none
            failure = failure or error
            continue
        try:
            sock.settimeout(max(until - time.monotonic(), 0.001) / (len(found) - number))
            sock.connect(address)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            failure = failure or error
        else:
            return sock
    raise failure or OSError("the host name has no address")


def speak_tls(
    sock: socket.socket, context: ssl.SSLContext, server_name: str | None, timeout: float | None
) -> socket.socket:
    """Shake hands; the socket that comes back is to be used from now on.

    Raises:
        OSError: that fails (ssl.SSLError is one), and the socket is closed.
    """
    try:
        sock.settimeout(timeout)
        return context.wrap_socket(sock, server_hostname=server_name)
    except BaseException:
        sock.close()
        raise


def abandoned_in_forks() -> weakref.WeakSet[Any]:
    """A set, of whose members `_abandon` is called in a process that is a fork: the connections are its parent's."""
    connected: weakref.WeakSet[Any] = weakref.WeakSet()

    def abandon() -> None:
        for each in list(connected):
            each._abandon()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=abandon)
    return connected


def _closed() -> ConnectionLostError:
    """The result of commands whose connection this side has closed, in another thread perhaps."""
    return ConnectionLostError("the connection is closed", maybe_done=True)


def _would_block(error: OSError) -> bool:
    """Whether a socket can do nothing yet. OpenSSL has its own words for it; the kernel's ETIMEDOUT is a loss."""
    return (isinstance(error, SILENT) and error.errno != errno.ETIMEDOUT) or type(error).__name__ in (
        "SSLWantReadError",
        "SSLWantWriteError",
    )
