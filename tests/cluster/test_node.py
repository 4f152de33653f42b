"""Nodes of a cluster: who serves, and what clients notice of it. Over an engine in memory, with real sockets."""

import asyncio
import gc
import logging
import threading
from time import monotonic_ns

import pytest
from node_threads import lead_all, put, reserved, role, stats

from beanstalk_server import Config
from beanstalk_server.cluster import shard
from beanstalk_server.cluster.engine.interface import EngineError, Lease
from beanstalk_server.cluster.lease import SUSPENDED
from beanstalk_server.cluster.node import Node, address_towards
from beanstalk_server.cluster.roles import LEADS
from beanstalk_server.server.service import Service
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.declaration import BAD_OPTION
from beanstalk_server.storage.binlog import UNKNOWN_IDS
from harness.waiting import eventually


def test_a_node_counts_in_one_place_what_all_its_shards_do_whenever_it_begins_to_lead_them(cluster):
    node = cluster.add(shards=2)
    measurements = node.call(node.server.measure)
    lead_all(node)
    client = cluster.connect(node)
    for tube in (b"a", b"b", b"c", b"d"):
        client.ask(b"use %b\r\n" % tube)
        job_id = int(put(client).split()[1])
        client.send(b"reserve-job %d\r\n" % job_id)
        assert reserved(client) == (job_id, b"x")
        assert client.ask(b"delete %d\r\n" % job_id) == b"DELETED\r\n"
    used = [shard for shard in node.server.shards if shard.service.broker.total_jobs]
    assert len(used) == 2, "the tubes are in both"
    assert [measurements.durations.waited.count, measurements.durations.ran.count] == [4, 4]
    assert measurements.commits.count >= 2


def test_stats_tells_the_leader_at_its_end(cluster):
    leader, standby = cluster.two()
    client = cluster.connect(standby)
    put(client)
    found = stats(client)
    assert list(found)[-6:] == [
        "cluster-role",
        "cluster-leader",
        "cluster-epoch",
        "cluster-commit-latency-p50",
        "cluster-commit-latency-p99",
        "server",
    ]
    assert (found["cluster-role"], found["cluster-epoch"]) == ("leader", "1")
    assert found["cluster-leader"] == leader.server.shards[0].roles.address
    assert 0 < int(found["cluster-commit-latency-p50"]) <= int(found["cluster-commit-latency-p99"])


def test_when_the_leader_stops_the_other_serves_and_its_clients_notice_nothing(cluster):
    leader, standby = cluster.two()
    client, worker, gone = cluster.connect(standby), cluster.connect(standby), cluster.connect(leader)
    assert client.ask(b"use mail\r\n") == b"USING mail\r\n"
    assert worker.ask(b"watch mail\r\n") == b"WATCHING 2\r\n"
    assert worker.ask(b"ignore default\r\n") == b"WATCHING 1\r\n"
    worker.send(b"reserve\r\n")
    cluster.stop(leader)
    assert gone.rest() == b""
    assert put(client) == b"INSERTED %d\r\n" % (1 + UNKNOWN_IDS)
    assert reserved(worker) == (1 + UNKNOWN_IDS, b"x")
    assert stats(client)["cluster-epoch"] == "2"


def test_a_job_has_a_file_although_there_is_no_directory(cluster):
    _, standby = cluster.two()
    client = cluster.connect(standby)
    put(client)
    size = int(client.ask(b"stats-job 1\r\n").split()[1])
    assert "file: 1" in client.read(size + 2).decode().splitlines()


def test_a_drained_leader_hands_over_and_keeps_its_clients(cluster):
    leader, standby = cluster.two()
    client, worker, other = cluster.connect(leader), cluster.connect(leader), cluster.connect(standby)
    put(other)
    assert client.ask(b"use mail\r\n") == b"USING mail\r\n"
    assert worker.ask(b"watch mail\r\n") == b"WATCHING 2\r\n"
    worker.send(b"reserve\r\n")
    assert reserved(worker) == (1, b"x")
    worker.send(b"reserve\r\n")
    leader.call(leader.server.drain)
    eventually(lambda: role(standby) == LEADS, "the other leads")
    assert reserved(worker) == (1, b"x")  # it was ready at the new leader
    number = 2 + UNKNOWN_IDS
    assert put(client, b"y") == b"INSERTED %d\r\n" % number
    assert other.ask(b"peek %d\r\n" % number) == b"FOUND %d 1\r\n" % number
    found = stats(client)
    assert (found["cluster-leader"], found["draining"]) == (standby.server.shards[0].roles.address, "false")
    assert not leader.server.shards[0].roles.contends


