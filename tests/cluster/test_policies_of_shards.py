"""Policies in a cluster: each leader has them, and a dead tube only where it lies."""

import os
import signal
import threading

import pytest
from node_threads import TTL, lead_all, put
from orders import tube_of

from beanstalk_server import Config, TubeConfig
from beanstalk_server.cluster.engine_binlog import EngineBinlog
from beanstalk_server.queue.units import SECOND
from beanstalk_server.server.service import Service
from beanstalk_server.settings.warnings import warnings_of
from harness.waiting import eventually

SHARDS = 4


def name(shard, number=0):
    """The name of a tube of this shard."""
    return tube_of(shard, SHARDS, number).decode()


def policy_in(node, shard, tube):
    """What the broker of a shard would ask of a tube."""
    return node.call(lambda: node.server.shards[shard].service.broker.policy_of(tube))


@pytest.mark.parametrize(
    ("match", "shards", "warns"),
    [
        (name(1, 1), SHARDS, False),
        (name(2, 1), SHARDS, True),
        ([name(1, 1), name(2, 1)], SHARDS, True),
        ("t*", SHARDS, True),
        ("t*", 1, False),
    ],
)
def test_a_dead_tube_deserves_a_warning_if_a_tube_may_lie_elsewhere(match, shards, warns):
    tubes = [TubeConfig(match=name(1)), TubeConfig(match=match, dead_tube=name(1))]
    config = Config(cluster="redis://h", shards=shards, tubes=tubes)
    assert [line for line in warnings_of(config) if "is in shard 1" in line] == warnings_of(config)
    assert bool(warnings_of(config)) == warns


def reload(node, *tubes, **settings):
    config = Config(cluster="redis://127.0.0.1", lease_ttl=TTL, port=0, tubes=tubes, **settings)
    node.wait_for(node.server.reload(config))


def test_a_reload_changes_the_policies_of_every_shard_that_is_led(cluster):
    dead = name(2)
    node = cluster.add(shards=SHARDS, tubes=[TubeConfig(match="t*", max_tries=3)])
    lead_all(node)
    client = cluster.connect(node)
    for shard in range(SHARDS):
        assert client.ask(b"watch %b\r\n" % name(shard, 1).encode()).startswith(b"WATCHING ")
    reload(node, TubeConfig(match=dead), TubeConfig(match="t*", max_tries=4, dead_tube=dead), shards=SHARDS)
    for shard in range(SHARDS):
        tube = name(shard, 1)
        broker = node.server.shards[shard].service.broker
        eventually(lambda broker=broker, tube=tube: node.call(lambda: broker.tubes[tube].policy.max_tries == 4), "it")
        assert policy_in(node, shard, tube) is node.call(lambda broker=broker, tube=tube: broker.tubes[tube].policy)
        assert policy_in(node, shard, tube).dead_tube == (dead if shard == 2 else "")


def reserved_at_both(cluster, **options):
    """A leader, a node that stands by, and a worker of each that has reserved a job."""
    leader, standby = cluster.two(tubes=[TubeConfig(match="default", max_tries=5)], **options)
    workers = [cluster.connect(leader), cluster.connect(standby)]
    for number, worker in enumerate(workers, 1):
        assert put(worker) == b"INSERTED %d\r\n" % number
        assert worker.ask(b"reserve-job %d\r\n" % number).startswith(b"RESERVED ")
        worker.line()
    return leader, standby, workers


def tries(node, job_id):
    """How often a job that no one has reserved any more has failed."""
    broker = node.server.shards[0].service.broker
    eventually(lambda: node.call(lambda: broker.jobs[job_id].client is None), "nobody has it")
    return node.call(lambda: getattr(broker.jobs[job_id].extras, "tries", 0))


@pytest.mark.parametrize("what", ["the node stops", "the leader stops", "the link is cut", "I/O processes die"])
def test_no_job_has_failed_because_of_what_happens_to_servers(cluster, what):
    leader, standby, _ = reserved_at_both(cluster, io_processes=int(what == "I/O processes die"))
    lost = {"the leader stops": [1, 2], "I/O processes die": [1, 2]}.get(what, [2])
    if what == "the node stops":
        cluster.stop(standby)
    elif what == "the leader stops":
        cluster.stop(leader)
        eventually(lambda: standby.server.shards[0].leads, "it leads", 60)
    elif what == "the link is cut":
        standby.call(lambda: standby.server.shards[0].link._end.close("the test cuts it"))
    else:
        for node in (leader, standby):
            os.kill(node.server._io.all[0].pid, signal.SIGKILL)
    leads = standby if what == "the leader stops" else leader
    assert [tries(leads, job_id) for job_id in lost] == [0] * len(lost)


@pytest.mark.parametrize("end", ["stop", "drain"])
@pytest.mark.parametrize("policy", [{"max_tries": 5}, {"ttl": 50}])
def test_a_client_that_leaves_while_the_journal_is_closed_does_no_harm(cluster, monkeypatch, policy, end):
    leader, standby = cluster.two(tubes=[TubeConfig(match="default", **policy)])
    worker = cluster.connect(leader)
    assert put(worker) == b"INSERTED 1\r\n"
    worker.send(b"reserve\r\n")
    worker.line()
    worker.line()
    service = leader.server.shards[0].service
    leave_mark = EngineBinlog._leave_mark

    async def leave_mark_late(journal):
        for connection in list(service.connections.open):
            connection._disconnect()
        await leave_mark(journal)

    monkeypatch.setattr(EngineBinlog, "_leave_mark", leave_mark_late)
    if end == "stop":
        cluster.stop(leader)
    else:
        leader.call(leader.server.drain)
    eventually(lambda: standby.server.shards[0].leads, "it leads", 60)
    assert cluster.connect(standby).ask(b"peek 1\r\n") == b"FOUND 1 1\r\n"


def test_a_reload_while_a_node_takes_over_is_in_effect_when_it_leads(cluster, monkeypatch):
    restoring, restored = threading.Event(), threading.Event()
    restore = Service.restore

    def slow(service):
        restoring.set()
        assert restored.wait(60)
        restore(service)

    leader, standby = cluster.two(tubes=[TubeConfig(match="default", ttl=5)])
    monkeypatch.setattr(Service, "restore", slow)
    cluster.stop(leader)
    assert restoring.wait(60)
    reload(standby, TubeConfig(match="default", ttl=6))
    restored.set()
    eventually(lambda: standby.server.shards[0].leads, "it leads", 60)
    eventually(
        lambda: standby.call(lambda: standby.server.shards[0].service.broker.tubes.default.policy.ttl == 6 * SECOND),
        "the tube has its policy",
    )
