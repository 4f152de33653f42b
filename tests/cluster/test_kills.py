"""A cluster that is killed again and again under load keeps what it has acknowledged, and brings nothing back.

Real processes: this server, Redis, and clients in threads. `pytest -m exhaustive -rP --kills 200 tests/cluster/
test_kills.py` kills so many times in each way, and prints what became of what was acknowledged.
"""

import random
import time

import pytest
from killing import AUDIT, KINDS, WITH_RELAYS, WITHOUT_FAILOVER, UnderLoad

from harness.engines import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "Redis is installed")

FEW = [(kind, "alone") for kind in ("leader", "stop", "primary", "silence")] + [("leader-and-primary", "sentinel")]
"""What every run of the tests does, once each."""


def engines_for(kind):
    if kind in WITH_RELAYS | WITHOUT_FAILOVER:
        return ["alone"]
    return ["alone", "sentinel", "cluster"] if "primary" in kind else ["alone", "cluster"]


def kill(directory, kind, engine, times):
    """Kill a cluster so many times; return what is to be printed."""
    rng = random.Random(times)
    began = time.monotonic()
    with UnderLoad(directory, engine, with_relays=kind in WITH_RELAYS) as cluster:
        while cluster.kills < times:
            cluster.kill(kind, rng.uniform(0.05, 0.3))
            if cluster.kills % AUDIT == 0:
                cluster.audit()
        cluster.audit()
        cluster.check_logs()
    assert cluster.acknowledged > 20 * times
    said = f"{kind}, {engine}: killed {times} times: {cluster.summary()}"
    if cluster.takeovers:
        longest, middle = max(cluster.takeovers), sorted(cluster.takeovers)[len(cluster.takeovers) // 2]
        said += f"; the next leader answered after {middle:.2f} s, {longest:.2f} s at the most"
    return f"{said} ({time.monotonic() - began:.0f} s)"


@pytest.mark.parametrize(("kind", "engine"), FEW)
def test_a_cluster_that_is_killed_keeps_what_it_has_acknowledged(tmp_path, kind, engine):
    kill(tmp_path, kind, engine, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "engine"), [(kind, engine) for kind in KINDS for engine in engines_for(kind)])
def test_it_does_so_however_often(tmp_path, request, kind, engine):
    print(kill(tmp_path, kind, engine, request.config.getoption("kills")))