@pytest.mark.parametrize("shards", [1, 2])
def test_when_all_nodes_are_drained_the_last_one_takes_no_new_jobs_and_serves_on(cluster, shards):
    nodes = cluster.two(shards=shards)
    lead_all(*nodes)
    client = cluster.connect(nodes[0])
    put(client, b"kept")
    for node in nodes:
        node.call(node.server.drain)
    eventually(lambda: any(node.server.drains_in_place for node in nodes), "one of them is the last")
    for node in nodes:
        client = cluster.connect(node)
        eventually(lambda client=client: put(client) == b"DRAINING\r\n", "it answers")
        assert client.ask(b"peek-ready\r\n").startswith(b"FOUND")
        assert client.read(6) == b"kept\r\n"
    fresh = cluster.add(shards=shards)
    lead_all(fresh)
    assert put(cluster.connect(nodes[0])).startswith(b"INSERTED")
    cluster.stop(fresh)
    eventually(lambda: put(cluster.connect(nodes[1])) == b"DRAINING\r\n", "one of them leads again")


def test_a_leader_that_is_fenced_closes_who_waits_for_a_change_and_keeps_the_others(cluster):
    leader, _ = cluster.two()
    waiting, harmless = cluster.connect(leader), cluster.connect(leader)
    assert harmless.ask(b"use mail\r\n") == b"USING mail\r\n"
    cluster.servers.before_call = fail_to("append")
    waiting.send(b"put 0 0 60 1\r\nx\r\n")
    eventually(lambda: leader.call(lambda: leader.server.shards[0].service.broker.ready), "it has been put")
    with cluster.lock:
        cluster.servers.primary.lease = Lease(7, 0, "", "", "", cluster.servers.primary.lease.position)
    cluster.servers.before_call = lambda method: None
    assert waiting.rest() == b""
    assert harmless.ask(b"list-tube-used\r\n") == b"USING mail\r\n"
    assert stats(harmless)["cluster-epoch"] == "8"
    assert put(harmless) != b""


def fail_to(what):
    def before_call(method):
        if method == what:
            raise EngineError("the engine cannot be reached")

    return before_call


def test_a_leader_that_cannot_renew_hands_nothing_out_until_it_can(cluster):
    node = cluster.add(waits_for=LEADS)
    client = cluster.connect(node)
    put(client)
    cluster.servers.is_reachable = False
    eventually(lambda: role(node) == "suspended", "it is suspended")
    client.send(b"reserve\r\n")
    cluster.servers.is_reachable = True
    assert reserved(client) == (1, b"x")
    assert stats(client)["cluster-epoch"] == "1"


def test_a_node_that_is_cut_off_disconnects_its_clients_and_keeps_what_they_have_changed(cluster):
    node = cluster.add(waits_for=LEADS)
    client, waiting = cluster.connect(node), cluster.connect(node)
    put(client, b"first")
    cluster.servers.is_reachable = False
    waiting.send(b"put 0 0 60 6\r\nsecond\r\n")
    assert client.rest() == waiting.rest() == b""
    cluster.servers.is_reachable = True
    eventually(lambda: role(node) == LEADS, "it leads again")
    assert stats(cluster.connect(node))["current-jobs-ready"] == "2"


def put_by_an_earlier_leader(cluster, count):
    """Put jobs of which the next leader has no commits that it could send again."""
    node = cluster.add(waits_for=LEADS)
    client = cluster.connect(node)
    for number in range(count):
        put(client, b"%d" % number)
    cluster.stop(node)


@pytest.mark.parametrize("end", ["stop", "drain"])
def test_a_leader_that_goes_when_the_engine_was_just_wiped_leaves_all_jobs(cluster, end):
    put_by_an_earlier_leader(cluster, 100)
    leader, standby = cluster.two()
    client = cluster.connect(standby)
    with cluster.lock:
        cluster.servers.wipe()
    if end == "stop":
        cluster.stop(leader)
    else:
        leader.call(leader.server.drain)
    eventually(lambda: role(standby) == LEADS, "the other leads")
    assert leader.server.failure is None
    assert stats(client)["current-jobs-ready"] == "100"


