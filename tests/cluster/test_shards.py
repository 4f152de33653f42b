"""Shards of a cluster: which node leads which, and how they move. Over an engine in memory, with real sockets."""

import logging

import pytest
from node_threads import put, stats

from beanstalk_server.cluster.engine.interface import move
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.declaration import BAD_OPTION
from beanstalk_server.wire.places import Places
from harness.waiting import eventually

SHARDS = 4


def led(node):
    """The numbers of the shards that a node leads."""
    return [shard.index for shard in node.server.shards if shard.leads]


def counts(*nodes):
    return [len(led(node)) for node in nodes]


@pytest.fixture
def nodes(cluster):
    """Starts nodes of a cluster with this many shards, and waits until each of them leads its share."""

    def start(count, shards=SHARDS):
        started = [cluster.add(shards=shards) for _ in range(count)]
        eventually(lambda: sum(counts(*started)) == shards, "all shards are led")
        eventually(lambda: max(counts(*started)) - min(counts(*started)) <= 1, "they are spread")
        return started

    return start


def test_a_node_that_joins_gets_its_share(cluster, nodes, caplog):
    caplog.set_level(logging.INFO)
    (first,) = nodes(1)
    second = cluster.add(shards=SHARDS)
    eventually(lambda: counts(first, second) == [2, 2], "they share the shards")
    moves = [line for line in caplog.messages if "which leads fewer" in line]
    assert len(moves) == 2
    assert sorted(led(first) + led(second)) == [0, 1, 2, 3]


def test_a_node_that_is_drained_gives_all_its_shards_away_and_gets_none_back(cluster, nodes):
    first, second = nodes(2)
    eventually(lambda: first.server.links.links, "there is another node")
    first.call(first.server.drain)
    eventually(lambda: counts(first, second) == [0, 4], "the other leads all")
    third = cluster.add(shards=SHARDS)
    eventually(lambda: counts(first, second, third) == [0, 2, 2], "the new one has its share")


def test_an_operator_moves_a_shard(cluster, nodes):
    first, second = nodes(2, shards=3)
    more, fewer = (first, second) if len(led(first)) == 2 else (second, first)
    moved = led(more)[0]
    cluster.connect_engine().perform([move(moved, fewer.server.name)])
    eventually(lambda: moved in led(fewer), "it has moved")
    assert counts(more, fewer) == [1, 2]


def test_a_move_to_a_node_that_is_not_there_does_not_happen(cluster, nodes):
    (node,) = nodes(1)
    cluster.connect_engine().perform([move(0, "nobody")])
    before = cluster.servers.primary.lease.renewals
    eventually(lambda: cluster.servers.primary.lease.renewals > before + 5, "the leader has seen it")
    assert led(node) == [0, 1, 2, 3]


def test_a_node_with_another_number_of_shards_is_refused(cluster, nodes):
    nodes(1)
    with pytest.raises(StartError) as refused:
        cluster.add(shards=8)
    assert str(refused.value) == "--shards 8: the cluster beanstalk has 4: must be 4"
    assert refused.value.status == BAD_OPTION


def test_a_node_that_finds_another_number_of_shards_later_ends(cluster, nodes):
    nodes(1)
    cluster.servers.is_reachable = False
    node = cluster.add(shards=8)
    cluster.servers.is_reachable = True
    eventually(lambda: node.server.failure is not None, "it ends")
    assert "must be 4" in str(node.server.failure)


def test_shards_that_are_led_together_share_the_rounds_of_the_event_loop_and_the_limit_of_memory(cluster):
    first = cluster.add(shards=SHARDS, max_memory=1_000_000)

    def shares():
        services = [shard.service for shard in first.server.shards if shard.leads]
        return {(service.turns.quantum, service.broker.memory.limit) for service in services}

    eventually(lambda: len(led(first)) == SHARDS, "it leads all")
    ((quantum, limit),) = shares()
    assert limit == (1_000_000 - 125_000) // SHARDS
    cluster.add(shards=SHARDS, max_memory=1_000_000)
    eventually(lambda: len(led(first)) == 2, "it has given two away")
    assert shares() == {(2 * quantum, 2 * limit)}


def test_a_shard_whose_files_are_damaged_has_no_leader_and_the_others_go_on(cluster, nodes, caplog):
    (node,) = nodes(1)
    client = cluster.connect(node)
    tube = next(name for name in (b"t%d" % number for number in range(99)) if Places(SHARDS).of_tube(name) == 2)
    assert client.ask(b"use %b\r\n" % tube).startswith(b"USING")
    for _ in range(50):
        put(client)
    cluster.stop(node)
    for name, (_, data) in cluster.servers.primary.of(2).files.items():
        if name.startswith("segment"):
            data[len(data) // 2] ^= 1
    node = cluster.add(shards=SHARDS)
    eventually(lambda: "shard 2: this node no longer leads this shard" in caplog.text, "it gives that shard up")
    eventually(lambda: led(node) == [0, 1, 3], "it leads the others")
    assert put(cluster.connect(node)).startswith(b"INSERTED")
    assert node.server.failure is None


def test_a_shard_whose_journal_fails_ends_the_process_and_others_lead_on(cluster, nodes, caplog):
    first, second = nodes(2)
    service = first.server.shards[led(first)[0]].service
    first.call(service.gate.fail, RuntimeError("a bug"))
    eventually(lambda: first.server.failure is not None, "it ends")
    assert "the journal failed" in caplog.text
    eventually(lambda: len(led(second)) == SHARDS, "the other leads all")


def test_a_node_keeps_commits_within_one_bound_for_all_its_shards(cluster):
    """Each sender has kept 64 MiB, which nothing counted: 8 shards without a job took 512 MiB."""

    def kept():
        return node.call(lambda: sum(shard._writer._sender._size for shard in node.server.shards))

    node = cluster.add(shards=SHARDS, max_memory=1_000_000)
    eventually(lambda: len(led(node)) == SHARDS, "it leads all")
    client = cluster.connect(node)
    for number in range(100):
        client.ask(b"use t%d\r\n" % number)
        word, job_id = put(client, bytes(10_000)).split()
        assert word == b"INSERTED"
        assert client.ask(b"delete %b\r\n" % job_id) == b"DELETED\r\n"
    assert 50_000 < kept() <= 125_000 + SHARDS * 12_000  # and the last one of each


def test_stats_tells_how_many_shards_there_are_and_how_many_the_node_leads(cluster, nodes):
    first, _ = nodes(2)
    found = stats(cluster.connect(first))
    assert list(found)[-3:] == ["cluster-shards", "cluster-shards-led", "server"]
    assert (found["cluster-shards"], found["cluster-shards-led"]) == ("4", "2")
