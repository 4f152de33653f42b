"""A cluster under load that is killed, paused and cut off in every way that docs/cluster.md has a row for.

A *kind* of kill says what is done to a cluster, and how it is undone. In between, every client must get answers again.
"""

import contextlib
import signal
import time

from load import DEPTH, WITHIN, Book, Load, jobs_of

from harness.caller import Caller
from harness.engines import KINDS as ENGINES
from harness.engines import RefusedError
from harness.nodes import Node, leader, lease
from harness.relays import Relay
from harness.waiting import eventually

TTL = 4
"""Seconds that a lease lives: longer than a failover of the engines of the harness."""

STANDS_STILL = 1.5 * TTL
"""Seconds that a leader is paused or cut off: it is not the leader any more when that ends."""

AUDIT = 5
"""Kills from one audit to the next."""


class UnderLoad:
    """Nodes over an engine, and clients that keep them busy.

    Args:
        engine: how Redis runs: "alone", "sentinel" or "cluster".
        nodes: how many.
        with_relays: whether each node reaches the engine through a relay, which needs an engine that is alone.
        options: more options of the nodes.
    """

    def __init__(self, directory, engine="alone", nodes=2, clients=4, seed=1, *, with_relays=False, options=()):
        self.stack = contextlib.ExitStack()
        try:
            self.engine = ENGINES[engine](directory / "engine")
            self.stack.callback(self.engine.close)
            self.relays = []
            self.nodes = []
            for _ in range(nodes):
                url = self.engine.url
                if with_relays:
                    relay = Relay(self.engine.servers[0].address)
                    self.stack.callback(relay.close)
                    self.relays.append(relay)
                    url = f"redis://127.0.0.1:{relay.port}"
                node = Node(url, ["--lease-ttl", str(TTL), *options])
                self.stack.callback(node.kill)
                self.nodes.append(node)
            leader(self.engine, self.nodes)
            self.book = Book()
            self.load = Load(self.book, [node.address for node in self.nodes], clients, seed)
            self.stack.enter_context(self.load)
        except BaseException:
            self.close()
            raise
        self.kills = 0
        self.takeovers = []  # seconds from a kill of the leader to the first answer at another node
        self.logs = []  # of nodes that were killed

    def close(self):
        self.stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def leader(self):
        return leader(self.engine, self.nodes)

    def standby(self):
        leads = self.leader()
        return next(node for node in self.nodes if node is not leads)

    def relay_of(self, node):
        return self.relays[self.nodes.index(node)]

    def kill(self, kind, after):
        """Do one kill of this kind, so many seconds after all was well; return when all is well again."""
        self.everybody_is_answered()
        time.sleep(after)  # real time: so long the load goes on as it should
        self.book.disturb()
        undo = KINDS[kind](self)
        self.everybody_is_answered()
        undo()
        self.restart()
        self.everybody_is_answered()
        self.book.disturb()
        self.kills += 1

    def restart(self):
        """Start again what was killed, wake up what was paused, and wait until the engine has all its copies."""
        for relay in self.relays:
            relay.mend()
        self.engine.restart()
        self.engine.settle()
        for node in self.nodes:
            if node.is_running:
                node.resume()
            else:
                self.logs.append(node.process.log)
                node.start()
        self.leader()

    def everybody_is_answered(self):
        """Wait until each client has had more answers than it can have asked for before."""
        before = self.load.answered()
        eventually(
            lambda: all(now > then + 2 * DEPTH for now, then in zip(self.load.answered(), before, strict=True)),
            "every client is answered",
            WITHIN,
        )

    def audit(self):
        """Compare what is there with what the clients know."""
        self.load.rest()
        self.book.audit(jobs_of(self.leader().address, self.book))
        self.load.go_on()
        assert not self.book.mistakes, (self.book.mistakes[:5], self.said())

    def said(self):
        """What the nodes have logged last."""
        return [node.process.log[-1000:] for node in self.nodes]

    def check_logs(self):
        for text in [*self.logs, *(node.process.log for node in self.nodes)]:
            assert "Traceback" not in text, text[-3000:]


