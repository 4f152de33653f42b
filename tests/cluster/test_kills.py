"""A cluster that is killed again and again under load keeps what it has acknowledged, and brings nothing back.

Real processes: this server, Redis, and clients in threads. `pytest -m slow -rP --kills 200 tests/cluster/
test_kills.py` kills this many times in each way, and prints what became of what was acknowledged.
"""

import random
import time
from contextlib import ExitStack, closing

import pytest
from killing import AUDIT, KINDS, WITH_RELAYS, WITH_SHARDS, WITHOUT_FAILOVER, UnderLoad
from load import PAUSE

from harness.engines import Alone
from harness.nodes import Node, leader, lease
from harness.waiting import eventually

SHARDS, NODES = 8, 3

SLOWLY = 0.02
"""Seconds from one batch of a client to the next, where one kill is enough: it costs most while nobody leads."""

A_FEW = 3
"""The default of --kills."""


def engines_for(kind):
    if kind in WITH_RELAYS | WITHOUT_FAILOVER:
        return ["alone"]
    return ["alone", "sentinel", "cluster"] if "primary" in kind else ["alone", "cluster"]


def kill(directory, kind, engine, times, *, shards=1, nodes=2, pause=PAUSE):
    """Kill a cluster this many times; return what is to be printed."""
    rng = random.Random(times)
    began = time.monotonic()
    relays = kind in WITH_RELAYS
    with UnderLoad(directory, engine, nodes, with_relays=relays, shards=shards, pause=pause) as cluster:
        while cluster.kills < times:
            cluster.kill(kind, rng.uniform(0.05, 0.3))
            if cluster.kills % AUDIT == 0:
                cluster.audit()
        cluster.audit()
        cluster.check_logs()
    assert cluster.acknowledged > 20 * times
    of_shards = f", {shards} shards on {nodes} nodes" if shards > 1 else ""
    said = f"{kind}, {engine}{of_shards}: killed {times} times: {cluster.summary()}"
    if cluster.moves:
        said += f"; shards got another leader {cluster.moves} times"
    if cluster.takeovers:
        longest, middle = max(cluster.takeovers), sorted(cluster.takeovers)[len(cluster.takeovers) // 2]
        said += f"; the next leader answered after {middle:.2f} s, {longest:.2f} s at the most"
    return f"{said} ({time.monotonic() - began:.0f} s)"


def test_a_cluster_whose_leader_is_killed_keeps_what_it_has_acknowledged(tmp_path):
    kill(tmp_path, "leader", "alone", 1, pause=SLOWLY)


def test_a_leader_that_is_stopped_leaves_its_lease_to_the_next_one(tmp_path):
    with ExitStack() as stack:
        engine = Alone(tmp_path)
        stack.callback(engine.close)
        nodes = [Node(engine.url, ["--lease-ttl", "3"]) for _ in range(3)]
        for node in nodes:
            stack.callback(node.kill)
        stopped = leader(engine, nodes)
        others = [node for node in nodes if node is not stopped]
        for node in others:
            eventually(lambda node=node: "relays clients to the leader" in node.process.log, "it relays its clients")
        clients = [stack.enter_context(closing(node.connect())) for node in others]
        for client in clients:
            assert client.ask(b"put 0 0 60 1\r\nx\r\n").startswith(b"INSERTED ")
        assert stopped.process.stop() == 0
        for client in clients:
            assert client.ask(b"put 0 0 60 1\r\nx\r\n").startswith(b"INSERTED ")
        assert "the lease has been given back" in stopped.process.log
        successor = leader(engine, others)
        assert "leader of epoch 2: the leader has given the lease back" in successor.process.log
        assert lease(engine)["epoch"] == "2"
        assert int(successor.stats()["current-jobs-ready"]) == 4


def test_a_leader_that_wakes_after_the_engine_was_wiped_takes_nothing_from_whoever_leads_then(tmp_path):
    with ExitStack() as stack:

        def new_node():
            node = Node(engine.url, ["--lease-ttl", "2"])
            stack.callback(node.kill)
            return node

        def ask(node, command):
            client = stack.enter_context(closing(node.connect()))
            return client.ask(command)

        engine = Alone(tmp_path / "engine", replicas=1)
        stack.callback(engine.close)
        nodes = [new_node(), new_node()]
        for _ in range(2):  # epochs go up
            leads = leader(engine, nodes)
            leads.kill()
            first = leader(engine, nodes)
            leads.start()
        leads.kill()
        assert ask(first, b"put 0 0 60 3\r\nold\r\n").startswith(b"INSERTED")
        first.pause()
        engine.primary().ask("FLUSHALL")
        fresh = new_node()
        for number in range(1, 101):
            assert ask(fresh, b"put 0 0 60 3\r\nnew\r\n") == b"INSERTED %d\r\n" % number
        first.resume()
        eventually(lambda: "lost leadership" in first.process.log, "the first is fenced")
        assert leader(engine, [first, fresh]) is fresh
        assert first.stats()["current-jobs-ready"] == "100"
        assert "lost leadership" not in fresh.process.log


EACH = [(kind, engine) for kind in KINDS for engine in engines_for(kind)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "engine"), [each for each in EACH if each[0] not in WITH_SHARDS])
def test_it_does_so_however_often(tmp_path, request, kind, engine):
    print(kill(tmp_path, kind, engine, request.config.getoption("kills")))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "engine"), [each for each in EACH if each[0] not in WITH_RELAYS])
def test_it_does_so_with_shards_however_often(tmp_path, request, kind, engine):
    times = request.config.getoption("kills")
    if times <= A_FEW and engine != "alone":
        pytest.skip(f"with --kills of more than {A_FEW}: to start these engines takes longer than to kill so few times")
    print(kill(tmp_path, kind, engine, times, shards=SHARDS, nodes=NODES))
