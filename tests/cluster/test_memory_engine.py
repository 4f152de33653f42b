"""The engine in memory fails as it is told to: tests of the cluster rely on that."""

import pytest
from memory_engine import Servers

from beanstalk_server.cluster.engine.interface import (
    CREATE,
    START,
    WRITE,
    Commit,
    EngineError,
    Lease,
    Position,
)

LEASE = Lease(1, 0, "a", "here:1", "secret")


def commit(number, text=b"x", before=None, epoch=1):
    operations = [(CREATE, f"file.{number}", 10), (WRITE, f"file.{number}", 0, text)]
    return Commit(
        Position(epoch, number),
        before or (Position(epoch, number - 1) if number > 1 else START),
        operations,
        1,
        LEASE.stamp.encode(),
    )


@pytest.fixture
def servers():
    servers = Servers()
    servers.connect().take(Lease(), LEASE)
    return servers


def test_a_failover_loses_what_no_replica_has(servers):
    engine = servers.connect()
    assert engine.append(commit(1), may_exceed=False).replicas == 2
    servers.lag()
    assert engine.append(commit(2), may_exceed=False).replicas == 0
    servers.fail_over()
    assert set(engine.files()) == {"file.1"}
    assert engine.append(commit(3), may_exceed=False).position == Position(1, 1)
    assert engine.append(commit(2), may_exceed=False).replicas == 2


def test_the_replica_that_has_most_becomes_the_primary(servers):
    engine = servers.connect()
    servers.replicas[0].lags = True
    assert engine.append(commit(1), may_exceed=False).replicas == 1
    servers.fail_over()
    assert engine.read("file.1", 0, 5) == b"x"


def test_a_replica_catches_up_a_part(servers):
    engine = servers.connect()
    servers.lag()
    engine.append(commit(1), may_exceed=False)
    engine.append(commit(2), may_exceed=False)
    servers.replicas[1].catch_up(1)
    servers.fail_over()
    assert set(engine.files()) == {"file.1"}


def test_a_lease_that_the_replicas_do_not_have_is_not_taken():
    servers = Servers()
    engine = servers.connect()
    servers.lag()
    with pytest.raises(EngineError):
        engine.take(Lease(), LEASE)
    servers.lag(False)
    assert engine.take(Lease(), LEASE) == LEASE
    assert servers.connect().take(Lease(), Lease(1, 0, "b", "there:1", "other")) == LEASE


def test_nodes_are_members_for_a_minute():
    now = [0.0]
    engine = Servers(clock=lambda: now[0]).connect()
    engine.observe("a", "here:1")
    now[0] = 59.0
    engine.observe("b", "there:1")
    assert [member.node for member in engine.members()] == ["a", "b"]
    now[0] = 61.0
    assert [member.node for member in engine.members()] == ["b"]
