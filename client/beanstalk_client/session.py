"""State of a client that outlives a connection: tubes, mode, token, reservations, and which commands the server has.

A connection is the *origin* of jobs. What was reserved on one is reserved no more on the next: `lose` notes the
reservations that went with it, `greet` says what a new connection must be told first, and `fit` refuses a job of
another connection, or of another server, whose ids mean other jobs.

Must never do any I/O, and never show the token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from beanstalk_client.commands import (
    BASE,
    DEFAULT_TUBE,
    IDENTITY,
    MAX_TIMEOUT,
    MODES,
    NAMED,
    Command,
    Duration,
    Maker,
    auth,
    probe,
    seconds_of,
    sequence_of,
)
from beanstalk_client.errors import ReservationLostError, UnknownCommandError, UnsupportedError
from beanstalk_client.job import Origin
from beanstalk_client.names import own_name

T = TypeVar("T")

RECONNECT_WITHIN: Final = 1.0
"""Seconds after which a command that has found its connection lost fails, unless there is another one by then: a web
request should not wait for longer for a server that is down."""


class Session(Maker):
    """What outlives a connection.

    Args:
        encoding: of the bodies; None for bytes.
        use: the tube to use.
        watch: the tube or tubes to watch.
        token: what says who we are; "" for none.
        name: what the client calls itself; "" for nothing, None for `own_name()`.

    Attributes:
        used, watched: the tubes that the server was told; `watched` is a dict for its order.
        reserved: the ids of the jobs that are reserved on this connection.
        origin: the connection, as jobs know it.
        known: which commands this server knows, as far as that was asked.

    Raises:
        ValueError: a name or the token is malformed, or there is no such encoding of texts.
    """

    def __init__(
        self,
        encoding: str | None = None,
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
        token: str = "",
        name: str | None = "",
    ) -> None:
        self._token = token
        del token  # an error report has the variables of each frame
        if encoding is not None:
            _check_encoding(encoding)
        self.encoding: str | None = encoding
        self.used: str = use
        self.watched: dict[str, int | None] = dict.fromkeys(
            [watch] if isinstance(watch, str) else sequence_of(watch, "watch")
        )
        self.mode: str = MODES[0]
        self.name: str | None = name
        self.reserved: set[int] = set()
        self.origin: Origin = Origin()
        self.known: dict[str, bool] = {}
        self._lost: frozenset[int] = frozenset()
        if not self.watched:
            raise ValueError("watch: at least one tube must be watched")
        self.greet()
        self.introduce()

    def __repr__(self) -> str:
        return f"<Session: uses {self.used}, watches {', '.join(self.watched)}>"

    def greet(self) -> list[Command[Any]]:
        """What a new connection must be told before anything else. Each of these must succeed."""
        greeting: list[Command[Any]] = [auth(self._token)] if self._token else []
        if self.used != DEFAULT_TUBE:
            greeting.append(self.use(self.used))
        watched = self.watched.items()
        greeting += [self.watch(tube, weight) for tube, weight in watched if weight or tube != DEFAULT_TUBE]
        if self.mode != MODES[0]:
            greeting.append(self.reserve_mode(self.mode))
        if DEFAULT_TUBE not in self.watched:
            greeting.append(self.ignore(DEFAULT_TUBE))
        return greeting

    def introduce(self) -> list[Command[Any]]:
        """What a new connection says of itself after its greeting, if it has a name. See `may_fail`."""
        name = own_name() if self.name is None else self.name  # anew, as a fork has another one
        if not name:
            return []
        introduction = self.client_name(name)
        introduction.effect = None  # a default stays one
        return [introduction]

    @staticmethod
    def may_fail(command: Command[Any], error: BaseException) -> bool:
        """Whether a connection is as good after this error of its introduction: beanstalkd knows no names."""
        return command.reply is NAMED and isinstance(error, UnknownCommandError)

    def forget_token(self) -> None:
        """There will be no other connection that needs it."""
        self._token = ""

    def lose(self) -> None:
        """The connection is gone, and with it what was reserved there."""
        self._lost |= self.reserved
        self.reserved.clear()
        self.known.clear()
        self.origin = Origin()

    def take_lost(self) -> frozenset[int]:
        """The ids of the jobs that were reserved on connections that are gone; each is returned once."""
        lost, self._lost = self._lost, frozenset()
        return lost

    def is_origin(self, origin: Origin | None) -> bool:
        """Whether a job has come from this connection, or from none."""
        return origin is None or origin is self.origin

    def needs(self, command: Command[Any]) -> str:
        """What is still to be asked before a command can be sent on this connection; "" for nothing."""
        origin, name = command.origin, command.needs
        if not (origin is None or origin is self.origin or not origin.server or command.is_bound):
            name = IDENTITY
        return "" if name in self.known else name

    def encode(self, body: str | bytes) -> bytes:
        """The bytes of a body."""
        if isinstance(body, bytes):
            return body
        if not isinstance(body, str):  # what else has bytes may say another length than it has
            raise TypeError(
                f"a body must be {'bytes' if self.encoding is None else 'str or bytes'}, not {type(body).__name__}"
            )
        if self.encoding is None:
            raise TypeError("a body must be bytes: the client has no encoding")
        return body.encode(self.encoding)

    def probes(self, command: str) -> list[Command[Any]]:
        """What must be asked to find out whether the server knows a command: nothing, if that is known."""
        return [] if command in BASE or command in self.known else [probe(command)]

    def knows(self, command: str) -> bool:
        """Whether the server knows a command, as far as it was asked."""
        return command in BASE or self.known.get(command, False)

    def check_bound(self, command: Command[Any]) -> None:
        """Refuse a command that means nothing to this connection.

        Raises:
            ReservationLostError: its job has come from another connection.
        """
        if command.is_bound and not self.is_origin(command.origin):
            raise ReservationLostError(
                f"{command.line}: the connection that reserved the job was lost, or belongs to another client"
            )

    def fit(self, command: Command[T]) -> Command[T]:
        """What to send for a command that a server may take for something else; it was asked for what that needs.

        Raises:
            UnsupportedError: it does not, and there is no other way to say the command.
            ReservationLostError: its job has come from another connection, and may be another one here.
        """
        self.check_bound(command)
        server = "" if command.origin is None else command.origin.server
        if not self.is_origin(command.origin) and (not server or server != self.origin.server):
            raise ReservationLostError(
                f"{command.line}: the job was reserved on another connection, and the server may have been restarted; "
                "its id may belong to another job now; to use that job, pass the id"
            )
        if not command.needs or self.knows(command.needs):
            return command
        if command.whole is None:
            raise UnsupportedError(f"the server does not support {command.needs}; beanstalk-server does")
        return command.whole


def _check_encoding(encoding: str) -> None:
    if not isinstance(encoding, str):
        raise TypeError(
            f"encoding is {encoding!r}: must be a string or None; write a host and a port as one address, host:port"
        )
    try:
        "".encode(encoding)
        b"".decode(encoding)
    except LookupError as error:
        raise ValueError(f"encoding: {error}") from None


def read_patience(
    connect_timeout: Duration, timeout: Duration | None, reconnect_timeout: Duration
) -> tuple[float, float | None, float]:
    """The seconds for which a client waits.

    Raises:
        ValueError: it cannot.
    """
    connecting = seconds_of(connect_timeout, "connect_timeout")
    silence = None if timeout is None else seconds_of(timeout, "timeout")
    reconnecting = seconds_of(reconnect_timeout, "reconnect_timeout")
    named = {"connect_timeout": connecting, "timeout": silence, "reconnect_timeout": reconnecting}
    for name, duration in named.items():
        if duration is not None and not 0 < duration <= MAX_TIMEOUT:
            raise ValueError(f"{name} is {duration}: must be seconds, more than 0 and at most {MAX_TIMEOUT}")
    return connecting, silence, reconnecting
