"""What operators see of a node: the shards that it leads, its role in each, and whether clients are served there."""

import json

import operators
from node_threads import lead_all, put, role
from operators import HERE, place

from beanstalk_server.cluster.roles import IS_SUSPENDED, LEADS
from beanstalk_server.server.front.http_front import DESCRIPTORS
from beanstalk_server.server.front.listeners import connections_allowed
from harness.waiting import eventually


def ask(node, path):
    return operators.ask(place(node), path)


def figures(node):
    return operators.figures(place(node))


def test_a_node_keeps_descriptors_for_http(cluster):
    node = cluster.add(http=HERE)
    allowed, taken = node.call(lambda: (node.server.listeners.limit, connections_allowed(node.server._headroom())))
    assert taken - allowed > DESCRIPTORS - 50, "and some have been opened since"


def test_a_leader_and_a_standby_say_what_they_are(cluster):
    leader, standby = cluster.two(http=HERE)
    client = cluster.connect(standby)
    assert put(client) == b"INSERTED 1\r\n"
    found = figures(leader)
    assert found["beanstalkd_current_jobs", "ready"] == 1
    assert found["beanstalkd_cluster_role", "0", "leader"] == 1
    assert found["beanstalkd_cluster_role", "0", "standby"] == 0
    assert found["beanstalkd_cluster_shard_jobs", "0"] == 1
    assert found["beanstalkd_cluster_epoch", "0"] == 1
    assert found["beanstalkd_cluster_commit_latency_seconds", "0", "0.5"] > 0
    assert found["beanstalkd_commit_seconds_count",] >= 1
    found = figures(standby)
    assert found["beanstalkd_current_jobs", "ready"] == 0
    assert found["beanstalkd_cluster_role", "0", "standby"] == 1
    assert ("beanstalkd_cluster_shard_jobs", "0") not in found
    assert found["beanstalkd_cluster_shards_led",] == 0


def test_a_standby_that_serves_through_the_leader_is_ready_as_a_part_of_the_cluster_only(cluster):
    leader, standby = cluster.two(http=HERE)
    assert ask(leader, "/readyz") == ask(leader, "/readyz/cluster") == (200, "ok\n")
    eventually(lambda: ask(standby, "/readyz/cluster")[0] == 200, "it is linked to the leader")
    assert ask(standby, "/readyz") == (503, "standby: another node leads\n")
    assert figures(standby)["beanstalkd_ready",] == 1
    assert json.loads(ask(standby, "/stats.json")[1])["ready"] is True


def test_a_node_that_reaches_no_leader_is_alive_and_not_ready(cluster):
    cluster.servers.lag()
    node = cluster.add(http=HERE)
    assert ask(node, "/healthz") == (200, "ok\n")
    assert ask(node, "/readyz") == ask(node, "/readyz/cluster") == (503, "standby: cannot reach a leader\n")
    assert figures(node)["beanstalkd_ready",] == 0
    cluster.servers.lag(lags=False)
    eventually(lambda: ask(node, "/readyz")[0] == 200, "it leads")


def test_a_leader_that_is_drained_is_not_ready_any_more(cluster):
    leader, standby = cluster.two(http=HERE)
    eventually(lambda: ask(standby, "/readyz/cluster")[0] == 200, "it is linked to the leader")
    leader.call(leader.server.drain)
    eventually(lambda: role(standby) == LEADS, "the other leads")
    assert ask(leader, "/readyz") == ask(leader, "/readyz/cluster") == (503, "draining: refuses new jobs\n")
    found = figures(leader)
    assert (found["beanstalkd_ready",], found["beanstalkd_draining",]) == (0, 1), "or it would be taken for broken"
    assert ask(standby, "/readyz")[0] == 200


def test_a_node_with_one_shard_that_drains_is_not_ready_because_it_drains_until_it_does_not(cluster):
    node = cluster.add(shards=2, http=HERE)
    lead_all(node)
    for shard in node.server.shards:
        broker = shard.service.broker
        node.call(broker.drain)
        found = figures(node)
        assert (found["beanstalkd_ready",], found["beanstalkd_draining",]) == (0, 1)
        node.call(broker.undrain)
    client = cluster.connect(node)
    assert client.ask(b"drain\r\n") == b"DRAINING\r\n"
    assert ask(node, "/readyz") == ask(node, "/readyz/cluster") == (503, "draining: refuses new jobs\n")
    assert client.ask(b"undrain\r\n") == b"NOT_DRAINING\r\n"
    assert ask(node, "/readyz") == ask(node, "/readyz/cluster") == (200, "ok\n")
    assert figures(node)["beanstalkd_draining",] == 0


def test_what_a_signal_has_begun_in_a_node_alone_is_ended_by_undrain(cluster):
    node = cluster.add(waits_for=LEADS, http=HERE)
    node.call(node.server.drain)
    assert ask(node, "/readyz") == (503, "draining: refuses new jobs\n")
    assert cluster.connect(node).ask(b"undrain\r\n") == b"NOT_DRAINING\r\n"
    assert ask(node, "/readyz") == (200, "ok\n")


def test_the_shards_of_a_node_are_added_up_and_each_tube_is_there_once(cluster):
    node = cluster.add(shards=4, http=HERE)
    lead_all(node)
    client = cluster.connect(node)
    names = [b"a", b"b", b"c", b"d", b"e", b"default"]
    for name in names:
        client.ask(b"use %b\r\n" % name)
        assert put(client).startswith(b"INSERTED")
    found = figures(node)
    assert found["beanstalkd_current_jobs", "ready"] == len(names)
    assert found["beanstalkd_current_tubes",] == len(names)
    assert found["beanstalkd_commands_total", "put"] == len(names)
    rows = {key[1]: value for key, value in found.items() if key[0] == "beanstalkd_tube_jobs_total"}
    assert rows == {name.decode(): 1 for name in names}
    assert next(iter(rows)) == "default"
    assert [found["beanstalkd_cluster_role", str(shard), "leader"] for shard in range(4)] == [1] * 4
    assert sum(found["beanstalkd_cluster_shard_jobs", str(shard)] for shard in range(4)) == len(names)
    server = json.loads(ask(node, "/stats.json")[1])["server"]
    assert (server["current-tubes"], server["cluster-shards-led"]) == (len(names), 4)


def test_a_leader_that_hands_nothing_out_is_not_ready(cluster, monkeypatch):
    node = cluster.add(waits_for=LEADS, http=HERE)
    monkeypatch.setattr(node.server.shards[0].roles, "role", IS_SUSPENDED)
    assert ask(node, "/readyz") == (503, "suspended: the lease was not renewed in time\n")
    assert figures(node)["beanstalkd_cluster_role", "0", "suspended"] == 1
    monkeypatch.undo()
    assert ask(node, "/readyz") == (200, "ok\n")
