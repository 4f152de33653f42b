"""Which role a node has by now: it asks the engine again and again, and tells its owner.

    standing by    looks at the lease, until it may be taken
    taking over    has the lease; the owner brings back the jobs
    leading        renews the lease
    suspended      could not renew it in time: hands nothing out until it can, or is fenced

When a node has led, because it was fenced or has given the lease back, it stands by again. `lease.py` says when what
may happen; here are its clock and its calls, one at a time, in a thread of their own. Must never know jobs, clients or
files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic_ns
from typing import Any, Final, Protocol

from beanstalk_server.cluster.engine import Engine, EngineError, Lease
from beanstalk_server.cluster.lease import (
    FENCED,
    LEADING,
    LOST,
    OBSERVATIONS,
    RETRIES,
    SUSPENDED,
    Contender,
    Tenure,
)
from beanstalk_server.config import option
from beanstalk_server.queue.units import SECOND

STANDING_BY: Final = "standby"
TAKING_OVER: Final = "taking over"
LEADS: Final = "leader"
IS_SUSPENDED: Final = "suspended"

CUT_OFF: Final = 2
"""After so many TTLs without an answer of the engine, a node is cut off: this is no failover any more, and perhaps
another node can serve its clients."""

REPORTS: Final = 10
"""After so many renewals, a leader reports that it is alive, as a standby does with each look."""

COMPLAINTS: Final = 10 * SECOND
"""Nanoseconds between two lines of the log about an engine that does not answer."""

log = logging.getLogger("beanstalk_server")


class TakeOverError(Exception):
    """A node that has the lease cannot serve for the moment: the message says why."""


class Owner(Protocol):
    """What a node does in its roles."""

    def follow(self, lease: Lease) -> None:
        """Pass clients to this leader: called after each look at the lease while the node stands by."""

    async def take_over(self, lease: Lease) -> None:
        """Bring back the jobs, and serve: this is the lease with the position of the last commit.

        Raises:
            TakeOverError: that is not possible now.
        """

    def suspend(self) -> None:
        """Hand nothing out."""

    def resume(self) -> None:
        """Undo `suspend`."""

    def mark(self) -> Any:
        """Whatever `renewed` needs from the moment when the renewal was sent."""

    def renewed(self, lease: Lease, mark: Any) -> None:
        """The engine has this lease by now, with the position of its last commit."""

    async def finish(self) -> None:
        """Make everything durable, and leave the files as the next leader will want them; or give up soon."""

    async def step_down(self, why: str) -> None:
        """Serve no more. Whatever has been handed out is another leader's by now."""

    def cut_off(self) -> None:
        """Nobody can be served here: the engine has not answered for long. Called again and again, until it does."""

    def give_up(self) -> None:
        """End the process."""


