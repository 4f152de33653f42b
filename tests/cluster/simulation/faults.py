"""What goes wrong in a simulation: one fault after the other, and often several at a time.

Most of them cost nothing that was acknowledged. Those that would, if the leader or what is left of the engine failed
too before it has repaired the loss (a wipe, a failover to a replica that lacks a commit), strike only while all else is
well, and nothing else goes wrong until the engine has everything again.
"""

import contextlib
import contextvars

from beanstalk_server.cluster.engine.interface import EngineError, made, move
from tests.cluster.memory_engine import MemoryEngine
from tests.cluster.simulation.engines import HOST
from tests.cluster.simulation.virtual_loop import SECOND

GUEST = "n4"
"""A node that comes and goes."""

REPAIR = 60
"""Virtual seconds within which a leader must have repaired an engine that has lost something."""


class Faults:
    """Strikes again and again."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.rng = cluster.rng
        self.is_over = False
        self.names = ("n1", "n2", "n3")
        self.kinds = [
            *[self.kill_leader] * 4,
            *[self.kill_any] * 2,
            *[self.kill_both] * 2,
            self.kill_host,
            *[self.pause_node] * 3,
            *[self.cut_nodes] * 3,
            *[self.cut_engine] * 4,
            *[self.cut_clients] * 1,
            *[self.reset_link] * 2,
            *[self.pause_engine] * 2,
            *[self.fail_over] * 3,
            *[self.lag] * 2,
            *[self.lose_a_replica] * 2,
            *[self.fill] * 2,
            *[self.lose_answers] * 3,
            self.slow_network,
            *[self.hand_over] * 2,
            self.restart,
            *[self.lose_tail] * 2,
            *[self.wipe] * 1,
            *[self.rot] * 3,
            self.rot_lease,
        ]
        if cluster.servers.locks:
            self.kinds += [self.cancel_waits] * 6
        of_shards = [*[self.move] * 5, *[self.come_or_go] * 2]
        if cluster.shards > 1:
            self.kinds += of_shards
        if cluster.is_calm:
            self.kinds = [*of_shards, *[self.restart] * 2, self.hand_over]

    def later(self, seconds, call, *args):
        self.cluster.loop.call_in(round(seconds * SECOND), call, *args, context=contextvars.Context())

    def duration(self):
        """Short as a rule, sometimes longer than a lease."""
        return self.rng.choice((0.05, 0.3, 1, 3, 6, 15)) * self.rng.uniform(0.5, 1.5)

    def strike(self):
        if self.is_over:
            return
        fault = self.rng.choice(self.kinds)
        next_in = self.rng.expovariate(1 / 2.0)
        if fault in (self.lose_tail, self.wipe):
            fault()  # it goes on itself
            return
        name = fault()
        if name is not None:
            self.note(name)
        self.later(next_in, self.strike)

    def note(self, name):
        self.cluster.faults[name] += 1
        self.cluster.trace(f"FAULT {name}")

    def end_all(self):
        """Let everything be well from now on. A node that only stands by is started again, because it never leads."""
        self.is_over = True
        self.heal_all()
        for name, node in list(self.cluster.nodes.items()):
            if node.has_started and not node.contends and name not in self.cluster.stopping:
                self._restart(name)

    def heal_all(self):
        cluster = self.cluster
        servers = cluster.servers
        cluster.network.heal_all()
        cluster.network.slow_until = 0
        cluster.network.dead_hosts.clear()
        servers.paused_until = 0
        servers.lagging_until = 0
        servers.limit = None
        servers.lost_answers = 0
        servers.is_reachable = True
        for number in range(2):
            servers.lag_one(number, lags=False)

    # Nodes

    def leader(self):
        """The node that leads some shard, if all is well with it."""
        shards = self.cluster.shards
        return self.cluster.leader(self.rng.randrange(shards) if shards > 1 else 0)

    def kill_leader(self):
        leader = self.leader()
        return None if leader is None else self._kill(leader.process.name, "kill leader")

    def kill_both(self):
        """The leader and the engine's primary die at once, while the replicas lag."""
        leader = self.leader()
        if leader is None:
            return None
        name = leader.process.name
        servers = self.cluster.servers
        servers.lagging_until = max(servers.lagging_until, self.cluster.loop.now + 2 * SECOND)

        def strike():
            servers.fail_over()
            self._kill(name, "")

        self.later(self.rng.uniform(0.05, 1.9), strike)
        return "kill leader and primary"

    def kill_any(self):
        return self._kill(self.rng.choice(self.names), "kill node")

    def _kill(self, name, what):
        if name not in self.cluster.nodes:
            return None
        self.cluster.kill_node(name)
        self.later(self.duration(), self.cluster.start_node, name)
        return what

    def kill_host(self):
        name = self.rng.choice(self.names)
        if name not in self.cluster.nodes:
            return None
        self.cluster.kill_node(name, host_too=True)
        self.later(self.duration(), self._revive, name)
        return "kill host"

    def _revive(self, name):
        self.cluster.network.dead_hosts.discard(name)
        self.cluster.start_node(name)

    def pause_node(self):
        name = self.rng.choice(self.names)
        if self.rng.random() < 0.5 and (leader := self.leader()) is not None:
            name = leader.process.name
        if name not in self.cluster.nodes:
            return None
        self.cluster.nodes[name].process.pause(round(self.duration() * SECOND))
        return "pause node"

    def hand_over(self):
        leader = self.leader()
        if leader is None or len(self.cluster.nodes) < 2 or not leader.links.links:
            return None
        name = leader.process.name
        if not self._can_spare(name):
            return None
        leader.process.run(leader.drain)
        self.later(self.duration() + 3, self._end_drain, name)
        return "drain"

    def _end_drain(self, name):
        if not self.is_over:
            self._restart(name)

    def restart(self):
        name = self.rng.choice(self.names)
        if name not in self.cluster.nodes or not self._can_spare(name):
            return None
        self._restart(name)
        return "restart"

    def _can_spare(self, name):
        """Whether a node may go: if nothing is to fail, another one must be there that leads what it has led."""
        cluster = self.cluster
        others = [other for other in cluster.nodes if other not in (name, GUEST) and other not in cluster.stopping]
        return not cluster.is_calm or any(
            cluster.nodes[other].has_started and cluster.nodes[other].contends for other in others
        )

    def _restart(self, name):
        self.cluster.stop_node(name, then=lambda: self.later(self.duration(), self.cluster.start_node, name))

    # Shards

    def move(self):
        """An operator moves a shard."""
        cluster = self.cluster
        shard = self.rng.randrange(cluster.shards)
        leader = cluster.leader(shard)
        others = [node for node in cluster.nodes.values() if node is not leader and node.has_started]
        if leader is None or not others:
            return None
        with contextlib.suppress(EngineError):  # the operator is told so
            made(MemoryEngine(cluster.servers, 0).perform([move(shard, self.rng.choice(others).name)])[0])
        return "move shard"

    def come_or_go(self):
        """A node joins, or leaves again."""
        cluster = self.cluster
        if GUEST in cluster.nodes:
            cluster.stop_node(GUEST)
            return "leave"
        cluster.start_node(GUEST)
        return "join"

    # Network

    def _cut(self, one, other, what):
        network = self.cluster.network
        both = self.rng.random() < 0.6
        if not both and self.rng.random() < 0.5:
            one, other = other, one
        network.cut(one, other, both=both)
        self.later(self.duration(), network.heal, one, other)
        return what if both else f"{what}, one way"

    def cut_nodes(self):
        one, other = self.rng.sample(self.names, 2)
        return self._cut(one, other, "cut nodes")

    def cut_engine(self):
        name = self.rng.choice(self.names)
        if self.rng.random() < 0.5 and (leader := self.leader()) is not None:
            name = leader.process.name
        return self._cut(name, HOST, "cut node from engine")

    def cut_clients(self):
        return self._cut(self.rng.choice(self.names), "clients", "cut clients")

    def reset_link(self):
        ends = [
            end
            for end in self.cluster.network.ends
            if end.process.name in self.names and end.peer_name in self.names and end.process.is_alive
        ]
        if not ends:
            return None
        end = self.rng.choice(ends)
        end.process.run(end._reset)
        end.peer.reset()
        return "reset link"

    def slow_network(self):
        network = self.cluster.network
        network.slow_until = max(network.slow_until, self.cluster.loop.now + round(self.duration() * SECOND))
        return "slow network"

    # Engine

    def pause_engine(self):
        servers = self.cluster.servers
        servers.paused_until = max(servers.paused_until, self.cluster.loop.now + round(self.duration() * SECOND))
        return "pause engine"

    def fail_over(self):
        """The replica that has most becomes the primary; all that two copies had is there."""
        servers = self.cluster.servers
        servers.fail_over()
        servers.paused_until = max(servers.paused_until, self.cluster.loop.now + round(self.duration() * SECOND / 3))
        return "fail over"

    def lag(self):
        servers = self.cluster.servers
        servers.lagging_until = max(servers.lagging_until, self.cluster.loop.now + round(self.duration() * SECOND / 2))
        return "replicas lag"

    def cancel_waits(self):
        """Replicas lag, and an operator cancels the calls that wait for them."""
        servers = self.cluster.servers
        servers.lagging_until = max(servers.lagging_until, self.cluster.loop.now + round(self.duration() * SECOND / 2))
        for _ in range(5):
            self.later(self.rng.uniform(0.01, 2), servers.cancel_waits)
        return "cancel waits"

    def lose_a_replica(self):
        number = self.rng.randrange(2)
        servers = self.cluster.servers
        if servers.replicas[1 - number].lags:
            return None
        servers.lag_one(number, lags=True)
        self.later(self.duration(), servers.lag_one, number, False)
        return "lose a replica"

    def fill(self):
        servers = self.cluster.servers
        servers.limit = self.rng.choice((0, servers.primary.used() + self.rng.randrange(3000)))
        self.later(self.duration(), self._empty)
        return "full engine"

    def _empty(self):
        self.cluster.servers.limit = None

    def lose_answers(self):
        self.cluster.servers.lost_answers += self.rng.randrange(1, 4)
        return "lose answers"

    def rot(self):
        """A bit flips, which no node reads before one takes over."""
        flip = self.cluster.servers.bit_rot.strike(self.rng)
        if flip is not None:
            self.cluster.trace(f"flipped: {flip}")
        return flip and "flip a bit"

    def rot_lease(self):
        """A bit of a lease flips; its leader finds out when it renews it."""
        if self.leader() is None:
            return None
        what = self.cluster.servers.bit_rot.strike_lease(self.rng)
        if what is not None:
            self.cluster.trace(f"flipped: {what}")
        return what and "flip a bit of a lease"

    def repair(self, node):
        """An operator restores what a node has refused to lead, after a while, and starts the node again."""
        cluster, name = self.cluster, node.process.name

        def restore():
            cluster.servers.bit_rot.restore()
            if cluster.nodes.get(name) is node:  # it goes on with other shards
                self._restart(name)
            else:
                cluster.start_node(name)

        self.later(self.rng.uniform(0.1, 15), restore)

    # Those that cost something if anything else fails

    def _when_all_is_well(self, call, tries=40):
        """Call it with the leaders of all shards once they are at ease, if that is soon; then strike again."""
        cluster = self.cluster
        if self.is_over:
            return
        self.heal_all()
        leaders = cluster.leaders()
        if leaders is not None and tries < 36 and cluster.is_spread() and self._are_at_ease(leaders):
            call(leaders)
        elif tries:
            self.later(0.5, self._when_all_is_well, call, tries - 1)
        else:
            self.later(1, self.strike)

    def _are_at_ease(self, leaders):
        return all(node.shards[shard].service.gate.failure is None for shard, node in enumerate(leaders))

    def _positions(self, leaders):
        """Of the last commit of each leader that the engine has."""
        return [node.shards[shard].mark() for shard, node in enumerate(leaders)]

    def _repaired(self, leaders, positions, began):
        """Strike again when the engine has what it had."""
        cluster = self.cluster
        now = cluster.loop.now
        if self.is_over:
            return
        left = [shard for shard, node in enumerate(leaders) if not self._has_repaired(node, shard, positions[shard])]
        if not left and cluster.servers.confirmed() == 2 and now - began > 3 * SECOND:
            cluster.trace("the engine has everything again")
            self.strike()
        elif now - began > REPAIR * SECOND:
            cluster.problem(
                "stuck", f"{', '.join(f'{leaders[shard].process}: {shard}' for shard in left)} not repaired"
            )
        else:
            self.later(0.2, self._repaired, leaders, positions, began)

    def _has_repaired(self, node, shard, position):
        led = node.shards[shard]
        if not node.process.is_alive or not led.leads:
            return True  # it was told to stop, or to hand over, and has repaired the engine before
        has_all = self.cluster.servers.primary.of(shard).lease.position >= position
        return has_all and led._writer._sender.next() is None and node.serves(shard)

    def lose_tail(self):
        def strike(leaders):
            cluster = self.cluster
            servers = cluster.servers
            number = self.rng.randrange(2)
            servers.lag_one(number, lags=True)

            def fail():
                if cluster.leaders() != leaders or not servers.replicas[number].lags:
                    servers.lag_one(number, lags=False)
                    self.strike()
                    return
                self.note("lose the tail")
                positions = self._positions(leaders)
                servers.fail_over(number)
                self._repaired(leaders, positions, cluster.loop.now)

            self.later(self.rng.choice((0.01, 0.2, 2)), fail)

        self._when_all_is_well(strike)

    def wipe(self):
        def strike(leaders):
            self.note("wipe")
            positions = self._positions(leaders)
            self.cluster.servers.wipe()
            self._repaired(leaders, positions, self.cluster.loop.now)

        self._when_all_is_well(strike)
