"""The lease: when a node may lead, and when it may not any more. Without I/O and without a clock.

    a node that stands by     Contender     may take the lease as soon as its holder cannot lead any more
    the node that leads       Tenure        renews it, hands nothing out while it may have run out, and ends

The two keep one promise to each other. A leader counts from the *sending* of the last renewal that succeeded, and stops
some time before the TTL is over. A contender counts from the *arrival* of the first answer that shows that renewal, and
waits for the whole TTL. So the leader is the first to stop, although neither knows the other's clock, as long as none
of the clocks is wrong by more than the margin in between.

All moments are nanoseconds of the node's own clock.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.cluster.engine.interface import Lease
from beanstalk_server.queue.units import SECOND
from beanstalk_server.settings.options import LONGEST_TTL

RENEWALS: Final = 5
"""How many renewals fit into a TTL."""

MISSING: Final = 2
"""How many renewals must be missing before an address that refuses connections means that its process is gone, if this
node has never reached it: a firewall refuses too, and so does another machine's loopback address."""

DEFERENCES: Final = 5
"""A lease that was given back to a node is left to that node for a TTL divided by this."""

OBSERVATIONS: Final = 10
"""How many looks at the lease fit into a TTL."""

ABSENCES: Final = 3
"""How many renewals must be missing in an engine that has lost the lease before a node whose own has run out gives it
its lease again: a leader that lives does so after one, and others take the lease after a TTL."""

RETRIES: Final = 50
"""How many renewals that fail at once fit into a TTL."""

# How things stand with a leader
LEADING: Final = 0
SUSPENDED: Final = 1  # the lease may have run out: it hands nothing out
FENCED: Final = 2  # there is another leader
RELEASED: Final = 3  # it has given the lease back

# Why a lease may be taken
NEVER_USED: Final = "the engine has never had a leader"
GIVEN_BACK: Final = "the leader has released the lease"
GONE: Final = "the leader's process has exited"
RUN_OUT: Final = "the leader has not renewed its lease for the whole TTL"
LOST: Final = "the engine has lost the lease, and no leader has renewed it for the whole TTL"


