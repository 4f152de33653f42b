"""A cluster under load that is killed, paused and cut off in every way that docs/cluster.md has a row for.

A *kind* of kill says what is done to a cluster, which is then mended. In between, every client must get answers again.
"""

import contextlib
import random
import time
from collections import Counter

from histories import kinds_of
from load import DEPTH, PAUSE, WITHIN, Load

from harness.caller import Caller
from harness.engines import KINDS as ENGINES
from harness.nodes import Node, leader, lease, spread
from harness.relays import Relay
from harness.servers import RefusedError, command, imported, run, unused_port
from harness.waiting import eventually
from tests.cluster.simulation.commands import policed_tubes, policies_text

TTL = 4
"""Seconds that a lease lives: longer than a failover of the engines of the harness."""

STANDS_STILL = 1.5 * TTL
"""Seconds that a leader is paused or cut off: it is not the leader any more when that ends."""

LINK_IS_DEAD = 4
"""Seconds after which a standby that hears nothing of the leader has given up."""

PROBLEMS = (
    "lost doubled returned early shared keyed torn order misplaced tries held open counted exceeded refused".split()
)
"""What histories.py finds."""

AUDIT = 5
"""Kills from one audit to the next."""


class UnderLoad:
    """Nodes over an engine, and clients that keep them busy.

    Args:
        engine: how Redis runs: "alone", "sentinel" or "cluster".
        nodes: how many.
        with_relays: whether each node reaches the engine, and the other nodes, through relays: needs an engine that is
            alone.
        shards: how many the cluster has.
        options: more options of the nodes.
        pause: seconds from one batch of a client to the next.
    """

    def __init__(
        self,
        directory,
        engine="alone",
        nodes=2,
        clients=4,
        seed=1,
        *,
        with_relays=False,
        shards=1,
        options=(),
        pause=PAUSE,
    ):
        self.stack = contextlib.ExitStack()
        self.clients, self.rng = clients, random.Random(seed)
        self.shards, self.pause = shards, pause
        self.load = None
        self.first_ids = [1] * shards  # that the clients of this load may have been given, by shard
        self.looked = time.monotonic_ns()  # when somebody looked last who leads what
        self.epochs = [""] * shards  # as they were then
        self.moves = 0  # changes of leaders
        self.kills = 0
        self.acknowledged = 0
        self.unanswered = 0
        self.found = Counter()  # problems by their kind
        self.takeovers = []  # seconds from a kill of the leader to the first answer at another node
        self.logs = []  # of nodes that were killed
        try:
            self.engine = ENGINES[engine](directory / "engine")
            self.stack.callback(self.engine.close)
            self.nodes = []
            self.relays = []  # of each node, to the engine
            self.links = []  # relays, from each node to each other
            ports = [unused_port() for _ in range(nodes)]
            config = directory / "config.toml"
            config.write_text(policies_text(policed_tubes(shards)))
            of_shards = ["--config", str(config), *(["--shards", str(shards)] if shards > 1 else [])]
            if with_relays:
                self.relays = [self._relay(self.engine.servers[0].port) for _ in ports]
                self._relay_links(ports)
            for number, port in enumerate(ports):
                url = self.engine.url_at(self.relays[number].port) if with_relays else self.engine.url
                node = Node(url, ["--lease-ttl", str(TTL), *of_shards, *options], link_port=port)
                self.stack.callback(node.kill)
                self.nodes.append(node)
            self.settle()
            self._begin_load()
        except BaseException:
            self.close()
            raise

    def settle(self):
        """Wait until each shard has a leader, and each node its share of them."""
        if self.shards > 1:
            spread(self.engine, self.nodes, self.shards)
        else:
            self.leader()

    def _begin_load(self):
        self.load = Load([node.address for node in self.nodes], self.clients, self.rng, self.shards, self.pause)
        self.note_moves(self.load.history)
        self.load.__enter__()
        self.everybody_is_answered()

    def _relay(self, port):
        relay = Relay(("127.0.0.1", port))
        self.stack.callback(relay.close)
        return relay

    def _relay_links(self, ports):
        """A relay for each link that a node may open to another: the engine tells it that address instead."""
        for to, port in enumerate(ports):
            for number, relay in enumerate(self.relays):
                if number != to:
                    self.links.append(self._relay(port))
                    relay.rewrite(f"127.0.0.1:{port}", f"127.0.0.1:{self.links[-1].port}")

    def close(self):
        with self.stack:  # ends the processes, even if a client never ends
            self._end_load()

    def _end_load(self):
        if self.load is not None:
            load, self.load = self.load, None
            load.__exit__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def shard(self):
        """The shard whose leader or primary is killed next: another one each time."""
        return self.kills % self.shards

    def leader(self):
        """The node that leads it."""
        return leader(self.engine, self.nodes, shard=self.shard)

    def primary(self):
        """The server of Redis that keeps its journal."""
        return self.engine.primary(self.shard)

    def standby(self):
        """A node that does not lead it."""
        leads = self.leader()
        return next(node for node in self.nodes if node is not leads)

    def relay_of(self, node):
        return self.relays[self.nodes.index(node)]

    def kill(self, kind, after):
        """Do one kill of this kind, this many seconds after all was well; return when all is well again."""
        time.sleep(after)  # real time: so long the load goes on as it should
        self.note_moves(self.load.history)
        began = time.monotonic_ns()
        KINDS[kind](self)
        self.everybody_is_answered()
        self.restart()
        self.everybody_is_answered()
        if self.shards == 1 or kind not in HARMLESS_TO_LINKS:
            ended = time.monotonic_ns()
            self.load.history.took_over(began, ended)
            self.load.history.cut(began, ended)
        self.note_moves(self.load.history)
        self.kills += 1

    def note_moves(self, history):
        """Let the history know which shards have had another leader since the last look; their links were cut, too."""
        if self.shards == 1:
            return
        before, self.looked = self.looked, time.monotonic_ns()
        for shard in range(self.shards):
            epoch = lease(self.engine, shard).get("epoch", "")
            if epoch != self.epochs[shard]:
                now = time.monotonic_ns()
                history.took_over(before, now, shard)
                history.cut(before, now, shard=shard)
                self.moves += self.epochs[shard] != ""
                self.epochs[shard] = epoch

    def restart(self):
        """Start again what was killed, wake up what was paused, and wait until the engine has all its copies."""
        for relay in [*self.relays, *self.links]:
            relay.mend()
        self.engine.restart()
        self.engine.settle()
        for node in self.nodes:
            if node.is_running:
                node.resume()
            else:
                self.logs.append(node.process.log)
                node.start()
        for shard in range(self.shards):
            leader(self.engine, self.nodes, shard=shard)

    def everybody_is_answered(self):
        """Wait until each client has had more answers than it can have asked for before."""
        before = self.load.answered()
        try:
            eventually(
                lambda: all(now > then + DEPTH for now, then in zip(self.load.answered(), before, strict=True)),
                "every client is answered",
                WITHIN,
            )
        except AssertionError as error:
            error.add_note(f"answered before {before}, and now {self.load.answered()}")
            for node in self.nodes:
                error.add_note(f"the node at {node.address}:\n{node.process.log}")
            raise

    def audit(self):
        """Compare what the clients have been told with what is left, remove that, and begin anew with other clients."""
        load = self.load
        self.settle()
        self._end_load()
        self.note_moves(load.history)
        problems, jobs, ends = load.problems(self.leader().address)
        problems += [
            f"returned: job {job_id} was deleted long ago"
            for job_id in jobs
            if job_id < self.first_ids[job_id % self.shards]
        ]
        for job_id in ends:
            self.first_ids[job_id % self.shards] = job_id
        acknowledged, unanswered = load.history.counts()
        self.acknowledged += acknowledged
        self.unanswered += unanswered
        self.found += kinds_of(problems)
        assert not problems, "\n".join([*problems[:10], *self.said()])
        self._begin_load()

    def said(self):
        """What the nodes have logged last."""
        return [node.process.log[-1500:] for node in self.nodes]

    def summary(self):
        found = ", ".join(f"{self.found[kind]} {kind}" for kind in PROBLEMS)
        return f"{self.acknowledged:,} commands answered, {self.unanswered:,} not; {found}"

    def check_logs(self):
        for text in [*self.logs, *(node.process.log for node in self.nodes)]:
            assert "Traceback" not in text, text[-3000:]


