"""The engine with Sentinel, as Redis Cluster, over TLS, with a user of its own; and what `cluster status` shows."""

import re
from pathlib import Path

import pytest
from commits import MINE, OTHER, Journal

from beanstalk_server.cli import cluster as cluster_cli
from beanstalk_server.cluster.engine.interface import CREATE, WRITE, EngineError, EngineRefusedError, Lease
from beanstalk_server.cluster.engine.redis.topology import slot_of
from harness.engines import Alone
from harness.servers import unused_port
from harness.waiting import eventually

DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"


def eventually_appended(engine, commit):
    """Make a commit, as often as it takes, on a replica at least."""

    def is_made():
        try:
            answer = engine.append(commit, may_exceed=False)
        except EngineError:
            return False
        assert answer.position == commit.position
        return answer.replicas >= 1

    eventually(is_made, "the commit is made", 60)


def test_a_primary_that_was_replaced_in_order_is_left(sentinel, open_engine):
    engine = open_engine(sentinel.url, "orderly")
    journal = Journal(engine)
    journal.append((CREATE, "file", 9))
    before = sentinel.primary()
    sentinel.others[0].ask("SENTINEL", "FAILOVER", "queue")
    eventually(lambda: sentinel.primary() is not before, "another primary", 60)
    eventually_appended(engine, journal.commit((WRITE, "file", 0, b"text")))
    assert engine.read("file", 0, 9) == b"text"
    sentinel.settle()


def test_one_sentinel_that_answers_is_enough(sentinel, open_engine):
    url = sentinel.url.replace("sentinel://", f"sentinel://127.0.0.1:{unused_port()},")
    engine = open_engine(url, "one")
    assert engine.take(Lease(), MINE) == MINE


def test_sentinels_that_do_not_know_the_service_are_told_in_one_line(sentinel, open_engine):
    engine = open_engine(sentinel.url.replace("/queue", "/other"), "unknown")
    with pytest.raises(EngineError, match=r"^Sentinel at 127\.0\.0\.1:\d+: unknown service 'other'$"):
        engine.observe("a", "here:1")


def test_sentinel_has_users_of_its_own(sentinel, open_engine):
    for each in sentinel.others:
        each.ask("ACL", "SETUSER", "watcher", "on", ">known", "+@all")
    engine = open_engine(f"{sentinel.url}?sentinel-user=watcher&sentinel-password=known", "users")
    assert engine.take(Lease(), MINE) == MINE
    engine = open_engine(f"{sentinel.url}?sentinel-user=watcher&sentinel-password=unknown", "users")
    with pytest.raises(EngineRefusedError, match="WRONGPASS"):
        engine.observe("a", "here:1")


def test_one_node_of_a_cluster_leads_to_all(redis_cluster, open_engine):
    for server in redis_cluster.servers:
        if server.is_running:
            engine = open_engine(f"redis+cluster://127.0.0.1:{server.port}", "beanstalk")
            assert engine.observe("a", "here:1").epoch >= 0


def test_each_cluster_has_the_slot_that_redis_says(redis_cluster, open_engine):
    for name in ("a cluster", "another", "x" * 100):
        assert redis_cluster.servers[0].ask("CLUSTER", "KEYSLOT", f"{{{name}:0}}:state") == slot_of(
            f"{name}:0".encode()
        )
        assert open_engine(redis_cluster.url, name).take(Lease(), OTHER) == OTHER


def test_a_node_alone_is_told_from_a_cluster(redis, redis_cluster, open_engine):
    with pytest.raises(EngineError, match="not a node of Redis Cluster"):
        open_engine(redis.url.replace("redis:", "redis+cluster:"), "x").observe("a", "here:1")
    other = next(each for each in redis_cluster.servers if each is not redis_cluster.primary())
    with pytest.raises(EngineError, match=r"use a redis\+cluster:// URL|this is a replica"):
        open_engine(f"redis://127.0.0.1:{other.port}", "beanstalk").observe("a", "here:1")


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    trustme = pytest.importorskip("trustme")
    directory = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    trustme.CA().cert_pem.write_to_path(directory / "other.pem")
    return directory


