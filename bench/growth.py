"""How a cluster grows: its rate over the number of nodes and shards, simulated with the costs that a run has measured.

    python -m bench.growth bench/results/….json

One machine can measure what a command costs in each process that it goes through, but not sixty-four nodes. So this
simulates them, in virtual time: clients that send this many commands at a time, and the next ones when all are
answered; nodes, of which each does one thing after the other, and sends the commits of all its shards in one write, and
the next write when that is confirmed; and the engine's primaries, which take one write after the other. What is busy
all the time is the limit.

    what                                                        from the scenario `shards`
    a command at the node that leads its shard                   a node that leads one shard, and one that leads 8
    a command at two nodes: where its client is, and the leader  a node that leads nothing
    a write to the engine, a shard's commit in it, a command     put alone, and 1 and 8 shards
    renewals of leases, links                                    nothing to do, with 8 and 64 shards
    looks at the leases of others                                many at once: one by one, they are lost in noise

What the network does between two machines is a delay here, and costs what it costs on one machine. Must never start a
server.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.doors import CLUSTERED, ROUTED, of_shards
from bench.results import Results
from bench.scenarios import AT_REST, COMMITS, LOOKS, MANY_SHARDS, SHARDS
from bench.tables import Rows, markdown

NODES = (1, 2, 4, 8, 16, 32, 64)
IN_FLIGHT = {1: 400, 100: 50}
"""How many commands a client sends at a time, and how many clients each node has: enough to keep it busy."""

MEASURED = 50
"""A node has commits of no more shards at a time than the measured ones had clients."""

DELAY = 200.0
"""Microseconds that a message takes from one machine to another, and a replica to confirm."""

BUSY = 0.95
"""What is busy for such a share of the time is the limit."""

LOOKS_A_SECOND = 1.0
"""How often a node looks at a lease of another one."""


class Costs(NamedTuple):
    """CPU time in microseconds, and shares of a processor.

    Args:
        home: a command, at the node that leads its shard and no other, and where its client is.
        entry: a command at the node where its client is, if another one leads.
        linked: the same command at that leader, if it leads one shard.
        more, linked_more: what they cost the leader more for each shard more that it leads: commits are smaller then.
        write: a write of a node to a primary.
        commit: the commit of one shard in it.
        command: each command, at the primary.
        led, followed: the share of the primary's processor that a shard takes which a node leads, or follows.
        led_here, followed_here: the same of that node's own processor.
    """

    home: float
    entry: float
    linked: float
    more: float
    linked_more: float
    write: float
    commit: float
    command: float
    led: float
    followed: float
    led_here: float
    followed_here: float


def costs_of(results: Results, peer: str, depth: int) -> Costs:
    """The costs that a run has measured.

    Raises:
        ValueError: it has not measured them.
    """

    def figure(server: str, work: str, size: int, measure: str) -> float:
        point = results.find("shards", peer + CLUSTERED + server, work, size)
        if point is None or not point.values(measure):
            raise ValueError(f"not measured: shards: {peer + CLUSTERED + server}, {work or 'cycle'}, {size}")
        return point.spread(measure).median

    def share(server: str, measure: str) -> float:
        """Of a processor, for each shard more."""
        few, many = (
            figure(server, AT_REST.format(count), 0, measure) / figure(server, AT_REST.format(count), 0, "seconds")
            for count in (SHARDS, MANY_SHARDS)
        )
        return max(many - few, 0.0) / 1e3 / (MANY_SHARDS - SHARDS)

    eight = of_shards(SHARDS)
    single = figure("", COMMITS, 1, "engine_cpu")  # one write with one commit of one command
    command = figure("", "", 100, "engine_cpu")  # nearly nothing but commands
    together = max(single - command, 0.0)  # a write and one commit
    few = figure("", "", 1, "engine_cpu")
    in_a_write = together / max(few - command, 0.01)  # commands with one in flight
    more = figure(eight, "", 1, "engine_cpu") - few
    commit = min(max(more * in_a_write / (SHARDS - 1), 0.0), together)
    home, linked = figure("", "", depth, "cpu"), figure(ROUTED, "", depth, "engine_cpu")
    return Costs(
        home=home,
        entry=figure(eight + ROUTED, "", depth, "cpu"),
        linked=linked,
        more=max(figure(eight, "", depth, "cpu") - home, 0.0) / (SHARDS - 1),
        linked_more=max(figure(eight + ROUTED, "", depth, "engine_cpu") - linked, 0.0) / (SHARDS - 1),
        write=together - commit,
        commit=commit,
        command=command,
        led=share("", "engine_ms"),
        followed=figure("", LOOKS, 0, "engine_cpu") * LOOKS_A_SECOND / 1e6,
        led_here=share("", "cpu_ms"),
        followed_here=share(ROUTED, "cpu_ms"),
    )


class Rate(NamedTuple):
    """What a simulation has found.

    Args:
        commands: a second.
        node, primary: the share of the time in which the busiest one is busy.
        leases: the share of the primary's time that leases take.
        links: the share of a node's time that it takes to follow the other nodes' shards, and to renew its own leases.
    """

    commands: float
    node: float
    primary: float
    leases: float
    links: float

    @property
    def limit(self) -> str:
        """What is busy all the time, or what takes more than half of its time.

        A primary that is busy takes larger writes, and so limits nothing as long as nodes are busy, too.
        """
        if self.node >= BUSY:
            return "links" if self.links > 0.5 else "node"
        if self.primary >= BUSY:
            return "leases" if self.leases > 0.5 else "primary"
        return "clients"


class Server:
    """Does one thing after the other, with this share of its time."""

    def __init__(self, speed: float) -> None:
        self.speed = max(speed, 0.01)
        self.free_at = self.busy = 0.0

    def take(self, now: float, cost: float) -> float:
        """Do something that costs this much; return when it is done."""
        self.free_at = max(self.free_at, now) + cost / self.speed
        self.busy += cost / self.speed
        return self.free_at


class Growth:
    """One simulation.

    Args:
        at_home: whether each client is at the node that leads the shard of its tube; otherwise they are anywhere.
    """

    def __init__(
        self, costs: Costs, nodes: int, shards: int, *, depth: int, primaries: int = 1, at_home: bool = True
    ) -> None:
        self.costs = costs
        self.depth = depth
        self.now = 0.0
        self.done = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        led = [len(range(node, shards, nodes)) for node in range(nodes)]
        self.links = max(count * costs.led_here + (shards - count) * costs.followed_here for count in led)
        self.leases = (shards * costs.led + shards * (nodes - 1) * costs.followed) / primaries
        self.nodes = [Server(1.0 - self.links) for _ in range(nodes)]
        self.primaries = [Server(1.0 - self.leases) for _ in range(primaries)]
        self._others = [min(max(count, 1), MEASURED) - 1 for count in led]
        self._lanes: dict[tuple[int, int], dict[int, list[Callable[[], None]]]] = {}
        self._under_way: set[tuple[int, int]] = set()
        rng = random.Random(1)
        tubes = [number % shards for number in range(nodes * IN_FLIGHT[depth])]
        rng.shuffle(tubes)
        for number, shard in enumerate(tubes):
            entry = shard % nodes if at_home else number % nodes
            self._at(rng.random() * 100, lambda entry=entry, shard=shard: self._send(entry, shard))  # type: ignore[misc]

    def _at(self, moment: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), call))

    def run(self, microseconds: float) -> Rate:
        """Let this time pass, after a quarter of it that does not count."""
        self._until(microseconds / 4)
        self.done = 0
        for server in (*self.nodes, *self.primaries):
            server.busy = max(server.free_at - self.now, 0.0)  # what it has still to do
        self._until(self.now + microseconds)
        node, primary = (
            min(max(server.busy for server in servers) / microseconds, 1.0) for servers in (self.nodes, self.primaries)
        )
        return Rate(self.done / microseconds * 1e6, node, primary, self.leases, self.links)

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = end

    def _send(self, entry: int, shard: int) -> None:
        """A client sends its commands."""
        costs, leader = self.costs, shard % len(self.nodes)
        others = self._others[leader]

        def answer() -> None:
            self.done += self.depth
            self._at(self.now + DELAY, lambda: self._send(entry, shard))

        if entry == leader:
            ready = self.nodes[entry].take(self.now, (costs.home + costs.more * others) * self.depth)
            self._at(ready, lambda: self._commit(leader, shard, answer))
            return

        def arrive() -> None:
            ready = self.nodes[leader].take(self.now, (costs.linked + costs.linked_more * others) * self.depth)
            back = lambda: self._at(self.now + DELAY, answer)  # noqa: E731
            self._at(ready, lambda: self._commit(leader, shard, back))

        self._at(self.nodes[entry].take(self.now, costs.entry * self.depth) + DELAY, arrive)

    def _commit(self, leader: int, shard: int, then: Callable[[], None]) -> None:
        """The commands are in a commit of their shard: the next one that leaves."""
        lane = leader, shard % len(self.primaries)
        self._lanes.setdefault(lane, {}).setdefault(shard, []).append(then)
        if lane not in self._under_way:
            self._under_way.add(lane)
            self._write(lane)

    def _write(self, lane: tuple[int, int]) -> None:
        waiting = self._lanes.pop(lane, {})
        if not waiting:
            self._under_way.discard(lane)
            return
        clients = [then for each in waiting.values() for then in each]
        costs = self.costs
        cost = costs.write + costs.commit * len(waiting) + costs.command * self.depth * len(clients)

        def confirmed() -> None:
            for then in clients:
                then()
            self._write(lane)

        self._at(self.primaries[lane[1]].take(self.now + DELAY, cost) + 2 * DELAY, confirmed)


class Shape(NamedTuple):
    """A cluster to simulate."""

    nodes: int
    shards: int
    primaries: int


def shapes(nodes: Sequence[int] = NODES) -> list[Shape]:
    """The clusters of the table: as many shards as nodes, more of them, and engines that grow along."""
    found = [Shape(count, shards, 1) for count in nodes for shards in (count, 8 * count)]
    return found + [Shape(count, 8 * count, count // 4) for count in nodes if count >= 8]


def table(results: Results, peer: str = "ours", nodes: Sequence[int] = NODES, milliseconds: float = 40.0) -> Rows:
    """A row for each cluster.

    Raises:
        ValueError: the run has not measured the costs.
    """
    costs = {depth: costs_of(results, peer, depth) for depth in IN_FLIGHT}
    heads = [[f"{depth} in flight: at home, commands/s", "limit", "anywhere", "limit"] for depth in IN_FLIGHT]
    rows = [["nodes", "shards", "primaries", *itertools.chain(*heads)]]
    for shape in shapes(nodes):
        row = [f"{each:,}" for each in shape]
        for depth, at_home in itertools.product(IN_FLIGHT, (True, False)):
            growth = Growth(
                costs[depth], shape.nodes, shape.shards, depth=depth, primaries=shape.primaries, at_home=at_home
            )
            rate = growth.run(milliseconds * 1e3 * (10 if depth > 1 else 1))
            row += [f"{rate.commands:,.0f}", rate.limit]
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, help="of a run with the scenario shards")
    parser.add_argument("--peer", default="ours", help="whose costs (default: %(default)s)")
    options = parser.parse_args()
    results = Results.read(options.results)
    try:
        rows = table(results, options.peer)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for depth in IN_FLIGHT:
        costs = costs_of(results, options.peer, depth)._asdict()
        print(f"{depth} in flight: " + ", ".join(f"{name} {value:.4g}" for name, value in costs.items()))
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
