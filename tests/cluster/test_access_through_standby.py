"""Clients that come to a node that stands by: they are asked there who they are; the leader decides what they may do.

Real nodes, real sockets; only the engine is in memory.
"""

import logging

import pytest
from node_threads import put, reserved, role, stats
from tls_peers import Files, TlsCaller, client_certificate, client_context

from beanstalk_server import Config
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.cluster.roles import LEADS
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from beanstalk_server.storage.binlog import UNKNOWN_IDS
from harness.caller import Caller
from harness.waiting import eventually
from tests.server.proxy_headers import V4, binary, tls

PROXY = b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 11300\r\n"


def user(name, **rights):
    """A user whose token is its name."""
    return UserConfig(
        name=name, token_sha256=(hash_of_token(name),), **(rights or {"produce": ("*",), "consume": ("*",)})
    )


def listener(**keys):
    return ListenerConfig(address="127.0.0.1:0", **keys)


TOKENS = {"listeners": (listener(auth="token"),)}
ANN, BOB = user("ann"), user("bob", produce=("bob-*",))


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def authenticated(cluster):
    """Connects, and says who it is."""

    def connect(node, name):
        client = cluster.connect(node)
        assert client.ask(b"auth %b\r\n" % name) == b"AUTHENTICATED\r\n"
        return client

    return connect


def reload(node, **settings):
    """Give a node other settings, as SIGHUP does."""
    server = node.server
    config = server.config
    node.wait_for(
        server.reload(
            Config(cluster=config.cluster, lease_ttl=config.lease_ttl, **({"listeners": config.listeners} | settings))
        )
    )


def users_at(node):
    """The users of the clients that a leader serves, by their names."""
    connections = node.call(lambda: [each.session.user for each in node.server.shards[0].service.connections.open])
    return [user and user.name for user in connections]


# TLS and certificates


def test_what_comes_by_tls_goes_on_by_the_link(cluster, files):
    leader, standby = cluster.two(leads={"listeners": (listener(),)}, listeners=(files.listener(),))
    caller = TlsCaller(standby.address)
    cluster.stack.callback(caller.close)
    body = bytes(range(256)) * 200
    assert put(caller, body) == b"INSERTED 1\r\n"
    caller.send(b"reserve\r\n")
    assert reserved(caller) == (1, body)
    caller.send(b"delete 1\r\nquit\r\n")
    assert caller.rest() == b"DELETED\r\n", "and the connection ends as TLS does"
    eventually(lambda: not users_at(leader), "the leader has let it go")


def test_a_client_that_came_by_tls_stays_when_its_node_takes_over(cluster, files):
    leader, standby = cluster.two(listeners=(files.listener(),))
    caller = TlsCaller(standby.address)
    cluster.stack.callback(caller.close)
    assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
    cluster.stop(leader)
    assert put(caller, b"later") == b"INSERTED %d\r\n" % (1 + UNKNOWN_IDS)
    assert caller.ask(b"list-tube-used\r\n") == b"USING mail\r\n"


def test_the_name_in_a_certificate_has_its_rights_at_the_leader(cluster, files):
    leader, standby = cluster.two(listeners=(files.listener(mutual=True, auth="certificate"),), users=(BOB,))
    caller = TlsCaller(standby.address, client_context(client_certificate(common_name="bob")))
    cluster.stack.callback(caller.close)
    assert put(caller) == b"FORBIDDEN\r\n"
    assert caller.ask(b"use bob-1\r\n") == b"USING bob-1\r\n"
    assert put(caller) == b"INSERTED 1\r\n"
    assert users_at(leader) == ["bob"]


def test_a_certificate_of_nobody_is_refused_by_the_standby(cluster, files):
    leader, standby = cluster.two(listeners=(files.listener(mutual=True, auth="certificate"),), users=(BOB,))
    caller = TlsCaller(standby.address, client_context(client_certificate(common_name="eve")))
    cluster.stack.callback(caller.close)
    assert caller.rest() == b"UNAUTHORIZED\r\n"
    assert users_at(leader) == []


# The PROXY header


def test_the_leader_knows_a_client_by_the_address_that_a_proxy_has_told_the_standby(cluster, caplog):
    caplog.set_level(logging.INFO)
    leader, standby = cluster.two(listeners=(listener(proxy_protocol=True, trusted=("127.0.0.1",)),), verbosity=1)
    caller = Caller(standby.address)
    cluster.stack.callback(caller.close)
    caller.send(PROXY)
    assert put(caller) == b"INSERTED 1\r\n"
    names = leader.call(lambda: [connection.name for connection in leader.server.shards[0].service.connections.open])
    assert names == [f"192.0.2.7:12345 at {standby.server.name}"]
    caller.close()
    for name in ("192.0.2.7:12345", *names):
        eventually(lambda name=name: f"{name} disconnected" in caplog.text, f"{name} is told to be gone")


