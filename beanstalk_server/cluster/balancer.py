"""Balances the shards of a cluster over its nodes: which shards this node gives away, and which it takes.

Inputs are the leader of each shard, as the roles of this node have seen it, and the reports of the live nodes. The
decisions are two functions of these figures alone, so nodes with the same figures decide the same:

    transfers    a node that leads more than its share gives some to those that lead fewer
    successors   a shard without a leader goes to the node that leads fewest

A node that has just come is given nothing for a while, because it may be gone again. Nothing is given away while a
shard has no leader: the figures say little then. How a shard is handed over is up to the shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from time import monotonic_ns
from typing import Final, Protocol

from beanstalk_server.cluster.engine.interface import EngineError, Lease, Member
from beanstalk_server.cluster.lease import OBSERVATIONS
from beanstalk_server.events import event
from beanstalk_server.queue.units import SECOND

ALIVE: Final = 2
"""A node that has not reported for a TTL divided by this is believed to be gone; or for a second more, because engines
count in seconds."""

DISTRUST: Final = 5
"""For this many TTLs nothing is given to a node that has not taken what it was given."""

PAUSE: Final = 0.05
"""Seconds between two shards that are given away."""

MEMBERS_TIMEOUT: Final = 0.5
"""Timeout in seconds for the list of nodes, when a node stops."""

log = logging.getLogger("beanstalk_server")


class Standing(Protocol):
    """A shard, as this node sees it."""

    index: int

    @property
    def leader(self) -> str:
        """The id of the node that leads it; "" if no node does."""

    @property
    def holder(self) -> str:
        """The same; or of the node that it is being handed over to."""

    @property
    def lost(self) -> Lease | None:
        """The lease that any node may take now, as the last leader has left it."""

    @property
    def led_since(self) -> int:
        """When this node began to lead it, in nanoseconds; -1 if it does not, or not any more."""

    async def hand_over(self, successor: str) -> None:
        """Let another node lead; return when this one does not any more."""


class Balancer:
    """The spreading of shards, as far as one node does it, from `start` to `stop`.

    Args:
        node: the id of this node.
        shards: all of them.
        ttl: of the leases, in nanoseconds.
        find_members: the nodes that have reported.
        find_linked: the ids of the nodes that have links to this one, which prove that they are alive.
        clock: nanoseconds.
    """

    def __init__(
        self,
        node: str,
        shards: Sequence[Standing],
        ttl: int,
        find_members: Callable[[], Awaitable[list[Member]]],
        find_linked: Callable[[], set[str]],
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.node = node
        self.address = ""  # of this node, once it takes links
        self.takes = True  # this node may be given shards
        self._shards = shards
        self._ttl = ttl
        self._find_members = find_members
        self._find_linked = find_linked
        self._clock = clock
        self._since: dict[str, int] = {}  # each node that may be given shards, and from when on
        self._is_known = False  # the nodes have been asked for before
        self._addresses: dict[str, str] = {}  # of the same nodes
        self._gone: set[str] = set()  # those whose process has ended, until no report names them
        self._given: dict[int, str] = {}  # shards that were given away, and to whom, until that node leads them
        self._successors: dict[int, str] = {}  # as they were found last
        self._found_at = 0  # when that was
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Spread the shards from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Give and take nothing any more."""
        self.takes = False
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def knows(self, node: str) -> bool:
        """Whether another node is alive, and takes shards."""
        return node in self._since and node in self._find_linked()

    def is_successor(self, shard: int, lost: Lease) -> bool:
        """Whether this node, and no other one, is to take a shard without a leader.

        Args:
            lost: the lease as the last leader has left it.
        """
        if lost.successor == self.node:
            return True
        now = self._clock()
        if shard not in self._successors or now - self._found_at > self._ttl // OBSERVATIONS // 2:
            self._found_at = now
            lost_leases = [lease for each in self._shards if (lease := each.lost) is not None]
            gone = {each for lease in lost_leases for each in (lease.node, lease.successor)}
            # The lost leader may not have reported yet: an earlier process at its address has ended, too.
            closed = {lease.address for lease in lost_leases if lease.node}
            gone.update(node for node, address in self._addresses.items() if address in closed)
            self._successors = successors(self._without_leader(gone), self._counts(gone))
        return self._successors.get(shard, self.node) == self.node

    async def successors(self) -> dict[int, str]:
        """Who is to take the shards that this node leads, when it leads none any more."""
        with contextlib.suppress(EngineError, TimeoutError):  # then what was seen last must do
            async with asyncio.timeout(MEMBERS_TIMEOUT):
                self._see(await self._find_members())
        own = [shard.index for shard in self._shards if shard.led_since >= 0]
        counts = self._counts({self.node})
        linked = self._find_linked()
        return successors(own, {node: count for node, count in counts.items() if node in linked})

    async def others_take(self) -> bool:
        """Whether any other node may be given shards.

        Raises:
            EngineError: the engine does not say.
        """
        self._see(await self._find_members())
        return bool(self._since)

    def note_led(self, shard: int) -> None:
        """Note that this node leads a shard. If it has given it away, the node that should have it has not taken it."""
        taker = self._given.pop(shard, None)
        if taker in self._since:
            log.warning(
                "node %(node)s has not taken over shard %(shard)d: this node will offer it no shards for %(seconds)d s",
                event("shard-not-taken", node=taker, shard=shard, seconds=DISTRUST * self._ttl // SECOND),
            )
            self._since[taker] = self._clock() + DISTRUST * self._ttl

    def note_gone(self, node: str) -> None:
        """Note that the process of a node has ended: its last report says that it is alive."""
        self._gone.add(node)
        self._since.pop(node, None)

    def _counts(self, gone: set[str]) -> dict[str, int]:
        """How many shards each node leads that takes some, but for those that are gone."""
        led = Counter(shard.holder for shard in self._shards)
        nodes = set(self._since)
        if self.takes:
            nodes.add(self.node)
        return {node: led[node] for node in nodes - gone}

    def _without_leader(self, gone: set[str]) -> list[int]:
        return [shard.index for shard in self._shards if shard.holder == "" or shard.holder in gone]

    async def _run(self) -> None:
        try:
            while True:
                with contextlib.suppress(EngineError):  # which the log has been told
                    await self._even_out()
                await asyncio.sleep(self._ttl / OBSERVATIONS / SECOND)
        except Exception:
            log.exception("balancer task crashed; this is a bug in the server", event("bug-in-spreading"))

    def _see(self, members: list[Member]) -> None:
        """Note which nodes are alive."""
        now = self._clock()
        self._gone.intersection_update(member.node for member in members)
        at = {self.address: self.node}  # of several processes with one address, only the last can be alive
        for member in sorted(members, key=attrgetter("seen")):
            at.setdefault(member.address, member.node)
        alive = {
            member.node
            for member in members
            if member.takes
            and at[member.address] == member.node
            and member.node not in (self.node, *self._gone)
            and member.seen < self._ttl / ALIVE / SECOND + 1
        }
        settled = now + (self._ttl // ALIVE if self._is_known else 0)
        self._is_known = True
        self._since = {node: self._since.get(node, settled) for node in sorted(alive)}
        self._addresses = {member.node: member.address for member in members if member.node in alive}
        for shard in self._shards:
            if self._given.get(shard.index) == shard.leader:
                del self._given[shard.index]

    async def _even_out(self) -> None:
        """Give away what others should lead, one shard after the other."""
        while self.takes:
            self._see(await self._find_members())  # a node that has just stopped has said so before it led nothing
            now = self._clock()
            new = {node for node, since in self._since.items() if since > now}
            counts = self._counts(new)
            own = [shard for shard in self._shards if shard.led_since >= 0]
            if self._without_leader(set()) or len(own) != counts.get(self.node):
                return
            taker = next((taker for giver, taker in transfers(counts) if giver == self.node), "")
            if not taker or not self.knows(taker):
                return
            shard = min(own, key=lambda each: (each.led_since, each.index))
            self._given[shard.index] = taker
            log.info(
                "moving shard %(shard)d to node %(node)s, which leads fewer shards",
                event("shard-moves", shard=shard.index, node=taker),
            )
            await shard.hand_over(taker)
            await asyncio.sleep(PAUSE)


def transfers(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """The fewest transfers after which no node leads more than one shard more than another.

    Counts that differ by one at most are left alone.

    Args:
        counts: how many shards each node leads.

    Returns:
        for each transfer of one shard, the node that gives and the node that takes, in the order in which they are to
        happen: at any time, the node with most gives, and the node with fewest takes.
    """
    if not counts:
        return []
    share, rest = divmod(sum(counts.values()), len(counts))
    # Those that lead most keep one more, so that what is even already stays as it is.
    ordered = sorted(counts, key=lambda node: (-counts[node], node))
    excess: list[tuple[int, str]] = []
    lack: list[tuple[int, str]] = []
    for rank, node in enumerate(ordered):
        due = share + (rank < rest)
        excess += [(-count, node) for count in range(due + 1, counts[node] + 1)]
        lack += [(count, node) for count in range(counts[node], due)]
    return [(giver, taker) for (_, giver), (_, taker) in zip(sorted(excess), sorted(lack), strict=True)]


def successors(orphans: Iterable[int], counts: Mapping[str, int]) -> dict[int, str]:
    """Assign a node to each shard without a leader.

    Args:
        orphans: their numbers.
        counts: how many shards each node leads that may take one.
    """
    if not counts:
        return {}
    fewest = [(count, node) for node, count in counts.items()]
    heapq.heapify(fewest)
    found = {}
    for shard in sorted(orphans):
        count, node = fewest[0]
        found[shard] = node
        heapq.heapreplace(fewest, (count + 1, node))
    return found
