"""The tools for the journal of a cluster, called like programs; the engine is in memory."""

from contextlib import contextmanager

import pytest
from memory_engine import Servers

from beanstalk_server.cli import cluster
from beanstalk_server.cli.server import main
from beanstalk_server.cluster.commit_sender import CommitSender
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine.interface import WRITE, EngineError, Lease, Load, Report, move, observe, take
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.table import IdTable
from beanstalk_server.settings.declaration import BAD_OPTION
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import DAMAGED, UNUSABLE, StorageError, lock_directory
from beanstalk_server.storage.recovery import recover
from beanstalk_server.storage.segment import segment_names
from tests.cluster.test_transfer import bodies, fill, jobs_of

URL = "redis://engine"


@pytest.fixture
def servers(monkeypatch):
    servers = Servers()

    @contextmanager
    def opened(options):
        assert options.url == URL
        yield servers.engine

    monkeypatch.setattr(cluster, "opened", opened)
    return servers


@pytest.fixture
def source(tmp_path):
    return str(fill(RealDirectory(tmp_path / "source"), 40).path)


def test_a_binlog_goes_into_an_engine_and_comes_back(servers, source, tmp_path, capsys):
    assert main(["cluster", "import", URL, source]) == 0
    count = len(segment_names(RealDirectory(source)))
    assert capsys.readouterr().out == f"imported {count + 1} files from {source}: you can start the nodes\n"
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


def start(servers):
    """As a node does that takes over."""
    directory = EngineDirectory(servers.engine(), CommitSender(servers.lead(), 1))
    lock_directory(directory)
    recover(directory, Replay(IdTable()), salvage=False, segment_size=1 << 20, draw_salt=lambda: 5)


def lose_first(data):
    del data.files["segment.0000000001"]


def lose_all(data):
    data.files.clear()


def lose_end(data):
    """Of the newest segment, after a clean stop."""
    content = data.files[max(name for name in data.files if name.startswith("segment."))][1]
    del content[len(content) - 30 :]


def lose_last_write(data):
    content = data.files[data.tail[0]][1]
    del content[-1:]


@pytest.mark.parametrize("lose", [lose_first, lose_all, lose_end, lose_last_write])
def test_what_is_missing_in_the_engine_is_refused_by_verify_as_by_a_start(servers, source, lose):
    main(["cluster", "import", URL, source])
    data = servers.primary.of(0)
    if lose is lose_last_write:
        del data.files["stopped"]
        data.count -= 1
        data.make([(WRITE, max(data.files), 100_000, b"x")])
    lose(data)
    assert main(["cluster", "verify", URL]) == DAMAGED
    with pytest.raises(StorageError) as refused:
        start(servers)
    assert refused.value.status == DAMAGED


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["verify", URL], UNUSABLE, "the engine has no jobs"),
        (["export", URL, "{}/to"], UNUSABLE, "the engine has no jobs"),
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


# Several shards


def test_jobs_are_imported_into_shards_that_are_verified_and_come_back(servers, source, tmp_path, capsys):
    assert main(["cluster", "import", URL, source, "--shards", "4"]) == 0
    assert capsys.readouterr().out.endswith("source into 4 shards, with new ids: you can start the nodes\n")
    assert main(["cluster", "verify", URL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("shard ")] == [f"shard {number}" for number in range(4)]
    assert [line.endswith("whole") for line in lines if line.startswith("total")] == [True] * 4
    to = str(tmp_path / "to")
    assert main(["cluster", "export", URL, to]) == 0
    assert capsys.readouterr().out == f"exported 1 segment with the jobs of 4 shards to {to}\n"
    assert jobs_of(RealDirectory(to)) == bodies(40)


def test_damage_in_any_shard_is_found(servers, source, capsys):
    main(["cluster", "import", URL, source, "--shards", "2"])
    shard = next(each for each in range(2) if len(servers.primary.of(each).files["segment.0000000001"][1]) > 300)
    servers.primary.of(shard).files["segment.0000000001"][1][300] ^= 1
    assert main(["cluster", "verify", URL]) == DAMAGED


def test_a_shard_that_has_never_had_a_job_has_nothing_to_verify(servers, capsys):
    servers.engine().shards(2)
    assert main(["cluster", "verify", URL]) == 0
    assert capsys.readouterr().out == "".join(f"shard {number}\nno jobs yet\n" for number in range(2))


@pytest.fixture
def engine(servers):
    """That of two nodes, of which one leads shard 1 of two."""
    engine = servers.engine()
    engine.shards(2)
    lease = Lease(1, 0, "a", "here:1", "secret")
    engine.perform([take(1, Lease(), lease)], Report("a", "here:1", Load(1, 20, 3000)))
    engine.perform([], Report("b", "there:2"))
    return engine


@pytest.mark.parametrize("node", ["b", "there:2"])
def test_the_leader_of_a_shard_is_asked_to_hand_it_over(engine, capsys, node):
    assert main(["cluster", "move", URL, "1", node]) == 0
    assert capsys.readouterr().out == "asked here:1 to hand shard 1 over to there:2\n"
    assert engine.perform([observe(1)])[0].successor == "b"
    assert main(["cluster", "move", URL, "1", "a"]) == 0
    assert capsys.readouterr().out == "here:1 already leads shard 1\n"
    assert engine.perform([observe(1)])[0].successor == "", "and is to go on"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["1", "elsewhere:3"],
            UNUSABLE,
            "NODE: bad value elsewhere:3: no such node has reported to the engine within the last minute",
        ),
        (["0", "b"], UNUSABLE, "shard 0 has no leader to hand it over"),
        (["2", "b"], BAD_OPTION, "SHARD: bad value 2: must be from 0 to 1"),
    ],
)
def test_a_move_that_is_not_possible_is_refused(engine, capsys, arguments, status, message):
    assert main(["cluster", "move", URL, *arguments]) == status
    assert capsys.readouterr().err == f"beanstalk-server cluster: {message}\n"


def test_what_the_engine_says_sends_a_terminal_nothing(engine, servers, capsys):
    engine.perform([take(0, Lease(), Lease(1, 0, "c", "\x1b[31m:1\n", "secret"))], Report("c", "\x1b[31m:1\n"))
    assert main(["cluster", "status", URL]) == 0
    assert main(["cluster", "move", URL, "0", "b"]) == 0
    servers.before_call = refuse
    assert main(["cluster", "status", URL]) == UNUSABLE
    said = "".join(capsys.readouterr())
    assert said.count("\\x1b[31m") == 4
    assert all(line.isprintable() for line in said.split("\n"))
    assert said.endswith("beanstalk-server cluster: ERR \\x1b[31m\\nforged\n")


def refuse(_):
    raise EngineError("ERR \x1b[31m\nforged")


def test_status_shows_all_shards_and_what_each_node_has_to_do(engine, capsys):
    engine.perform([move(1, "b")])
    assert main(["cluster", "status", URL]) == 0
    assert capsys.readouterr().out == (
        "node       here:1, leads 1 shard, 20 jobs of 3,000 bytes, seen 0.0 s ago, node a\n"
        "node       there:2, leads 0 shards, 0 jobs of 0 bytes, seen 0.0 s ago, node b\n"
        "shard 0    none yet, position 0.0, 0 files of 0 bytes, 0 bytes of them in memory\n"
        "shard 1    here:1, epoch 1, 0 renewals, node a, asked to hand over to node b, position 0.0, "
        "0 files of 0 bytes, 0 bytes of them in memory\n"
    )
