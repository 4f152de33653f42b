"""The tools for the journal of a cluster, as somebody calls them; the engine is in memory."""

from contextlib import contextmanager

import pytest
from memory_engine import Servers
from test_transfer import bodies, fill, jobs_of

from beanstalk_server.cli import cluster
from beanstalk_server.cli.server import main
from beanstalk_server.config import BAD_OPTION
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import DAMAGED, UNUSABLE
from beanstalk_server.storage.segment import segment_names

URL = "redis://engine"


@pytest.fixture
def servers(monkeypatch):
    servers = Servers()

    @contextmanager
    def opened(options):
        assert options.url == URL
        yield servers.connect()

    monkeypatch.setattr(cluster, "opened", opened)
    return servers


@pytest.fixture
def source(tmp_path):
    return str(fill(RealDirectory(tmp_path / "source"), 40).path)


def test_a_binlog_goes_into_an_engine_and_comes_back(servers, source, tmp_path, capsys):
    assert main(["cluster", "import", URL, source]) == 0
    count = len(segment_names(RealDirectory(source)))
    assert capsys.readouterr().out == f"imported {count + 1} files from {source}: nodes may start\n"
    to = str(tmp_path / "to")
    assert main(["cluster", "export", URL, to]) == 0
    assert capsys.readouterr().out == f"exported {count} segments to {to}\n"
    assert jobs_of(RealDirectory(to)) == bodies(40)


def test_the_url_may_be_in_the_environment(servers, source, monkeypatch):
    monkeypatch.setenv("BEANSTALK_SERVER_CLUSTER", URL)
    assert main(["cluster", "import", source]) == 0


def test_a_journal_that_is_whole_is_reported_as_whole(servers, source, capsys):
    main(["cluster", "import", URL, source])
    capsys.readouterr()
    assert main(["cluster", "verify", URL]) == 0
    assert main(["binlog", "verify", source]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    assert lines[-1].startswith("total") and lines[-1].endswith("whole")


def test_damage_in_the_engine_is_found(servers, source, capsys):
    main(["cluster", "import", URL, source])
    servers.primary.files["segment.0000000001"][1][300] ^= 1
    assert main(["cluster", "verify", URL]) == DAMAGED
    assert "damaged at offset" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["verify", URL], UNUSABLE, "the engine: holds no jobs"),
        (["export", URL, "{}/to"], UNUSABLE, "the engine: holds no jobs"),
        (["import", URL, "{}/nowhere"], UNUSABLE, "nowhere: cannot be used: No such file or directory"),
        (["import", URL, "{}/source/../source"], 0, ""),
        (["import"], BAD_OPTION, "the following arguments are required: DIR"),
        (["export"], BAD_OPTION, "the following arguments are required: DIR"),
        ([], BAD_OPTION, "the following arguments are required: TOOL"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(servers, source, tmp_path, capsys, arguments, status, message):
    assert main(["cluster", *(each.format(tmp_path) for each in arguments)]) == status
    errors = capsys.readouterr().err
    if status:
        assert errors.startswith("beanstalk-server cluster: ")
        assert errors.endswith(f"{message}\n") and errors.count("\n") == 1
    assert not (tmp_path / "to").exists()
