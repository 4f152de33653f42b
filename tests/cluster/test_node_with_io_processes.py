"""Nodes whose sockets are in I/O processes: their clients notice no more of a change of leader than others."""

import contextlib
import os
import signal

from node_threads import put, reserved, role

from beanstalk_server.cluster.roles import LEADS
from harness.waiting import eventually


def waiting_at(node):
    return node.call(lambda: node.server.shards[0].service.broker.waiting)


def test_clients_stay_when_the_leader_changes_and_when_their_own_node_leads(cluster):
    leader, standby = cluster.two(io_processes=1)
    at_leader, at_standby = cluster.connect(leader), cluster.connect(standby)
    assert put(at_leader, b"one") == b"INSERTED 1\r\n"
    at_standby.send(b"reserve\r\n")
    assert reserved(at_standby) == (1, b"one")
    assert at_standby.ask(b"delete 1\r\n") == b"DELETED\r\n"
    at_leader.send(b"reserve\r\n")
    leader.call(leader.server.drain)
    eventually(lambda: role(standby) == LEADS, "the other node leads", 60)
    assert put(at_standby, b"two").startswith(b"INSERTED ")
    assert reserved(at_leader)[1] == b"two"
    assert at_leader.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    at_leader.send(b"reserve\r\n")
    assert put(at_standby, b"three").startswith(b"INSERTED ")
    assert reserved(at_leader)[1] == b"three"


def test_a_client_of_a_standby_that_hangs_up_while_it_waits_gets_no_job(cluster):
    leader, standby = cluster.two(io_processes=1)
    waiting, other = cluster.connect(standby), cluster.connect(leader)
    waiting.send(b"reserve\r\n")
    eventually(lambda: waiting_at(leader) == 1, "it waits")
    waiting.close()
    eventually(lambda: waiting_at(leader) == 0, "it waits no more")
    assert put(other) == b"INSERTED 1\r\n"
    other.send(b"reserve\r\n")
    assert reserved(other) == (1, b"x")


def test_an_io_process_of_a_standby_takes_its_clients_along_and_is_replaced(cluster):
    leader, standby = cluster.two(io_processes=1)
    worker, other = cluster.connect(standby), cluster.connect(leader)
    assert put(other) == b"INSERTED 1\r\n"
    worker.send(b"reserve\r\n")
    assert reserved(worker) == (1, b"x")
    process = standby.server._io.all[0]
    os.kill(process.pid, signal.SIGKILL)
    other.send(b"reserve\r\n")
    assert reserved(other) == (1, b"x")
    with contextlib.suppress(ConnectionResetError):
        assert worker.rest() == b""
    again = cluster.connect(standby)
    assert put(again) == b"INSERTED 2\r\n"
