"""A node of a cluster: it serves clients through the leaders of all shards, and leads some of them.

Shard      a shard, here: its roles, what serves it while it leads, and the link to its leader (shard.py)
Host       where clients come in; it stays
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from beanstalk_server.access.rights import User
from beanstalk_server.cluster.balancer import Balancer
from beanstalk_server.cluster.commit_sender import kept_within
from beanstalk_server.cluster.engine.choice import connect_to
from beanstalk_server.cluster.engine.interface import Connect, EngineError, EngineRefusedError, Load, Member, Report
from beanstalk_server.cluster.lanes import Lanes
from beanstalk_server.cluster.lease import OBSERVATIONS
from beanstalk_server.cluster.lease_calls import LeaseCalls
from beanstalk_server.cluster.links import LinkListener
from beanstalk_server.cluster.roles import IS_SUSPENDED
from beanstalk_server.cluster.shard import Shard
from beanstalk_server.events import event
from beanstalk_server.queue.policy import PolicyOf
from beanstalk_server.queue.units import SECOND
from beanstalk_server.routing.clients import Clients
from beanstalk_server.server.commits import Gathering
from beanstalk_server.server.front.addresses import name_of_address
from beanstalk_server.server.front.listener_policy import NONE
from beanstalk_server.server.host import Host, MakeIo
from beanstalk_server.server.service import JOURNALED_HEADROOM, Service
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.declaration import BAD_OPTION
from beanstalk_server.settings.engine_url import read_url
from beanstalk_server.settings.options import Config, option
from beanstalk_server.settings.system import missing_for_engine
from beanstalk_server.wire.places import Places

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts
    from beanstalk_server.access.policies import Policies
    from beanstalk_server.admin.health import Condition
    from beanstalk_server.admin.metrics import ShardFigures
    from beanstalk_server.server.idle import Idler

MOST_GARBAGE: Final = 16
"""How many services that have ended may be left in memory while others serve, because a search for them holds the event
loop. The command line turns the collector off, which would search much more often."""

DESCRIPTORS: Final = 4
"""Of files, for each shard: its alarm and its connection to the engine, or the link to its leader; and links here."""

log = logging.getLogger("beanstalk_server")


class Node(Host):
    """A server of a cluster: each shard that it leads has a service.

    Args:
        connect: makes connections to the engine.
        make_io: as in Host.

    Raises:
        StartError: as `connect_of` does.
    """

    def __init__(
        self,
        config: Config,
        *,
        connect: Connect | None = None,
        make_io: MakeIo | None = None,
    ) -> None:
        self._policies_of_shards: dict[int, PolicyOf] = {}  # of those that have been led, with the present settings
        super().__init__(config, make_io)
        self.name = os.urandom(8).hex()
        self.connect = connect or connect_of(config)
        ttl = config.lease_ttl * SECOND
        self.lanes: Lanes
        self.gathering = Gathering()
        self.lease_calls = LeaseCalls(self.connect(), ttl, self._report, self._cut_off)
        self._checking: asyncio.Task[None] | None = None  # until the engine has been asked whether it is good enough
        self._draining: asyncio.Task[None] | None = None  # another node is to lead what this one has led
        self.drains_in_place = False  # no other node takes shards, and this one takes no jobs
        self._garbage = 0  # services that no one has looked for since they ended
        self._address = ""  # where it takes links
        self.clients = Clients(config.shards, self.listeners, self.hangups, config.verbosity, self.info)
        self.links = LinkListener(self.name, config.max_job_size, config.shards, config.keepalive)
        self.shards = [Shard(index, self) for index in range(config.shards)]
        self.balancer = Balancer(self.name, self.shards, ttl, self._find_members, self._find_linked)

    async def start(self) -> None:
        """Open the sockets, and follow or lead, as the engine says.

        Raises:
            StartError: a socket cannot be opened, the engine refuses this node, or it would lose jobs.
        """
        self.lanes = Lanes(self.connect(), pace=self.gathering)
        try:
            is_checked = await self._check()
            self._address = self.balancer.address = await self._open_links()
            self.clients.start(asyncio.get_running_loop())
            await super().start()
        except BaseException:
            await self.links.stop()
            self._close()
            raise
        self._ask_for_users()
        if is_checked:
            self._start_shards()
        else:
            log.info(
                "the engine is not responding yet: this node checks the engine's settings before it leads",
                event("engine-unchecked"),
            )
            self._checking = asyncio.get_running_loop().create_task(self._carry_out(self._check_later()))

    def _start_shards(self) -> None:
        for shard in self.shards:
            shard.roles.start(self._address)
        self.balancer.start()

    async def _check_later(self) -> None:
        """Start the shards as soon as the engine answers, if it is good enough."""
        try:
            while not await self._check():
                await asyncio.sleep(self.config.lease_ttl / OBSERVATIONS)
        except StartError as error:
            for line in str(error).splitlines():
                log.critical("%(error)s", event("engine-refused", error=line))
            self.fail(error)
        else:
            self._start_shards()

    async def _carry_out(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; if it fails, the node ends."""
        try:
            await work
        except Exception as error:
            log.exception("a task of the node has failed; this is a bug in the server", event("bug-in-node"))
            self.fail(error)

    async def _check(self) -> bool:
        """Make sure that the engine would lose no jobs, and has as many shards; return whether it has answered.

        Raises:
            StartError: it would, or has not, or does not let this node in.
        """
        wanted = self.config.shards
        try:
            found = await self.lease_calls.call(lambda engine: engine.shards(wanted))
            faults = await self.lease_calls.call(lambda engine: engine.check())
        except EngineRefusedError as error:
            raise StartError(f"{self.config.place('cluster')}: {error}", BAD_OPTION) from error
        except EngineError:  # which the log has been told
            return False
        if found != wanted:
            raise StartError(
                f"{self.config.place('shards')} {wanted}: "
                f"the cluster {self.config.cluster_name} has {found}: must be {found}",
                BAD_OPTION,
            )
        if faults and not self.config.unsafe_engine:
            lines = [f"{self.config.place('cluster')}: {each}" for each in faults]
            raise StartError("\n".join([*lines, f"use {option('unsafe_engine')} to start anyway"]), BAD_OPTION)
        for fault in faults:
            log.warning("%(fault)s", event("engine-unsafe", fault=fault))
        return True

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
            raise StartError(f"{self.config.place('advertise')} {given or host}: {why}") from error
        address = given or name_of_address((host, found))
        log.info(
            "other nodes on this machine reach this one at %(address)s"
            if is_loopback(host)
            else "other nodes reach this one at %(address)s",
            event("advertised", address=address),
        )
        return address

    def _headroom(self) -> int:
        return JOURNALED_HEADROOM + DESCRIPTORS * self.config.shards

    def _client_maker(self) -> Callable[..., Any]:
        return self.clients.make_client

    # What a shard asks

    def policy_of(self, shard: int = 0) -> PolicyOf:
        """As in Host. A shard has no dead tube that is in another one: no job moves from shard to shard."""
        if self.policies is None or self.config.shards == 1:
            return super().policy_of(shard)
        found = self._policies_of_shards.get(shard)
        if found is None:
            places = Places(self.config.shards)
            found = self.policies.local(lambda tube: places.of_tube(tube.encode()) == shard)
            self._policies_of_shards[shard] = found
        return found

    def find_user(self, name: str) -> User | None:
        """The user of a client that comes by a link."""
        for listener_policy in self.listener_policies:
            if listener_policy.accounts is not None:
                return listener_policy.accounts.by_name(name)
        return None

    def on_services(self) -> None:
        """Note that another number of shards is led here."""
        services = self.services()
        most = self.config.max_memory
        kept = kept_within(most)
        for shard in self.shards:
            if shard.service is not None:
                shard.keep(kept // len(services))
        for service in services:
            service.turns.share_rounds(len(services))
            service.broker.memory.limit = max((most - kept) // len(services), 1) if most else 0
            if self.measurements is not None:
                service.measure(self.measurements)

    def led(self) -> int:
        """How many shards are led here."""
        return len(self.services())

    def on_garbage(self) -> None:
        """Free what is left of a service, at some time: its parts refer to each other."""
        self._garbage += 1
        if self._garbage >= MOST_GARBAGE or not self.services():
            self._garbage = 0
            asyncio.get_running_loop().call_soon(gc.collect)  # when the last frame has let go of it

    def _change_policies(self, policies: Policies | None) -> None:
        if policies is not self.policies:
            self._policies_of_shards.clear()
        super()._change_policies(policies)

    # What its balancer and its lease_calls ask

    async def _find_members(self) -> list[Member]:
        return await self.lease_calls.call(lambda engine: engine.members())

    def _find_linked(self) -> set[str]:
        return {link.peer for link in self.links.links}

    def _report(self) -> Report:
        brokers = [service.broker for service in self.services()]
        load = Load(
            len(brokers), sum(len(broker.jobs) for broker in brokers), sum(broker.memory.used for broker in brokers)
        )
        return Report(self.name, self._address, load, self.balancer.takes)

    def _cut_off(self) -> None:
        """Disconnect all clients, so that they find a node that can serve them. What they have changed is kept here."""
        if self.is_stopping():
            return
        if not self.services() and any(shard.link.is_open for shard in self.shards):
            return  # those who lead may reach the engine
        count = self.clients.disconnect_all()
        if count:
            log.warning(
                "cannot reach the engine: disconnected %(clients)d clients, which can try another node",
                event("cut-off", clients=count),
            )

    # What the process tells it

    def interrupt(self) -> None:
        for shard in self.shards:
            shard.interrupt()

    def drain(self) -> None:
        """Let other nodes lead, and follow from now on. While there is none, lead, and take no new jobs."""
        services = self.services()
        if services and not self.links.links:
            for service in services:
                service.broker.drain()
            log.info("draining: new jobs are refused", event("draining"))
        elif self._draining is None:
            log.info("draining: handing shards over to other nodes", event("draining-to-others"))
            self._draining = asyncio.get_running_loop().create_task(self._carry_out(self._hand_over()))

    async def _hand_over(self) -> None:
        """Give all shards away, and take none as long as another node takes them."""
        self.balancer.takes = False
        await self.lease_calls.report()
        while True:
            with contextlib.suppress(EngineError):  # which the log has been told
                is_last = not await self.balancer.others_take()
                if is_last:
                    self._drain_in_place()
                else:
                    await self._retire()
            await asyncio.sleep(self.config.lease_ttl / OBSERVATIONS)

    async def _retire(self) -> None:
        if self.drains_in_place or any(shard.roles.contends for shard in self.shards):
            self.drains_in_place = False
            successors = await self.balancer.successors()
            for shard in self.shards:
                shard.roles.retire(successors.get(shard.index, ""))

    def _drain_in_place(self) -> None:
        """Lead shards without another candidate: otherwise their clients would wait for ever."""
        if not self.drains_in_place:
            self.drains_in_place = True
            log.info("draining: no other node takes shards, so new jobs are refused", event("draining-last"))
            for service in self.services():
                service.broker.drain()
            for shard in self.shards:
                shard.roles.contend()

    def services(self) -> list[Service]:
        return [shard.service for shard in self.shards if shard.service is not None]

    def _idlers(self) -> list[Idler]:
        """The node that a client has connected to knows what it does at all shards."""
        return [*self.clients.open, *self.clients.served()]

    def condition(self) -> Condition:
        condition = super().condition()
        shards = self.shards if self._serves else []
        return condition._replace(
            is_draining=condition.is_draining or self._draining is not None,
            is_stranded=any(not (shard.leads or shard.link.is_open) for shard in shards),
            is_suspended=any(shard.roles.role == IS_SUSPENDED for shard in shards),
            is_standby=not self.services(),
        )

    def shard_figures(self) -> list[ShardFigures]:
        return [shard.figures() for shard in self.shards]

    def _ask_for_users(self) -> None:
        self.links.ask_for_users(all(each.auth != NONE or each.user is not None for each in self.listener_policies))

    async def _judge(self, accounts: Accounts | None) -> int:
        self._ask_for_users()
        return self.clients.judge(accounts) + await super()._judge(accounts)

    def _halt(self) -> None:
        self.clients.closing = True
        for service in self.services():
            service.halt()

    async def _leave(self) -> None:
        for task in (self._checking, self._draining):
            if task is not None:
                task.cancel()
        await self.balancer.stop()
        self.lease_calls.report_soon()
        successors = await self.balancer.successors()
        stops = [shard.stop(successors.get(shard.index, "")) for shard in self.shards]
        await asyncio.gather(self.lease_calls.report(), *stops)
        await self.clients.abort_all()
        await self.links.stop()

    async def _end(self) -> None:
        self._close()

    def _close(self) -> None:
        """Close the connections to the engine."""
        self.lanes.close()
        self.lease_calls.close()


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
            why = why or f"cannot reach {server.name}: {error.strerror}"
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


def connect_of(config: Config) -> Connect:
    """What makes connections to the engine that the settings name.

    Raises:
        StartError: a file that they name is missing.
    """
    mistakes = missing_for_engine(config.cluster)
    if mistakes:
        raise StartError("\n".join(map(str, mistakes)), BAD_OPTION)
    try:
        return connect_to(config.cluster, config.cluster_name, config.replicas, min(2.0, config.lease_ttl / 5))
    except ValueError as error:
        raise StartError(f"{option('cluster')}: {error}", BAD_OPTION) from None
