"""Idle clients of a cluster are disconnected, whichever nodes serve them; the test moves the clocks."""

import socket

import pytest
from node_threads import lead_all, put, reserved
from orders import tube_of

from beanstalk_server.queue.units import SECOND
from beanstalk_server.wire.places import Places
from harness.waiting import eventually

TIMEOUT = 100_000
SHARDS = 4


def sweep(*nodes, seconds=0):
    """Let nodes look at all clients, this long after the last look."""
    for node in nodes:
        idle = node.server.idle
        clock = idle.clock

        def later(clock=clock):
            return clock() + seconds * SECOND

        idle.clock = later
        node.call(idle.sweep)


def is_connected(client):
    """Whether a client is; it sends nothing."""
    client.socket.setblocking(False)
    try:
        return client.socket.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    finally:
        client.socket.settimeout(60)


@pytest.mark.parametrize("io_processes", [0, 1])
def test_the_leader_disconnects_those_whom_a_standby_passes_on(cluster, io_processes):
    nodes = leader, _ = cluster.two(idle_timeout=TIMEOUT, io_processes=io_processes)
    for node in nodes:
        waiting, holding, idle = (cluster.connect(node) for _ in range(3))
        assert put(holding).startswith(b"INSERTED ")
        holding.send(b"reserve\r\n")
        job_id, _ = reserved(holding)
        waiting.send(b"reserve\r\n")
        assert idle.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        broker = leader.server.shards[0].service.broker
        eventually(lambda broker=broker: leader.call(lambda: broker.waiting) == 1, "it waits")
        sweep(*nodes)
        sweep(*nodes, seconds=TIMEOUT - 1)
        assert is_connected(idle)
        sweep(*nodes, seconds=1)
        assert idle.rest() == b""
        assert holding.ask(b"release %d 0 0\r\n" % job_id) == b"RELEASED\r\n"
        assert reserved(waiting) == (job_id, b"x")
        assert waiting.ask(b"delete %d\r\n" % job_id) == b"DELETED\r\n"


def test_with_several_shards_the_node_of_a_client_decides(cluster):
    shard = (Places(SHARDS).of_tube(b"default") + 1) % SHARDS
    names = [tube_of(shard, SHARDS, number) for number in range(3)]
    node = cluster.add(shards=SHARDS, idle_timeout=TIMEOUT)
    other = cluster.add(shards=SHARDS, idle_timeout=TIMEOUT)
    nodes = (node, other)
    lead_all(*nodes)
    for each in nodes:
        idle, holding, active, slow = (cluster.connect(each) for _ in range(4))
        assert slow.ask(b"use %b\r\n" % names[0]) == b"USING %b\r\n" % names[0]
        slow.send(b"put 0 0 60 100\r\nhalf a body")
        for number, client in enumerate((idle, holding, active)):
            assert client.ask(b"use %b\r\n" % names[number]) == b"USING %b\r\n" % names[number]
            assert client.ask(b"watch %b\r\n" % names[number]) == b"WATCHING 2\r\n"
            client.send(b"put 0 0 60 1\r\nx\r\nreserve\r\n")
            assert client.line().startswith(b"INSERTED ")
            job_id, _ = reserved(client)
            if client is not holding:
                assert client.ask(b"delete %d\r\n" % job_id) == b"DELETED\r\n"
        sweep(*nodes)
        sweep(*nodes, seconds=TIMEOUT - 1)
        assert active.ask(b"list-tube-used\r\n") == b"USING %b\r\n" % names[2]
        sweep(*nodes, seconds=1)
        assert (idle.rest(), slow.rest()) == (b"", b"")
        assert active.ask(b"list-tube-used\r\n") == b"USING %b\r\n" % names[2], "though one of its places was idle"
        assert holding.ask(b"list-tube-used\r\n") == b"USING %b\r\n" % names[1]
        holding.close()
        active.close()