def test_the_name_in_a_certificate_that_a_proxy_has_seen_has_its_rights_at_the_leader(cluster):
    listener_policy = listener(proxy_protocol=True, trusted=("127.0.0.1",), auth="certificate")
    leader, standby = cluster.two(listeners=(listener_policy,), users=(BOB,))
    caller = Caller(standby.address)
    cluster.stack.callback(caller.close)
    caller.send(binary(V4 + tls(b"bob")))
    assert put(caller) == b"FORBIDDEN\r\n"
    assert caller.ask(b"use bob-1\r\n") == b"USING bob-1\r\n"
    assert users_at(leader) == ["bob"]


# Tokens and rights


def test_a_right_that_the_leader_takes_away_is_gone_at_once(cluster, authenticated):
    leader, standby = cluster.two(users=(ANN, BOB), **TOKENS)
    ann, bob = authenticated(standby, b"ann"), authenticated(standby, b"bob")
    assert bob.ask(b"use bob-1\r\n") == b"USING bob-1\r\n"
    assert put(bob) == b"INSERTED 1\r\n"
    reload(leader, users=(ANN, user("bob", produce=("other-*",))))
    assert put(bob) == b"FORBIDDEN\r\n"
    assert bob.ask(b"use other-1\r\n") == b"USING other-1\r\n"
    assert put(ann) == b"INSERTED 2\r\n"


def test_a_reserve_that_waits_at_the_leader_is_answered_when_it_may_not_any_more(cluster, authenticated):
    leader, standby = cluster.two(users=(ANN, BOB), **TOKENS)
    ann = authenticated(standby, b"ann")
    ann.send(b"reserve\r\n")
    eventually(lambda: leader.call(lambda: leader.server.shards[0].service.broker.waiting), "it waits")
    reload(leader, users=(user("ann", consume=("mail",)), BOB))
    assert ann.line() == b"FORBIDDEN\r\n"
    assert ann.ask(b"watch mail\r\n") == b"WATCHING 1\r\n"


def test_a_user_that_is_gone_at_the_leader_is_disconnected_and_its_jobs_are_ready(cluster, authenticated):
    leader, standby = cluster.two(users=(ANN, user("carl")), **TOKENS)
    carl, ann = authenticated(standby, b"carl"), authenticated(standby, b"ann")
    assert put(carl) == b"INSERTED 1\r\n"
    carl.send(b"reserve\r\n")
    assert reserved(carl) == (1, b"x")
    reload(leader, users=(ANN,))
    assert carl.rest() == b""
    ann.send(b"reserve\r\n")
    assert reserved(ann) == (1, b"x")


def test_a_user_that_is_gone_at_the_standby_is_disconnected_and_cannot_come_back(cluster, authenticated):
    _, standby = cluster.two(users=(ANN, BOB), **TOKENS)
    bob = authenticated(standby, b"bob")
    assert bob.ask(b"use bob-1\r\n") == b"USING bob-1\r\n"
    reload(standby, users=(ANN,))
    assert bob.rest() == b""
    again = cluster.connect(standby)
    again.send(b"auth bob\r\n")
    assert again.rest() == b"UNAUTHORIZED\r\n"


# Nodes with different users


def test_the_leader_decides_what_a_user_may_do_and_when_the_standby_leads_it_does(cluster, authenticated):
    leader, standby = cluster.two(leads={"users": (ANN, user("bob", produce=("new-*",)))}, users=(ANN, BOB), **TOKENS)
    bob = authenticated(standby, b"bob")
    assert bob.ask(b"use bob-1\r\n") == b"FORBIDDEN\r\n"
    assert bob.ask(b"use new-1\r\n") == b"USING new-1\r\n"
    assert put(bob) == b"INSERTED 1\r\n"
    cluster.stop(leader)
    eventually(lambda: role(standby) == LEADS, "the other leads")
    assert put(bob) == b"FORBIDDEN\r\n"
    assert bob.ask(b"use bob-1\r\n") == b"USING bob-1\r\n"
    assert put(bob).startswith(b"INSERTED")


def test_a_user_whom_only_the_standby_knows_is_disconnected_until_that_leads(cluster, authenticated, caplog):
    leader, standby = cluster.two(leads={"users": (ANN,)}, users=(ANN, BOB), **TOKENS)
    bob = cluster.connect(standby)
    bob.send(b"auth bob\r\nuse bob-1\r\n")
    assert bob.rest() in (b"AUTHENTICATED\r\n", b"")
    assert "there is no user 'bob' here; disconnected" in caplog.text
    assert put(authenticated(standby, b"ann")) == b"INSERTED 1\r\n"
    cluster.stop(leader)
    eventually(lambda: role(standby) == LEADS, "the other leads")
    assert authenticated(standby, b"bob").ask(b"use bob-1\r\n") == b"USING bob-1\r\n"