def first_answer(node, shards=1):
    """Ask a node something that the leader of each shard must answer, and that changes nothing; return how many seconds
    it takes."""
    began = time.monotonic()
    caller = Caller(node.address)
    caller.socket.settimeout(WITHIN)
    try:
        for shard in range(shards):
            assert caller.ask(b"peek %d\r\n" % (18446744073709551615 - shard)) == b"NOT_FOUND\r\n"
    finally:
        caller.close()
    return time.monotonic() - began


def kill_leader(cluster):
    other = cluster.standby()
    cluster.leader().kill()
    cluster.takeovers.append(first_answer(other, cluster.shards))


def stop_leader(cluster):
    """SIGTERM: it hands over."""
    leads, other = cluster.leader(), cluster.standby()
    began = time.monotonic()
    assert leads.process.stop() == 0, leads.process.log
    first_answer(other, cluster.shards)
    cluster.takeovers.append(time.monotonic() - began)


def move_shard(cluster):
    """An operator moves a shard to another node."""
    shard = cluster.shard
    leads, other = cluster.leader(), cluster.standby()
    found = lease(cluster.engine, shard)
    began = time.monotonic()
    line = [*command(imported()), "cluster", "move", cluster.engine.url, str(shard), other.link]
    done = run(line)
    assert done.returncode == 0, done.stderr
    eventually(lambda: lease(cluster.engine, shard)["epoch"] != found["epoch"], "the shard has moved", WITHIN)
    first_answer(leads, cluster.shards)
    cluster.takeovers.append(time.monotonic() - began)


