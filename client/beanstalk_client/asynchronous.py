"""The client for asyncio: `AsyncClient`, which any number of tasks may use at once over one connection.

when commands leave      those of one turn of the loop in one write; no more while the server does not read
what a loss means        the next command connects again, one connection for all who wait; what may be said twice,
                         or has not left yet, is said again
what cancelling means    a job that came too late for its caller is given back; the reserve of a
                         cancelled caller serves the next one like it, or else its connection is closed
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from beanstalk_client.address import Address, Addresses
from beanstalk_client.asynchronous_connection import AsyncConnection
from beanstalk_client.commands import DEFAULT_TUBE, IDENTITY, Asynchronous, Command, Duration, Reply, make
from beanstalk_client.core import CLOSED, Attempt, ClientCore, ClientOptions, ConnectionOptions
from beanstalk_client.errors import (
    ConnectionLostError,
    Error,
    NoAnswerError,
    NotFoundError,
    ReservationLostError,
    UnknownCommandError,
    no_answer,
)
from beanstalk_client.job import Job, Origin, TBody
from beanstalk_client.pipeline import AsyncPipeline, may_be_sent
from beanstalk_client.replies import MAX_BATCH, jobs_of
from beanstalk_client.statistics import Statistics

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

T = TypeVar("T")

NEXT_AFTER: Final = 0.25
"""Seconds after which the next IP address of a name is tried, while those before have not answered (RFC 8305)."""

MOST_RECONNECTS: Final = 3
"""How often a command connects again when connections are lost as soon as they are made."""


class AsyncClient(ClientCore[TBody], Asynchronous[TBody]):
    """A client of a beanstalk server, or of the nodes of a cluster, for asyncio.

    It connects with the first command, with `connect()`, or as `async with AsyncClient(...) as queue:`. Any number of
    tasks may use it at once: their commands go out in order, those of one turn of the loop in one write. A reserve that
    waits holds back what comes behind it, whichever task gives it: the protocol does that. So let who waits for jobs
    have a client of its own. Durations are seconds, a text with a unit ("90s", "15m"), or a timedelta.

    Example:
        async with AsyncClient("127.0.0.1:11300") as queue:
            await queue.put("hello")

    Args:
        addresses: ("host", port), "host:port", "[v6]:port", "unix:/path", "beanstalk://[:token@]host:port[,host:port…]"
            or "beanstalks://…" for TLS; or a list of several, which are the nodes of a cluster: the first that answers
            is taken, the next one when it is lost.
        encoding: of the bodies; None for bytes.
        use: the tube to use.
        watch: the tube or tubes to watch; `default` only if it is among them.
        options: TLS, token, timeouts and reconnects: see `beanstalk_client.core.ConnectionOptions`.

    When a command is cancelled, it may or may not be done. What a cancelled reserve is granted is given back at once,
    with its own priority.

    Raises:
        TypeError: there is no such option.
        ValueError: an address, a name or the token is malformed, or the token would be sent in the clear.
    """

    @overload
    def __init__(
        self: AsyncClient[bytes],
        addresses: Addresses = ...,
        *,
        encoding: None,
        **options: Unpack[ClientOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncClient[str],
        addresses: Addresses = ...,
        encoding: str = ...,
        use: str = ...,
        watch: str | Iterable[str] = ...,
        **options: Unpack[ConnectionOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncClient[bytes],
        addresses: Addresses,
        encoding: None,
        use: str = ...,
        watch: str | Iterable[str] = ...,
        **options: Unpack[ConnectionOptions],
    ) -> None: ...

    def __init__(
        self,
        addresses: Addresses = "127.0.0.1:11300",
        encoding: str | None = "utf-8",
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        try:
            super().__init__(addresses, encoding, use, watch, **options)
        finally:
            del addresses, options  # an error report has the variables of each frame
        self._connection: AsyncConnection | None = None  # the one that may be used
        self._connecting: asyncio.Task[None] | None = None  # connects, for all callers that wait for it
        self._waiting = 0  # callers that wait for a connection
        self._forsakes = False  # a connection had to be closed because no caller waited for its reserve any more
        self._tasks: set[asyncio.Task[None]] = set()  # those that give jobs back

    async def __aenter__(self) -> AsyncClient[TBody]:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as that is known.

        Example:
            if not queue.is_connected:
                await queue.connect()
        """
        return self._connection is not None

    def holds(self, job: Job[TBody]) -> bool:
        """Whether a job was reserved on the connection that there is, as far as that is known.

        Example:
            if queue.holds(job):
                await queue.release(job)
        """
        return job.origin is self._session.origin

    async def recognizes(self, job: Job[TBody]) -> bool:
        """Whether the server is the one from which a job has come, so that its id means the same job. False if that is
        uncertain: `stats` was not asked on the connection of the job, or says another `id`.

        Example:
            if await queue.recognizes(job):
                await queue.delete(job)
        """
        if self.holds(job):
            return True
        server = job.origin.server if job.origin is not None else ""
        if server:
            await self.knows(IDENTITY)
        return bool(server) and server == self._session.origin.server

    # The connection

    async def connect(self) -> AsyncClient[TBody]:
        """Connect now, if there is no connection. Returns the client.

        Example:
            queue = await AsyncClient("127.0.0.1:11300").connect()

        Raises:
            UnreachableError: no address could be reached.
            ssl.SSLError: the two cannot agree on TLS.
            UnauthorizedError: the server does not take the token.
        """
        if self._connection is None:
            await self._wait_for_connection(None)
        return self

    async def close(self) -> None:
        """Close the connection. Commands that wait for their replies get a ConnectionLostError; jobs that are reserved
        are ready again. May be called more than once.

        Example:
            await queue.close()
        """
        self._is_closed = True
        self._session.forget_token()
        self._look_at_loop()
        connecting, connection = self._connecting, self._connection
        if connecting is not None and not connecting.get_loop().is_closed():
            connecting.cancel()
            await asyncio.wait([connecting])
        if connection is not None:
            await connection.close()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def quit(self) -> None:
        """The same as `close()`.

        Example:
            await queue.quit()
        """
        await self.close()

    def _note_loss(self, connection: AsyncConnection) -> None:
        if self._connection is connection:
            self._connection = None
        self._session.lose()

    async def _wait_for_connection(self, within: float | None) -> None:
        """Connect, or wait for a connection, for this many seconds: one task connects for all who wait, until the
        last of them is cancelled. It goes on for those to come when they have waited for too long: where TLS takes
        longer than that, as when a server that is back has thousands of clients, no client would ever be connected.
        """
        self._check_open()
        while True:
            connecting = self._connecting
            if connecting is None or connecting.get_loop().is_closed():
                connecting = self._connecting = asyncio.get_running_loop().create_task(self._connect())
                connecting.add_done_callback(self._note_connecting_ended)
            self._waiting += 1
            try:
                await asyncio.wait([connecting], timeout=within)
            except BaseException:
                if self._waiting == 1 and not connecting.done():
                    connecting.cancel()
                raise
            finally:
                self._waiting -= 1
            if self._is_closed:
                raise ConnectionLostError(CLOSED)
            if within is not None and not connecting.done():
                raise self._unreachable(within, self._failure)
            if not connecting.cancelled():  # else all who waited before had gone
                break
        error = connecting.exception()
        if error is not None:
            raise _fresh(error)

    def _note_connecting_ended(self, connecting: asyncio.Task[None]) -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # which asyncio reports unless it is read, even if all who waited are cancelled

    async def _connect(self) -> None:
        """Connect to the first address that answers.

        A first connection is tried at each address once, a further one again and again for `connect_timeout` or
        `reconnect_timeout` seconds, whichever is longer.
        """
        clock = asyncio.get_running_loop().time
        within = max(self._connect_timeout, self._reconnect_timeout)
        attempts = self._attempts(clock() + within if self._was_connected else None, within, clock)
        error: OSError | None = None
        while True:
            step = attempts.send(error)
            error = None
            if not isinstance(step, Attempt):
                await asyncio.sleep(step)
                continue
            try:
                connection = await asyncio.wait_for(self._open(step.address), self._connect_timeout)
            except asyncio.TimeoutError:
                error = NoAnswerError(f"no answer within {self._connect_timeout:g} s")
            except OSError as found:
                error = found
            else:
                if self._is_closed or not connection.is_lost:
                    self._use(connection)
                    return
                error = ConnectionLostError()

    async def _open(self, address: Address) -> AsyncConnection:
        """A connection that has been told all that it must be told first."""
        loop = asyncio.get_running_loop()
        connection = AsyncConnection(self._session, str(address), self._timeout, self._note_loss, self._give_back)
        context = self._target.context
        name = (self._target.server_name or address.host) if context else None
        try:
            if address.path:
                await loop.create_unix_connection(lambda: connection, address.path, ssl=context, server_hostname=name)
            else:
                how: dict[str, Any] = {}
                if isinstance(loop, asyncio.BaseEventLoop) and not address.is_ip:  # uvloop tries one after the other
                    how["happy_eyeballs_delay"] = NEXT_AFTER
                await loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=context, server_hostname=name, **how
                )
            if connection.is_shared:
                connection.shut()
                return await self._open(address)
            greeting = [connection.call(command) for command in self._session.greet()]
            for command in self._session.introduce():  # no wait: what fails, fails with the commands behind it as well
                connection.call(command).add_done_callback(lambda reply: reply.cancelled() or reply.exception())
            results = await asyncio.gather(*greeting, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            if self._forsakes:  # the next one need not be left behind, where the server knows cancel-reserve
                for probe in self._session.probes("cancel-reserve"):
                    with contextlib.suppress(Error):
                        await connection.call(probe)
            if connection.is_lost:
                raise ConnectionLostError("the server closed the connection")
        except BaseException:
            connection.lose("cannot connect")
            raise
        return connection

    def _use(self, connection: AsyncConnection) -> None:
        if self._is_closed:  # a cancel may come too late to be heard
            connection.lose(CLOSED)
            return
        self._connection = connection
        self._note_connected()

    async def _usable(self, command: Command[Any], origin: Origin | None, until: float | None) -> AsyncConnection:
        """A connection to which the command may be given at once; it was meant for that of `origin`.

        Args:
            until: when the time of the call ends, on the loop's clock.
        """
        reconnects = 0
        while True:
            self._look_at_loop()
            connection = self._connection
            if connection is None:
                if reconnects == MOST_RECONNECTS:
                    raise ConnectionLostError(f"{self._names()}: the server closes each new connection")
                reconnects += 1
                within = self._reconnect_timeout
                if until is not None:
                    within = min(within, max(until - asyncio.get_running_loop().time(), 0.0))
                await self._wait_for_connection(within)
            elif connection.is_forsaken and not connection.may_adopt(command) and not self._session.reserved:
                self._forsakes = True
                connection.lose("closed after a cancelled reserve")
            elif connection.is_full:
                await connection.room.wait()
            else:
                break
        if self._session.origin is not origin and command.is_bound:
            raise ReservationLostError("the connection that reserved the job was lost")
        return connection

    def _look_at_loop(self) -> None:
        """Leave a connection behind whose loop is closed, as one that is lost: nothing can be done with it, nor to it.

        Raises:
            RuntimeError: its loop is another one, which still runs or may run again.
        """
        connection = self._connection
        if connection is None or connection.loop is asyncio.get_running_loop():
            return
        if not connection.loop.is_closed():
            raise RuntimeError("the client is connected in another event loop: use one client for each event loop")
        connection.leave_closed_loop()
        self._note_loss(connection)

    async def execute(self, command: Command[T]) -> T:
        """Give a command and wait for its reply; give it again after a loss, if that does no harm.

        Example:
            job_id = await queue.execute(make.put(b"hello"))
        """
        loop, connection = asyncio.get_running_loop(), self._connection
        until = None if self._timeout is None else loop.time() + self._timeout
        if (
            connection is None
            or connection.is_hindered
            or connection.loop is not loop
            or command.needs
            or not (command.origin is None or command.origin is self._session.origin)
        ):
            if not self._was_connected:
                until = await self._begin()
            return await self._do(command, until, self._connection)
        waiter = connection.call(command)
        try:
            return await waiter
        except ConnectionLostError as error:
            if not self._may_repeat(command, error, connection.makes_sense):
                raise
        except asyncio.CancelledError:
            connection.forsake(command, waiter)
            raise
        if command.is_bound:
            raise ReservationLostError("the connection that reserved the job was lost")
        return await self._do(command, until, attempts=1)

    async def _begin(self) -> float | None:
        """Connect, if that is the first time, which is no part of a call. Return when a call that begins now ends."""
        if not self._was_connected:
            await self.connect()
        return None if self._timeout is None else asyncio.get_running_loop().time() + self._timeout

    async def _do(
        self, command: Command[T], until: float | None, former: AsyncConnection | None = None, attempts: int = 2
    ) -> T:
        """Give a command as this server knows it (see `Session.fit`), and again after a loss, if that does no harm.

        Args:
            until: when the time of the call ends, to which the server may add what the command asks it to wait.
            former: the connection with which the call began, if it has used none of its time: the connection's own
                measure of silence is enough there.
        """
        self._session.check_bound(command)
        origin = self._session.origin
        while True:
            connection = await self._usable(command, origin, until)
            if name := self._session.needs(command):
                await self._ask(name, until)
                former = None
                continue
            attempts -= 1
            try:
                fitting = self._session.fit(command)
                return await self._do_once(fitting, connection, None if connection is former else until)
            except ConnectionLostError as error:
                if not attempts or not self._may_repeat(command, error, connection.makes_sense):
                    raise
                former = None

    async def _do_once(self, command: Command[T], connection: AsyncConnection, until: float | None) -> T:
        waiter = connection.call(command)
        try:
            if until is not None and command.wait is not None:
                await asyncio.wait([waiter], timeout=max(until + command.wait - connection.loop.time(), 0))
                if not waiter.done():
                    waiter.cancel()
                    connection.forsake(command, waiter)
                    raise self._no_answer(command)
            return await waiter
        except asyncio.CancelledError:
            waiter.cancel()
            connection.forsake(command, waiter)
            raise

    def _no_answer(self, command: Command[Any]) -> NoAnswerError:
        return no_answer(self._names(), (self._timeout or 0) + (command.wait or 0))

    async def knows(self, command: str) -> bool:
        return await self._ask(command, await self._begin())

    async def _ask(self, command: str, until: float | None) -> bool:
        """Whether the server knows a command, for a call whose time ends then."""
        for probe in self._session.probes(command):
            try:
                await self._do(probe, until)
            except Error:
                if command not in self._session.known:
                    raise
        return self._session.knows(command)

    def _give_back(self, connection: AsyncConnection, jobs: list[Job[Any]]) -> None:
        task = asyncio.get_running_loop().create_task(self._release(connection, jobs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, connection: AsyncConnection, jobs: list[Job[Any]]) -> None:
        """Give back jobs that have no caller; release them, each with its own priority, if the server cannot do that.

        If the connection is lost meanwhile, the server itself gives them back. So it is left behind at once if what it
        waits for would hold back the release, and nothing else is reserved.
        """
        if connection.is_forsaken and self._session.reserved <= {job.id for job in jobs}:
            self._forsakes = True
            connection.lose("closed after a cancelled reserve")
            return
        given = [connection.call(make.give_back(job.id)) for job in jobs]
        replies = await asyncio.gather(*given, return_exceptions=True)
        left = [job for job, reply in zip(jobs, replies) if isinstance(reply, UnknownCommandError)]  # it is beanstalkd
        asked = [connection.call(make.stats_job(job.id)) for job in left]
        found = await asyncio.gather(*asked, return_exceptions=True)
        released = []
        for job, statistics in zip(left, found):
            priority = statistics.get("pri") if isinstance(statistics, dict) else None
            released.append(connection.call(make.release(job.id, priority if isinstance(priority, int) else None)))
        await asyncio.gather(*released, return_exceptions=True)

    def pipeline(self, *, raise_errors: bool = True) -> AsyncPipeline[TBody]:
        return AsyncPipeline(self._do_all, self._session, raise_errors)

    async def _do_all(self, replies: list[Reply[Any]]) -> None:
        """Give the commands of a pipeline, and wait for all replies. What is lost is not given again."""
        if not replies:
            return
        until, former = await self._begin(), self._connection
        connection = await self._usable(replies[0].command, self._session.origin, until)
        for reply in replies:
            while name := self._session.needs(reply.command):
                await self._ask(name, until)
                former = None
                connection = await self._usable(replies[0].command, self._session.origin, until)
        given: list[Reply[Any]] = []
        try:
            for reply in replies:
                if connection.is_full:
                    await connection.room.wait()
                if not may_be_sent(reply, self._session):
                    continue
                given.append(reply)
                connection.send(reply.command, reply)
            if given and not given[-1].is_there:
                given[-1].last = last = connection.loop.create_future()
                first = given[0].command
                if until is not None and first.wait is not None and connection is not former:
                    await asyncio.wait([last], timeout=max(until + first.wait - connection.loop.time(), 0))
                    if not given[0].is_there:  # else the connection measures the silence behind each reply
                        for reply in given:
                            reply.cancel()
                            connection.forsake(reply.command, reply)
                            reply.set_exception(self._no_answer(first))
                await last
        except asyncio.CancelledError:
            for reply in given:
                reply.cancel()
                connection.forsake(reply.command, reply)
            raise

    # Jobs

    async def reserve_batch(self, limit: int, timeout: Duration | None = None) -> list[Job[TBody]]:
        known = self._session.known
        if known.get("reserve-batch", True):
            try:
                return await self.execute(make.reserve_batch(limit, timeout))
            except UnknownCommandError:
                known["reserve-batch"] = False
        try:
            return await self._reserve_each(limit, timeout)
        except ConnectionLostError as error:
            if not self._may_begin_again(error):
                raise
        return await self._reserve_each(limit, timeout)

    async def _reserve_each(self, limit: int, timeout: Duration | None) -> list[Job[TBody]]:
        """Reserve one job, waiting for it, and then those that are ready."""
        job = await self.reserve(timeout)
        connection = self._connection
        if limit == 1 or connection is None:
            return [job]
        command = make.reserve(0)
        waiters = [connection.call(command) for _ in range(min(limit, MAX_BATCH) - 1)]
        try:
            results: list[Any] = await asyncio.gather(*waiters, return_exceptions=True)
        except asyncio.CancelledError:
            connection.give_back(job)
            for waiter in waiters:
                connection.forsake(command, waiter)
            raise
        return jobs_of([job, *results])

    # Lists

    async def list_jobs(self, tube: str, state: str = "ready") -> AsyncIterator[Statistics]:
        following = "0"
        while following:
            try:
                following, entries = await self._job_page(tube, state, following)
            except NotFoundError:
                if following == "0":
                    raise
                return
            for entry in entries:
                yield entry

    async def stats_tubes(self, first: str = "", prefix: str = "") -> AsyncIterator[Statistics]:
        following = max(first, prefix)
        while True:
            following, entries = await self._tube_page(following)
            for entry in entries:
                if not str(entry["name"]).startswith(prefix):
                    return
                yield entry
            if not following:
                return


def _fresh(error: BaseException) -> BaseException:
    """The error, to be raised once more: each who waits gets one of his own, whose traceback is his."""
    try:
        fresh = copy.copy(error)
    except TypeError:  # its class does not say how it is made
        return error
    fresh.__cause__ = error.__cause__
    return fresh