def first_answer(node):
    """Ask a node something that the leader must answer; return how many seconds that takes."""
    began = time.monotonic()
    caller = Caller(node.address)
    caller.socket.settimeout(WITHIN)
    try:
        assert caller.ask(b"delete 18446744073709551615\r\n") == b"NOT_FOUND\r\n"
    finally:
        caller.close()
    return time.monotonic() - began


def kill_leader(cluster):
    other = cluster.standby()
    cluster.leader().kill()
    cluster.takeovers.append(first_answer(other))
    return nothing


def stop_leader(cluster):
    """SIGTERM: it hands over."""
    leads, other = cluster.leader(), cluster.standby()
    leads.process.send_signal(signal.SIGTERM)
    cluster.takeovers.append(first_answer(other))
    assert leads.process.wait() == 0, leads.process.log
    return nothing


def pause_leader(cluster):
    leads = cluster.leader()
    leads.pause()
    try:
        time.sleep(STANDS_STILL)
    finally:
        leads.resume()
    return nothing


def kill_standby(cluster):
    cluster.standby().kill()
    return nothing


def kill_primary(cluster):
    _end_primary(cluster, lambda server: server.kill())
    return nothing


def pause_primary(cluster):
    primary = cluster.engine.primary()
    primary.pause()
    try:
        _wait_for_another(cluster, primary)
    finally:
        primary.resume()
    return nothing


def kill_leader_and_primary(cluster):
    other = cluster.standby()
    leads = cluster.leader()

    def both(server):
        leads.kill()
        server.kill()

    _end_primary(cluster, both)
    first_answer(other)
    return nothing


def kill_replica(cluster):
    cluster.engine.replicas()[0].kill()
    return nothing


def wipe_engine(cluster):
    """Everything in the engine is lost, while the leader lives."""
    for server in cluster.engine.servers:
        server.kill()
        server.wipe()
    for server in cluster.engine.servers:
        server.start()
    cluster.engine.settle()
    return nothing


def cut_leader_off(cluster):
    return _cut_off(cluster, "cut")


def silence_leader(cluster):
    return _cut_off(cluster, "silence")


def delay_leader(cluster):
    relay = cluster.relay_of(cluster.leader())
    relay.delay(0.05)
    return relay.mend


def _cut_off(cluster, way):
    """The leader cannot reach the engine any more, and everybody else can."""
    leads = cluster.leader()
    epoch = lease(cluster.engine)["epoch"]
    getattr(cluster.relay_of(leads), way)()
    eventually(lambda: lease(cluster.engine)["epoch"] != epoch, "another node has taken the lease", WITHIN)
    return nothing


def _end_primary(cluster, end):
    """The primary is gone; if nobody promotes a replica, it comes back with what it has on its disk."""
    primary = cluster.engine.primary()
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
            found = cluster.engine.primary()
            return found is not primary and found.info("replication")["role"] == "master"
        return False

    eventually(another, "a replica is promoted", WITHIN)


def nothing():
    """There is nothing to undo that `restart` does not."""


KINDS = {
    "leader": kill_leader,
    "stop": stop_leader,
    "pause": pause_leader,
    "standby": kill_standby,
    "primary": kill_primary,
    "primary-pause": pause_primary,
    "leader-and-primary": kill_leader_and_primary,
    "replica": kill_replica,
    "wipe": wipe_engine,
    "cut": cut_leader_off,
    "silence": silence_leader,
    "delay": delay_leader,
}
"""What is done to a cluster, by the names that `--kinds` has."""

WITH_RELAYS = {"cut", "silence", "delay"}
"""Those that need an engine that is alone, and relays."""

WITHOUT_FAILOVER = {"wipe"}
"""Those that need an engine that is alone."""