def pause_leader(cluster):
    leads = cluster.leader()
    leads.pause()
    try:
        time.sleep(STANDS_STILL)
    finally:
        leads.resume()


def kill_standby(cluster):
    cluster.standby().kill()


def kill_primary(cluster):
    _end_primary(cluster, lambda server: server.kill())


def pause_primary(cluster):
    primary = cluster.primary()
    primary.pause()
    try:
        _wait_for_another(cluster, primary)
    finally:
        primary.resume()


def kill_leader_and_primary(cluster):
    other = cluster.standby()
    leads = cluster.leader()

    def both(server):
        leads.kill()
        server.kill()

    _end_primary(cluster, both)
    first_answer(other, cluster.shards)


def kill_replica(cluster):
    cluster.engine.replicas(cluster.shard)[0].kill()


def wipe_engine(cluster):
    """Everything in the engine is lost, while the leader lives."""
    cluster.engine.wipe()
    cluster.engine.settle()


def restore_engine(cluster):
    """The engine is restored from an older backup, while the leader lives."""
    cluster.engine.back_up()
    time.sleep(cluster.rng.uniform(0.1, 1))
    cluster.engine.restore()
    cluster.engine.settle()


def cut_leader_off(cluster):
    _cut_off(cluster, "cut")


def silence_leader(cluster):
    _cut_off(cluster, "silence")


def delay_leader(cluster):
    cluster.relay_of(cluster.leader()).delay(0.05)


def cut_link(cluster):
    for link in cluster.links:
        link.cut()
    _mend_dead_links(cluster)


def silence_link(cluster):
    for link in cluster.links:
        link.silence()
    _mend_dead_links(cluster)


def _mend_dead_links(cluster):
    time.sleep(LINK_IS_DEAD)
    for link in cluster.links:
        link.mend()


def _cut_off(cluster, way):
    """The leader cannot reach the engine any more, and everybody else can. Its own clients wait until it does again."""
    leads, other = cluster.leader(), cluster.standby()
    shard = cluster.shard
    epoch = lease(cluster.engine, shard)["epoch"]
    getattr(cluster.relay_of(leads), way)()
    eventually(lambda: lease(cluster.engine, shard)["epoch"] != epoch, "another node has taken the lease", WITHIN)
    first_answer(other, cluster.shards)
    cluster.relay_of(leads).mend()


def _end_primary(cluster, end):
    """The primary is gone; if nobody promotes a replica, it comes back with what it has on its disk."""
    primary = cluster.primary()
    end(primary)
    if not cluster.engine.promotes:
        primary.start()
    else:
        _wait_for_another(cluster, primary)


def _wait_for_another(cluster, primary):
    if not cluster.engine.promotes:
        time.sleep(STANDS_STILL)
        return

    def another():
        with contextlib.suppress(OSError, RefusedError):
            found = cluster.primary()
            return found is not primary and found.is_primary
        return False

    eventually(another, "a replica is promoted", WITHIN)


KINDS = {
    "leader": kill_leader,
    "stop": stop_leader,
    "move": move_shard,
    "pause": pause_leader,
    "standby": kill_standby,
    "primary": kill_primary,
    "primary-pause": pause_primary,
    "leader-and-primary": kill_leader_and_primary,
    "replica": kill_replica,
    "wipe": wipe_engine,
    "restore": restore_engine,
    "cut": cut_leader_off,
    "silence": silence_leader,
    "delay": delay_leader,
    "link-cut": cut_link,
    "link-silence": silence_link,
}
"""What is done to a cluster, by the names that `--kinds` has."""

WITH_RELAYS = {"cut", "silence", "delay", "link-cut", "link-silence"}
"""Those that need an engine that is alone, and relays."""

WITHOUT_FAILOVER = {"wipe"}
"""Those that need an engine that is alone."""

WITH_BACKUPS = {"restore"}
"""Those that need an engine in PostgreSQL that is alone."""

WITH_SHARDS = {"move"}
"""Those that need shards."""

HARMLESS_TO_LINKS = {"leader", "stop", "move", "standby", "replica"}
"""Those that cut no link but those of the shards that get another leader."""
