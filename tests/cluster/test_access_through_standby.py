"""Clients that come to a node that stands by: they are asked there who they are; the leader decides what they may do.

Real nodes, real sockets; only the engine is in memory.
"""

import logging

import pytest
from node_threads import lead_all, put, reserved, role, stats
from tls_peers import Files, TlsCaller

from beanstalk_server import Config
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.cluster.roles import LEADS
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from beanstalk_server.storage.binlog import UNKNOWN_IDS
from harness.caller import Caller
from harness.waiting import eventually

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


# TLS and certificates


def test_a_client_that_came_by_tls_stays_when_its_node_takes_over(cluster, files):
    leader, standby = cluster.two(listeners=(files.listener(),))
    caller = TlsCaller(standby.address)
    cluster.stack.callback(caller.close)
    assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
    cluster.stop(leader)
    assert put(caller, b"later") == b"INSERTED %d\r\n" % (1 + UNKNOWN_IDS)
    assert caller.ask(b"list-tube-used\r\n") == b"USING mail\r\n"


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


# Tokens and rights


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


def test_a_user_that_is_gone_where_several_shards_are_led_is_disconnected_from_all_of_them(cluster, authenticated):
    node = cluster.add(users=(ANN, BOB), shards=4, **TOKENS)
    lead_all(node)
    ann, bob = authenticated(node, b"ann"), authenticated(node, b"bob")
    for client, name in ((ann, b"t%d"), (bob, b"bob-%d")):
        for number in range(9):  # tubes of all shards
            tube = name % number
            assert client.ask(b"use %b\r\n" % tube) == b"USING %b\r\n" % tube
            assert put(client).startswith(b"INSERTED ")
    reload(node, users=(user("ann", consume=("*",)),), shards=4)
    assert bob.rest() == b""
    assert put(ann) == b"FORBIDDEN\r\n"
    assert ann.ask(b"watch t1\r\n") == b"WATCHING 2\r\n"


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


def test_a_leader_that_asks_everybody_serves_nobody_by_another_node_either(cluster, authenticated, caplog):
    """A process that can read the engine can be a node, and say that a client needs no user."""
    leader, standby = cluster.two(leads={"users": (ANN,), **TOKENS}, users=(ANN,), listeners=(listener(),))
    nobody = cluster.connect(standby)
    nobody.send(b"put 0 0 60 1\r\nx\r\n")
    assert nobody.rest() == b""
    assert "not authenticated, but every listener of this node requires it; disconnected" in caplog.text
    reload(leader, users=(ANN,), listeners=(*TOKENS["listeners"], listener()))
    assert put(cluster.connect(standby)) == b"INSERTED 1\r\n"


def test_nobody_is_disconnected_when_the_leader_begins_to_ask_everybody(cluster):
    leader, standby = cluster.two(users=(ANN,), listeners=(listener(),))
    nobody = cluster.connect(standby)
    assert put(nobody) == b"INSERTED 1\r\n"
    reload(leader, users=(ANN,), **TOKENS)
    assert nobody.rest() == b""


# Limits


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
