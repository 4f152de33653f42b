"""The blocking client: executes one command at a time, on one connection at a time.

Each client belongs to one thread: nothing here is locked, and a second thread is refused while the first waits.
`commands` makes commands and reads replies, `session` keeps what outlives a connection, `core` decides what happens
after a loss, and `connection` moves the bytes.

Must never send a command again that may have been done.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from beanstalk_client.address import Address, Addresses
from beanstalk_client.commands import AUTHENTICATED, DEFAULT_TUBE, Blocking, Command, Duration, Reply, make
from beanstalk_client.connection import Connection, abandoned_in_forks, open_socket, speak_tls
from beanstalk_client.core import Attempt, ClientCore, ClientOptions, ConnectionOptions
from beanstalk_client.errors import ConnectionLostError, Error, NotFoundError, UnknownCommandError, of_command
from beanstalk_client.job import Job, TBody
from beanstalk_client.pipeline import Pipeline, may_be_sent
from beanstalk_client.replies import MAX_BATCH, jobs_of
from beanstalk_client.statistics import Statistics

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

IDLE: Final = 1.0
"""A connection that was not used for this many seconds is looked at before something is said on it."""


class Client(ClientCore[TBody], Blocking[TBody]):
    """A connection to a server, which comes back if it is lost.

    Durations are seconds, a text with a unit ("250ms", "90s", "15m", "24h", "30d"), or a timedelta.

    Example:
        with Client("127.0.0.1:11300") as queue:
            queue.put("hello")

    Args:
        addresses: where the server is, as `beanstalk_client.address` has it, or a socket that is connected already.
            Of several, which are the nodes of a cluster, the first that answers is taken, and the next one when that
            is lost.
        encoding: of the bodies of jobs; None for bytes.
        use: the tube to use.
        watch: the tube or tubes to watch; `default` only if it is among them.
        options: TLS, token, timeouts and reconnects: see `beanstalk_client.core.ConnectionOptions`.

    Raises:
        TypeError: there is no such option.
        ValueError: an argument makes no sense, or the token would be sent in the clear.
        UnreachableError: no server can be reached.
        ssl.SSLError: the two cannot agree on TLS.
        RuntimeError: the server runs in the event loop that this would hold up.
        UnauthorizedError: the server does not take the token.
    """

    @overload
    def __init__(
        self: Client[bytes],
        addresses: Addresses | socket.socket = ...,
        *,
        encoding: None,
        **options: Unpack[ClientOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Client[bytes],
        addresses: Addresses | socket.socket,
        encoding: None,
        use: str = ...,
        watch: str | Iterable[str] = ...,
        **options: Unpack[ConnectionOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Client[str],
        addresses: Addresses | socket.socket = ...,
        encoding: str = ...,
        use: str = ...,
        watch: str | Iterable[str] = ...,
        **options: Unpack[ConnectionOptions],
    ) -> None: ...

    def __init__(
        self,
        addresses: Addresses | socket.socket = "127.0.0.1:11300",
        encoding: str | None = "utf-8",
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        given = addresses if isinstance(addresses, socket.socket) else None
        where: Addresses = [_peer(given)] if given is not None else cast(Addresses, addresses)
        try:
            super().__init__(where, encoding, use, watch, **options)
        finally:
            del addresses, where, options  # an error report has the variables of each frame
        self._used = time.monotonic()  # when the connection was last used
        self._connection: Connection | None = None
        if given is not None:
            self._reconnects = False
            self._greet(given, self._target.addresses[0], time.monotonic() + self._connect_timeout)
            self._note_connected()
        else:
            self._connect()
        _clients.add(self)

    def __enter__(self) -> Client[TBody]:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def fileno(self) -> int:
        """The file descriptor of the connection, for selectors: there is something to read when it is lost. -1 while
        there is no connection.

        Example:
            selector.register(queue.fileno(), selectors.EVENT_READ)
        """
        return self._connection.fileno() if self._connection is not None else -1

    def close(self) -> None:
        """Ends the connection. The client must not be used after that.

        Example:
            queue.close()
        """
        self._is_closed = True
        self._session.forget_token()
        self._drop()

    def _abandon(self) -> None:
        """In a process that is a fork: leave the connection to the parent. The next command makes another."""
        if self._connection is not None:
            self._connection.abandon()
        self._drop()

    def _detach(self) -> Connection:
        """Give the connection away. The client must not be used after that."""
        connection, self._connection = self._ready(), None
        self.close()
        return connection

    def quit(self) -> None:
        """Ends the connection as `close` does, and lets the server know.

        Example:
            queue.quit()
        """
        if self._connection is not None:
            self._connection.quit()
        self.close()

    # Jobs

    def reserve_batch(self, limit: int, timeout: Duration | None = None) -> list[Job[TBody]]:
        known = self._session.known
        if known.get("reserve-batch", True):
            try:
                return self.execute(make.reserve_batch(limit, timeout))
            except UnknownCommandError:
                known["reserve-batch"] = False
        try:
            return self._reserve_each(limit, timeout)
        except ConnectionLostError as error:
            if not self._may_begin_again(error):
                raise
        return self._reserve_each(limit, timeout)

    def _reserve_each(self, limit: int, timeout: Duration | None) -> list[Job[TBody]]:
        """Reserve one job, waiting for it, and then those that are ready."""
        job: Job[TBody] = self.reserve(timeout)
        results: list[Any] = self.run_all([make.reserve(0)] * (min(limit, MAX_BATCH) - 1))
        return jobs_of([job, *results])

    # Lists

    def list_jobs(self, tube: str, state: str = "ready") -> Iterator[Statistics]:
        following = "0"
        while following:
            try:
                following, entries = self._job_page(tube, state, following)
            except NotFoundError:
                if following == "0":
                    raise
                return
            yield from entries

    def stats_tubes(self, first: str = "", prefix: str = "") -> Iterator[Statistics]:
        following = max(first, prefix)
        while True:
            following, entries = self._tube_page(following)
            for entry in entries:
                if not str(entry["name"]).startswith(prefix):
                    return
                yield entry
            if not following:
                return

    # The server

    def knows(self, command: str) -> bool:
        return self._ask(command, time.monotonic())

    def _ask(self, command: str, began: float) -> bool:
        """Whether the server knows a command, for a call that has begun then."""
        self._ready(began)
        for question in self._session.probes(command):
            try:
                self._run(question, began)
            except Error as error:
                if command not in self._session.known:
                    raise
                error.__traceback__ = None  # its frames would keep the client of a thread that has ended
        return self._session.knows(command)

    def pipeline(self, *, raise_errors: bool = True) -> Pipeline[TBody]:
        return Pipeline(self._run_pipeline, self._session, raise_errors)

    def _run_pipeline(self, replies: list[Reply[Any]]) -> None:
        """Send the commands of a pipeline, but for those whose bodies the server would take for commands."""
        if not replies:
            return
        began = time.monotonic()
        self._ready(began)
        for reply in replies:
            if name := self._session.needs(reply.command):
                self._ask(name, began)
        connection = self._ready(began)
        sent = [reply for reply in replies if may_be_sent(reply, self._session)]
        try:
            results = connection.run_all([reply.command for reply in sent], began)
        except BaseException:
            self._drop()
            raise
        if connection.is_lost:
            self._drop()
        for reply, result in zip(sent, results):
            if isinstance(result, Exception):
                of_command(result, reply.command.line, connection.name)
            reply.settle(result)

    def run_all(self, batch: Sequence[Command[Any]]) -> list[Any]:
        """Send commands in as few writes as there can be; return what has become of each: a result, or an Exception.

        If the connection is lost meanwhile, nothing is said again.

        Example:
            first, second = queue.run_all([make.put(b"a"), make.put(b"b")])
        """
        replies = [Reply(command) for command in batch]
        self._run_pipeline(replies)
        return [reply.exception() or reply.result() for reply in replies]

    def _fit(self, command: Command[T], began: float) -> Command[T]:
        """What to send for a command that servers may take for something else: see `Session.fit`."""
        connection = self._ready(began)
        if name := self._session.needs(command):
            self._ask(name, began)
        if command.origin is not None and self._connection is not connection:
            raise ConnectionLostError(f"{self._names()}: connection lost; the command was not sent")
        return self._session.fit(command)

    # The connection

    def execute(self, command: Command[T]) -> T:
        began = time.monotonic()
        connection = self._connection
        if (
            connection is None
            or began - self._used > IDLE
            or command.needs
            or not (command.origin is None or command.origin is self._session.origin)
        ):
            return self._run(self._fit(command, began), began)
        if connection.protocol.pending:
            raise _in_use()
        self._used = began
        return self._run(command, began, connection)

    def _run(self, command: Command[T], began: float, connection: Connection | None = None) -> T:
        """Send a command, and once more after a loss, if that does no harm.

        Args:
            began: when the call has begun.
            connection: the one to use, if none of the time of the call has passed; None: the one that there is.
        """
        is_late, is_first = connection is None, True
        while True:
            if connection is None:
                connection = self._ready(began)
            result: Any
            try:
                result = connection.run(command, began, is_late)
            except BaseException:  # an interrupt: what is pending would be taken for the reply to the next command
                self._drop()
                raise
            is_lost = connection.protocol.is_lost  # also if more has come than was asked for
            if is_lost:
                self._drop()
            if not isinstance(result, Exception):
                return result  # type: ignore[no-any-return]  # where typing.cast would be a call
            if not (is_lost and is_first and self._may_repeat(command, result, connection.makes_sense)):
                raise of_command(result, command.line, connection.name)
            connection, is_late, is_first = None, True, False

    def _ready(self, began: float | None = None) -> Connection:
        """The connection, which is alive as far as this machine knows; a new one if it must be.

        Args:
            began: when the call has begun that needs it; None: now.
        """
        connection, now = self._connection, time.monotonic()
        if connection is not None:
            if connection.protocol.pending:
                raise _in_use()
            if now - self._used > IDLE and not connection.is_alive():
                self._drop()
                connection = None
        self._used = now
        return self._connect_again(now if began is None else began) if connection is None else connection

    def _drop(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._session.lose()

    def _connect(self, within: float = 0.0, began: float | None = None) -> Connection:
        """Connect to the first address that lets us.

        Args:
            within: the seconds for which to try.
            began: when the call has begun that needs the connection; None: each address is tried once.
        """
        deadline = None if began is None else time.monotonic() + within
        attempts = self._attempts(deadline, within, time.monotonic)
        error: OSError | None = None
        while True:
            step = attempts.send(error)
            error = None
            if not isinstance(step, Attempt):
                time.sleep(step)
                continue
            try:
                connection = self._open(step, deadline, began)
                break
            except OSError as found:
                error = found
        self._used = time.monotonic()
        self._note_connected()
        return connection

    def _open(self, attempt: Attempt, deadline: float | None, began: float | None) -> Connection:
        """Connect to an address, which has its share of the time until a deadline, and of that of the call."""
        address, left = attempt
        now, within, until = time.monotonic(), self._connect_timeout, None
        if deadline is not None:
            within = min(within, max(deadline - now, 0.001) / left)
        if began is not None and self._timeout is not None:
            until = now + max(began + self._timeout - now, 0.001) / left
        sock = open_socket(address.path or (address.host, address.port), within)
        return self._greet(sock, address, now + self._connect_timeout, until)

    def _greet(self, sock: socket.socket, address: Address, deadline: float, until: float | None = None) -> Connection:
        """Shake hands, and say what a new connection must be told.

        Args:
            deadline: when TLS and the token must be done.
            until: when all of it must be done; None: each reply has its own time.
        """
        deadline = deadline if until is None else min(deadline, until)
        if _is_of_running_loop(sock):
            sock.close()
            raise RuntimeError(
                f"{address}: this server runs in the event loop of this thread, which a blocking client would block: "
                "use AsyncClient, or a client in another thread"
            )
        if self._target.context is not None:
            left = max(deadline - time.monotonic(), 0.001)
            sock = speak_tls(sock, self._target.context, self._target.server_name or address.host or None, left)
        connection = Connection(sock, self._session, str(address), self._connect_timeout)
        connection.until = deadline
        try:
            greeting = self._session.greet()
            proof = [command for command in greeting if command.reply is AUTHENTICATED]
            self._say(connection, proof)
            connection.until = until
            connection.set_timeout(self._timeout)  # a node of a cluster without a leader knows a token, and then waits
            self._say(connection, greeting[len(proof) :] + self._session.introduce())
            connection.until = None
        except BaseException:
            connection.close()
            self._session.lose()
            raise
        self._connection = connection
        return connection

    def _say(self, connection: Connection, greeting: Sequence[Command[Any]]) -> None:
        for command, result in zip(greeting, connection.run_all(greeting) if greeting else ()):
            if isinstance(result, Exception) and not self._session.may_fail(command, result):
                raise of_command(result, command.line, connection.name)

    def _connect_again(self, began: float) -> Connection:
        """Connect after a loss, for a call that has begun then."""
        self._check_open()
        within = self._reconnect_timeout
        if self._timeout is not None:
            within = min(within, max(began + self._timeout - time.monotonic(), 0.0))
        return self._connect(within, began)


def _in_use() -> RuntimeError:
    """The error of a second command while the first waits: a thread's, or a signal handler's."""
    return RuntimeError(
        "the client is in use by another thread, or by the call that a signal interrupted: use a separate client for "
        "each thread and for signal handlers"
    )


_clients: weakref.WeakSet[Client[Any]] = abandoned_in_forks()
"""All clients of this process."""


def _peer(sock: socket.socket) -> tuple[str, int] | str:
    """The address that a socket is connected to, as an address."""
    with contextlib.suppress(OSError):
        peer = sock.getpeername()
        if isinstance(peer, tuple):
            return peer[0], peer[1]
    return f"unix:{peer}" if isinstance(peer, str) and peer else "unix:(a socket)"


def _is_of_running_loop(sock: socket.socket) -> bool:
    """Whether a socket is connected to a server of the event loop that runs in this thread.

    Such a server could not answer while the client waits. It lists itself in the loop's attribute `beanstalk_servers`,
    by its `addresses`.
    """
    asyncio = sys.modules.get("asyncio")  # no event loop runs before its import, which costs 50 ms
    loop = asyncio._get_running_loop() if asyncio is not None else None
    servers = getattr(loop, "beanstalk_servers", ())
    if not servers:
        return False
    try:
        mine, peer = sock.getsockname(), sock.getpeername()
    except OSError:  # the connection is lost, which the next read reports
        return False
    places = [peer] if sock.family == socket.AF_UNIX else [peer[:2]]
    if sock.family != socket.AF_UNIX and mine[0] == peer[0]:  # this machine
        places += [("0.0.0.0", peer[1]), ("::", peer[1])]
    return any(not set(places).isdisjoint(each.addresses) for each in servers)
