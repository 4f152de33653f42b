"""The part of a client that both shells share: options, addresses to try, and what is repeated after a loss.

    blocking.Client             executes commands on a socket, in a thread
    asynchronous.AsyncClient    executes commands in an event loop

The shells connect, send, receive and wait. This module decides: which address is next, how long to pause before the
next attempt, whether a command may be sent again, and which error says that there is no connection.

Must never do any I/O, sleep, or read a clock other than the one that it is given.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Callable, Final, NamedTuple, TypedDict, Union

from beanstalk_client.address import Address, Addresses, read_target
from beanstalk_client.commands import Command, Commands, Duration
from beanstalk_client.errors import (
    ConnectionLostError,
    NoAnswerError,
    UnreachableError,
    of_attempt,
    unreachable,
)
from beanstalk_client.job import TBody
from beanstalk_client.session import RECONNECT_WITHIN, Session, read_patience

if TYPE_CHECKING:
    import ssl

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
"""Seconds between two rounds of attempts to reach any of the addresses; each pause is twice the one before."""

CLOSED: Final = "the client is closed"


class ConnectionOptions(TypedDict, total=False):
    """The keywords of both clients that concern the connection.

    Args:
        tls: how to speak TLS: a context (which also has the certificate of this client, if the server asks for one),
            or True to trust the authorities that the system trusts. False for a plain connection.
        server_name: the name that the server's certificate must have; by default the host of the address.
        token: the token of a user, sent before anything else; "" for none. It is kept only where `reconnect` needs it.
        connect_timeout: seconds for connecting, TLS and the token, for each address; 10 by default.
        timeout: seconds that a call may take beyond what the server is asked to wait; None: for ever; 60 by default.
            After that, a call raises NoAnswerError.
        reconnect: whether a command connects again when the connection is lost; True by default.
        reconnect_timeout: seconds for which a command tries to, while no address lets it connect; 1 by default. A
            client for asyncio goes on connecting after that, for the commands that follow.
        on_reconnect: called after that, with the ids of the jobs that were reserved and are so no more.
        insecure_token: whether the token may be sent to other machines without TLS; False by default.
        name: the name of the client, by the rules of tube names, for operators: see `client_name`. None, the default,
            for "<program>/<host>/<process id>"; "" for none.
    """

    tls: ssl.SSLContext | bool
    server_name: str | None
    token: str
    connect_timeout: Duration
    timeout: Duration | None
    reconnect: bool
    reconnect_timeout: Duration
    on_reconnect: Callable[[frozenset[int]], object] | None
    insecure_token: bool
    name: str | None


class ClientOptions(ConnectionOptions, total=False):
    """The keywords of both clients.

    Args:
        use: the tube to use.
        watch: the tube or tubes to watch; `default` only if it is among them.
    """

    use: str
    watch: str | Iterable[str]


class Attempt(NamedTuple):
    """An address to connect to.

    Args:
        left: the addresses of this round that were not tried yet, among them this one.
    """

    address: Address
    left: int


Step = Union[Attempt, float]
"""What a shell does next to get a connection: it connects, or pauses for some seconds."""


class ClientCore(Commands[TBody]):
    """The state and the decisions of a client.

    Args:
        encoding: of the bodies; None for bytes.
        use, watch, and the others: the options of `ClientOptions`.

    Raises:
        ValueError: an argument makes no sense, or the token would be sent in the clear.
    """

    _session: Session

    def __init__(
        self,
        addresses: Addresses,
        encoding: str | None,
        use: str,
        watch: str | Iterable[str],
        *,
        tls: ssl.SSLContext | bool = False,
        server_name: str | None = None,
        token: str = "",
        connect_timeout: Duration = 10.0,
        timeout: Duration | None = 60.0,
        reconnect: bool = True,
        reconnect_timeout: Duration = RECONNECT_WITHIN,
        on_reconnect: Callable[[frozenset[int]], object] | None = None,
        insecure_token: bool = False,
        name: str | None = None,
    ) -> None:
        try:
            target = read_target(
                addresses, tls=tls, server_name=server_name, token=token, insecure_token=insecure_token
            )
        finally:
            del addresses, token  # an error report has the variables of each frame
        self._session = Session(encoding, use, watch, target.token, name)
        self._target = target._replace(token="")
        self._connect_timeout, self._timeout, self._reconnect_timeout = read_patience(
            connect_timeout, timeout, reconnect_timeout
        )
        self._reconnects = reconnect
        self._on_reconnect = on_reconnect
        self._next = 0  # the index of the address to try next
        self._failure: OSError | None = None  # of the last round of attempts, while another one follows
        self._was_connected = False
        self._is_closed = False

    def __repr__(self) -> str:
        tls = " over TLS" if self._target.context else ""
        return f"beanstalk_client.{type(self).__name__}({self._names()}{tls})"

    def _names(self) -> str:
        return ", ".join(map(str, self._target.addresses))

    @property
    def encoding(self) -> str | None:
        """The encoding of bodies; None for bytes.

        Example:
            queue.encoding  # "utf-8"
        """
        return self._session.encoding

    # What both shells define: as coroutines and asynchronous iterators in that for asyncio

    def knows(self, command: str) -> Any:
        """Whether the server knows a command, such as "put-with", or "durations": those with fractions of a second.

        One question for each connection answers this for all of them.

        Example:
            if queue.knows("put-with"):
                queue.put_with("hello", tries=5)

        Raises:
            ValueError: no server lists it.
        """

    def pipeline(self, *, raise_errors: bool = True) -> Any:
        """Commands that are sent together, at the end of a block, in as few writes as there can be.

        Example:
            with queue.pipeline() as together:  # of an AsyncClient: async with
                first, second = together.put("a"), together.put("b")
            print(first.result(), second.result())

        Args:
            raise_errors: raise the first error at the end of the block, when all replies are there; otherwise each is
                raised by `result()` only.
        """

    def list_jobs(self, tube: str, state: str = "ready") -> Any:
        """Iterates over what the server tells of the jobs of a tube in one state, in their order, without their bodies.

        Pages are asked for as they are needed. Jobs may come and go meanwhile; those that stay where they are are given
        once each. If the tube goes, there are no more.

        Example:
            for job in queue.list_jobs("mail", "buried"):  # of an AsyncClient: async for
                print(job["id"])

        Args:
            state: `ready`, `delayed`, `reserved` or `buried`.

        Raises:
            NotFoundError: there is no such tube at the beginning.
        """

    def stats_tubes(self, first: str = "", prefix: str = "") -> Any:
        """Iterates over the statistics of the tubes, in the order of their names, and asks for pages as it needs them.

        Tubes may come and go meanwhile; those that stay are given once each.

        Example:
            for tube in queue.stats_tubes(prefix="mail"):  # of an AsyncClient: async for
                print(tube["name"], tube["current-jobs-ready"])

        Args:
            first: the name to begin with; by default the first one that there is, or that has the prefix.
            prefix: what the names must begin with.
        """

    def _attempts(
        self, until: float | None, within: float, clock: Callable[[], float]
    ) -> Generator[Step, OSError | None, None]:
        """The steps to a connection. The shell sends the error of each attempt that has failed.

        Args:
            until: when to give up, by this clock; None: after each address was tried once.
            within: the seconds that this is from the beginning.

        Raises:
            OSError: the first error of the only round.
            UnreachableError: the time is over.
        """
        addresses = self._target.addresses
        pause = FIRST_PAUSE
        self._failure = None
        while True:
            failure: OSError | None = None
            for left in range(len(addresses), 0, -1):
                address = addresses[self._next % len(addresses)]
                self._next += 1  # if this one is lost, the next one is tried first
                error = yield Attempt(address, left)
                assert error is not None
                failure = failure or of_attempt(error, address)
            assert failure is not None
            if until is None:
                raise failure
            remaining = until - clock()
            if remaining <= 0:
                raise self._unreachable(within, failure)
            self._failure = failure
            yield min(pause, remaining)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _unreachable(self, within: float, failure: OSError | None) -> UnreachableError:
        why = TimeoutError("no answer") if failure is None else failure
        error = unreachable(f"{self._names()}: cannot connect within {within:.3g} s", why)
        error.__cause__ = failure
        return error

    def _note_connected(self) -> None:
        """A connection has its greeting. Report the reservations that went with the one before."""
        is_first, self._was_connected = not self._was_connected, True
        self._failure = None
        if not self._reconnects:
            self._session.forget_token()
        lost = self._session.take_lost()
        if self._on_reconnect is not None and not is_first:
            self._on_reconnect(lost)

    def _check_open(self) -> None:
        """Raise an error if there may be no further connection."""
        if self._is_closed:
            raise ConnectionLostError(CLOSED)
        if self._was_connected and not self._reconnects:
            raise ConnectionLostError(f"{self._names()}: connection lost, and the client does not reconnect")

    def _may_repeat(self, command: Command[Any], error: Exception, makes_sense: bool) -> bool:
        """Whether a command may be sent again after a loss: not after a silence, when the time of the call is over.

        Args:
            makes_sense: the replies of the lost connection did, so that another connection may do better.
        """
        if self._is_closed or not self._reconnects or not isinstance(error, ConnectionLostError):
            return False
        return not error.maybe_done or (command.repeatable and makes_sense and not isinstance(error, NoAnswerError))

    def _may_begin_again(self, error: ConnectionLostError) -> bool:
        """Whether jobs are reserved again one by one: those that were reserved before the loss are ready again."""
        return self._reconnects and not self._is_closed and not isinstance(error, (NoAnswerError, UnreachableError))
