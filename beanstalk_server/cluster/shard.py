"""One shard of a cluster at one node: it leads by turns, and follows the leader otherwise.

    Roles       when it leads (roles.py), and tells the shard
    Service     what serves the clients of the shard; a new one each time it leads, none otherwise
    LeaderLink  the link to the node that leads it

When it takes over, it reads the journal in a thread, because the lease must be renewed meanwhile. When it leads no
more, nothing of the service is left: the next leader has all that was acknowledged.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from beanstalk_server.cluster.commit_sender import CommitSender, FencedError
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine.interface import START, Lease, Position
from beanstalk_server.cluster.engine_binlog import EngineBinlog
from beanstalk_server.cluster.engine_writer import EngineWriter, GivenUpError
from beanstalk_server.cluster.links import LeaderLink
from beanstalk_server.cluster.roles import IS_SUSPENDED, LEADS, Roles, TakeOverError
from beanstalk_server.events import event, log_of_shard
from beanstalk_server.queue.histogram import MICROSECOND
from beanstalk_server.queue.journal import ALL, Journal, RestoreInterruptedError
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.server.alarm import finest_alarm
from beanstalk_server.server.process import this_process
from beanstalk_server.server.service import Service
from beanstalk_server.server.start_error import StartError
from beanstalk_server.storage.errors import DAMAGED
from beanstalk_server.wire.yaml import Rows

if TYPE_CHECKING:
    from beanstalk_server.admin.metrics import ShardFigures
    from beanstalk_server.cluster.node import Node

FINISH_WITHIN: Final = 5
"""Seconds after which a node that hands over waits for the engine no longer, unless that has lost what only the node
has."""

log = logging.getLogger("beanstalk_server")


class Shard:
    """A shard, from the `start` of its roles to `stop`.

    Args:
        index: its number.
        owner: the node.
    """

    def __init__(self, index: int, owner: Node) -> None:
        self.index = index
        self.owner = owner
        self.log = log_of_shard(log, index, owner.config.shards)
        self.roles = Roles(index, owner.name, owner.config.lease_ttl * SECOND, self, owner.lease_calls.ask, self.log)
        self.service: Service | None = None  # while it leads
        self.link = LeaderLink(
            index,
            owner.name,
            functools.partial(owner.clients.follow, index),
            functools.partial(owner.clients.lose, index),
            self._on_gone,
            self.roles.look,
            log=self.log,
            keepalive=owner.config.keepalive,
        )
        self._writer: EngineWriter  # sends the commits, while it leads
        self._restoring: Journal | None = None  # what a thread reads
        self._is_finished = False  # the journal has been closed
        self._damaged = 0  # how often in a row the files have been found damaged
        self._holds: set[str] = set()  # why nothing is handed out
        self._began = 0  # when it began to lead, in nanoseconds
        self._is_away = asyncio.Event()  # while it does not lead
        self._is_away.set()
        self._finishing: asyncio.Timeout | None = None  # the end of leading, and how long that may take

    @property
    def leads(self) -> bool:
        """Whether its clients are served here."""
        return self.service is not None

    async def stop(self, successor: str) -> None:
        """Stop leading and following.

        Args:
            successor: the node that is to lead; "" for any node.
        """
        self.interrupt()
        await self.roles.stop(successor)
        await self.link.stop()

    def interrupt(self) -> None:
        """Let a restore end soon; a signal handler may call it."""
        if self._restoring is not None:
            self._restoring.interrupted = True

    # What the balancer asks

    @property
    def leader(self) -> str:
        return self.roles.lease.node

    @property
    def holder(self) -> str:
        return self.roles.holder

    @property
    def lost(self) -> Lease | None:
        return self.roles.lost

    @property
    def led_since(self) -> int:
        is_well = self.leads and self.roles.role == LEADS and not self._holds
        return self._began if is_well else -1

    async def hand_over(self, successor: str) -> None:
        self.roles.hand_over(successor)
        await self._is_away.wait()

    # What its roles tell it

    def is_successor(self, lost: Lease) -> bool:
        return self.owner.balancer.is_successor(self.index, lost)

    def on_successor(self, node: str) -> None:
        if self.owner.balancer.knows(node):
            self.log.info("moving to node %(node)s, as requested", event("shard-asked-to-move", node=node))
            self.roles.hand_over(node)

    def follow(self, lease: Lease) -> None:
        if lease.node in ("", self.owner.name):
            self.link.close()
        else:
            self.link.follow(lease)

    def _on_gone(self, epoch: int, node: str, is_sure: bool) -> None:
        if is_sure:
            self.log.info(
                "the process that led epoch %(epoch)d has exited", event("leader-gone", epoch=epoch, node=node)
            )
            self.owner.balancer.note_gone(node)
        self.roles.note_gone(epoch, node, is_sure=is_sure)

    async def take_over(self, lease: Lease) -> None:
        owner = self.owner
        began = monotonic_ns()
        self.link.close()
        journal, writer = self._make_journal(lease)
        info = this_process(owner.config.max_job_size, owner.info.started_at, owner.config.compat)
        info.instance = owner.info.instance
        info.more = self._statistics
        info.log = self.log
        info.names_tube_of_shard = self._has_tube
        service = Service(
            owner.config,
            journal,
            info,
            owner.listeners,
            owner.hangups,
            functools.partial(self._on_journal_failure, journal),
            began,
            stride=owner.config.shards,
            offset=self.index,
            gathering=owner.gathering,
            policy_of=owner.policy_of(self.index),
            slow=owner.slow,
        )
        info.clients = service.connections.client_list
        service.gate.logs_failure = False
        self._restoring = journal
        try:
            await asyncio.to_thread(service.restore)
            if owner.is_stopping():
                raise RestoreInterruptedError
        except RestoreInterruptedError:
            await self._discard(service, writer)
            raise TakeOverError("the server is stopping") from None
        except StartError as error:
            await self._discard(service, writer)
            # The engine may have failed over meanwhile, and then half of the files are others: twice is no accident.
            self._damaged = self._damaged + 1 if error.status == DAMAGED else 0
            if self._damaged > 1:
                self._note_damage(error)
            raise TakeOverError(str(error)) from error
        finally:
            self._restoring = None
        self._damaged = 0
        self._is_finished = False
        journal.on_rewriting = self._on_rewriting
        service.start(asyncio.get_running_loop())
        service.change_policies(owner.policy_of(self.index))  # there may have been a reload meanwhile
        service.timers.use_alarm(finest_alarm)
        service.turns.on_lease_end = self._on_lease_end
        if owner.drains_in_place:
            service.broker.drain()
        if journal.admits != ALL:
            service.gate.on_admission(journal.admits)
        await service.catch_up()
        try:
            await self.roles.confirm()
        except TakeOverError:
            await self._discard(service, writer)
            raise
        self._writer = writer
        self.service = service
        if self._holds:
            service.turns.suspend()
        self._began = began
        self._is_away.clear()
        self._note_lease_end()
        owner.on_services()
        owner.balancer.note_led(self.index)
        owner.links.lead(self.index, lease, service.connections, owner.find_user, self.log)
        owner.clients.lead(self.index, service.connections)
        took = (monotonic_ns() - began) / MILLISECOND
        jobs = len(service.broker.jobs)
        self.log.info(
            "this node leads in epoch %(epoch)d with %(jobs)d jobs; taking over took %(milliseconds).0f ms",
            event("leads", epoch=lease.epoch, jobs=jobs, milliseconds=took),
        )

    def _has_tube(self, name: str) -> bool:
        """Whether a tube of this name belongs to this shard."""
        return self.owner.clients.places.of_tube(name.encode()) == self.index

    def _note_damage(self, error: StartError) -> None:
        """Stop leading this shard, whose files are damaged. The other shards of the cluster stay."""
        if self.owner.config.shards == 1:
            self.owner.fail(error)
            return
        self.log.critical("this node no longer leads this shard: %(error)s", event("shard-given-up", error=error))
        self.roles.contends = False

    def _make_journal(self, lease: Lease) -> tuple[EngineBinlog, EngineWriter]:
        """The journal of the leader with this lease."""
        config = self.owner.config
        directory = EngineDirectory(self.owner.connect(), CommitSender(lease, config.replicas), shard=self.index)
        writer = EngineWriter(directory, self.owner.lanes)
        writer.on_lost_lease = self.roles.renew_soon
        return EngineBinlog(directory, writer, segment_size=config.segment_size), writer

    async def _discard(self, service: Service, writer: EngineWriter) -> None:
        """Discard a service that has never served clients."""
        service.journal.on_failure = None  # it is to fail
        writer.give_up(GivenUpError("the node has not led the shard"))
        await service.give_up()
        self._holds.clear()
        self.owner.on_garbage()

    def _on_rewriting(self, is_rewriting: bool) -> None:
        if is_rewriting:
            self.suspend("rewriting")
        else:
            self.resume("rewriting")
        self._limit_finish()

    def suspend(self, why: str = "lease") -> None:
        self._holds.add(why)
        if self.service is not None:
            self.service.turns.suspend()

    def resume(self, why: str = "lease") -> None:
        """Undo `suspend`, if there is no other reason."""
        self._holds.discard(why)
        if not self._holds and self.service is not None:
            self.service.turns.resume()

    def keep(self, kept: int) -> None:
        """Keep this many bytes of the last commits, while it leads."""
        self._writer.keep(kept)

    def mark(self) -> Position:
        return self._writer.durable if self.leads else START

    def renewed(self, lease: Lease, mark: Position) -> None:
        if self.leads and not self._is_finished:
            self._note_lease_end()
            self.resume()
            self._writer.check(lease.position, mark)

    def _note_lease_end(self) -> None:
        assert self.service is not None, "it leads"
        assert self.roles.tenure is not None, "it leads"
        self.service.turns.lease_end = self.roles.tenure.end

    def _on_lease_end(self) -> None:
        """The lease has run out, and no timer has said so: the process was stopped for a while."""
        self.roles.check()
        self.suspend()

    async def finish(self) -> None:
        service = self.service
        assert service is not None, "it leads"
        self.suspend("end")
        service.broker.halt()
        service.connections.send_replies()
        try:
            async with asyncio.timeout(None) as self._finishing:
                self._limit_finish()
                await service.gate.commit_rest()
                await service.journal.close()
                self._is_finished = True
        except TimeoutError:
            self.log.error(
                "the engine did not confirm the last changes in time: they were not acknowledged",
                event("last-changes-unconfirmed"),
            )
        finally:
            self._finishing = None

    def _limit_finish(self) -> None:
        """Let the end take this long and no longer; but while all jobs are written anew, only this process has them."""
        if self._finishing is not None and not self._finishing.expired():
            is_rewriting = "rewriting" in self._holds
            self._finishing.reschedule(None if is_rewriting else asyncio.get_running_loop().time() + FINISH_WITHIN)

    async def step_down(self, why: str) -> None:
        service = self.service
        if service is None:
            return
        owner = self.owner
        self.suspend("end")
        if self._is_finished:
            service.connections.send_replies()  # of those who have been told since the last commit to wait no longer
        # First, because the jobs of those who leave would be given to clients at other nodes who wait for one.
        owner.links.stand_by(self.index, why, is_clean=self._is_finished)
        await owner.clients.stop_leading(self.index, self._is_finished)
        service.connections.closing = True
        service.journal.on_failure = None  # it is to fail
        self._writer.give_up(GivenUpError(why))
        count = len(service.connections.open)
        await service.connections.abort_all()
        if not self._is_finished:
            await service.journal.close()
        service.end_turns()
        self.service = None
        owner.on_services()
        self._is_away.set()
        self._holds.clear()
        jobs = len(service.broker.jobs)
        await service.drop_jobs()
        del self._writer  # it has the last commits
        owner.on_garbage()
        self.log.info(
            "lost leadership: %(reason)s; %(connections)d connections were closed, %(jobs)d jobs remain",
            event("leads-no-more", reason=why, connections=count, jobs=jobs),
        )

    def give_up(self) -> None:
        self.owner.fail(RuntimeError("the role task crashed"))

    def _on_journal_failure(self, journal: Journal) -> None:
        service = self.service
        if service is None or service.journal is not journal:
            return
        error = service.gate.failure
        assert error is not None, "it has failed"
        if isinstance(error, FencedError):
            self.roles.fenced(error.epoch)
            return
        if isinstance(error, GivenUpError):
            return
        self.log.critical(
            "the journal failed: the server is stopping and acknowledges no more changes: %(error)s",
            event("journal-failed", error=error),
        )
        self.owner.fail(error)

    # What is shown

    def figures(self) -> ShardFigures:
        """The shard, as operators see it."""
        from beanstalk_server.admin.metrics import STANDBY, ShardFigures  # most nodes speak no HTTP

        roles = self.roles
        role = roles.role if roles.role in (LEADS, IS_SUSPENDED) else STANDBY
        service = self.service
        if service is None:
            return ShardFigures(role, roles.epoch, 0, None)
        latency = self._writer.latency
        half, most = (latency.percentile(share) // MICROSECOND for share in (0.5, 0.99))
        return ShardFigures(role, roles.epoch, len(service.broker.jobs), (half, most))

    def _statistics(self) -> Rows:
        roles = self.roles
        role = roles.role if roles.role in (LEADS, IS_SUSPENDED) else "standby"
        latency = self._writer.latency
        shards = self.owner.config.shards
        found = {
            "cluster-role": role,
            "cluster-leader": str(roles.leader),
            "cluster-epoch": str(roles.epoch),
            "cluster-commit-latency-p50": str(latency.percentile(0.5) // MICROSECOND),
            "cluster-commit-latency-p99": str(latency.percentile(0.99) // MICROSECOND),
        }
        if shards > 1:
            found |= {"cluster-shards": str(shards), "cluster-shards-led": str(self.owner.led())}
        return found
