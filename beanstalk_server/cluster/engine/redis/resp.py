"""RESP, the protocol of Redis, version 2: requests as bytes, and replies from a socket.

A commit is two commands and two numbers. A client library packs and reads them at several times the cost. Must never
know a command.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from beanstalk_server.cluster.engine.interface import EngineError

CHUNK: Final = 65_536
"""Bytes that are read at once."""

TIMEOUTS: Final = 2
"""How many timeouts a request, or the answer to it, may take in all, and as many again for each CHUNK of it. A WAIT
takes half of one."""

LONGEST_LINE: Final = 65_536
"""Bytes: an error of Lua has some hundreds."""

LONGEST_BULK: Final = 1 << 30
"""Bytes. Twice the longest string that Redis has; but for the reply of something that is no Redis."""

ONE: Final = b":1\r\n"
"""What a script answers that has made its commit."""

ONE_SIZE: Final = len(ONE)
"""Bytes of a number of one digit. Other replies are as long, or longer."""

DEEPEST: Final = 8
"""Arrays within each other."""


class ResponseError(Exception):
    """A reply that is an error."""


class LostError(Exception):
    """The connection is closed, or no Redis is at its other end."""


Reply = int | bytes | list[Any] | ResponseError | None


def pack(*arguments: bytes) -> bytes:
    """A command with its arguments, as it is sent."""
    return b"".join([b"*%d\r\n" % len(arguments), *map(bulk, arguments)])


def bulk(argument: bytes) -> bytes:
    """An argument of a command."""
    return b"$%d\r\n%b\r\n" % (len(argument), argument)


class Replies:
    """Replies from a socket.

    Args:
        timeout: seconds for a single read or write.
    """

    def __init__(self, timeout: float) -> None:
        self.socket: socket.socket | None = None
        self.timeout = timeout
        self._buffer = b""
        self._at = 0
        self._since = 0.0
        self._moved = 0
        self.waits_in_kernel = False
        """Whether a read of the socket may wait for all that it asks for: it is a plain one, with its own timeout."""

    def attach(self, connected: socket.socket) -> None:
        """Read from this socket from now on."""
        self.socket = connected
        self._buffer = b""
        self._at = 0
        self.waits_in_kernel = False
        self.begin()

    def close(self) -> None:
        """Close the socket, if there is one."""
        connected, self.socket = self.socket, None
        if connected is not None:
            connected.close()

    def begin(self) -> None:
        """A request or an answer begins."""
        self._since = monotonic()
        self._moved = 0

    def moved(self, size: int) -> None:
        """Note that this many bytes of it have come or gone.

        Raises:
            TimeoutError: it takes too long, although no single byte does.
        """
        self._moved += size
        if monotonic() - self._since > TIMEOUTS * self.timeout * (1 + self._moved // CHUNK):
            raise TimeoutError

    def read(self) -> Reply:
        """The next reply; what the engine refuses is a ResponseError, and is returned like any other.

        Raises:
            OSError: the connection has broken, or the answer takes too long.
            LostError: it was closed, or no Redis is at its other end.
        """
        return self._read(0)

    def read_made(self, count: int) -> int:
        """The next replies, if this many are 1 and one more is a number, and nothing else has come: the number; else
        -1.

        That is what nearly all commits are answered with, at a fraction of the price of `read`, which reads all else.
        The last reply comes later, because a WAIT waits; the kernel does not give up those before it earlier.
        """
        if not self.waits_in_kernel or self.socket is None or self._at < len(self._buffer):
            return -1
        size = ONE_SIZE * (count + 1)
        data = self.socket.recv(size, socket.MSG_WAITALL)
        if len(data) == size and data.startswith(ONE * count + b":") and data.endswith(b"\r\n"):
            return data[-3] - 48
        self._buffer = data
        self._at = 0
        return -1

    def _read(self, depth: int) -> Reply:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            return ResponseError(rest.decode("utf-8", "replace"))
        if kind == b"+":
            return rest
        try:
            number = int(rest)
        except ValueError:
            raise LostError(f"not a Redis server: {line[:60]!r}") from None
        if kind == b":":
            return number
        if kind == b"$" and number <= LONGEST_BULK:
            return self._exactly(number) if number >= 0 else None
        if kind == b"*" and depth < DEEPEST and number <= LONGEST_BULK:
            return [self._read(depth + 1) for _ in range(number)] if number >= 0 else None
        raise LostError(f"not a Redis server: {line[:60]!r}")

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._at)) < 0:
            if len(self._buffer) - self._at > LONGEST_LINE:
                raise LostError(f"not a Redis server: {self._buffer[self._at : self._at + 60]!r}")
            self._buffer = self._buffer[self._at :] + self._receive(CHUNK)
            self._at = 0
        line = self._buffer[self._at : end]
        self._at = end + 2
        return line

    def _exactly(self, size: int) -> bytes:
        """This many bytes; their line end is dropped."""
        left = self._buffer[self._at : self._at + size + 2]
        self._at += len(left)
        if len(left) < size + 2:
            chunks = [left]
            missing = size + 2 - len(left)
            while missing:
                chunks.append(self._receive(min(missing, CHUNK)))
                missing -= len(chunks[-1])
            left = b"".join(chunks)
        return left[:size]

    def _receive(self, size: int) -> bytes:
        if self.socket is None:
            raise LostError("the connection is closed")
        data = self.socket.recv(size)
        if not data:
            raise LostError("the engine has closed the connection")
        self.moved(len(data))
        return data


def text_of(reply: object, errors: str = "replace") -> str:
    """A reply as text; "" if it is nil.

    Args:
        errors: what becomes of bytes that are no text, see bytes.decode.

    Raises:
        TypeError: it is something else.
    """
    if reply is None or isinstance(reply, bytes):
        return (reply or b"").decode("utf-8", errors)
    raise TypeError(f"expected a string, got {reply!r:.60}")


def number_of(reply: object) -> int:
    """A reply as a number, also if it came as text; 0 if it is nil.

    Raises:
        ValueError: it is another text.
        TypeError: it is something else.
    """
    return reply if isinstance(reply, int) else int(text_of(reply) or 0)


def lists_of(reply: object) -> Sequence[Any]:
    """A reply as an array.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(reply, list):
        return reply
    raise TypeError(f"expected an array, got {reply!r:.60}")


@contextmanager
def understood() -> Iterator[None]:
    """What takes replies apart within this raises EngineError where they are others than the engine's."""
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:
        raise EngineError(f"engine: unexpected reply: {error}") from None