def test_tls_with_certificates_on_both_sides(directory, certificates, open_engine):
    port = unused_port()
    files = {"ca-cert": "ca", "cert": "cert", "key": "key"}
    options = [word for key, name in files.items() for word in (f"--tls-{key}-file", f"{certificates}/{name}.pem")]
    servers = Alone(directory / "tls", replicas=1, options=["--tls-replication", "no"])
    primary = servers.servers[0]
    try:
        for name, value in [*zip(options[::2], options[1::2], strict=True), ("--tls-port", port)]:
            primary.ask("CONFIG", "SET", name.removeprefix("--"), value)
        own = f"&cert={certificates}/cert.pem&key={certificates}/key.pem"
        url = f"rediss://127.0.0.1:{port}?ca={certificates}"
        engine = open_engine(f"{url}/ca.pem{own}", "tls")
        assert engine.take(Lease(), MINE) == MINE
        journal = Journal(engine)
        data = bytes(range(256)) * 4000
        journal.append((CREATE, "file", 0), (WRITE, "file", 0, data))
        journal.append((WRITE, "file", 0, b"text"))
        assert engine.read("file", 0, 1 << 30) == b"text" + data[4:]
        with pytest.raises(EngineError, match="CERTIFICATE_VERIFY_FAILED"):
            open_engine(f"{url}/other.pem{own}", "tls").observe("a", "here:1")
        with pytest.raises(EngineError, match="Hostname mismatch"):
            open_engine(f"{url}/ca.pem{own}".replace("127.0.0.1", "localhost"), "tls").observe("a", "here:1")
        with pytest.raises(EngineError, match=f"127.0.0.1:{port}: "):
            open_engine(f"{url}/ca.pem", "tls").observe("a", "here:1")
        with pytest.raises(EngineError, match=f"127.0.0.1:{port}: "):
            open_engine(f"redis://127.0.0.1:{port}", "tls", timeout=0.5).observe("a", "here:1")
        with pytest.raises(EngineError, match=r"ca\.pem|No such file"):
            open_engine(f"rediss://127.0.0.1:{port}?ca=/nowhere/ca.pem", "tls").observe("a", "here:1")
    finally:
        servers.close()


# Users


def test_the_user_that_the_document_makes_may_do_everything(redis, open_engine, caplog):
    line = re.search(r"^user beanstalk (on .*)$", DOCUMENT.read_text(), re.MULTILINE)
    words = line[1].replace("PASSWORD", "secret").split()
    for server in redis.servers:
        server.ask("ACL", "SETUSER", "documented", "reset", *words)
    engine = open_engine(f"redis://documented:secret@127.0.0.1:{redis.servers[0].port}", "beanstalk")
    assert engine.take(Lease(), MINE) == MINE
    Journal(engine).append((CREATE, "file", 9), (WRITE, "file", 0, b"text"))
    assert engine.read("file", 0, 9) == b"text"
    assert engine.check() == []
    assert not caplog.records
    engine.members()
    engine.engine.inspect()


# Settings


def test_a_redis_cluster_that_might_promote_nobody_is_told(redis_cluster, open_engine, caplog):
    engine = open_engine(redis_cluster.url, "beanstalk")
    assert engine.check() == []
    assert not caplog.records
    for server in redis_cluster.servers:
        server.ask("CONFIG", "SET", "cluster-replica-validity-factor", 10)
    assert engine.check() == []
    assert [each.getMessage().partition(": ")[2][:45] for each in caplog.records] == [
        "cluster-replica-validity-factor is 10, so a r"
    ]
    for server in redis_cluster.servers:
        server.ask("CONFIG", "SET", "cluster-replica-validity-factor", 0)


def test_bad_settings_are_told_with_what_would_be_right(directory, open_engine, caplog):
    options = ["--appendonly", "no", "--maxmemory-policy", "allkeys-lru", "--repl-backlog-size", "1mb"]
    servers = Alone(directory / "bad", replicas=1, options=options)
    try:
        engine = open_engine(servers.url, "x")
        first, second = (each.port for each in servers.servers)
        assert engine.check() == [
            f"{place}: {fault}"
            for place in (f"engine at 127.0.0.1:{first}", f"replica at 127.0.0.1:{second}")
            for fault in (
                "appendonly is no, so a restart would lose all jobs: must be yes",
                "maxmemory-policy is allkeys-lru, so a full engine would evict jobs: must be noeviction",
            )
        ]
        assert [each.getMessage().split(": ")[1] for each in caplog.records] == [
            "1 replica is connected, and --replicas needs all of them",
            "repl-backlog-size is 1048576, so a replica that reconnects may need a full resynchronization",
        ]
        caplog.clear()
        assert len(open_engine(servers.url, "x", 2).check()) == 4
        assert caplog.records[0].getMessage() == (
            f"engine at 127.0.0.1:{first}: 1 replica is connected: no change is acknowledged until 2 are (--replicas 2)"
        )
        servers.servers[0].ask("CONFIG", "SET", "appendonly", "yes")
        alone = open_engine(servers.url, "x", 0).check()
        assert (
            "appendfsync is everysec, so a crash would lose acknowledged changes: must be always with --replicas 0"
            in alone[1]
        )
    finally:
        servers.close()


