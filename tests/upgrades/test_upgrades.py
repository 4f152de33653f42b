"""What earlier versions wrote is read, served and exported: binlogs, beanstalkd's files, and dumps of engines.

README.md says which program wrote which directory of `data`. `told.json` is what that program said of its jobs after
it had been started again.
"""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from harness.engines import Alone
from harness.postgres import Postgres
from harness.servers import BEANSTALKD, command, imported, launch, run, start
from tests.upgrades import dumps, jobs

DATA = Path(__file__).parent / "data"
BINLOGS = sorted(path.parent.name for path in DATA.glob("*/binlog"))
ENGINES = sorted(path.parent.name for path in DATA.glob("*/*.[js][sq][ol]*") if path.name != "told.json")
OF_BEANSTALKD = "pri", "delay", "ttr", "tube", "state", "body", "timeouts", "releases", "buries", "kicks"
"""What beanstalkd has of a job after an export. It has no keys and no groups."""


def tool(*words):
    """Run a tool, which must succeed; return its output."""
    done = run([*command(imported()), *map(str, words)])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def of(now, before):
    """What a server says now, of the things that it said before: a later version says more."""
    assert [part for part in before if now[part].keys() < before[part].keys()] == []
    assert now["jobs"].keys() == before["jobs"].keys()
    return {
        part: {key: {name: now[part][key].get(name) for name in fields} for key, fields in before[part].items()}
        for part in before
    }


@pytest.fixture
def expected(version):
    told = json.loads((DATA / version / "told.json").read_text())
    for job in told["jobs"].values():
        if version == "beanstalkd-5":
            del job["reserves"]  # which beanstalkd 1.4.6 forgets at its start
        if version.startswith("beanstalkd") and job["state"] == "buried":
            job["buries"] = str(int(job["buries"]) - 1)  # beanstalkd counts one at each of its starts
    return told


@pytest.fixture
def binlog(tmp_path, version):
    return shutil.copytree(DATA / version / "binlog", tmp_path / "binlog")


@pytest.fixture
def serving():
    """Starts servers of this version, and connects to them."""
    with contextlib.ExitStack() as stack:

        def serve(*options):
            process = launch("-l", "127.0.0.1", "-p", "0", *map(str, options))
            stack.callback(process.kill)
            server = jobs.Server("{}:{}".format(*process.address))
            server.process = process
            return server

        yield serve


def assert_serves(server, expected):
    """All jobs are as they were, and so is what statistics do not show; and the server goes on."""
    assert of(jobs.tell(server), expected) == expected
    if any(job["tube"] == "terms" for job in expected["jobs"].values()):
        server.ask("use terms", "USING")
        server.ask(b"put-with 0 0 60 1 key=held\r\nx\r\n", "EXISTS")
    if any(job["tube"] == "tokens" for job in expected["jobs"].values()):
        server.ask("use tokens", "USING")
        for token in jobs.TOKENS:
            server.ask(b"put-with 0 0 60 1 once=%b\r\nx\r\n" % token.encode(), "EXISTS")
    assert server.put(b"new", tube="new") > max(map(int, expected["jobs"]))


@pytest.mark.parametrize("version", BINLOGS)
def test_a_directory_of_each_version_is_served_and_written_to(serving, binlog, expected):
    server = serving("-b", binlog)
    assert_serves(server, expected)
    assert server.process.stop() == 0
    tool("binlog", "verify", binlog)
    server = serving("-b", binlog)
    assert of(jobs.tell(server, max(map(int, expected["jobs"])) + 1), expected) == expected


def as_beanstalkd(told):
    return {job_id: {name: job[name] for name in OF_BEANSTALKD} for job_id, job in told["jobs"].items()}


@pytest.mark.parametrize("version", [each for each in BINLOGS if each.startswith("binlog")])
def test_a_directory_of_each_version_is_exported_to_beanstalkd(binlog, expected, tmp_path):
    assert "whole" in tool("binlog", "verify", binlog)
    exported = tool("binlog", "export", binlog, "--to", tmp_path / "back")
    assert f"exported {len(expected['jobs'])} jobs" in exported
    process = start(BEANSTALKD, ["-b", str(tmp_path / "back")])
    try:
        found = as_beanstalkd(jobs.tell(jobs.Server("{}:{}".format(*process.address))))
    finally:
        process.kill()
    for job_id, job in as_beanstalkd(expected).items():
        if expected["jobs"][job_id]["tube"] in ("terms", "labels") and job["state"] == "delayed":
            found[job_id]["delay"] = job["delay"]  # of `at` and `after`, which beanstalkd has not
        assert found.pop(job_id) == job
    assert found == {}


@pytest.fixture
def engine(tmp_path, version):
    """The engine's dump, restored."""
    (path,) = [path for path in (DATA / version).iterdir() if path.name != "told.json"]
    if path.suffix == ".sql":
        servers = Postgres(tmp_path / "engine", 0, {"synchronous_standby_names": ""})
        restore = dumps.restore_postgresql
    else:
        servers = Alone(tmp_path / "engine", 0, ["--appendfsync", "always"])
        restore = dumps.restore_redis
    with contextlib.closing(servers):
        restore(servers.primary(), path.read_text())
        yield servers


@pytest.mark.parametrize("version", ENGINES)
def test_a_dump_of_each_engine_is_exported_and_served(serving, engine, version, expected, tmp_path):
    assert "whole" in tool("cluster", "verify", engine.url, "--replicas", "0")
    tool("cluster", "export", engine.url, tmp_path / "exported", "--replicas", "0")
    shards = ["--shards", "2"] if version == "redis-2" else []
    node = serving("--cluster", engine.url, "--replicas", "0", "--lease-ttl", "2", *shards)
    assert_serves(node, expected)
    assert_serves(serving("-b", tmp_path / "exported"), expected)
