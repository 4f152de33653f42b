"""A node of a cluster: a server that leads by turns, and stands by while another node leads.

    Roles      when it leads (roles.py), and tells the node
    Service    what serves clients; a new one each time it leads, an idle one while it stands by
    Server     where clients come in; it stays

When it takes over, it reads the journal in a thread, because the lease must be renewed meanwhile. When it leads no
more, nothing of the service is left: whoever leads next has all that was acknowledged. Must never know what the engine
is, or how a journal uses it.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from beanstalk_server.access.user import User
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine import START, UNKNOWN, Engine, EngineError, EngineRefusedError, Lease, Position
from beanstalk_server.cluster.engine_binlog import EngineBinlog
from beanstalk_server.cluster.engine_writer import EngineWriter, GivenUpError
from beanstalk_server.cluster.rules import missing
from beanstalk_server.cluster.sender import FencedError, Sender
from beanstalk_server.cluster.url import read_url
from beanstalk_server.config import BAD_OPTION, Config, option
from beanstalk_server.queue.journal import ALL, Journal, RestoreInterruptedError
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.queue.wheel import END_OF_TIME
from beanstalk_server.server.connection import Connection
from beanstalk_server.server.links import LeaderLink, LinkListener
from beanstalk_server.server.listeners import name_of_address
from beanstalk_server.server.roles import IS_SUSPENDED, LEADS, Roles, TakeOverError
from beanstalk_server.server.server import JOURNALED_HEADROOM, Server
from beanstalk_server.server.service import Service
from beanstalk_server.server.standby import Standby
from beanstalk_server.server.start_error import StartError
from beanstalk_server.storage.errors import DAMAGED

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts

FINISH_WITHIN: Final = 5
"""Seconds after which a node that hands over waits for the engine no longer, unless that has lost what only the node
has."""

log = logging.getLogger("beanstalk_server")


class Node(Server):
    """A server of a cluster.

    Args:
        connect: makes a connection to the engine.
    """

    def __init__(
        self,
        config: Config,
        *,
        connect: Callable[[], Engine] | None = None,
    ) -> None:
        super().__init__(config, journal=Journal())
        self.idle = self.service
        self.name = os.urandom(8).hex()
        self._connect = connect or functools.partial(connect_to, config)
        self._thread = ThreadPoolExecutor(1, "lease")
        self._engine: Engine
        self._failed = asyncio.Event()
        self._failure: Exception | None = None
        self._restoring: Journal | None = None  # what a thread reads
        self._is_finished = False  # the journal has been closed
        self._is_checked = False  # the engine's settings are good enough
        self._damaged = 0  # how often in a row the files have been found damaged
        self._holds: set[str] = set()  # why nothing is handed out
        self._finishing: asyncio.Timeout | None = None  # the end of leading, and how long that may take
        self.roles: Roles
        self.standby = Standby(self.listeners, self.hangups, config.verbosity)
        self.links = LinkListener(self.name, config.max_job_size)
        self.leader = LeaderLink(self.standby, self.name, self._on_gone, self._on_farewell)
        self._writer: EngineWriter  # sends the commits, while it leads
        self.scheduler.on_lease_end = self._on_lease_end
        self.info.more = self._statistics

    @property
    def failed(self) -> asyncio.Event:
        """Set when the node can go on in no role."""
        return self._failed

    @property
    def failure(self) -> Exception | None:
        """Why, if it is so."""
        return self._failure

    @property
    def leads(self) -> bool:
        """Whether it serves clients itself."""
        return self.service is not self.idle

    async def start(self) -> None:
        """Open the sockets, and stand by or lead, as the engine says.

        Raises:
            StartError: a socket cannot be opened, the engine refuses this node, or it would lose jobs.
        """
        mistakes = missing(self.config.cluster)
        if mistakes:
            raise StartError("\n".join(map(str, mistakes)), BAD_OPTION)
        self._engine = self._connect()
        try:
            await self._check()
            address = await self._open_links()
            await super().start()
        except BaseException:
            await self.links.stop()
            self._engine.close()
            self._thread.shutdown()
            raise
        self.roles = Roles(
            self._engine,
            self.name,
            address,
            self.config.lease_ttl * SECOND,
            self,
            self._in_thread,
        )
        self.roles.start()

    async def _check(self) -> None:
        """Refuse an engine that would lose jobs."""
        try:
            faults = await self._in_thread(self._engine.check)
        except EngineRefusedError as error:
            raise StartError(f"{option('cluster')}: {error}", BAD_OPTION) from error
        except EngineError:  # which its roles will tell
            log.info("the engine does not answer yet: its settings are checked before this node leads")
            return
        self._is_checked = True
        if self.config.unsafe_engine:
            for fault in faults:
                log.warning("%s", fault)
        elif faults:
            raise StartError(
                "\n".join(
                    [
                        *(f"{option('cluster')}: {each}" for each in faults),
                        f"{option('unsafe_engine')} starts nevertheless",
                    ]
                ),
                BAD_OPTION,
            )

    async def _open_links(self) -> str:
        """Listen for other nodes; return the address where they reach this one."""
        given = self.config.advertise
        host, _, port = given.rpartition(":") if given else (address_towards(self.config.cluster), ":", "0")
        host = host.strip("[]")
        try:
            try:
                found = await self.links.start(host, int(port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL or not given:
                    raise
                found = await self.links.start("", int(port))  # it is that of a router in front of this machine, say
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise StartError(f"{option('advertise')} {given or host}: {why}") from error
        address = given or name_of_address((host, found))
        log.info("other nodes%s reach this one at %s", " on this machine" if is_loopback(host) else "", address)
        return address

    def _headroom(self) -> int:
        return JOURNALED_HEADROOM

    def _client_maker(self) -> Callable[..., Any]:
        return self._make_client

    def _make_client(self, entrance: Any, user: Any = None, name: str = "") -> Any:
        if self.leads:
            return Connection(self.connections, entrance, user, name)
        return self.standby.make_client(entrance, user, name)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # What its roles tell it

    def follow(self, lease: Lease) -> None:
        if lease.node in ("", UNKNOWN, self.name):
            self.leader.leave()
        else:
            self.leader.follow(lease)

    def _on_gone(self, epoch: int, node: str, is_sure: bool) -> None:
        if is_sure:
            log.info("the process that led epoch %d is gone", epoch)
        self.roles.note_gone(epoch, node, is_sure=is_sure)

    def _on_farewell(self) -> None:
        self.roles.look()

    async def take_over(self, lease: Lease) -> None:
        began = monotonic_ns()
        self.leader.leave()
        if not self._is_checked:
            try:
                await self._check()
            except StartError as error:
                for line in str(error).splitlines():
                    log.critical("%s", line)
                self._fail(error)
                raise TakeOverError("the engine is refused") from error
        journal, writer = self._make_journal(lease)
        service = Service(
            self.config,
            journal,
            self.info,
            self.listeners,
            self.hangups,
            functools.partial(self._on_journal_failure, journal),
            began,
            self.scheduler,
        )
        service.gate.logs_failure = False
        self._restoring = journal
        try:
            await asyncio.to_thread(service.restore)
            if self._is_stopping():
                raise RestoreInterruptedError
        except RestoreInterruptedError:
            await self._discard(service, writer)
            raise TakeOverError("the server stops") from None
        except StartError as error:
            await self._discard(service, writer)
            # The engine may have failed over meanwhile, and then half of the files are others: twice is no accident.
            self._damaged = self._damaged + 1 if error.status == DAMAGED else 0
            if self._damaged > 1:
                self._fail(error)
            raise TakeOverError(str(error)) from error
        finally:
            self._restoring = None
        self._damaged = 0
        self._is_finished = False
        self._writer = writer
        journal.on_rewriting = self._on_rewriting
        service.gate.start(asyncio.get_running_loop())
        if journal.admits != ALL:
            service.gate.on_admission(journal.admits)
        self._use(service)
        self._note_lease_end()
        self.links.lead(lease, service.connections, self._find_user)
        self.standby.lead(service.connections)
        took = (monotonic_ns() - began) / MILLISECOND
        log.info("leads epoch %d with %d jobs, after %.0f ms", lease.epoch, len(service.broker.jobs), took)

    def _make_journal(self, lease: Lease) -> tuple[EngineBinlog, EngineWriter]:
        """The journal of the leader with this lease."""
        engine = self._connect()
        sender = Sender(lease.epoch, lease.position, self.config.replicas)
        directory = EngineDirectory(engine, sender)
        writer = EngineWriter(engine, directory, sender)
        return EngineBinlog(directory, writer, segment_size=self.config.segment_size), writer

    async def _discard(self, service: Service, writer: EngineWriter) -> None:
        """Let go of a service that has never served anybody."""
        writer.give_up(GivenUpError("it has not led"))
        await service.journal.close()
        service.broker.drop_jobs()
        self._free_memory()

    def _free_memory(self) -> None:
        """Collect what is left of a service, soon: its parts refer to each other, and the collector may be off."""
        asyncio.get_running_loop().call_soon(gc.collect)  # when the last frame has let go of it

    def _use(self, service: Service) -> None:
        """Serve those who come from now on with this service."""
        self.service = service
        self.scheduler.serve(service.broker)
        if self.arrivals is not None:
            self.arrivals.connections = service.connections

    def suspend(self) -> None:
        self._hold("lease")

    def resume(self) -> None:
        self._let_go("lease")

    def _on_rewriting(self, is_rewriting: bool) -> None:
        if is_rewriting:
            self._hold("rewriting")
        else:
            self._let_go("rewriting")
        self._limit_finish()

    def _hold(self, why: str) -> None:
        """Hand nothing out."""
        self._holds.add(why)
        self.scheduler.suspend()

    def _let_go(self, why: str) -> None:
        """Undo `_hold`, if there is no other reason."""
        self._holds.discard(why)
        if not self._holds:
            self.scheduler.resume()

    def mark(self) -> Position:
        return self._writer.durable if self.leads else START

    def renewed(self, lease: Lease, mark: Position) -> None:
        if self.leads and not self._is_finished:
            self._note_lease_end()
            self._let_go("lease")
            self._writer.check(lease.position, mark)

    def _note_lease_end(self) -> None:
        assert self.roles.tenure is not None, "this node leads"
        self.scheduler.lease_end = self.roles.tenure.end

    def _on_lease_end(self) -> None:
        """The lease has run out, and no timer has said so: the process was stopped for a while."""
        self.roles.check()
        self._hold("lease")

    async def finish(self) -> None:
        self._hold("end")
        try:
            async with asyncio.timeout(None) as self._finishing:
                self._limit_finish()
                await self.gate.commit_rest()
                await self.journal.close()
                self._is_finished = True
        except TimeoutError:
            log.error("the engine has not confirmed the last changes in time: nobody has been told that they are done")
        finally:
            self._finishing = None

    def _limit_finish(self) -> None:
        """Let the end take so long and no longer; but while all jobs are written anew, only this process has them."""
        if self._finishing is not None and not self._finishing.expired():
            is_rewriting = "rewriting" in self._holds
            self._finishing.reschedule(None if is_rewriting else asyncio.get_running_loop().time() + FINISH_WITHIN)

    async def step_down(self, why: str) -> None:
        service = self.service
        if service is self.idle:
            return
        self._hold("end")
        self.standby.lead(None)
        self.links.stand_by(why)
        if not self._is_stopping():
            self.standby.take(service.connections)
        service.connections.closing = True
        service.journal.on_failure = None  # it is to fail
        self._writer.give_up(GivenUpError(why))
        count = len(service.connections.open)
        await service.connections.abort_all()
        if not self._is_finished:
            await service.journal.close()
        self._use(self.idle)
        self._holds.clear()
        self.scheduler.lease_end = END_OF_TIME
        self.scheduler.resume()
        jobs = len(service.broker.jobs)
        service.broker.drop_jobs()
        del self._writer  # it has the last commits
        self._free_memory()
        log.info("leads no more, because %s: %d connections were closed, %d jobs remain", why, count, jobs)

    def cut_off(self) -> None:
        """Disconnect all clients, so that they find a node that can serve them. What they have changed is kept here."""
        if self.leader.is_open or self._is_stopping():
            return
        connections = [connection.transport for connection in self.service.connections.open]
        count = len(connections) + len(self.standby.open)
        if count:
            log.warning("cut off from the engine: disconnecting %d clients, for which there may be another node", count)
        for transport in connections:
            transport.abort()
        for client in list(self.standby.open):
            client.abort()

    def give_up(self) -> None:
        self._fail(RuntimeError("it can have no role"))

    def _on_journal_failure(self, journal: Journal) -> None:
        if self.service.journal is not journal:
            return
        error = self.service.gate.failure
        assert error is not None, "it has failed"
        if isinstance(error, FencedError):
            self.roles.fenced(error.epoch)
            return
        if isinstance(error, GivenUpError):
            return
        log.critical("the journal failed; the server acknowledges nothing more, and stops: %s", error)
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._failed.set()
            self._begin_stop()

    # What the process tells it

    def interrupt(self) -> None:
        if self._restoring is not None:
            self._restoring.interrupted = True

    def drain(self) -> None:
        """Let another node lead, and stand by from now on. If there is none, take no new jobs."""
        if self.leads and not self._has_successor():
            super().drain()
        else:
            log.info("draining: another node is to lead")
            self.roles.hand_over()

    def _has_successor(self) -> bool:
        return bool(self.links.links)

    def _find_user(self, name: str) -> User | None:
        """The user of a client that comes by a link."""
        for entrance in self.entrances:
            if entrance.accounts is not None:
                return entrance.accounts.by_name(name)
        return None

    async def _judge(self, accounts: Accounts | None) -> int:
        return self.standby.judge(accounts) + await super()._judge(accounts)

    def _begin_stop(self) -> None:
        self.standby.closing = True
        super()._begin_stop()

    async def _stop(self) -> None:
        self.interrupt()
        await self.roles.stop()
        await self.leader.stop()
        await self.standby.abort_all()
        await self.links.stop()
        await super()._stop()
        self._engine.close()
        self._thread.shutdown()

    # What stats shows

    def _statistics(self) -> str:
        roles = self.roles
        role = roles.role if roles.role in (LEADS, IS_SUSPENDED) else "standby"
        latency = self._writer.latency
        return (
            f"cluster-role: {role}\n"
            f"cluster-leader: {roles.leader}\n"
            f"cluster-epoch: {roles.epoch}\n"
            f"cluster-commit-latency-p50: {latency.percentile(0.5)}\n"
            f"cluster-commit-latency-p99: {latency.percentile(0.99)}\n"
        )


def address_towards(url: str) -> str:
    """The address of this machine by which it reaches the engine, and others reach it, if possible. Nothing is sent.

    Raises:
        StartError: it reaches none of the engine's servers.
    """
    found, why = "", ""
    for server in read_url(url).hosts:
        try:
            family, kind, _, _, address = socket.getaddrinfo(server.name, server.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as sock:
                sock.connect(address)
                host: str = sock.getsockname()[0]
        except OSError as error:
            why = why or f"{server.name} cannot be reached: {error.strerror}"
            continue
        if not is_loopback(host):
            return host
        found = found or host  # a server may be on this machine, whose own name often stands for a loopback address
    if not found:
        raise StartError(f"{option('cluster')}: {why}", BAD_OPTION)
    return found


def is_loopback(host: str) -> bool:
    """Whether this is an address that only the machine itself can use."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def connect_to(config: Config) -> Engine:
    """A connection to the engine that the settings name."""
    from beanstalk_server.cluster.redis_engine import open_engine  # it needs redis-py

    timeout = min(2.0, config.lease_ttl / 5)
    return open_engine(config.cluster, config.cluster_name, config.replicas, timeout=timeout)
