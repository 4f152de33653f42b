"""A process that clients reach: where they come in, and the order in which its parts start and stop.

Server    one service, for life (server.py)
Node      a service for each shard that it leads, and links to the leaders of others (cluster/node.py)
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from beanstalk_server.events import event
from beanstalk_server.queue.policy import PolicyOf, no_policies
from beanstalk_server.queue.units import MILLISECOND
from beanstalk_server.server.front import listeners
from beanstalk_server.server.front.addresses import Address, address_of, name_of_address
from beanstalk_server.server.front.listener_policy import ListenerPolicy, accounts_of, listener_policy_of, ways_of
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.idle import IdleSweeps
from beanstalk_server.server.keepalive import set_keepalive
from beanstalk_server.server.memory_return import MemoryReturn
from beanstalk_server.server.process import this_process
from beanstalk_server.server.service import Service, policies_of
from beanstalk_server.server.start_error import JOURNAL_FAILED, StartError
from beanstalk_server.server.turns import Turns
from beanstalk_server.settings.declaration import BAD_OPTION, ConfigError
from beanstalk_server.settings.options import ADDRESS, Config, option
from beanstalk_server.settings.sections import ListenerConfig
from beanstalk_server.settings.warnings import warnings_of
from beanstalk_server.version import full_version

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts
    from beanstalk_server.access.policies import Policies
    from beanstalk_server.admin.health import Condition
    from beanstalk_server.admin.metrics import ShardFigures
    from beanstalk_server.server.front.http_front import HttpFront
    from beanstalk_server.server.front.pending import PendingConnections
    from beanstalk_server.server.idle import Idler
    from beanstalk_server.server.measurements import Measurements
    from beanstalk_server.server.reload import Prepared
    from beanstalk_server.server.slow import SlowLog

JUDGE_TIME: Final = 500_000
"""Nanoseconds that a reload may spend on connections in one round of the event loop."""

SERVERS_OF_LOOP: Final = "beanstalk_servers"
"""The attribute of an event loop that lists its servers, each an object with `addresses`. A blocking client in the
thread of the loop reads it, and does not connect to them: they could not answer while the client waits."""

log = logging.getLogger("beanstalk_server")


class IoFront(Protocol):
    """The processes that have the sockets of clients, beside this one (io_processes/processes.py)."""

    def make_context(self) -> Callable[[ListenerConfig], Any]:
        """What makes the TLS contexts of new settings."""

    def start(self) -> None:
        """Start the processes, before the server gives up its privileges."""

    async def serve(self) -> None:
        """Let clients come in; return when they can."""

    async def change(self) -> None:
        """Let new settings take effect."""

    def give_up(self) -> None:
        """End the processes: no one has been served."""

    async def stop(self) -> None:
        """End the processes, when they have sent what they have been given."""


MakeIo = Callable[[int, listeners.Listeners, Callable[[], Callable[..., Any]]], IoFront]
"""Makes this many I/O processes for these listeners; the last argument returns what makes the protocol of a client."""


class Host(ABC):
    """Listens from `start` to `stop`; as an asynchronous context manager, in between.

    Args:
        make_io: makes the I/O processes, if the settings ask for some.
    """

    def __init__(self, config: Config, make_io: MakeIo | None = None) -> None:
        if config.io_processes and make_io is None:
            raise ConfigError(f"{option('io_processes')}: create the server with beanstalk_server.server_of")
        self.config = config
        self.info = this_process(config.max_job_size, monotonic_ns(), config.compat)
        self.turns = Turns()  # of those who come in
        self.hangups = HangupWatch()
        self.listeners = listeners.Listeners()
        self.policies = policies_of(self.config)
        self.slow: SlowLog | None = None
        if self.config.slow_ms:
            from beanstalk_server.server.slow import SlowLog  # most servers do not say what is slow

            self.slow = SlowLog(round(self.config.slow_ms * MILLISECOND))
        if not config.io_processes:
            self.listeners.serve(self.turns, self._client_maker)
        self._io = make_io(config.io_processes, self.listeners, self._client_maker) if make_io else None
        self._http: HttpFront | None = None  # if a listener speaks HTTP
        self.idle = IdleSweeps(self._idlers, self.turns.clock)
        self._in_order: list[listeners.Listener] = []  # all listeners, in the order of the settings
        self._reloading = asyncio.Lock()
        self.measurements: Measurements | None = None  # those of `measure`
        self._memory_return = MemoryReturn(self._memory_of_jobs)
        self._serves = False  # `start` has returned
        self.failed = asyncio.Event()  # set when clients can be served no more, and the process stops by itself
        self.failure: Exception | None = None  # why, if it is so
        self._stopping: asyncio.Task[None] | None = None  # from the first call of `_begin_stop` on

    def policy_of(self, shard: int = 0) -> PolicyOf:  # noqa: ARG002  # which only a node has several of
        """What finds the policies of the tubes of a shard: the same as before, unless a reload has changed them."""
        return no_policies if self.policies is None else self.policies.of

    def measure(self) -> Measurements:
        """Measure how long things take, from `start` on, or from now on: in all services that there are and will be.

        Returns:
            What is counted from now on. A second call returns the same.
        """
        if self.measurements is None:
            from beanstalk_server.server.measurements import Measurements  # most servers measure nothing

            self.measurements = Measurements()
            for service in self.services():
                service.measure(self.measurements)
            if self._serves:
                self.measurements.start(asyncio.get_running_loop())
        return self.measurements

    @property
    def listener_policies(self) -> list[ListenerPolicy]:
        """What the listeners ask of their clients, in their order."""
        return self.listeners.listener_policies

    @property
    def pending(self) -> PendingConnections | None:
        """Clients that are not admitted yet; None if they are not asked here."""
        return self.listeners.pending

    @property
    def address(self) -> Address:
        """Where it listens: host and port, or the path of a UNIX socket. The first, if there are several."""
        return self.listeners.addresses[0]

    async def start(self) -> None:
        """Open the sockets and serve.

        Raises:
            StartError: a socket cannot be opened, there is no such user, the jobs cannot be restored, or the journal
                fails.
            RestoreInterruptedError: `interrupt` has been called while jobs were being restored.
        """
        loop = asyncio.get_running_loop()
        if self.slow is not None:
            self.slow.start(loop)
        self._open_listeners()
        try:
            self._open_policies()
            self.listeners.allow(self.config.max_connections)
            if self.config.user:
                drop_privileges(self.config.user, self.config.place("user"))
            if self._io is not None:
                self._io.start()
            if self._http is not None:
                self._http.start(loop)
            self.turns.start(loop)
            await self._prepare(loop)  # as that user, and before clients can connect
            self._raise_failure()
            self.listeners.listen()
            vars(loop).setdefault(SERVERS_OF_LOOP, []).append(self.listeners)
            if self._io is not None:
                try:
                    await self._io.serve()
                finally:  # the first I/O processes may have had clients, and then the failure comes first
                    self._raise_failure()
        except BaseException:
            self.listeners.close()
            self.listeners.remove_paths()
            if self._http is not None:
                await self._http.stop()
            if self._io is not None:
                self._io.give_up()
            self.turns.stop()
            await self._give_up()
            raise
        self.hangups.start(loop)
        self.listeners.start(loop, self._headroom() + (0 if self._http is None else self._http.descriptors))
        places = self._places()
        changed = self.config.changed()
        if sockets := self._sockets():
            for name in ADDRESS:
                changed.pop(name, None)  # ignored
        settings = ", ".join(f"{name}={value}" for name, value in changed.items()) or "default settings"
        log.info(
            "beanstalk-server %(version)s listens on %(listeners)s with %(settings)s",
            event("started", version=full_version(), listeners=places, settings=settings),
        )
        for warning in warnings_of(self.config, sockets):
            log.warning("%(warning)s", event("configuration-warning", warning=warning))
        if self.measurements is not None:
            self.measurements.start(loop)
        self._memory_return.start(loop)
        self.idle.start(loop, self.config.idle_timeout)
        self._serves = True
        if self.slow is not None:
            self.slow.watch()

    # What serves clients

    @abstractmethod
    def services(self) -> list[Service]:
        """What serves them here at present: a node of a cluster may have several, or none."""

    def _memory_of_jobs(self) -> int:
        """Bytes that the jobs here take."""
        return sum(service.broker.memory.used for service in self.services())

    def _idlers(self) -> list[Idler]:
        """Those that may be disconnected when they are idle."""
        found: list[Idler] = []
        for service in self.services():
            found.extend(service.connections.open)  # a loop would hold 100,000 clients for ten times as long
        return found

    @abstractmethod
    def interrupt(self) -> None:
        """Make `start` end soon if it is restoring jobs, which may hold the event loop.

        A signal handler may call it. It raises nothing: the handler may have interrupted the holder of a lock.
        """

    @abstractmethod
    def drain(self) -> None:
        """Take no new jobs from now on: put answers DRAINING, everything else goes on."""

    @abstractmethod
    def _client_maker(self) -> Callable[..., Any]:
        """What makes the protocol of a client that is known, of its listener policy, its user and its name."""

    @abstractmethod
    def _headroom(self) -> int:
        """How many file descriptors no connection gets, beside those for HTTP."""

    async def _prepare(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: B027 there may be nothing to do
        """Get ready, before the first client comes."""

    async def _give_up(self) -> None:  # noqa: B027 there may be nothing to do
        """Let go of everything: the start has failed, and no one has been served."""

    @abstractmethod
    def _halt(self) -> None:
        """Do nothing more for any client; `_end` must follow."""

    async def _leave(self) -> None:  # noqa: B027 there may be nothing to do
        """Let other processes serve clients instead, if there are any."""

    @abstractmethod
    async def _end(self) -> None:
        """Close every connection, and save the jobs: no client comes in any more."""

    # Listeners

    def _open_listeners(self) -> None:
        """Open the sockets in the settings, or take those that systemd has opened. Clients cannot connect yet."""
        sockets = listeners.inherited_sockets()
        try:
            if sockets:
                configs = self.config.listeners_at([name_of_address(address_of(sock)) for sock in sockets])
            else:
                configs = self.config.all_listeners()
        except ConfigError as error:
            raise StartError(str(error), BAD_OPTION) from error
        try:
            if any(each.is_http for each in configs):
                self._http = self._make_http(configs)
            for index, config in enumerate(configs):
                if index < len(sockets):
                    where = listeners.where_of(config, self.config)
                    listener = listeners.Listener(config, sockets[index], where, inherited=True)
                    set_keepalive(listener.sock, self.config.keepalive)
                else:
                    listener = listeners.open_listener(config, self.config)
                self._in_order.append(listener)
                group = self._http.listeners if config.is_http and self._http else self.listeners
                group.all.append(listener)
        except StartError:
            for listener in self._in_order:
                listener.close()
                listener.remove_path()
            raise

    def _make_http(self, configs: Sequence[ListenerConfig]) -> HttpFront:
        """What serves HTTP.

        Raises:
            StartError: a library is missing.
        """
        from beanstalk_server.settings.system import http_mistakes  # most servers speak no HTTP

        mistakes = http_mistakes(configs)
        if mistakes:
            raise StartError("\n".join(mistakes), BAD_OPTION)
        from beanstalk_server.server.front.http_front import HttpFront

        self.measure()
        return HttpFront(self)

    def _open_policies(self) -> None:
        """Load certificates and tokens, before the process becomes a user who may not read them."""
        try:
            accounts = accounts_of(self.config)
        except ConfigError as error:
            raise StartError(str(error), BAD_OPTION) from error
        make_context = self._make_context()
        for listener in self._in_order:
            make = None if listener.config.is_http else make_context
            listener.policy = listener_policy_of(listener.config, name_of_address(listener.address), accounts, make)

    def _make_context(self) -> Callable[[ListenerConfig], Any] | None:
        """What makes the TLS contexts of new settings, if this process cannot read the files."""
        return None if self._io is None else self._io.make_context()

    def _sockets(self) -> list[ListenerConfig]:
        """All listeners, with their addresses, if systemd has opened their sockets."""
        is_activated = any(each.inherited for each in self._in_order)
        return [each.config for each in self._in_order] if is_activated else []

    def _places(self) -> str:
        return ", ".join(place_of(listener) for listener in self._in_order)

    async def reload(self, config: Config) -> None:
        """Take listeners, users, tokens, rights, certificates, policies and limits of connections from new settings.

        They may be the same files. Open connections stay, with the rights that their users have from now on; those of
        users that are gone are closed. Tubes and jobs that exist are brought under the new policies. Other settings
        take effect at the next start, and the log names them.

        Raises:
            ConfigError: each line of the message is one mistake; nothing has changed.
        """
        from beanstalk_server.server.reload import left_for_later, prepare

        async with self._reloading:
            if self.is_stopping():
                return
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(
                None,
                functools.partial(
                    prepare,
                    config,
                    tuple(self._in_order),
                    make_context=self._make_context(),
                    policies=self.policies,
                ),
            )
            if self.is_stopping():
                prepared.discard()
                return
            self._change_listeners(prepared, config)
            self.idle.change(config.idle_timeout)
            self._change_policies(prepared.policies)
            if self._io is not None:
                await self._io.change()
            closed = await self._judge(prepared.accounts)
        log.info(
            "reloaded: listens on %(listeners)s; connections closed because their user was removed: %(connections)d",
            event("reloaded", listeners=self._places(), connections=closed),
        )
        for change in prepared.changes:
            log.info("policies: %(change)s", event("policies-changed", change=change))
        for warning in warnings_of(config, self._sockets()):
            log.warning("%(warning)s", event("configuration-warning", warning=warning))
        later = left_for_later(self.config, config)
        if later:
            log.warning(
                "%(options)s: changes take effect at the next start",
                event("left-for-later", options=", ".join(map(option, later))),
            )

    def _change_listeners(self, prepared: Prepared, config: Config) -> None:
        """Let clients and operators come in at these listeners, and at no others."""
        self._in_order = [listener for listener, _ in prepared.listeners]
        for listener in self._in_order:
            set_keepalive(listener.sock, config.keepalive)
        if self._http is None and prepared.of(is_http=True):
            self._http = self._make_http(())  # what could be missing has been looked for
            self._http.start(asyncio.get_running_loop())
            self.listeners.limit = max(self.listeners.limit - self._http.descriptors, 1)
        self.listeners.allow(config.max_connections)
        self.listeners.change(prepared.of(is_http=False))
        if self._http is not None:
            self._http.change(prepared.of(is_http=True))

    def _change_policies(self, policies: Policies | None) -> None:
        """Let tubes and their jobs be under these policies."""
        self.policies = policies
        for service in self.services():
            service.change_policies(self.policy_of(service.broker.offset))

    # What is shown to operators

    def condition(self) -> Condition:
        """What the server does at present, for those who watch it."""
        from beanstalk_server.admin.health import Condition  # most servers speak no HTTP

        return Condition(
            is_starting=not self._serves,
            is_draining=any(service.broker.draining for service in self.services()),
            has_failed=self.failed.is_set(),
            is_stopping=self.is_stopping(),
        )

    def shard_figures(self) -> list[ShardFigures]:
        """The shards, if this is a node of a cluster."""
        return []

    async def _judge(self, accounts: Accounts | None) -> int:
        """Give all connections the rights in the new settings, a slice at a time; return how many were closed."""
        closed = left_open = 0
        clock = self.turns.clock
        end = clock() + JUDGE_TIME
        for connection in [each for service in self.services() for each in service.connections.open]:
            if connection.connected:
                if not connection.judge(accounts):
                    closed += 1
                elif connection.session.user is None and connection.listener_policy.closed:
                    left_open += 1
                connection.turns.run_pending_soon()
            if clock() >= end:
                await asyncio.sleep(0)
                if self.is_stopping():
                    break
                end = clock() + JUDGE_TIME
        if left_open:
            log.warning(
                "%(connections)d connections of removed listeners stay open and keep all rights: restart the server to "
                "close them",
                event("connections-left-open", connections=left_open),
            )
        return closed

    async def stop(self) -> None:
        """Close the sockets and every connection, commit, and free the jobs.

        Returns when that is done; a second call only waits.
        """
        self._begin_stop()
        assert self._stopping is not None
        await asyncio.shield(self._stopping)

    def _raise_failure(self) -> None:
        """End a start during which the journal has failed."""
        if self.failed.is_set():
            raise StartError(f"the journal failed: {self.failure}", JOURNAL_FAILED) from self.failure

    def fail(self, error: Exception) -> None:
        """Stop by itself, because of the first failure. A start raises it instead."""
        if self.failure is None:
            self.failure = error
            self.failed.set()
            if self._serves:
                self._begin_stop()

    def is_stopping(self) -> bool:
        """Whether `stop` has been called, or the server stops by itself."""
        return self._stopping is not None

    def _begin_stop(self) -> None:
        if self._stopping is None:
            self.turns.stop()
            self.idle.stop()
            self._halt()
            self._stopping = asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        self._memory_return.stop()
        if self.measurements is not None:
            self.measurements.stop()
        if self.slow is not None:
            self.slow.stop()
        count = sum(len(service.connections.open) for service in self.services())
        servers = vars(asyncio.get_running_loop()).get(SERVERS_OF_LOOP, [])
        if self.listeners in servers:
            servers.remove(self.listeners)
        await self._leave()
        await self.listeners.stop()
        if self._io is not None:
            await self._io.stop()
        if self.pending is not None:
            await self.pending.stop()
        await self._end()
        if self._http is not None:
            await self._http.stop()
        self.hangups.stop()
        async with self._reloading:  # what a thread still prepares must be discarded
            pass
        self.listeners.remove_paths()
        services = self.services()
        log.info(
            "stopped; %(connections)d connections were closed, %(jobs)d jobs remain",
            event("stopped", connections=count, jobs=sum(len(service.broker.jobs) for service in services)),
        )
        for service in services:
            await service.drop_jobs()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def drop_privileges(user: str, place: str) -> None:
    """Become this user, with its group and its supplementary groups.

    Args:
        place: where it was given, for messages.

    Raises:
        StartError: there is no such user (status 33), or this process may not become it (34).
    """
    import pwd  # most servers have no privileges to drop

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise StartError(f"{place} {user}: no such user", 33) from None
    try:
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except OSError as error:
        raise StartError(f"{place} {user}: cannot switch to this user: {error.strerror}", 34) from error


def place_of(listener: listeners.Listener) -> str:
    """A listener as the log shows it: its address, and how it knows users, which shows nothing secret."""
    place = name_of_address(listener.address)
    ways = ways_of(listener.config)
    return f"{place} ({ways})" if ways else place
