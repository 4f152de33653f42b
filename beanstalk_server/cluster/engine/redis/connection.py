"""One connection to one server of Redis or Valkey, and what its errors mean for an engine.

After any error of the transport the connection is closed: an answer that comes late would be taken for that to another
question.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
from time import monotonic
from typing import Final

from beanstalk_server.cluster.engine.interface import EngineError, EngineFullError, EngineRefusedError
from beanstalk_server.cluster.engine.redis.resp import LostError, Replies, Reply, ResponseError, pack
from beanstalk_server.settings.engine_url import EngineURL, Host

REFUSED: Final = frozenset(("NOAUTH", "NOPERM", "WRONGPASS", "DENIED"))
"""Error codes of an engine that does not know the user, or does not let it do this."""


class RedisConnection:
    """A connection, made with the first request.

    Args:
        host: of the server.
        url: says who the user is, and what TLS asks for.
        timeout: seconds to connect, and for a part of an answer (`resp.TIMEOUTS`).
        user: instead of the one of the URL, with its password.
    """

    def __init__(self, host: Host, url: EngineURL, timeout: float, user: tuple[str, str] | None = None) -> None:
        self.host = host
        self.place = f"{'engine' if user is None else 'Sentinel'} at {host}"  # as messages name it
        self.timeout = timeout
        self._user, self._password = user or (url.user, url.password)
        self._database = 0 if user else url.database
        self.opened_at = 0.0
        self._url = url
        self._replies = Replies(timeout)

    def connect(self) -> None:
        """Connect and authenticate.

        Raises:
            EngineError: that has failed.
        """
        if self.is_open:
            return
        try:
            self._open()
            self._log_in()
            self._wait_in_kernel()
            self.opened_at = monotonic()
        except BaseException as error:
            raise self._ended_by(error) from None

    @property
    def is_open(self) -> bool:
        return self._replies.socket is not None

    def abort(self) -> None:
        """End what another thread does here: it gets an EngineError."""
        connected = self._replies.socket
        if connected is not None:
            with contextlib.suppress(OSError):  # it has ended already
                connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._replies.close()

    def ask(self, request: bytes, count: int = 1) -> list[Reply]:
        """Send a request of this many commands, and return their replies.

        Raises:
            EngineError: no answer, or only a part of it: the connection is closed.
        """
        self.send(request)
        return self.receive(count)

    def send(self, request: bytes) -> None:
        """Send a request; `receive` or `receive_made` returns its replies.

        Raises:
            EngineError: it has not been sent as a whole: the connection is closed.
        """
        try:
            connected = self._replies.socket
            if connected is None:
                raise OSError("the connection is closed")
            sent = connected.send(request)
            if sent < len(request):
                self._replies.begin()
                view = memoryview(request)
                while sent < len(view):
                    self._replies.moved(size := connected.send(view[sent:]))
                    sent += size
        except BaseException as error:
            raise self._ended_by(error) from None

    def receive(self, count: int) -> list[Reply]:
        """The replies to a request of this many commands.

        Raises:
            EngineError: there is none, or only a part of them: the connection is closed.
        """
        try:
            self._replies.begin()
            return [self._replies.read() for _ in range(count)]
        except BaseException as error:
            raise self._ended_by(error) from None

    def receive_made(self, count: int) -> tuple[list[Reply], Reply]:
        """The same for this many scripts, which are mostly answered with 1, and a WAIT: their replies, and that to it.

        No replies of scripts mean that all of them are 1.
        """
        try:
            self._replies.begin()
            confirmed = self._replies.read_made(count)
            if confirmed >= 0:
                return [], confirmed
            return [self._replies.read() for _ in range(count)], self._replies.read()
        except BaseException as error:
            raise self._ended_by(error) from None

    def error_of(self, reply: Reply) -> EngineError:
        """What a reply means that is an error, or another one than was expected."""
        if not isinstance(reply, ResponseError):
            return EngineError(f"{self.place}: unexpected reply: {reply!r:.60}")
        text = str(reply)
        code = text.partition(" ")[0]
        if code in REFUSED or "AUTH" in text:  # "ERR AUTH called without any password configured"
            return EngineRefusedError(f"{self.place}: {text}")
        if code == "OOM":
            return EngineFullError(f"{self.place}: {text}")
        if "DB index is out of range" in text:
            return EngineRefusedError(f"{self.place}: no database {self._database}: must be a lower number")
        if "Error compiling script" in text:
            return EngineRefusedError(f"{self.place}: version too old: must be Redis 7 or later, or Valkey")
        return EngineError(f"{self.place}: {text}")

    def _open(self) -> None:
        connected = socket.create_connection((self.host.name, self.host.port), self.timeout)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._url.tls:
                context = ssl.create_default_context(cafile=self._url.ca or None)
                if self._url.cert:
                    context.load_cert_chain(self._url.cert, self._url.key or None)
                connected = context.wrap_socket(connected, server_hostname=self.host.name)
        except BaseException:
            connected.close()
            raise
        self._replies.attach(connected)

    def _log_in(self) -> None:
        """Say who the user is, and choose the database."""
        words = [each.encode() for each in (self._user, self._password) if each]
        requests = [pack(b"AUTH", *words)] if words else []
        if self._database:
            requests.append(pack(b"SELECT", b"%d" % self._database))
        for reply in self.ask(b"".join(requests), len(requests)):
            if isinstance(reply, ResponseError):
                raise self.error_of(reply)

    def _wait_in_kernel(self) -> None:
        """Have the kernel count the timeout: Python asks it before every call whether the call would wait."""
        connected = self._replies.socket
        if sys.platform != "linux" or connected is None or isinstance(connected, ssl.SSLSocket):
            return
        timeout = struct.pack("ll", int(self.timeout), int(self.timeout % 1 * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        connected.settimeout(None)
        self._replies.waits_in_kernel = True

    def _ended_by(self, error: BaseException) -> BaseException:
        """Close the connection, whose next answer may be a late one; return what the error means, in one line."""
        self.close()
        _forget_frames(error)
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return EngineError(f"{self.place}: no answer within {self.timeout:g} s")
        if isinstance(error, ssl.SSLError):
            return EngineError(f"{self.place}: TLS: {error}")
        if isinstance(error, (OSError, UnicodeError)):
            return EngineError(f"{self.place}: {getattr(error, 'strerror', None) or error}")
        return EngineError(f"{self.place}: {error}") if isinstance(error, LostError) else error


def without_frames(error: EngineError) -> EngineError:
    """The error, without the frames that it has come through: a server runs without a search for cycles."""
    _forget_frames(error)
    return error


def _forget_frames(error: BaseException) -> None:
    """Break the cycles of errors and the frames that have them."""
    last: BaseException | None = error
    while last is not None:
        last.__traceback__ = None
        last = last.__cause__ or last.__context__
