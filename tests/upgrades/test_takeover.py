"""Nodes of this version and of an earlier one take over from each other, and no job is lost.

The earlier version is that of a commit (`EARLIER`), so these tests need the history of the repository.
"""

import contextlib
import io
import subprocess
import sys
import tarfile

import pytest

from harness.engines import Alone
from harness.nodes import Node, leader
from harness.postgres import Postgres
from harness.servers import INTERPRETED, ROOT, Restartable, unused_port
from harness.waiting import eventually
from tests.upgrades import jobs

EARLIER = {"redis": "4077682f", "postgresql": "85f055d7"}
"""The last commit before pauses and tokens were recorded; the first with PostgreSQL as an engine."""

NEWEST_FORMAT_4 = "2f3fc541"
"""The last commit that wrote version 4 of the binlog's format."""

ALONE = {"redis": (Alone, ["--appendfsync", "always"]), "postgresql": (Postgres, {"synchronous_standby_names": ""})}
FEATURES = "plain", "keyed", "terms", "labels"
OPTIONS = "--replicas", "0", "--lease-ttl", "2"

pytestmark = pytest.mark.slow


def sources(commit, directory):
    """Put the package of a commit into a directory."""
    line = ["git", "-C", str(ROOT), "archive", commit, "beanstalk_server"]
    try:
        done = subprocess.run(line, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs the history of the repository: there is no commit {commit}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


class EarlierNode(Node):
    """A node from the sources of a commit."""

    def __init__(self, directory, url, options):
        self.link_port, port = unused_port(), unused_port()
        self.link = f"127.0.0.1:{self.link_port}"
        program = [sys.executable, "-P", "-m", "beanstalk_server", "-l", "127.0.0.1", "-p", str(port)]
        line = ["env", f"PYTHONPATH={directory}", *program, "--cluster", url, "--advertise", self.link, *options]
        Restartable.__init__(self, INTERPRETED, line, port)


@pytest.fixture
def engine(request, tmp_path):
    kind, settings = ALONE[request.param]
    with contextlib.closing(kind(tmp_path / "engine", 0, settings)) as servers:
        yield servers


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def at(node):
    return jobs.Server(f"127.0.0.1:{node.port}")


@pytest.mark.parametrize("engine", EARLIER, indirect=True)
def test_nodes_of_two_versions_take_over_from_each_other(request, engine, stack, tmp_path):
    commit = EARLIER[request.node.callspec.params["engine"]]
    earlier = EarlierNode(sources(commit, tmp_path / "earlier"), engine.url, OPTIONS)
    stack.callback(earlier.kill)
    assert leader(engine, [earlier]) is earlier
    jobs.put(at(earlier), FEATURES)
    now = Node(engine.url, OPTIONS)
    stack.callback(now.kill)
    relayed = at(now)
    job = relayed.put(b"through a standby of another version")
    relayed.ask(f"delete {job}", "DELETED")
    expected = lasting(relayed)
    assert len(expected) > 15
    for stops, follows in ((earlier, now), (now, earlier), (earlier, now)):
        stops.process.stop()
        assert leader(engine, [now, earlier]) is follows
        assert lasting(at(follows)) == expected
        stops.start()
        eventually(lambda stops=stops: at(stops).ask("ping"), "the node serves its clients")


def lasting(server):
    """The jobs without the number of their reserves: a reserve alone is not recorded."""
    return {job_id: job | {"reserves": ""} for job_id, job in jobs.tell(server)["jobs"].items()}


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_a_node_that_does_not_know_the_format_says_so_and_gives_the_lease_back(engine, stack, tmp_path):
    now = Node(engine.url, OPTIONS)
    stack.callback(now.kill)
    assert leader(engine, [now]) is now
    jobs.put(at(now), FEATURES)
    expected = lasting(at(now))
    now.process.stop()
    earlier = EarlierNode(sources(NEWEST_FORMAT_4, tmp_path / "earlier"), engine.url, OPTIONS)
    stack.callback(earlier.kill)
    said = "cannot take over: engine/segment.0000000001: format version 5 is newer than this server, which knows"
    eventually(lambda: said in earlier.process.log, "it says why it does not lead")
    eventually(lambda: "the lease has been given back" in earlier.process.log, "it gives the lease back")
    earlier.kill()  # it takes the lease again and again
    now.start()
    eventually(lambda: leader(engine, [now]) is now, "the node that can read the journal leads")
    assert lasting(at(now)) == expected
