"""Tracks a node's role in one shard by polling the lease, and calls its owner when the role changes.

    standing by    looks at the lease, until it may be taken
    taking over    has the lease; the owner brings back the jobs
    leading        renews the lease
    suspended      could not renew it in time: hands nothing out until it can, or is fenced

When a node has led, because it was fenced or has given the lease back, it stands by again. `lease.py` says when what
may happen; here are its clock and its calls, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Any, Final, Protocol

from beanstalk_server.cluster.engine.interface import Lease, LeaseCall, observe, release, renew, take
from beanstalk_server.cluster.lease import (
    DEFERENCES,
    FENCED,
    LEADING,
    LOST,
    OBSERVATIONS,
    RETRIES,
    SUSPENDED,
    Contender,
    Tenure,
)
from beanstalk_server.events import Log, event
from beanstalk_server.queue.units import SECOND
from beanstalk_server.settings.options import option

STANDING_BY: Final = "standby"
TAKING_OVER: Final = "taking over"
LEADS: Final = "leader"
IS_SUSPENDED: Final = "suspended"

FIRST_PAUSE: Final = 20_000_000
"""Nanoseconds between the first two looks at a lease without a holder; then each pause is twice as long."""

LONGEST_WAIT: Final = 10 * SECOND
"""Nanoseconds after which a node that could not serve tries again."""

log = logging.getLogger("beanstalk_server")


class TakeOverError(Exception):
    """A node that has the lease cannot serve for the moment: the message says why."""


class ShardActions(Protocol):
    """What a node does in its roles in a shard."""

    def follow(self, lease: Lease) -> None:
        """Pass clients to this leader: called after each look at the lease while the node stands by."""

    async def take_over(self, lease: Lease) -> None:
        """Bring back the jobs, call `confirm`, and serve: this is the lease with the position of the last commit.

        Raises:
            TakeOverError: that is not possible now.
        """

    def is_successor(self, lost: Lease) -> bool:
        """Whether this node is the one that takes over, now that no node leads: others wait for a moment.

        Args:
            lost: the lease as the last leader has left it.
        """

    def suspend(self) -> None:
        """Hand nothing out."""

    def resume(self) -> None:
        """Undo `suspend`."""

    def mark(self) -> Any:
        """Return a value of the moment when the renewal is sent, for `renewed`."""

    def renewed(self, lease: Lease, mark: Any) -> None:
        """The engine has this lease by now, with the position of its last commit."""

    def on_successor(self, node: str) -> None:
        """The leader is asked to hand over to this node. Called with each renewal, until it does."""

    async def finish(self) -> None:
        """Make everything durable, and leave the files as the next leader will want them; or give up soon."""

    async def step_down(self, why: str) -> None:
        """Stop serving: all reserved jobs are another leader's now."""

    def give_up(self) -> None:
        """End the process."""