def test_a_node_that_is_stopped_while_it_takes_over_leaves_all_jobs_to_an_engine_that_was_wiped(cluster, monkeypatch):
    put_by_an_earlier_leader(cluster, 100)
    catch_up, has_jobs, goes_on = Service.catch_up, threading.Event(), threading.Event()

    async def catch_up_later(service):
        await catch_up(service)
        has_jobs.set()
        await asyncio.to_thread(goes_on.wait, 60)

    monkeypatch.setattr(Service, "catch_up", catch_up_later)
    node = cluster.add()
    assert has_jobs.wait(60), "it has brought back the jobs"
    cluster.servers.is_reachable = False
    eventually(lambda: node.server.shards[0].roles.tenure.state(monotonic_ns()) == SUSPENDED, "its lease has expired")
    with cluster.lock:
        cluster.servers.wipe()
    cluster.servers.is_reachable = True
    goes_on.set()
    cluster.stop(node)
    assert stats(cluster.connect(cluster.add()))["current-jobs-ready"] == "100"


def test_a_leader_that_goes_takes_all_the_time_that_writing_everything_anew_needs(cluster, caplog, monkeypatch):
    monkeypatch.setattr(shard, "FINISH_WITHIN", 1.0)
    put_by_an_earlier_leader(cluster, 100)
    node = cluster.add(waits_for=LEADS)
    asked = []

    def refuse_files(method):
        if method == "files":
            asked.append(method)
            raise EngineError("the engine is busy")

    with cluster.lock:
        cluster.servers.wipe()
        cluster.servers.before_call = refuse_files
    stopping = threading.Thread(target=cluster.stop, args=[node])
    stopping.start()
    eventually(lambda: len(asked) > 8, "it tries for longer than an end may take")  # 0.02 s, twice as long...
    cluster.servers.before_call = lambda _: None
    stopping.join()
    assert "did not confirm the last changes in time" not in caplog.text
    assert stats(cluster.connect(cluster.add()))["current-jobs-ready"] == "100"


def test_an_engine_that_loses_its_tail_gets_it_again_although_nobody_asks(cluster):
    node = cluster.add(waits_for=LEADS)
    client = cluster.connect(node)
    put(client, b"kept")
    servers = cluster.servers
    with cluster.lock:
        copy = servers.copy()
    put(client, b"lost")
    with cluster.lock:
        lost = servers.primary.lease.position
        servers.primary, servers.replicas = copy.primary, copy.replicas
    assert copy.primary.lease.position < lost
    eventually(lambda: servers.primary.lease.position >= lost, "it has the tail again")


def test_what_in_the_engine_would_lose_jobs_refuses_the_start_and_is_told_once(cluster, caplog):
    cluster.servers.faults = ["maxmemory-policy is allkeys-lru: must be noeviction"]
    with pytest.raises(StartError) as refused:
        cluster.add()
    assert "--cluster: maxmemory-policy is allkeys-lru: must be noeviction" in str(refused.value)
    assert refused.value.status == BAD_OPTION
    assert "allkeys" not in caplog.text
    node = cluster.add(unsafe_engine=True)
    assert put(cluster.connect(node)) == b"INSERTED 1\r\n"
    assert caplog.text.count("allkeys") == 1


def test_an_engine_that_refuses_this_user_refuses_the_start(cluster):
    cluster.servers.refuses = True
    with pytest.raises(StartError, match="--cluster: the engine refuses this user"):
        cluster.add()
    cluster.servers.refuses = False


def test_a_node_whose_url_names_a_file_that_is_not_there_does_not_start():
    config = Config(port=0, cluster="rediss://127.0.0.1?ca=/nowhere")
    with pytest.raises(StartError, match=r"^--cluster: ca=/nowhere cannot be read: .*: must be a PEM file$"):
        Node(config)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://127.0.0.1:6379", "127.0.0.1"),
        ("redis+sentinel://127.0.0.1,[::1]/x", "127.0.0.1"),
        ("redis+sentinel://nowhere.invalid,127.0.0.1/x", "127.0.0.1"),
    ],
)
def test_a_node_advertises_the_address_by_which_it_reaches_the_engine(url, address):
    assert address_towards(url) == address


def test_an_engine_without_an_address_is_told(cluster):
    with pytest.raises(StartError, match=r"^--cluster: cannot reach nowhere\.invalid: "):
        address_towards("redis://nowhere.invalid")


