"""A cluster that is killed again and again under load keeps what it has acknowledged, and brings nothing back.

Real processes: this server, Redis, and clients in threads. `pytest -m slow -rP --kills 200 tests/cluster/
test_kills.py` kills this many times in each way, and prints what became of what was acknowledged.
"""

import random
import time

import pytest
from killing import AUDIT, KINDS, WITH_BACKUPS, WITH_RELAYS, WITH_SHARDS, WITHOUT_FAILOVER, UnderLoad
from load import PAUSE

SHARDS, NODES = 8, 3

SLOWLY = 0.02
"""Seconds from one batch of a client to the next, where one kill is enough: it costs most while nobody leads."""

A_FEW = 3
"""The default of --kills."""


def engines_for(kind):
    if kind in WITH_BACKUPS:
        return ["postgresql"]
    if kind in WITH_RELAYS | WITHOUT_FAILOVER:
        return ["alone", "postgresql"]
    if "primary" in kind:
        return ["alone", "sentinel", "cluster", "postgresql", "promoting-postgresql"]
    return ["alone", "cluster", "postgresql"]


def kill(directory, kind, engine, times, *, shards=1, nodes=2, pause=PAUSE):
    """Kill a cluster this many times; return what is to be printed."""
    rng = random.Random(times)
    began = time.monotonic()
    relays = kind in WITH_RELAYS
    with UnderLoad(directory, engine, nodes, with_relays=relays, shards=shards, pause=pause) as cluster:
        while cluster.kills < times:
            cluster.kill(kind, rng.uniform(0.05, 0.3))
            if cluster.kills % AUDIT == 0:
                cluster.audit()
        cluster.audit()
        cluster.check_logs()
    assert cluster.acknowledged > 20 * times
    of_shards = f", {shards} shards on {nodes} nodes" if shards > 1 else ""
    said = f"{kind}, {engine}{of_shards}: killed {times} times: {cluster.summary()}"
    if cluster.moves:
        said += f"; shards got another leader {cluster.moves} times"
    if cluster.takeovers:
        longest, middle = max(cluster.takeovers), sorted(cluster.takeovers)[len(cluster.takeovers) // 2]
        said += f"; the next leader answered after {middle:.2f} s, {longest:.2f} s at the most"
    return f"{said} ({time.monotonic() - began:.0f} s)"


def test_a_cluster_whose_leader_is_killed_keeps_what_it_has_acknowledged(tmp_path):
    kill(tmp_path, "leader", "alone", 1, pause=SLOWLY)


EACH = [(kind, engine) for kind in KINDS for engine in engines_for(kind)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "engine"), [each for each in EACH if each[0] not in WITH_SHARDS])
def test_it_does_so_however_often(tmp_path, request, kind, engine):
    print(kill(tmp_path, kind, engine, request.config.getoption("kills")))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "engine"), [each for each in EACH if each[0] not in WITH_RELAYS])
def test_it_does_so_with_shards_however_often(tmp_path, request, kind, engine):
    times = request.config.getoption("kills")
    if times <= A_FEW and engine != "alone":
        pytest.skip(f"with --kills of more than {A_FEW}: to start these engines takes longer than to kill so few times")
    print(kill(tmp_path, kind, engine, times, shards=SHARDS, nodes=NODES))