class Roles:
    """The roles of one node in one shard, from `start` to `stop`.

    Args:
        shard: its number.
        node: the id of this node.
        ttl: of the lease, in nanoseconds.
        ask: makes a call to the engine; returns None if it has failed.
        logger: where to say what happens.
        clock: nanoseconds.
        draw_secret: makes what the nodes prove to know.
    """

    def __init__(
        self,
        shard: int,
        node: str,
        ttl: int,
        owner: ShardActions,
        ask: Callable[[LeaseCall], Awaitable[Lease | None]],
        logger: Log = log,
        clock: Callable[[], int] = monotonic_ns,
        draw_secret: Callable[[], str] = lambda: secrets.token_hex(32),
    ) -> None:
        self.shard = shard
        self.node = node
        self.address = ""  # HOST:PORT where it takes links
        self.ttl = ttl
        self.owner = owner
        self.role = STANDING_BY
        self.contends = True  # else it only stands by
        self.tenure: Tenure | None = None  # while it has the lease
        self.lost: Lease | None = None  # the lease, while any node may take it
        self.contender = Contender(node, "", ttl)
        self._ask = ask
        self._log = logger
        self._clock = clock
        self._draw_secret = draw_secret
        self._stopping = False
        self._may_finish = False  # the lease is to be given back
        self._successor = ""  # to whom; "" for any node
        self._failures = 0  # how many times running it had the lease, and could not serve
        self._is_told = False  # the log has said that there is no lease
        self._is_overdue = asyncio.Event()  # the lease is to be renewed now
        self._awake = asyncio.Event()  # something has happened: the task must look again
        self._task: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None]  # renews the lease, while this node has it
        self._timer: asyncio.TimerHandle | None = None  # for the end of the lease

    @property
    def epoch(self) -> int:
        """Of the leader, as far as this node knows."""
        return self.contender.highest if self.tenure is None else self.tenure.lease.epoch

    @property
    def lease(self) -> Lease:
        """As this node has seen it last; its own while it leads."""
        return (self.contender.lease or Lease()) if self.tenure is None else self.tenure.lease

    @property
    def leader(self) -> str:
        """The address of the leader, or "" if there is none."""
        return self.lease.address if self.lease.node else ""

    @property
    def holder(self) -> str:
        """The id of the leader, or of the node that it hands over to."""
        if self.tenure is not None and self._may_finish:
            return self._successor
        return self.lease.node or self.lease.successor

    def start(self, address: str) -> None:
        """Stand by from now on, and lead when no other node does.

        Args:
            address: HOST:PORT where this node takes links.
        """
        self.address = address
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, successor: str = "") -> None:
        """Give the lease back, if this node has it, and take none any more; return when that is done.

        Args:
            successor: as in `retire`.
        """
        self._stopping = True
        self.retire(successor)
        if self._task is not None:
            await self._task

    def retire(self, successor: str = "") -> None:
        """Give the lease back soon, if this node has it, and take none any more.

        Args:
            successor: the node that is to take it; "" for any node.
        """
        self.contends = False
        self._finish_soon(successor)

    def contend(self) -> None:
        """Undo `retire`: lead when no other node does."""
        self.contends = True
        self._awake.set()

    def hand_over(self, successor: str) -> None:
        """Give the lease back soon, if this node has it, and leave it to another node, unless that does not take it."""
        if self.tenure is not None:
            self._finish_soon(successor)

    def _finish_soon(self, successor: str) -> None:
        if not self._may_finish:
            self._may_finish = True
            self._successor = successor
        self._awake.set()

    def look(self) -> None:
        """Look at the lease now: something seems to have changed."""
        self._awake.set()

    def note_gone(self, epoch: int, node: str, *, is_sure: bool = True) -> None:
        """Note that the process that led in an epoch seems to have ended."""
        self.contender.note_gone(epoch, node, is_sure=is_sure)
        self._awake.set()

    def fenced(self, epoch: int) -> None:
        """Note that the engine has refused a commit, because there is another leader."""
        if self.tenure is not None:
            self.tenure.fenced(epoch)
            self._settle()

    async def confirm(self) -> None:
        """Wait until the lease is valid: it may have run out while the jobs came back, or the process was stopped.

        A node that is about to give the lease back does not wait: `finish` writes its jobs, which the engine may have
        lost.

        Raises:
            TakeOverError: there is another leader, or the lease is not renewed any more.
        """
        tenure = self.tenure
        assert tenure is not None, "it has been taken"
        while (state := tenure.state(self._clock())) != LEADING:
            if state == FENCED or self._renewing.done():
                raise TakeOverError("the lease has expired")
            if self._may_finish:
                return
            self._awake.clear()
            await self._awake.wait()

    def check(self) -> None:
        """Find out now how things stand with the lease."""
        if self.tenure is not None:
            self._settle()

    def renew_soon(self) -> None:
        """Renew the lease now: the engine seems to have lost it."""
        self._is_overdue.set()

    # Standing by

    async def _run(self) -> None:
        try:
            while not self._stopping:
                tenure = await self._contend()
                if tenure is not None:
                    await self._lead(tenure)
        except Exception:
            self._log.exception("role task crashed; this is a bug in the server", event("bug-in-roles"))
            self.owner.give_up()

    async def _contend(self) -> Tenure | None:
        """Stand by until the lease has been taken; None at the end."""
        highest = max(self.contender.highest, 0 if self.tenure is None else self.tenure.highest)
        contender = self.contender = Contender(self.node, self.address, self.ttl, highest)
        self.tenure = None
        self.role = STANDING_BY
        self._may_finish = False
        self._successor = ""
        self.lost = None
        lost_since = 0
        not_before = 0
        if self._failures:  # others may be able to
            wait = min(self.ttl // OBSERVATIONS << self._failures - 1, LONGEST_WAIT)
            not_before = self._clock() + max(wait, self.ttl // OBSERVATIONS)
        pause = FIRST_PAUSE
        rivalled = 0  # the last epoch whose leader has the address of this node
        damaged = 0  # the last epoch whose lease is damaged
        while not self._stopping:
            self._awake.clear()
            lease = await self._ask(observe(self.shard, secrets.randbits(48) | 1))
            if lease is None:
                contender.lose_sight()
                self.lost = None
            else:
                contender.observe(lease, self._clock())
                rival = contender.rival()
                if rival is not None and rival.epoch != rivalled:
                    rivalled = rival.epoch
                    self._log.error(
                        "the leader, node %(node)s, has the address %(address)s of this node: each node must have its "
                        "own %(option)s",
                        event("rival", node=rival.node, address=rival.address, option=option("advertise")),
                    )
                if contender.is_damaged() and lease.epoch != damaged:
                    damaged = lease.epoch
                    self._log.error(
                        "the lease of epoch %(epoch)d is damaged in the engine: waiting for the next leader",
                        event("lease-damaged", epoch=lease.epoch),
                    )
                self.owner.follow(Lease() if rival is not None or contender.is_damaged() else lease)
                if not lease.epoch and not self._is_told and self.contends and not self.shard:
                    self._is_told = True
                    self._log.info(
                        "the engine is new or was wiped: this node becomes the leader in %(seconds)g s if no other "
                        "node does",
                        event("engine-empty", seconds=self.ttl / SECOND),
                    )
                now = self._clock()
                reason = contender.reason(now) if self.contends else ""
                if not reason:
                    self.lost = None
                elif self.lost is None or (self.lost.epoch, self.lost.node) != (lease.epoch, lease.node):
                    self.lost = lease
                    lost_since = now
                is_next = now - lost_since >= self.ttl // DEFERENCES or self.owner.is_successor(lease)
                if reason and now >= not_before and is_next:
                    tenure = await self._take(contender, reason)
                    if tenure is not None:
                        return tenure
            is_free = self.lost is not None or (lease is not None and lease.epoch > 0 and not lease.node)
            if is_free:
                # The node that takes it does not tell: clients wait, and an engine may be wiped before the next look
                await self._sleep(pause)
                pause = min(2 * pause, self.ttl // RETRIES)
            else:
                pause = FIRST_PAUSE
                await self._sleep(self.ttl // OBSERVATIONS)
        return None

    async def _take(self, contender: Contender, reason: str) -> Tenure | None:
        """Take the lease; None if that has failed."""
        seen = contender.lease
        assert seen is not None, "there is a reason to take it"
        claim = contender.claim(self._draw_secret())
        if reason == LOST:
            self._log.critical(
                "%(reason)s: the engine lost epoch %(lost)d; this node starts epoch %(epoch)d",
                event("epoch-lost", reason=reason, lost=contender.highest, epoch=claim.epoch),
            )
        else:
            self._log.info(
                "taking over as the leader of epoch %(epoch)d: %(reason)s",
                event("taking-over", epoch=claim.epoch, reason=reason),
            )
        sent = self._clock()
        while not self._stopping and self._clock() - sent < self.ttl:
            lease = await self._ask(take(self.shard, seen, claim))
            if lease is None:
                await self._sleep(self.ttl // RETRIES)
                continue
            if lease.is_same(claim):
                return Tenure(lease, self.ttl, sent)
            contender.observe(lease, self._clock())
            self._log.info(
                "another node leads: %(leader)s in epoch %(epoch)d",
                event("taken-over", leader=lease.address, epoch=lease.epoch),
            )
            return None
        contender.lose_sight()
        contender.highest = max(contender.highest, claim.epoch)  # it may have happened
        return None

    # Leading

    async def _lead(self, tenure: Tenure) -> None:
        """Serve until there is another leader, or the lease is to be given back."""
        loop = asyncio.get_running_loop()
        self.tenure = tenure
        self.lost = None
        self.role = TAKING_OVER
        why = "the lease was released"
        renewing = self._renewing = loop.create_task(self._renew(tenure))
        renewing.add_done_callback(self._note_end)
        taking = loop.create_task(self.owner.take_over(tenure.lease))
        try:
            while not taking.done() and tenure.state(self._clock()) != FENCED:
                await self._wait_for(taking)
            if tenure.state(self._clock()) != FENCED:
                taking.result()
                self._failures = 0
                self.role = LEADS
                self._settle()
            while tenure.state(self._clock()) != FENCED and not self._may_finish:
                if renewing.done():
                    renewing.result()  # it has failed
                self._awake.clear()
                await self._awake.wait()
            if tenure.state(self._clock()) != FENCED:
                await self.owner.finish()
        except TakeOverError as error:
            why = f"the node could not take over: {error}"
            self._log.error("cannot take over: %(error)s", event("takeover-failed", error=error))
            self._failures = min(self._failures + 1, OBSERVATIONS)
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing
        if tenure.state(self._clock()) == FENCED:
            why = (
                f"another node leads in epoch {tenure.highest}"
                if tenure.highest > tenure.lease.epoch
                else "another node has the lease"
            )
        else:
            tenure.released()
            await self._give_back(tenure.lease)
        with contextlib.suppress(TakeOverError):
            await taking
        await self.owner.step_down(why)

    def _note_end(self, renewing: asyncio.Task[None]) -> None:
        """Wake up, unless this node has ended the task: then `_contend` may have begun to wait already."""
        if not renewing.cancelled():
            self._awake.set()

    async def _wait_for(self, task: asyncio.Task[None]) -> None:
        """Wait until a task is done, or something else has happened."""
        self._awake.clear()
        waking = asyncio.get_running_loop().create_task(self._awake.wait())
        await asyncio.wait((task, waking), return_when=asyncio.FIRST_COMPLETED)
        waking.cancel()

    async def _renew(self, tenure: Tenure) -> None:
        """Renew the lease again and again."""
        while tenure.state(self._clock()) in (LEADING, SUSPENDED):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_overdue.wait(), max(tenure.next_renewal - self._clock(), 0) / SECOND)
            self._is_overdue.clear()
            sent = self._clock()
            mark = self.owner.mark()
            lease = await self._ask(renew(self.shard, tenure.lease, restores=tenure.may_restore(sent)))
            if lease is None:
                tenure.lose_sight(self._clock())
            else:
                tenure.renewed(lease, sent)
                if tenure.state(self._clock()) == LEADING and self.role in (LEADS, IS_SUSPENDED):
                    self.owner.renewed(lease, mark)
                    if lease.successor not in ("", self.node):
                        self.owner.on_successor(lease.successor)
            self._settle()

    def _settle(self) -> None:
        """Let the owner do what follows from how things stand with the lease by now."""
        tenure = self.tenure
        assert tenure is not None, "it has been taken"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state = tenure.state(self._clock())
        if state == FENCED or self.role == TAKING_OVER:
            self._awake.set()
        if self.role == LEADS and state in (SUSPENDED, FENCED):
            self.role = IS_SUSPENDED
            if state == SUSPENDED:
                self._log.warning(
                    "the lease was not renewed in time: no jobs are handed out until it is", event("lease-overdue")
                )
            self.owner.suspend()
        elif self.role == IS_SUSPENDED and state == LEADING:
            self.role = LEADS
            self._log.info("the lease has been renewed: jobs are handed out again", event("lease-renewed"))
            self.owner.resume()
        if self.role == LEADS:
            left = max(tenure.end - self._clock(), 0) / SECOND
            self._timer = asyncio.get_running_loop().call_later(left, self._settle)

    async def _give_back(self, lease: Lease) -> None:
        answer = await self._ask(release(self.shard, lease, self._successor))
        if answer is None:
            self._log.warning(
                "cannot release the lease: another node takes over when it expires",
                event("lease-not-given-back"),
            )
        else:
            self._log.info("the lease has been released", event("lease-given-back"))

    async def _sleep(self, duration: int) -> None:
        """Let this many nanoseconds pass, or fewer if something happens."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), duration / SECOND)