def test_a_node_starts_before_its_engine_does(cluster, caplog):
    caplog.set_level(logging.INFO)
    cluster.servers.is_reachable = False
    node = cluster.add()
    client = cluster.connect(node)
    client.send(b"put 0 0 60 1\r\nx\r\n")
    assert "checks the engine's settings before it leads" in caplog.text
    cluster.servers.is_reachable = True
    assert client.line() == b"INSERTED 1\r\n"


def test_an_engine_that_comes_later_is_checked_all_the_same(cluster):
    cluster.servers.is_reachable = False
    cluster.servers.faults = ["maxmemory-policy is allkeys-lru: must be noeviction"]
    node = cluster.add()
    cluster.servers.is_reachable = True
    eventually(lambda: node.server.failure is not None, "it ends")
    assert "noeviction" in str(node.server.failure)


def test_a_node_that_stops_without_its_engine_gives_up_after_a_while(cluster, caplog):
    node = cluster.add(waits_for=LEADS)
    client = cluster.connect(node)
    cluster.servers.is_reachable = False
    client.send(b"put 0 0 60 1\r\nx\r\n")
    eventually(lambda: node.call(lambda: node.server.shards[0].service.broker.ready), "it has been put")
    cluster.stop(node)
    assert client.rest() == b""
    assert "they were not acknowledged" in caplog.text


def test_nothing_is_left_of_the_time_when_a_node_led(cluster):
    def lead_again():
        """Let it be fenced, and lead in the next epoch."""
        epoch = node.server.shards[0].roles.epoch
        with cluster.lock:
            position = cluster.servers.primary.lease.position
            cluster.servers.primary.lease = Lease(epoch + 1, 0, "", "", "", position)
        eventually(lambda: role(node) == LEADS and node.server.shards[0].roles.epoch > epoch, "it leads again")

    def left():
        names = [type(found).__name__ for found in gc.get_objects()]
        return [names.count(name) for name in ("Broker", "Session", "EngineBinlog", "CommitSender", "Commit")]

    node = cluster.add(waits_for=LEADS)
    client, worker = cluster.connect(node), cluster.connect(node)
    gc.collect()
    gc.disable()
    try:
        found = []
        for _ in range(4):
            put(client)
            worker.send(b"reserve\r\n")
            reserved(worker)
            lead_again()
            found.append(left())
        eventually(lambda: left() <= found[0], f"nothing is left: {found}, and {left()}")
    finally:
        gc.enable()


def damage_all(files):
    for name, (_, data) in files.items():
        if name.startswith("segment"):
            data[len(data) // 2] ^= 1


@pytest.mark.parametrize("damage", [damage_all, dict.clear], ids=["damaged", "gone"])
def test_damaged_files_end_the_node_and_nobody_serves_them(cluster, caplog, damage):
    node = cluster.add(waits_for=LEADS)
    client = cluster.connect(node)
    for _ in range(50):
        put(client)
    cluster.stop(node)
    damage(cluster.servers.primary.files)
    node = cluster.add()
    eventually(lambda: node.server.failure is not None, "it ends")
    assert "damaged" in str(node.server.failure)
    assert "cluster export" in str(node.server.failure)
    assert "use --salvage" not in str(node.server.failure)
    eventually(lambda: caplog.text.count("cannot take over") == 2, "it has tried twice: it might be a failover")


def test_a_leader_whose_address_refuses_all_others_goes_on_leading(cluster):
    leader = cluster.add(waits_for=LEADS)
    leader.call(lambda: leader.server.links._server.close())
    standby = cluster.add()
    eventually(lambda: standby.server.shards[0].roles.contender._gone, "its address refuses")
    before = cluster.servers.primary.lease.renewals
    eventually(lambda: cluster.servers.primary.lease.renewals > before + 5, "it renews its lease")
    assert cluster.servers.primary.lease.epoch == 1
    assert role(leader) == LEADS


def test_a_node_whose_check_of_the_engine_fails_because_of_a_bug_ends(cluster, monkeypatch, caplog):
    answers = iter([False])
    monkeypatch.setattr(Node, "_check", lambda _: asyncio.sleep(0, next(answers)))
    node = cluster.add()
    eventually(lambda: node.server.failure, "it ends")
    assert "a task of the node has failed" in caplog.text
    caplog.clear()