class Roles:
    """The roles of one node, from `start` to `stop`.

    Args:
        engine: a connection for these calls alone.
        node: the id of this node.
        address: HOST:PORT where it takes links.
        ttl: of the lease, in nanoseconds.
        in_thread: makes a call that blocks; one at a time.
        clock: nanoseconds.
        draw_secret: makes what the nodes prove to know.
    """

    def __init__(
        self,
        engine: Engine,
        node: str,
        address: str,
        ttl: int,
        owner: Owner,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        clock: Callable[[], int] = monotonic_ns,
        draw_secret: Callable[[], str] = lambda: secrets.token_hex(32),
    ) -> None:
        self.engine = engine
        self.node = node
        self.address = address
        self.ttl = ttl
        self.owner = owner
        self.role = STANDING_BY
        self.contends = True  # else it only stands by
        self.tenure: Tenure | None = None  # while it has the lease
        self.contender = Contender(node, address, ttl)
        self._in_thread = in_thread
        self._clock = clock
        self._draw_secret = draw_secret
        self._stopping = False
        self._may_finish = False  # the lease is to be given back
        self._failed = False  # it had the lease, and could not serve
        self._is_told = False  # the log has said that there is no lease
        self._awake = asyncio.Event()  # something has happened: the task must look again
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # for the end of the lease
        self._silent_since = -1  # when the engine has begun not to answer
        self._complained = -1  # when the log has been told about that last

    @property
    def epoch(self) -> int:
        """Of the leader, as far as this node knows."""
        return self.contender.highest if self.tenure is None else self.tenure.lease.epoch

    @property
    def leader(self) -> str:
        """The address of the leader, or "" if there is none."""
        if self.tenure is not None:
            return self.address
        lease = self.contender.lease
        return "" if lease is None or not lease.node else lease.address

    def start(self) -> None:
        """Stand by from now on, and lead when nobody else does."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Give the lease back, if this node has it, and take none any more."""
        self._stopping = True
        self.hand_over()
        if self._task is not None:
            await self._task

    def hand_over(self) -> None:
        """Give the lease back soon, if this node has it, and take none any more."""
        self.contends = False
        self._may_finish = True
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

    def check(self) -> None:
        """Find out now how things stand with the lease."""
        if self.tenure is not None:
            self._settle()

    # Standing by

    async def _run(self) -> None:
        try:
            while not self._stopping:
                tenure = await self._contend()
                if tenure is not None:
                    await self._lead(tenure)
        except Exception:
            log.exception("the node can have no role any more; this is a bug in the server")
            self.owner.give_up()

    async def _contend(self) -> Tenure | None:
        """Stand by until the lease has been taken; None at the end."""
        highest = max(self.contender.highest, 0 if self.tenure is None else self.tenure.highest)
        contender = self.contender = Contender(self.node, self.address, self.ttl, highest)
        self.tenure = None
        self.role = STANDING_BY
        rivalled = 0  # the last epoch whose leader has the address of this node
        if self._failed:  # others may be able to
            self._failed = False
            await self._sleep(self.ttl // OBSERVATIONS)
        while not self._stopping:
            self._awake.clear()
            lease = await self._call(partial(self.engine.observe, self.node, self.address))
            if lease is None:
                contender.lose_sight()
            else:
                contender.observe(lease, self._clock())
                rival = contender.rival()
                if rival is not None and rival.epoch != rivalled:
                    rivalled = rival.epoch
                    log.error(
                        "node %s, which leads, has the address %s of this node: no two must have the same %s",
                        rival.node,
                        rival.address,
                        option("advertise"),
                    )
                self.owner.follow(Lease() if rival is not None else lease)
                if not lease.epoch and not self._is_told and self.contends:
                    self._is_told = True
                    log.info("the engine is new, or was wiped: leads in %g s if no other node does", self.ttl / SECOND)
                reason = contender.reason(self._clock()) if self.contends else ""
                if reason:
                    tenure = await self._take(contender, reason)
                    if tenure is not None:
                        return tenure
            await self._sleep(self.ttl // OBSERVATIONS)
        return None

    async def _take(self, contender: Contender, reason: str) -> Tenure | None:
        """Take the lease; None if that has failed."""
        seen = contender.lease
        assert seen is not None, "there is a reason to take it"
        claim = contender.claim(self._draw_secret())
        if reason == LOST:
            log.critical(
                "%s: epoch %d was there, and is not; this node begins epoch %d", reason, contender.highest, claim.epoch
            )
        else:
            log.info("taking over as the leader of epoch %d: %s", claim.epoch, reason)
        sent = self._clock()
        while not self._stopping and self._clock() - sent < self.ttl:
            lease = await self._call(partial(self.engine.take, seen, claim))
            if lease is None:
                await self._sleep(self.ttl // RETRIES)
                continue
            if (lease.epoch, lease.node, lease.secret) == (claim.epoch, claim.node, claim.secret):
                return Tenure(lease, self.ttl, sent)
            contender.observe(lease, self._clock())
            log.info("another node has taken over: %s leads in epoch %d", lease.address, lease.epoch)
            return None
        contender.lose_sight()
        contender.highest = max(contender.highest, claim.epoch)  # it may have happened
        return None

    # Leading

    async def _lead(self, tenure: Tenure) -> None:
        """Serve until there is another leader, or the lease is to be given back."""
        loop = asyncio.get_running_loop()
        self.tenure = tenure
        self.role = TAKING_OVER
        why = "it has handed over"
        renewing = loop.create_task(self._renew(tenure))
        taking = loop.create_task(self.owner.take_over(tenure.lease))
        try:
            while not taking.done() and tenure.state(self._clock()) != FENCED:
                await self._wait_for(taking)
            if taking.done():
                taking.result()
                if tenure.state(self._clock()) in (LEADING, SUSPENDED):
                    self.role = LEADS
                    self._settle()
            while tenure.state(self._clock()) != FENCED and not self._may_finish:
                self._awake.clear()
                await self._awake.wait()
            if tenure.state(self._clock()) != FENCED:
                await self.owner.finish()
        except TakeOverError as error:
            why = f"it cannot serve: {error}"
            log.error("cannot take over: %s", error)
            self._failed = True
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing
        if tenure.state(self._clock()) == FENCED:
            why = (
                f"there is another leader, in epoch {tenure.highest}"
                if tenure.highest > tenure.lease.epoch
                else "its lease is another's"
            )
        else:
            tenure.released()
            await self._give_back(tenure.lease)
        if not taking.done():
            with contextlib.suppress(TakeOverError):
                await taking
        await self.owner.step_down(why)

    async def _wait_for(self, task: asyncio.Task[None]) -> None:
        """Wait until a task is done, or something else has happened."""
        self._awake.clear()
        waking = asyncio.get_running_loop().create_task(self._awake.wait())
        await asyncio.wait((task, waking), return_when=asyncio.FIRST_COMPLETED)
        waking.cancel()

    async def _renew(self, tenure: Tenure) -> None:
        """Renew the lease again and again."""
        count = 0
        while tenure.state(self._clock()) in (LEADING, SUSPENDED):
            await asyncio.sleep(max(tenure.next_renewal - self._clock(), 0) / SECOND)
            sent = self._clock()
            mark = self.owner.mark()
            lease = await self._call(partial(self.engine.renew, tenure.lease))
            if lease is None:
                tenure.failed(self._clock())
            else:
                tenure.renewed(lease, sent)
                if tenure.state(self._clock()) == LEADING and self.role in (LEADS, IS_SUSPENDED):
                    self.owner.renewed(lease, mark)
            self._settle()
            if lease is not None and count % REPORTS == 0:
                await self._call(partial(self.engine.observe, self.node, self.address))
            count += 1

    def _settle(self) -> None:
        """Let the owner do what follows from how things stand with the lease by now."""
        tenure = self.tenure
        assert tenure is not None, "it has been taken"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state = tenure.state(self._clock())
        if state == FENCED:
            self._awake.set()
        if self.role == LEADS and state in (SUSPENDED, FENCED):
            self.role = IS_SUSPENDED
            if state == SUSPENDED:
                log.warning("the lease could not be renewed in time: nothing is handed out until it is")
            self.owner.suspend()
        elif self.role == IS_SUSPENDED and state == LEADING:
            self.role = LEADS
            log.info("the lease has been renewed: jobs are handed out again")
            self.owner.resume()
        if self.role == LEADS:
            left = max(tenure.end - self._clock(), 0) / SECOND
            self._timer = asyncio.get_running_loop().call_later(left, self._settle)

    async def _give_back(self, lease: Lease) -> None:
        answer = await self._call(partial(self.engine.release, lease))
        if answer is None:
            log.warning("the lease could not be given back: another node takes over when it has run out")
        else:
            log.info("the lease has been given back")

    # Calls

    async def _call(self, call: Callable[[], Lease]) -> Lease | None:
        """Make a call; None if it has failed."""
        try:
            lease: Lease = await self._in_thread(call)
        except EngineError as error:
            self._complain(str(error))
            now = self._clock()
            if self._silent_since < 0:
                self._silent_since = now
            elif now - self._silent_since >= CUT_OFF * self.ttl:
                self.owner.cut_off()
            return None
        self._silent_since = -1
        if self._complained >= 0:
            self._complained = -1
            log.info("the engine answers again")
        return lease

    def _complain(self, error: str) -> None:
        now = self._clock()
        if self._complained < 0 or now - self._complained >= COMPLAINTS:
            self._complained = now
            log.warning("%s", error)

    async def _sleep(self, duration: int) -> None:
        """Let so many nanoseconds pass, or fewer if something happens."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), duration / SECOND)
