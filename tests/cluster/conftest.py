"""Engines in real servers, where they are installed, and clusters whose engine is in memory."""

import pytest
from memory_engine import OneShard
from node_threads import Cluster

from harness.engines import Alone


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


@pytest.fixture
def name(request):
    """A cluster of its own for each test."""
    return request.node.name


@pytest.fixture
def open_engine():
    """Opens engines in Redis, which are closed at the end."""
    from beanstalk_server.cluster.engine.redis.connector import RedisConnector

    engines = []

    def open_engine(url, name, replicas=1, shard=0, **options):
        engines.append(OneShard(RedisConnector(url, name, replicas, **options), shard))
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