def test_a_user_whom_only_the_leader_knows_comes_in_nowhere_else(cluster, authenticated):
    leader, standby = cluster.two(leads={"users": (ANN, BOB)}, users=(ANN,), **TOKENS)
    bob = cluster.connect(standby)
    bob.send(b"auth bob\r\nuse bob-1\r\n")
    assert bob.rest() == b"UNAUTHORIZED\r\n"
    assert authenticated(leader, b"bob").ask(b"use bob-1\r\n") == b"USING bob-1\r\n"


def test_a_leader_that_asks_everybody_serves_nobody_by_another_node_either(cluster, authenticated, caplog):
    """A process that can read the engine can be a node, and say that a client needs no user."""
    leader, standby = cluster.two(leads={"users": (ANN,), **TOKENS}, users=(ANN,), listeners=(listener(),))
    nobody = cluster.connect(standby)
    nobody.send(b"put 0 0 60 1\r\nx\r\n")
    assert nobody.rest() == b""
    assert "it has no user, and every listener here asks for one; disconnected" in caplog.text
    reload(leader, users=(ANN,), listeners=(*TOKENS["listeners"], listener()))
    assert put(cluster.connect(standby)) == b"INSERTED 1\r\n"


def test_nobody_is_disconnected_when_the_leader_begins_to_ask_everybody(cluster):
    leader, standby = cluster.two(users=(ANN,), listeners=(listener(),))
    nobody = cluster.connect(standby)
    assert put(nobody) == b"INSERTED 1\r\n"
    reload(leader, users=(ANN,), **TOKENS)
    assert nobody.rest() == b""


# Limits


def test_the_limit_of_memory_is_the_leaders(cluster):
    leader, standby = cluster.two(leads={"max_memory": 1 << 20}, max_memory=1 << 24)
    client = cluster.connect(standby)
    body = bytes(60_000)
    replies = [put(client, body) for _ in range(20)]
    assert replies[0] == b"INSERTED 1\r\n"
    assert replies[-1] == b"OUT_OF_MEMORY\r\n"
    assert stats(client)["max-memory"] == str((1 << 20) * 7 // 8)
    assert client.ask(b"delete 1\r\n") == b"DELETED\r\n", "what makes room goes on"
    assert put(client, body).startswith(b"INSERTED")
    cluster.stop(leader)
    eventually(lambda: role(standby) == LEADS, "the other leads")
    assert put(client, body).startswith(b"INSERTED")
    assert stats(client)["max-memory"] == str((1 << 24) * 7 // 8)


def test_a_standby_that_is_drained_goes_on_passing_clients_to_its_leader(cluster):
    leader, standby = cluster.two()
    client = cluster.connect(standby)
    standby.call(standby.server.drain)
    assert put(client) == b"INSERTED 1\r\n"
    assert stats(client)["draining"] == "false"
    cluster.stop(leader)
    third = cluster.add(waits_for=LEADS)
    assert put(client).startswith(b"INSERTED"), "and to the next one"
    assert stats(client)["cluster-leader"] == third.server.shards[0].roles.address


def test_a_leader_that_drains_because_it_is_alone_says_so_to_those_who_come_by_a_standby(cluster):
    leader = cluster.add(waits_for=LEADS)
    leader.call(leader.server.drain)
    standby = cluster.add()
    client = cluster.connect(standby)
    assert put(client) == b"DRAINING\r\n"
    assert stats(client)["draining"] == "true"


def test_a_standby_passes_drain_and_undrain_on_and_a_change_of_leader_ends_drain_mode(cluster):
    leader, standby = cluster.two()
    client = cluster.connect(standby)
    assert client.ask(b"drain\r\n") == b"DRAINING\r\n"
    assert put(client) == put(cluster.connect(leader)) == b"DRAINING\r\n"
    assert client.ask(b"undrain\r\n") == b"NOT_DRAINING\r\n"
    assert put(client).startswith(b"INSERTED")
    assert client.ask(b"drain\r\n") == b"DRAINING\r\n"
    cluster.stop(leader)
    eventually(lambda: role(standby) == LEADS, "the other leads")
    assert put(client).startswith(b"INSERTED")


def test_the_clients_of_all_nodes_are_listed_at_each_of_them(cluster):
    nodes = cluster.two()
    clients = [cluster.connect(node) for node in nodes]
    clients[1].send(b"watch a\r\nuse b\r\n")
    assert (clients[1].line(), clients[1].line()) == (b"WATCHING 2\r\n", b"USING b\r\n")
    names = ["{}:{}".format(*client.socket.getsockname()[:2]) for client in clients]
    for client in clients:
        assert stats(client)["current-connections"] == "2"
        size = int(client.ask(b"list-clients\r\n").split()[1])
        lines = sorted(client.read(size + 2).decode().splitlines()[1:-1])
        found = {name: line for name in names for line in lines if f'"{name}' in line}
        assert len(found) == len(lines) == 2
        assert 'using: "b", watching: 2' in found[names[1]]
        assert f'"{names[1]} at {nodes[1].server.name}"' in found[names[1]], "it came by another node"
