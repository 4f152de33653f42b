"""A whole cluster in one process, under faults: no client is told what a server that keeps its promises cannot say.

More of it: python -m tests.cluster.simulation --seconds 3600
"""

import os
from unittest.mock import ANY

import pytest
from effort import seeded

from beanstalk_server.storage import record
from tests.cluster.simulation.cluster import SimulatedCluster, run

pytestmark = pytest.mark.interpreted  # the clocks of the sources are replaced


SHARDS = 8


def check(seed, **options):
    cluster = run(seed, **options)
    given = {"busy": options.get("seconds"), "shards": options.get("shards")}
    again = " ".join(
        [
            f"python -m tests.cluster.simulation --seed {seed}",
            *(f"--{name} {value}" for name, value in given.items() if value),
            *(["--calm"] if options.get("is_calm") else []),
            *(["--locks"] if options.get("locks") else []),
        ]
    )
    assert not cluster.problems, "\n".join([again, *cluster.problems[:10], *cluster.lines[-50:]])
    return cluster


@seeded(3)
def test_nothing_acknowledged_is_lost_whatever_fails(seed):
    cluster = check(seed, seconds=40)  # the first of which nobody leads
    answered, _ = cluster.history.counts()
    assert answered > 10  # faults may leave it without a leader for most of the time
    assert cluster.faults


@seeded(2)
def test_nor_is_it_by_an_engine_whose_waits_are_canceled(seed):
    cluster = check(seed, seconds=40, locks=True)
    assert cluster.faults


@seeded(2)
def test_nor_is_it_with_shards_that_move(seed):
    cluster = check(seed, seconds=18, shards=SHARDS)
    assert cluster.history.counts()[0] > 10  # a shard may have no leader for most of the time
    assert sum(map(len, cluster.epochs.values())) > SHARDS


@seeded(2)
def test_while_nothing_fails_nobody_is_disconnected_and_nobody_waits_for_long(seed):
    cluster = check(seed, seconds=15, shards=SHARDS, is_calm=True)
    assert cluster.faults
    assert set(cluster.faults) <= {"move shard", "restart", "drain", "join", "leave"}


def rotten(seed, shards):
    """A run in which bits flip just before the leader is killed."""
    cluster = SimulatedCluster(seed, 30, shards)
    injector = cluster.injector

    def strike():
        injector.kill_leader()
        return injector.rot()

    injector.kinds = [strike]
    cluster.run()
    return cluster


@pytest.mark.parametrize("shards", [1, 3])
def test_a_flipped_bit_is_refused_by_each_node_and_served_by_none(shards):
    cluster = rotten(1, shards)
    assert not cluster.problems, "\n".join([*cluster.problems[:10], *cluster.lines[-50:]])
    assert cluster.servers.bit_rot.counts()["refused"]
    assert cluster.refusing


def test_a_server_that_ignores_checksums_is_caught(monkeypatch):
    monkeypatch.setattr(record, "crc32c", lambda *_: ANY)
    assert any(problem.startswith("served: ") for problem in rotten(1, 1).problems)


@pytest.mark.parametrize(("seed", "shards"), [(3, 1), (5, SHARDS)])
def test_a_seed_replays(monkeypatch, seed, shards):
    one, other = run(seed, 6, shards), run(seed + 1, 6, shards)
    monkeypatch.setattr(os, "getpid", lambda: 123456789)  # stats is longer in this process
    same = run(seed, 6, shards)
    assert one.lines == same.lines
    assert list(map(repr, one.history.calls)) == list(map(repr, same.history.calls))
    assert one.lines != other.lines


@pytest.mark.slow
@pytest.mark.parametrize("locks", [False, True])
@pytest.mark.parametrize("shards", [1, 3, SHARDS])
@seeded(3)
def test_nor_is_it_in_a_minute_with_any_number_of_shards(seed, shards, locks):
    check(seed, shards=shards, locks=locks)