def margin(ttl: int) -> int:
    """How long before the end of its TTL a leader hands nothing out any more."""
    return max(SECOND, ttl // 10)


class Contender:
    """What a node knows of the lease of another.

    Args:
        node: the id of this node.
        address: HOST:PORT where it takes links.
        ttl: of the lease.
        highest: the highest epoch that this node has ever seen.
    """

    def __init__(self, node: str, address: str, ttl: int, highest: int = 0) -> None:
        self.node = node
        self.address = address
        self.ttl = ttl
        self.highest = highest
        self.lease: Lease | None = None  # as it was seen last, while the engine answers
        self._ttl = 0  # that the leader has
        self._since = 0  # when it was seen first
        self._seen = 0  # when it was seen last
        self._gone: tuple[int, str] | None = None  # the epoch and the node of a leader that is gone
        self._is_sure = False  # of that

    def observe(self, lease: Lease, now: int) -> None:
        """Note what the engine has answered; `now` is the moment when the answer came.

        If it comes late, the time until then counts for nothing: perhaps the leader could not reach the engine either.
        A node that had this node's address before it is not leading any more.
        """
        before = self.lease
        is_first = not self.highest
        is_same = before is not None and (before.epoch, before.renewals, before.node) == (
            lease.epoch,
            lease.renewals,
            lease.node,
        )
        if not is_same or now - self._seen > self.ttl // 2:
            self._since = now
        self._seen = now
        self.lease = lease
        if not lease.is_damaged():
            self._ttl = min(lease.ttl, LONGEST_TTL * SECOND) or self._ttl  # an unsealed one may be damaged, too
        if lease.node == self.node or (is_first and self._is_at_this_address(lease) and not lease.is_damaged()):
            self.note_gone(lease.epoch, lease.node)  # it led from here, and does not any more
        self.highest = max(self.highest, lease.epoch)

    def is_damaged(self) -> bool:
        """Whether a bit of the lease has flipped in the engine: its address may be that of another node."""
        return self.lease is not None and self.lease.is_damaged()

    def rival(self) -> Lease | None:
        """The lease, if its holder has been given the address that this node has, and leads."""
        lease = self.lease
        if (
            self.is_damaged()
            or lease is None
            or not self._is_at_this_address(lease)
            or self._gone == (lease.epoch, lease.node)
        ):
            return None
        return lease

    def _is_at_this_address(self, lease: Lease) -> bool:
        """Whether another node has given the address of this one for its own."""
        return lease.address == self.address != "" and lease.node not in ("", self.node)

    def lose_sight(self) -> None:
        """Note that the engine has not answered: the TTL starts anew."""
        self.lease = None

    def note_gone(self, epoch: int, node: str, *, is_sure: bool = True) -> None:
        """Note that the process which led in an epoch has ended: its address refuses connections.

        Args:
            is_sure: the leader had taken a connection at that address. If not, some renewals must be missing too.
        """
        self._is_sure = is_sure or (self._is_sure and self._gone == (epoch, node))
        self._gone = (epoch, node)

    def reason(self, now: int) -> str:
        """Why this node may take the lease at this moment; "" if it may not."""
        lease = self.lease
        if lease is None:
            return ""
        if lease.epoch and not self.has_lost() and not lease.is_damaged():  # else the last leader may be alive
            if not lease.node:
                is_successor = lease.successor in ("", self.node)
                return GIVEN_BACK if is_successor or now - self._since >= self.ttl // DEFERENCES else ""
            if self._gone == (lease.epoch, lease.node) and (
                self._is_sure or now - self._since >= MISSING * self._longer_ttl // RENEWALS
            ):
                return GONE
        if now - self._since >= self._longer_ttl:
            if self.has_lost():
                return LOST
            return RUN_OUT if lease.epoch else NEVER_USED  # or it was wiped, and its leader would be back by now
        return ""

    @property
    def _longer_ttl(self) -> int:
        """That of the leader, which may have been started with another one, or that of this node."""
        return max(self.ttl, self._ttl)

    def has_lost(self) -> bool:
        """Whether the engine has a lower epoch than this node has seen there: it has lost what came since."""
        return self.lease is not None and self.lease.epoch < self.highest

    def claim(self, secret: str) -> Lease:
        """The lease to take."""
        lineage = "" if self.lease is None else self.lease.next_lineage()
        return Lease(self.highest + 1, 0, self.node, self.address, secret, ttl=self.ttl, lineage=lineage).sealed()


class Tenure:
    """The lease of the node that leads.

    Args:
        lease: as it was taken.
        ttl: of the lease.
        sent: when the call that has taken it was made.
    """

    def __init__(self, lease: Lease, ttl: int, sent: int) -> None:
        self.lease = lease
        self.ttl = ttl
        self.next_renewal = sent + ttl // RENEWALS  # when to call for it
        self.end = sent + ttl - margin(ttl)  # when the node must hand nothing out any more
        self.highest = lease.epoch  # the highest epoch that the engine has shown
        self._over = LEADING  # or why it is over
        self._lost: Lease | None = None  # what an engine has that has lost the lease
        self._lost_since = 0  # when it was asked first

    def state(self, now: int) -> int:
        """LEADING, SUSPENDED, FENCED or RELEASED."""
        if self._over != LEADING:
            return self._over
        return LEADING if now < self.end else SUSPENDED

    def renewed(self, lease: Lease, sent: int) -> None:
        """Note what the engine has answered to a renewal that was sent at a moment."""
        own = self.lease
        self.highest = max(self.highest, lease.epoch)
        if own.follows(lease):  # and was not given it again
            if self._lost != lease:
                self._lost, self._lost_since = lease, sent
            self.failed(sent)
            return
        self._lost = None
        if lease.epoch == own.epoch and not lease.node and self._over == RELEASED:
            return
        if not lease.is_same(own):
            self._over = FENCED
        else:
            self.lease = own._replace(renewals=lease.renewals)
            self.end = max(self.end, sent + self.ttl - margin(self.ttl))
            self.next_renewal = max(self.next_renewal, sent + self.ttl // RENEWALS)

    def may_restore(self, now: int) -> bool:
        """Whether a renewal may give the lease to an engine that has lost it: not if another node may lead by now."""
        if self.state(now) == LEADING:
            return True
        return self._lost is not None and now - self._lost_since >= ABSENCES * self.ttl // RENEWALS

    def lose_sight(self, now: int) -> None:
        """Note that a renewal has failed: perhaps the engine has changed meanwhile."""
        self._lost = None
        self.failed(now)

    def failed(self, now: int) -> None:
        """Note that the lease is not renewed: the next attempt is due soon."""
        self.next_renewal = max(self.next_renewal, now + self.ttl // RETRIES)

    def fenced(self, epoch: int) -> None:
        """Note that the engine has refused a commit, because there is another leader."""
        self.highest = max(self.highest, epoch)
        self._over = FENCED

    def released(self) -> None:
        """Note that the lease is about to be given back."""
        if self._over == LEADING:
            self._over = RELEASED
