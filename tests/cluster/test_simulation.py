"""A whole cluster in one process, under faults: no client is told what a server that keeps its promises cannot say.

More of it: python -m tests.cluster.simulation --seconds 3600
"""

import os

import pytest

from tests.cluster.simulation.cluster import run

pytestmark = pytest.mark.interpreted  # the clocks of the sources are replaced


def check(seed, **options):
    cluster = run(seed, **options)
    again = f"python -m tests.cluster.simulation --seed {seed}"
    assert not cluster.problems, "\n".join([again, *cluster.problems[:10], *cluster.lines[-50:]])
    return cluster


@pytest.mark.parametrize("seed", range(1, 9))
def test_nothing_acknowledged_is_lost_whatever_fails(seed):
    cluster = check(seed, seconds=40)  # the first of which nobody leads
    answered, _ = cluster.history.counts()
    assert answered > 500
    assert cluster.faults


def test_a_seed_replays(monkeypatch):
    one, other = run(3, 10), run(4, 10)
    monkeypatch.setattr(os, "getpid", lambda: 123456789)  # stats is longer in this process
    same = run(3, 10)
    assert one.lines == same.lines
    assert list(map(repr, one.history.calls)) == list(map(repr, same.history.calls))
    assert one.lines != other.lines


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(1001, 1201, 20))
def test_nothing_acknowledged_is_lost_in_many_seeds(first):
    clusters = [check(seed) for seed in range(first, first + 20)]
    commands = sum(cluster.history.counts()[0] for cluster in clusters)
    faults = sum(sum(cluster.faults.values()) for cluster in clusters)
    print(f"seeds {first} to {first + 19}: {commands:,} commands answered, {faults:,} faults, nothing wrong")