def test_settings_that_are_not_shown_are_not_taken_for_bad_ones(redis, name, open_engine, caplog):
    server = redis.servers[0]
    server.ask("ACL", "SETUSER", "managed", "on", ">secret", "~*", "+@all", "-config", "-info", "-role")
    engine = open_engine(f"redis://managed:secret@127.0.0.1:{server.port}", name)
    assert engine.check() == []
    assert [each.getMessage().partition(": ")[2][:30] for each in caplog.records] == [
        "cannot read its settings, so t",
        "NOPERM this user has no permis",
    ]


# The command


def status(*arguments, capsys):
    code = cluster_cli.main(["status", *arguments])
    return code, *capsys.readouterr()


def test_status_shows_who_leads_and_how_the_engine_is(redis, name, open_engine, capsys):
    code, out, _ = status(redis.url, "--cluster-name", name, capsys=capsys)
    assert code == 0
    assert "leader     none yet\nposition   0.0\njournal    0 files of 0 bytes, 0 bytes of them in memory\n" in out
    engine = open_engine(redis.url, name)
    engine.take(Lease(), MINE)
    engine.renew(MINE)
    engine.observe("a", "here:1")
    engine.observe("b", "there:2")
    Journal(engine, MINE).append((CREATE, "file", 5000), (WRITE, "file", 0, b"text"))
    code, out, err = status(redis.url, "--cluster-name", name, capsys=capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(r"engine     (Redis|Valkey) [\d.]+ at 127\.0\.0\.1:\d+, [\d,]+ bytes in use", lines[0])
    for replica, line in zip(redis.servers[1:], sorted(lines[1:3]), strict=True):
        assert re.fullmatch(r"replica    127\.0\.0\.1:(\d+), [\d,]+ bytes? behind", line), replica
    assert lines[3] == "leader     here:1, epoch 1, 1 renewal, node a"
    assert re.fullmatch(r"standby    there:2, seen \d+\.\d s ago, node b", lines[4])
    assert lines[5:] == ["position   1.1", "journal    1 file of 5,000 bytes, 4 bytes of them in memory"]
    engine.release(MINE)
    assert "leader     none since epoch 1\n" in status(redis.url, "--cluster-name", name, capsys=capsys)[1]


def test_status_takes_the_url_from_the_environment(redis, monkeypatch, capsys):
    monkeypatch.setenv("BEANSTALK_SERVER_CLUSTER", redis.url)
    assert status(capsys=capsys)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["http://here"], 5, "URL: must be redis://"),
        ([], 5, "URL: must be redis://"),
        (["redis://h", "--replicas", "-1"], 5, "--replicas: bad value -1: must be "),
        (["redis://h", "--cluster-name", "a{b"], 5, "--cluster-name: bad value 'a{b': must be 1 to 100 letters"),
        (["redis://h", "--replicas", "x"], 5, "--replicas"),
        (["rediss://h?ca=/nowhere"], 5, "ca=/nowhere cannot be read: No such file or directory: must be a PEM file"),
        (["redis://127.0.0.1:1"], 10, "engine at 127.0.0.1:1: Connection refused"),
        (["redis+sentinel://127.0.0.1:1/x"], 10, "Sentinel at 127.0.0.1:1: Connection refused"),
    ],
)
def test_status_says_what_is_wrong_in_one_line(arguments, code, said, monkeypatch, capsys):
    monkeypatch.delenv("BEANSTALK_SERVER_CLUSTER", raising=False)
    found, out, err = status(*arguments, capsys=capsys)
    assert (found, out) == (code, "")
    assert err.startswith("beanstalk-server cluster: ")
    assert said in err
    assert err.count("\n") == 1
