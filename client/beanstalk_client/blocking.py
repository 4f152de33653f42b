"""The blocking client: one connection at a time, one command at a time.

A thread of its own for each client: nothing here is locked, and a second one is refused while the first waits. What is
asked, and what replies mean, is in `commands`; what outlives a connection, in `session`; bytes and silences, in
`connection`. Here is what to do when a connection is lost: the next command connects again, and what may safely be said
twice is.

Must never say twice what may have been done.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, Final, TypeVar, cast, overload

from beanstalk_client.address import Address, Addresses, read_target
from beanstalk_client.commands import (
    DEFAULT_TUBE,
    Blocking,
    Command,
    Duration,
    Reply,
    make,
)
from beanstalk_client.connection import Connection, open_socket, speak_tls
from beanstalk_client.errors import (
    ConnectionLostError,
    Error,
    NoAnswerError,
    NotFoundError,
    UnknownCommandError,
    UnreachableError,
    of_attempt,
    of_command,
    unreachable,
)
from beanstalk_client.job import Job, JobOrID, TBody
from beanstalk_client.pipeline import Pipeline, may_be_sent
from beanstalk_client.replies import AUTHENTICATED, MAX_BATCH, jobs_of
from beanstalk_client.session import RECONNECT_WITHIN, Session, read_patience
from beanstalk_client.statistics import Statistics

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

IDLE: Final = 1.0
"""A connection that was not used for this many seconds is looked at before something is said on it."""

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
"""Seconds between attempts to connect again; each pause is twice the one before."""


class Client(Blocking[TBody]):
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
        tls: how to speak TLS: a context (which also has the certificate of this client, if the server asks for one),
            or True to trust the authorities that the system trusts. False for a plain connection.
        server_name: the name that the server's certificate must have; by default the host of the address.
        token: the token of a user, sent before anything else; "" for none. It is kept only where `reconnect` needs it.
        connect_timeout: seconds for connecting, TLS and the token, for each address.
        timeout: seconds that a call may take beyond what the server is asked to wait; None: for ever.
        reconnect: whether a command connects again when the connection is lost.
        reconnect_timeout: seconds for which it tries to, while no address lets it connect.
        on_reconnect: called after that, with the ids of the jobs that were reserved and are so no more.
        insecure_token: whether the token may be sent to other machines without TLS.

    Raises:
        ValueError: an argument makes no sense, or the token would be sent in the clear.
        UnreachableError: no server can be reached.
        ssl.SSLError: the two cannot agree on TLS.
        RuntimeError: the server runs in the event loop that this would hold up.
        UnauthorizedError: the server does not take the token.
    """

    _session: Session

    @overload
    def __init__(
        self: Client[bytes],
        addresses: Addresses | socket.socket = ...,
        *,
        encoding: None,
        use: str = ...,
        watch: str | Iterable[str] = ...,
        tls: ssl.SSLContext | bool = ...,
        server_name: str | None = ...,
        token: str = ...,
        connect_timeout: Duration = ...,
        timeout: Duration | None = ...,
        reconnect: bool = ...,
        reconnect_timeout: Duration = ...,
        on_reconnect: Callable[[frozenset[int]], object] | None = ...,
        insecure_token: bool = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Client[bytes],
        addresses: Addresses | socket.socket,
        encoding: None,
        use: str = ...,
        watch: str | Iterable[str] = ...,
        *,
        tls: ssl.SSLContext | bool = ...,
        server_name: str | None = ...,
        token: str = ...,
        connect_timeout: Duration = ...,
        timeout: Duration | None = ...,
        reconnect: bool = ...,
        reconnect_timeout: Duration = ...,
        on_reconnect: Callable[[frozenset[int]], object] | None = ...,
        insecure_token: bool = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Client[str],
        addresses: Addresses | socket.socket = ...,
        encoding: str = ...,
        use: str = ...,
        watch: str | Iterable[str] = ...,
        *,
        tls: ssl.SSLContext | bool = ...,
        server_name: str | None = ...,
        token: str = ...,
        connect_timeout: Duration = ...,
        timeout: Duration | None = ...,
        reconnect: bool = ...,
        reconnect_timeout: Duration = ...,
        on_reconnect: Callable[[frozenset[int]], object] | None = ...,
        insecure_token: bool = ...,
    ) -> None: ...

    def __init__(
        self,
        addresses: Addresses | socket.socket = "127.0.0.1:11300",
        encoding: str | None = "utf-8",
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
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
    ) -> None:
        given = addresses if isinstance(addresses, socket.socket) else None
        try:
            self._target = read_target(
                [_peer(given)] if given is not None else cast(Addresses, addresses),
                tls=tls,
                server_name=server_name,
                token=token,
                insecure_token=insecure_token,
            )
        finally:
            del addresses, token  # an error report has the variables of each frame
        self._session = Session(encoding, use, watch, self._target.token)
        self._target = self._target._replace(token="")
        self._connect_timeout, self._timeout, self._reconnect_timeout = read_patience(
            connect_timeout, timeout, reconnect_timeout
        )
        self._reconnect = reconnect and given is None
        self._on_reconnect = on_reconnect
        self._next = 0  # the address to try first
        self._used = time.monotonic()  # when the connection was last used
        self._is_closed = False
        self._connection: Connection | None = None
        if given is not None:
            self._greet(given, self._target.addresses[0], time.monotonic() + self._connect_timeout)
        else:
            self._open()
        if not self._reconnect:
            self._session.forget_token()
        _clients.add(self)

    def __repr__(self) -> str:
        return f"beanstalk_client.Client({', '.join(map(str, self._target.addresses))})"

    def __enter__(self) -> Client[TBody]:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    @property
    def encoding(self) -> str | None:
        """The encoding of bodies; None for bytes.

        Example:
            Client("127.0.0.1:11300", encoding=None).encoding  # None
        """
        return self._session.encoding

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
        """Reserves as many jobs as there are, at least one and at most `limit`. Waits until there is one.

        A server that does not know reserve-batch is asked for one job, and then for what else is ready.

        Example:
            for job in queue.reserve_batch(100, timeout=5):
                queue.delete(job)

        Args:
            timeout: the most seconds to wait; None: for ever.

        Raises:
            TimedOutError, DeadlineSoonError: as for `reserve`.
        """
        known = self._session.known
        if known.get("reserve-batch", True):
            try:
                return self.execute(make.reserve_batch(limit, timeout))
            except UnknownCommandError:
                known["reserve-batch"] = False
        try:
            return self._reserve_each(limit, timeout)
        except ConnectionLostError as error:  # and what was reserved has gone back
            if self._is_closed or not self._reconnect or isinstance(error, (NoAnswerError, UnreachableError)):
                raise
        return self._reserve_each(limit, timeout)

    def _reserve_each(self, limit: int, timeout: Duration | None) -> list[Job[TBody]]:
        """Reserve one job, waiting for it, and then those that are ready."""
        job: Job[TBody] = self.reserve(timeout)
        results: list[Any] = self.run_all([make.reserve(0)] * (min(limit, MAX_BATCH) - 1))
        return jobs_of([job, *results])

    # Lists

    def list_jobs(self, tube: str, state: str = "ready") -> Iterator[Statistics]:
        """Iterates over what the server tells of the jobs of a tube in one state, in their order, without their bodies.

        Pages are asked for as they are needed. Jobs may come and go meanwhile; those that stay where they are are given
        once each. If the tube goes, there are no more.

        Example:
            for job in queue.list_jobs("mail", "buried"):
                print(job["id"])

        Args:
            state: `ready`, `delayed`, `reserved` or `buried`.

        Raises:
            NotFoundError: there is no such tube at the beginning.
        """
        following = "0"
        while following:
            try:
                page = self._job_page(tube, state, following)
            except NotFoundError:
                if following == "0":
                    raise
                return
            following, entries = page
            yield from entries

    def stats_tubes(self, first: str = "", prefix: str = "") -> Iterator[Statistics]:
        """Iterates over the statistics of the tubes, in the order of their names, and asks for pages as it needs them.

        Tubes may come and go meanwhile; those that stay are given once each.

        Example:
            for tube in queue.stats_tubes(prefix="mail"):
                print(tube["name"], tube["current-jobs-ready"])

        Args:
            first: the name to begin with; by default the first one that there is, or that has the prefix.
            prefix: what the names must begin with.
        """
        following, is_first = max(first, prefix), True
        while following or is_first:
            is_first = False
            following, entries = self._tube_page(following)
            for entry in entries:
                if not str(entry["name"]).startswith(prefix):
                    return
                yield entry

    # The server

    def knows(self, command: str) -> bool:
        """Whether the server knows a command, such as "put-with". It is asked once for each connection.

        Example:
            if queue.knows("put-with"):
                queue.put_with("hello", tries=5)
        """
        return self._ask(command, time.monotonic())

    def _ask(self, command: str, began: float) -> bool:
        """Whether the server knows a command, for a call that has begun then."""
        self._ready(began)
        answer = None
        for question in self._session.probes(command):
            try:
                answer = self._run_late(question, began, attempts=2)
            except Error as error:
                if command not in self._session.known:
                    raise
                error.__traceback__ = None  # its frames would keep the client of a thread that has ended
        return self._session.knows(command, answer)

    def pipeline(self, *, raise_errors: bool = True) -> Pipeline[TBody]:
        """Commands that are sent together, at the end of a block.

        Example:
            with queue.pipeline() as together:
                first, second = together.put("a"), together.put("b")
            print(first.result(), second.result())

        Args:
            raise_errors: raise the first error at the end of the block, when all replies are there; otherwise each is
                raised by `result()` only.
        """
        return Pipeline(self._run_pipeline, self._session, raise_errors)

    def _run_pipeline(self, replies: list[Reply[Any]]) -> None:
        """Send the commands of a pipeline, but for those whose bodies the server would take for commands."""
        if not replies:
            return
        began = time.monotonic()
        self._ready(began)
        for name in {self._session.needs(reply.command) for reply in replies} - {""}:
            self._ask(name, began)
        sent = [reply for reply in replies if may_be_sent(reply, self._session)]
        for reply, result in zip(sent, self._run_all([reply.command for reply in sent], began)):
            reply.settle(result)

    def _fit(self, command: Command[T], began: float) -> Command[T]:
        """What to send for a command that servers may take for something else: see `Session.fit`."""
        connection = self._ready(began)
        needs = self._session.needs(command)
        if needs and needs not in self._session.known:
            self._ask(needs, began)
        if command.origin is not None and self._connection is not connection:
            raise ConnectionLostError(f"{self._names()}: the connection is lost, and the command was not sent")
        return self._session.fit(command)

    def _held(self, job: JobOrID[TBody]) -> int:
        if isinstance(job, Job):
            self._ready()
        return self._session.held(job)

    # The connection

    def execute(self, command: Command[T]) -> T:
        began = time.monotonic()
        is_late = command.needs != ""
        if is_late:
            command = self._fit(command, began)
        connection = self._connection
        if connection is None or began - self._used > IDLE:
            former, connection = connection, self._ready(began)
            is_late = is_late or connection is not former
        elif connection.protocol.pending:
            raise _in_use()
        else:
            self._used = began
        if not (command.origin is None or command.origin is self._session.origin):
            command, is_late = self._fit(command, began), True
        result: Any
        try:
            result = connection.run(command, began, is_late)
        except BaseException:  # an interrupt: what is pending would be taken for the reply to the next command
            self._drop()
            raise
        if isinstance(result, Exception):
            if connection.is_lost:
                self._drop()
                if self._may_repeat(command, connection, result):
                    return self._run_late(command, began)
            raise of_command(result, command.line, connection.name)
        if connection.protocol.is_lost:  # more has come than was asked for
            self._drop()
        return result  # type: ignore[no-any-return]  # where typing.cast would be a call

    def _may_repeat(self, command: Command[Any], connection: Connection, error: Exception) -> bool:
        """Whether a command may be sent again after a loss: not after a silence, when the time of the call is over."""
        is_silent = isinstance(error, NoAnswerError)
        return command.repeatable and self._reconnect and connection.may_repeat and not is_silent

    def _run_late(self, command: Command[T], began: float, attempts: int = 1) -> T:
        """Send a command of a call that has begun then, and again after a loss, as long as there are attempts."""
        while True:
            connection = self._ready(began)
            attempts -= 1
            try:
                result = connection.run(command, began, is_late=True)
            except BaseException:
                self._drop()
                raise
            is_lost = connection.is_lost
            if is_lost:
                self._drop()
            if not isinstance(result, Exception):
                return cast(T, result)
            if not (is_lost and attempts and self._may_repeat(command, connection, result)):
                raise of_command(result, command.line, connection.name)

    def run_all(self, batch: Sequence[Command[Any]]) -> list[Any]:
        """Send commands in as few writes as there can be; return what has become of each: a result, or an Exception.

        If the connection is lost meanwhile, nothing is said again.

        Example:
            first, second = queue.run_all([make.put(b"a"), make.put(b"b")])
        """
        return self._run_all(batch, time.monotonic())

    def _run_all(self, batch: Sequence[Command[Any]], began: float) -> list[Any]:
        """As `run_all`, for a call that has begun then."""
        if not batch:
            return []
        if any(command.needs for command in batch):
            batch = [self._fit(command, began) if command.needs else command for command in batch]
        connection = self._ready(began)
        if not all(self._session.is_origin(command.origin) for command in batch):
            batch = [self._fit(command, began) for command in batch]
        try:
            results = connection.run_all(batch, began)
        except BaseException:
            self._drop()
            raise
        if connection.is_lost:
            self._drop()
        for command, result in zip(batch, results):
            if isinstance(result, Exception):
                of_command(result, command.line, connection.name)
        return results

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
        return self._open_again(now if began is None else began) if connection is None else connection

    def _drop(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._session.lose()

    def _open(self, deadline: float | None = None, began: float | None = None) -> Connection:
        """Connect to the first address that lets us, each of which has its share of the time until a deadline, and of
        that of the call, which has begun then.
        """
        addresses = self._target.addresses
        within = self._connect_timeout
        failure: OSError | None = None
        for number in range(len(addresses)):
            address = addresses[self._next % len(addresses)]
            self._next += 1  # if this one is lost, the next one is tried first
            now, until = time.monotonic(), None
            if deadline is not None:
                within = min(within, max(deadline - now, 0.001) / (len(addresses) - number))
            if began is not None and self._timeout is not None:
                until = now + max(began + self._timeout - now, 0.001) / (len(addresses) - number)
            try:
                sock = open_socket(address.path or (address.host, address.port), within)
                return self._greet(sock, address, now + self._connect_timeout, until)
            except OSError as error:
                failure = failure or of_attempt(error, address)
        assert failure is not None
        raise failure

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
                f"{address}: this server runs in the event loop of this thread, and could not answer while a blocking "
                "client waits: use AsyncClient, or make the client in another thread"
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
            self._say(connection, greeting[len(proof) :])
            connection.until = None
        except BaseException:
            connection.close()
            self._session.lose()
            raise
        self._connection = connection
        return connection

    def _say(self, connection: Connection, greeting: Sequence[Command[Any]]) -> None:
        for command, result in zip(greeting, connection.run_all(greeting) if greeting else ()):
            if isinstance(result, Exception):
                raise of_command(result, command.line, connection.name)

    def _open_again(self, began: float) -> Connection:
        """Connect after a loss, for a call that has begun then, and tell of the reservations that it has cost."""
        if self._is_closed:
            raise ConnectionLostError("the client is closed")
        if not self._reconnect:
            raise ConnectionLostError(f"{self._names()}: the connection is lost, and the client does not reconnect")
        within = self._reconnect_timeout
        if self._timeout is not None:
            within = min(within, max(began + self._timeout - time.monotonic(), 0.0))
        deadline = time.monotonic() + within
        pause = FIRST_PAUSE
        while True:
            try:
                connection = self._open(deadline, began)
                break
            except OSError as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    why = f"within {within:.3g} s"
                    raise unreachable(f"{self._names()}: no server can be reached {why}", error) from error
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        self._used = time.monotonic()
        lost = self._session.take_lost()
        if self._on_reconnect is not None:
            self._on_reconnect(lost)
        return connection

    def _names(self) -> str:
        return ", ".join(map(str, self._target.addresses))


def _in_use() -> RuntimeError:
    """The error of a second command while the first waits: a thread's, or a signal handler's."""
    return RuntimeError("another thread, or this one before a signal, is using the client: let each have its own")


_clients: weakref.WeakSet[Client[Any]] = weakref.WeakSet()
"""All clients of this process."""


def _part_from_parent() -> None:
    """This process is a fork: the connections are its parent's, and the next command of each client makes another."""
    for client in list(_clients):
        if client._connection is not None:
            client._connection.abandon()
        client._drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_part_from_parent)


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
