"""What only an engine in PostgreSQL does: waits for standbys that are canceled, locks, rights, and old transactions."""

import re
import socket
import threading
import time
from contextlib import closing, contextmanager, suppress

import pytest
from beanstalk_client import Client
from commits import MINE, OTHER, Journal

from beanstalk_server.cluster.engine.choice import connect_to
from beanstalk_server.cluster.engine.interface import (
    CREATE,
    REMOVE,
    WRITE,
    CommitCall,
    EngineError,
    EngineFullError,
    EngineRefusedError,
    File,
    Lease,
    Load,
    Position,
    Report,
    observe,
    renew,
    take,
)
from beanstalk_server.cluster.engine.postgresql.connection import SQLError, Statement, _rows
from beanstalk_server.cluster.engine.postgresql.servers import confirmations
from harness.nodes import Node
from harness.postgres import USER, Postgres
from harness.servers import ROOT, RefusedError
from harness.waiting import eventually


@pytest.fixture
def primary(postgresql):
    return postgresql.primary()


@pytest.fixture
def engine(request, postgresql, open_engine, name):
    return open_engine(postgresql.url, name, timeout=getattr(request, "param", 10.0))


@pytest.fixture
def journal(engine):
    """With a file, which is the tail."""
    journal = Journal(engine)
    journal.append((CREATE, "file", 1000), (WRITE, "file", 0, b"begin"))
    return journal


@pytest.fixture
def no_standby(primary):
    """Waits for replication do not end until the test is over, or the result is called, perhaps with other names."""
    names = primary.ask("SHOW synchronous_standby_names")[0][0]

    def set_names(value=names):
        primary.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{value}'")
        primary.ask("SELECT pg_reload_conf()")
        eventually(lambda: primary.ask("SHOW synchronous_standby_names") == [(value,)], "the setting is read")

    set_names("ANY 1 (nothing)")
    yield set_names
    set_names()


@contextmanager
def transaction(server, *statements):
    """A transaction of another application, which stays open."""
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={server.port} user={USER} dbname=postgres") as connection:
        for each in statements:
            connection.execute(each)
        yield
        connection.rollback()


