"""Clients of nodes with several shards, over real sockets: TLS, tokens, I/O processes, and shards that move under them.

Only the engine is in memory.
"""

import pytest
from node_threads import put
from tls_peers import Files, TlsCaller

from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from beanstalk_server.wire.places import Places
from harness.waiting import eventually

SHARDS = 4
PLACES = Places(SHARDS)
FIRST = PLACES.of_tube(b"default")


def tube(shard, number=0):
    """The name of a tube of a shard."""
    names = [b"tube-%d" % n for n in range(200)]
    return [name for name in names if PLACES.of_tube(name) == shard][number]


def user(name, **rights):
    everything = {"produce": ("*",), "consume": ("*",), "inspect": ("*",)}
    return UserConfig(name=name, token_sha256=(hash_of_token(name * 10),), **(rights or everything))


def led(node):
    return {shard.index for shard in node.server.shards if shard.leads}


def routed(node):
    return node.call(lambda: len(node.server.clients.open))


@pytest.fixture
def alone(cluster):
    """Starts a node that leads all shards."""

    def start(**options):
        node = cluster.add(shards=SHARDS, **options)
        eventually(lambda: len(led(node)) == SHARDS, "it leads all shards", 60)
        return node

    return start


def converse(client):
    """Go through all shards, with jobs reserved at each; expects what one server would say."""
    ids = []
    for shard in range(SHARDS):
        name = tube(shard)
        client.send(b"use %b\r\nwatch %b\r\n" % (name, name))
        assert client.line() == b"USING %b\r\n" % name
        assert client.line() == b"WATCHING %d\r\n" % (shard + 2)
        reply = put(client, name)
        assert reply.startswith(b"INSERTED ")
        ids.append(int(reply.split()[1]))
        assert ids[-1] % SHARDS == shard
    for _ in ids:
        word, job_id, size = client.ask(b"reserve\r\n").split()
        assert word == b"RESERVED"
        assert client.read(int(size) + 2) == tube(int(job_id) % SHARDS) + b"\r\n"
    for job_id in ids:
        assert client.ask(b"touch %d\r\n" % job_id) == b"TOUCHED\r\n"
    client.send(b"".join(b"delete %d\r\n" % job_id for job_id in reversed(ids)))
    assert [client.line() for _ in ids] == [b"DELETED\r\n"] * SHARDS
    for shard in range(SHARDS):
        assert client.ask(b"ignore %b\r\n" % tube(shard)) == b"WATCHING %d\r\n" % (SHARDS - shard)
    assert client.ask(b"use default\r\n") == b"USING default\r\n"


def test_clients_over_tls_with_tokens_go_through_all_shards(cluster, alone, tmp_path):
    files = Files(tmp_path)
    node = alone(listeners=(files.listener(auth="token"),), users=(user("ann"), user("bob", produce=("tube-*",))))
    client = TlsCaller(node.address)
    assert client.ask(b"auth %b\r\n" % (b"ann" * 10)) == b"AUTHENTICATED\r\n"
    converse(client)
    assert client.ask(b"auth %b\r\n" % (b"bob" * 10)) == b"AUTHENTICATED\r\n"
    assert client.ask(b"watch default\r\n") == b"FORBIDDEN\r\n"
    assert put(client) == b"FORBIDDEN\r\n"
    assert client.ask(b"use %b\r\n" % tube(2)) == b"USING %b\r\n" % tube(2)
    assert put(client).startswith(b"INSERTED ")
    assert client.ask(b"auth nobody\r\n") == b"UNAUTHORIZED\r\n"
    assert client.rest() == b""
    client.close()
    eventually(lambda: routed(node) == 0, "it is gone")


def test_clients_of_io_processes_go_through_all_shards(cluster, alone):
    node = alone(io_processes=1)
    client = cluster.connect(node)
    converse(client)
    client.close()
    eventually(lambda: routed(node) == 0, "it is gone")


def test_a_reload_that_takes_a_user_away_disconnects_its_clients_wherever_they_are(alone):
    listeners = (ListenerConfig(address="127.0.0.1:0", auth="token"),)
    node = alone(listeners=listeners, users=(user("ann"), user("bob")))
    clients = {}
    for name in (b"ann", b"bob"):
        for is_routed in (False, True):
            client = clients[name, is_routed] = node.connect()
            assert client.ask(b"auth %b\r\n" % (name * 10)) == b"AUTHENTICATED\r\n"
            if is_routed:
                converse(client)
    assert routed(node) == 4
    server = node.server
    accounts = type(server.listener_policies[0].accounts)([user("ann", consume=("*",))])
    assert node.wait_for(server._judge(accounts)) == 2
    for (name, _), client in clients.items():
        if name == b"bob":
            assert client.rest() == b""
        else:
            assert put(client) == b"FORBIDDEN\r\n"
            assert client.ask(b"watch %b\r\n" % tube(1)) == b"WATCHING 2\r\n"
        client.close()
