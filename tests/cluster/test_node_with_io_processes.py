"""Nodes whose sockets are in I/O processes: their clients notice no more of a change of leader than others."""

from node_threads import put, reserved, role

from beanstalk_server.cluster.roles import LEADS
from harness.waiting import eventually


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