def waiting_for_standbys(primary):
    return primary.ask("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


def in_thread(call):
    """Make a call that waits; return a function that returns its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()

    def result():
        thread.join(10)
        return results[0]

    return result


@pytest.fixture(params=["warning", "error"])
def messages(request, primary):
    """The level of messages that the sessions of new connections begin with."""
    primary.ask(f"ALTER ROLE {USER} SET client_min_messages = '{request.param}'")
    yield
    primary.ask(f"ALTER ROLE {USER} RESET client_min_messages")


@pytest.mark.usefixtures("messages")
def test_a_commit_whose_wait_was_canceled_is_not_confirmed_and_waits_again(engine, journal, primary, no_standby):
    commit = journal.commit((WRITE, "file", 5, b"more"))
    answer = in_thread(lambda: engine.append(commit, may_exceed=False))
    ((process,),) = eventually(lambda: waiting_for_standbys(primary), "the commit waits for a standby")
    primary.ask("SELECT pg_cancel_backend(%s)", process)
    assert answer() == (MINE.epoch, commit.position, 0)
    assert engine.files() == {"file": File(1000, 9)}, "it is visible"
    answer = in_thread(lambda: engine.append(commit, may_exceed=False))
    eventually(lambda: waiting_for_standbys(primary), "the same commit waits again")
    no_standby()
    assert answer().replicas == 0, "the settings have changed meanwhile"
    assert engine.append(commit, may_exceed=False).replicas == 1
    assert engine.files() == {"file": File(1000, 9)}


@pytest.mark.parametrize("engine", [2.0], indirect=True)
@pytest.mark.parametrize("others", [[], [(WRITE, "other", 0, b"x")]], ids=["to the tail", "another"])
def test_a_commit_that_is_let_go_because_no_standby_is_named_is_not_confirmed(
    engine, journal, primary, no_standby, others
):
    """A manager of a cluster empties the names when the last standby is gone."""
    commit = journal.commit((WRITE, "file", 5, b"more"), *others)
    answer = in_thread(lambda: engine.append(commit, may_exceed=False))
    eventually(lambda: waiting_for_standbys(primary), "the commit waits for a standby")
    no_standby("")
    assert answer() == (MINE.epoch, commit.position, 0)
    no_standby()
    assert eventually(lambda: _append(engine, commit), "the commit is confirmed").replicas == 1


def test_a_lease_whose_wait_was_canceled_is_not_taken(engine, journal, primary, no_standby):
    mine = engine.look()

    def claim():
        with suppress(EngineError):
            return engine.take(mine, OTHER)
        return None

    taken = in_thread(claim)
    ((process,),) = eventually(lambda: waiting_for_standbys(primary), "the lease waits for a standby")
    primary.ask("SELECT pg_cancel_backend(%s)", process)
    assert taken() is None
    no_standby()
    assert engine.take(mine, OTHER).node == OTHER.node
    assert engine.append(journal.commit((WRITE, "file", 5, b"late")), may_exceed=False) == (OTHER.epoch, None, 0)


@pytest.mark.parametrize("engine", [1.0], indirect=True)
def test_without_a_standby_a_call_fails_in_time_and_leaves_one_session_at_most(engine, journal, primary, no_standby):
    commit = journal.commit((WRITE, "file", 5, b"more"))
    for _ in range(3):
        with pytest.raises(EngineError, match=r"no answer within 1 s|lock timeout"):
            engine.append(commit, may_exceed=False)
    assert len(waiting_for_standbys(primary)) == 1
    no_standby()
    assert eventually(lambda: _append(engine, commit), "the commit is confirmed").replicas == 1


def _append(engine, commit):
    with suppress(EngineError):
        return engine.append(commit, may_exceed=False)
    return None


def test_what_the_server_does_not_wait_for_is_not_confirmed(engine, journal, primary):
    primary.ask(f"ALTER ROLE {USER} SET synchronous_commit = 'local'")
    try:
        with closing(connect_to(f"postgresql://{USER}@127.0.0.1:{primary.port}/postgres", "x", 1)()) as other:
            assert other.check() == [
                f"engine at 127.0.0.1:{primary.port}: synchronous_commit is local, so a failover would lose "
                "acknowledged jobs: must be on"
            ]
            with pytest.raises(EngineError, match="only 0 of 1 standbys have confirmed the number of shards"):
                other.shards(1)
    finally:
        primary.ask(f"ALTER ROLE {USER} RESET synchronous_commit")


@pytest.mark.parametrize(
    ("commit", "names", "number"),
    [
        ("on", "", 0),
        ("off", "ANY 1 (*)", 0),
        ("local", "a", 0),
        ("on", "a", 1),
        ("on", "a, b", 1),
        ("on", "*", 1),
        ("remote_apply", "2 (a, b, c)", 2),
        ("on", "FIRST 1 (a)", 1),
        ("on", 'any  3 (a, "b c")', 3),
    ],
)
def test_how_many_standbys_a_commit_waits_for(commit, names, number):
    assert confirmations((commit, names)) == number


def test_the_settings_are_checked(postgresql, open_engine, name):
    assert open_engine(postgresql.url, name, 1).engine.check() == []
    (fault,) = open_engine(postgresql.url, name, 2).engine.check()
    assert fault.endswith(
        "synchronous_standby_names is 'ANY 1 (*)', so a commit waits for 1 of 2 standbys: must be 'ANY 2 (*)' or more, "
        "or use --replicas 1"
    )


def test_the_standbys_are_listed(postgresql, engine):
    engine.look()
    (found,) = engine.engine.inspect()
    assert found.name.startswith("PostgreSQL 1")
    assert [(each.host.name, each.is_online) for each in found.replicas] == [("127.0.0.1", True)] * 2
    assert found.memory > 0


# Commits that only append


def test_a_commit_changes_no_row_beside_an_old_transaction(engine, journal, primary, name, postgresql, open_engine):
    """Versions that VACUUM may not remove yet would be passed by each later commit."""
    journal.append((WRITE, "file", 5, b"the tail is known now"))
    versions = f'SELECT ctid::text, base_number FROM "{name}".shards'
    with transaction(primary, "BEGIN ISOLATION LEVEL REPEATABLE READ", f'SELECT * FROM "{name}".shards'):
        before = primary.ask(versions)
        for number in range(50):
            journal.append((WRITE, "file", 100 + number, b"x"))
        assert primary.ask(versions) == before
    assert open_engine(postgresql.url, name).look().position == journal.last
    assert engine.files() == {"file": File(1000, 150)}


def test_two_commits_upon_one_are_never_both_made(postgresql, open_engine, engine, journal, name):
    """The first was given up, and arrives late: on another connection, at the same time."""
    other = open_engine(postgresql.url, name, timeout=1.0)
    other.append(journal.append((WRITE, "file", 5, b"1")), may_exceed=False)  # both connections know the tail
    for number in range(20):
        before = journal.last
        first = journal.commit((WRITE, "file", 10 + number, b"first"))
        journal.last = before
        second = journal.commit((WRITE, "file", 10 + number, b"second"))
        late = in_thread(lambda first=first: other.append(first, may_exceed=False))
        answers = [engine.append(second, may_exceed=False), late()]
        assert len({each.position for each in answers}) == 1
        assert answers[0].position in (first.position, second.position)
        journal.last = answers[0].position


def test_commits_of_several_shards_are_one_transaction(postgresql, name):
    with closing(connect_to(postgresql.url, name, 1)()) as engine:
        engine.perform([take(shard, Lease(), MINE) for shard in range(3)])
        journals = [Journal(None, MINE) for _ in range(3)]

        def append(operation, shards=range(3)):
            calls = [CommitCall(shard, journals[shard].commit(operation), False) for shard in shards]
            return engine.append(calls)

        append((WRITE, "file", 0, b"a"))
        append((WRITE, "file", 1, b"b"))
        append((WRITE, "file", 2, b"c"))
        tables = postgresql.primary().ask(f'SELECT place FROM "{name}".files ORDER BY shard')
        union = " UNION ALL ".join(f'SELECT xmin FROM "{name}"."{place}" WHERE at = 2' for (place,) in tables)
        assert postgresql.primary().ask(f"SELECT count(*), count(DISTINCT xmin::text) FROM ({union}) u") == [(3, 1)]
        journals[1].number += 1
        journals[1].last = Position(1, 99)
        answers = append((WRITE, "file", 3, b"d"))
        assert [each.position for each in answers] == [Position(1, 4), Position(1, 3), Position(1, 4)]


# Files that are gone


def tables(primary, name):
    rows = primary.ask(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE nspname = %s AND relkind = 'r' AND relname ~ '^[0-9]'",
        name,
    )
    return rows[0][0]


def test_the_table_of_a_file_that_is_gone_is_dropped(engine, journal, primary, name):
    journal.append((CREATE, "other", 10))
    assert tables(primary, name) == 2
    journal.append((REMOVE, "file"))
    assert tables(primary, name) == 1
    journal.append((CREATE, "other", 10))
    assert tables(primary, name) == 1


def test_tables_of_others_are_left_alone(engine, journal, primary, name):
    """One that a view of an operator needs stays, and holds up no other."""
    tables = [f'"{name}"."0_archive"', f'"{name}".x0_1_2_3']
    for table in tables:
        primary.ask(f"CREATE TABLE {table} ()")
    journal.append(*[(WRITE, each, 0, b"x") for each in "abc"])
    places = dict(primary.ask(f'SELECT name, place FROM "{name}".files'))
    needed = min(places[each] for each in "abc")
    primary.ask(f'CREATE VIEW "{name}".looks AS SELECT * FROM "{name}"."{needed}"')
    journal.append(*[(REMOVE, each) for each in "abc"])
    left = {row[0] for row in primary.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s", name)}
    assert left == {"shards", "renewals", "files", "nodes", places["file"], needed, "0_archive", "x0_1_2_3"}


def test_a_schema_with_tables_of_another_program_is_refused(primary, name, postgresql, open_engine):
    primary.ask(f'CREATE SCHEMA "{name}"; CREATE TABLE "{name}".nodes ()')
    with pytest.raises(
        EngineRefusedError, match=f"schema {name} has only 1 of the tables shards, renewals, files, nodes"
    ):
        open_engine(postgresql.url, name).look()


def test_statements_are_not_prepared_again_behind_a_pooler(engine, primary, name, postgresql, open_engine):
    """Its sessions have the statements of other connections."""
    engine.look()
    connection = engine.engine._connection
    for names in connection._names.values():
        connection.run([Statement(b"DEALLOCATE " + names)])
    with pytest.raises(EngineError, match="does not exist"):
        engine.look()
    assert engine.look() == Lease()
    assert not engine.engine._connection._names


def test_a_backup_that_reads_a_table_does_not_hold_up_commits(engine, journal, primary, name):
    ((place,),) = primary.ask(f'SELECT place FROM "{name}".files')
    journal.append((CREATE, "other", 10))
    with transaction(primary, f'LOCK TABLE "{name}"."{place}" IN ACCESS SHARE MODE'):
        journal.append((REMOVE, "file"))
        assert tables(primary, name) == 2
        journal.append((WRITE, "other", 0, b"x"))
    journal.append((REMOVE, "other"))
    assert tables(primary, name) == 0


def test_a_table_that_is_gone_is_missed(engine, journal, primary, name):
    assert engine.damage() == ""
    primary.ask(f"DELETE FROM \"{name}\".files WHERE name = 'file'")
    assert engine.damage() == "expected 1 files, found 0"
    journal = Journal(engine, MINE)
    journal.last, journal.number = Position(1, 1), 1
    journal.append((CREATE, "other", 9))
    ((place,),) = primary.ask(f'SELECT place FROM "{name}".files')
    primary.ask(f'DROP TABLE "{name}"."{place}"')
    assert engine.damage() == "other: its table is missing"
    assert engine.files() == {"other": File(9, 0)}


# The connection


def test_the_primary_is_found_among_several_hosts(postgresql, open_engine, name):
    ports = [server.port for server in postgresql.servers]
    hosts = ",".join(f"127.0.0.1:{port}" for port in [1, *ports[::-1]])
    engine = open_engine(f"postgresql://{USER}@{hosts}/postgres", name)
    assert engine.look() == Lease()
    with pytest.raises(EngineError, match=rf"^engine at 127\.0\.0\.1:{ports[1]}: .*(read-only|standby)"):
        open_engine(f"postgresql://{USER}@127.0.0.1:{ports[1]}/postgres", name).look()
    with pytest.raises(EngineError, match=r"^engine at 127\.0\.0\.1:1: .*refused.*$"):
        open_engine(f"postgresql://{USER}@127.0.0.1:1/postgres", name).look()


def test_a_report_that_fails_holds_up_no_lease(engine, journal, primary, name):
    lease = engine.look()
    report = Report("a", "here:1", Load(0, 0, 0), True)
    with transaction(primary, f'LOCK TABLE "{name}".nodes'):
        (renewed,) = engine.engine.perform([renew(0, lease)], report)
    assert renewed.renewals == lease.renewals + 1


def test_a_server_that_does_not_answer_fails_a_call_in_time(open_engine, name):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = open_engine(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/postgres", name, timeout=0.2)
        with pytest.raises(EngineError, match=r"no answer within 0\.2 s"):
            engine.look()


def test_a_large_commit_may_take_long_while_the_server_reads(open_engine, primary, name):
    def forward(source, target, seconds=0.0):
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
                time.sleep(seconds)  # a slow network

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        engine = open_engine(f"postgresql://{USER}@127.0.0.1:{server.getsockname()[1]}/postgres", name, timeout=1.0)
        looked = in_thread(engine.look)
        near, _ = server.accept()
        with near, socket.create_connection(("127.0.0.1", primary.port)) as far:
            for ends in ((near, far, 0.02), (far, near)):
                threading.Thread(target=forward, args=ends, daemon=True).start()
            assert looked() == Lease()
            journal = Journal(engine)
            began = time.monotonic()
            journal.append((WRITE, "file", 0, b"x" * 8_000_000))
            assert time.monotonic() - began > 1.0
            far.shutdown(socket.SHUT_RDWR)


def test_a_call_ends_when_another_thread_closes_the_engine(engine, journal, primary, no_standby):
    commit = journal.commit((WRITE, "file", 5, b"more"))
    answers = in_thread(lambda: engine.engine.append([CommitCall(0, commit, False)]))
    eventually(lambda: waiting_for_standbys(primary), "the commit waits for a standby")
    began = time.monotonic()
    engine.close()
    assert isinstance(answers()[0], EngineError)
    assert time.monotonic() - began < 5, "it has not waited for its deadline"
    with pytest.raises(EngineError, match="closed"):
        engine.look()


def test_a_user_needs_no_more_than_a_schema(postgresql, primary, open_engine, name):
    url = f"postgresql://queue:secret@127.0.0.1:{primary.port}/postgres"
    with suppress(RefusedError):
        primary.ask("CREATE ROLE queue LOGIN PASSWORD 'secret'")
    with pytest.raises(EngineRefusedError, match="permission denied for database postgres"):
        open_engine(url, name).look()
    primary.ask(f'CREATE SCHEMA "{name}" AUTHORIZATION queue')
    journal = Journal(open_engine(url, name))
    journal.append((CREATE, "file", 9), (WRITE, "file", 0, b"text"))
    assert journal.engine.read("file", 0, 9) == b"text"
    assert journal.engine.engine.check() == []
    with pytest.raises(EngineRefusedError, match='role "stranger" does not exist'):
        open_engine(f"postgresql://stranger@127.0.0.1:{primary.port}/postgres", name).look()


def test_a_full_disk_is_told(engine, journal, primary, name):
    primary.ask(
        f'CREATE FUNCTION "{name}".fail() RETURNS trigger LANGUAGE plpgsql AS '
        "$$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$"
    )
    ((place,),) = primary.ask(f'SELECT place FROM "{name}".files')
    journal.append((WRITE, "file", 5, b"x"))
    primary.ask(f'CREATE TRIGGER fails BEFORE INSERT ON "{name}"."{place}" EXECUTE FUNCTION "{name}".fail()')
    commit = journal.commit((WRITE, "file", 6, b"x"))
    with pytest.raises(EngineFullError, match="No space left on device"):
        engine.append(commit, may_exceed=False)
    primary.ask(f'DROP TRIGGER fails ON "{name}"."{place}"')
    assert engine.append(commit, may_exceed=False).position == commit.position


def test_a_failed_pipeline_leaves_statements_to_be_prepared(engine, journal):
    """PostgreSQL skips the rest of the pipeline, with what prepares its statements."""
    engine.look()
    connection = engine.engine._connection
    fails = Statement(b"DO $$BEGIN RAISE EXCEPTION 'out of memory' USING ERRCODE = '53200'; END$$")
    is_prepared = Statement(b"SELECT 7", is_prepared=True)
    for statements in ([fails, is_prepared], [is_prepared, fails]):
        with pytest.raises(SQLError):
            connection.run(statements)
        assert connection.run([is_prepared]) == [[("7",)]]
    query = Statement(b"SELECT name FROM pg_prepared_statements WHERE statement = 'SELECT 7'")
    assert len(connection.run([query])[0]) == 1


def test_an_engine_of_a_later_release_is_refused(engine, journal, primary, name):
    primary.ask(f"UPDATE \"{name}\".shards SET version = '7'")
    with pytest.raises(EngineRefusedError, match="has version 7, but this server supports only version 1"):
        engine.look()


def test_an_engine_that_was_emptied_begins_anew(engine, journal, primary, name):
    primary.ask(f'DROP SCHEMA "{name}" CASCADE')
    with pytest.raises(EngineError):
        engine.look()
    assert engine.look() == Lease()
    assert engine.renew(MINE).node == MINE.node
    assert engine.append(journal.commit((WRITE, "file", 0, b"x")), may_exceed=False).position == Position(0, 0)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("//h/queue?colour=red", r'libpq: invalid URI query parameter: "colour"'),
        ("//u:se%zzcret@h/queue", "libpq: invalid percent-encoded token"),
        ("//h/queue?password=se%zzcret", "libpq: invalid percent-encoded token"),
        ("//h/queue?password=a&secret", "libpq: missing key/value separator"),
        ("//a,b/queue?port=1,2,3", "must have one port for all hosts, or one for each"),
        ("//h/queue?port=x", "must have one port for all hosts, or one for each"),
        ("//h/queue?hostaddr=127.0.0.1", "must not have the option hostaddr: name the servers in the URL"),
    ],
)
def test_a_bad_url_is_refused_without_its_password(url, message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        connect_to(f"postgresql:{url}", "x", 1)
    assert "cret" not in str(caught.value)


def test_a_long_name_has_a_schema_of_its_own(postgresql, open_engine):
    for end in "ab":
        engine = open_engine(postgresql.url, "n" * 99 + end)
        assert engine.look() == Lease()
        engine.take(Lease(), MINE)


def test_a_file_that_is_not_there_is_read_as_nothing(engine, journal):
    assert engine.read("other", 0, 10) == b""
    assert engine.engine.perform([observe(5)]) == [Lease()]


def test_a_text_that_a_flipped_bit_has_damaged_is_an_error_of_the_engine():
    class Damaged:
        """A row of a table without checksums, which a client cannot write."""

        nfields = ntuples = 1

        def get_value(self, *_):
            return b"127.0.0.1\xba6112"

    with pytest.raises(EngineError, match="not valid UTF-8"):
        _rows(Damaged(), False)


@pytest.mark.slow
def test_a_node_starts_at_the_servers_that_the_page_sets_up(directory):
    page = (ROOT / "docs" / "cluster-postgresql.md").read_text()
    set_up, for_poolers = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    settings = dict(
        re.findall(r"^(\w+) = '?(.*?)'?$", re.search(r"```conf\n(.*?)```", page, re.DOTALL)[1], re.MULTILINE)
    )
    servers = Postgres(directory / "page", replicas=2, settings=settings)
    try:
        for statement in f"{set_up}{for_poolers}".split(";")[:-1]:
            servers.primary().ask(statement)
        addresses = servers.url.rpartition("@")[2]
        (url,) = set(re.findall(r"postgresql://beanstalk@db-1\S+db-3\S+", page))
        node = Node(f"{url.partition('@')[0]}@{addresses}", ["--lease-ttl", "2"])
        try:
            with Client(("127.0.0.1", node.port)) as queue:
                assert queue.reserve_job(queue.put("hello")).body == "hello"
        finally:
            node.kill()
    finally:
        servers.close()
