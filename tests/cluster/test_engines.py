"""The engines in Redis, Valkey and PostgreSQL, and the one in memory: what `Engine` says holds for each."""

import os

import pytest
from commits import MINE, OTHER, Journal
from memory_engine import Servers

from beanstalk_server.cluster.engine.interface import (
    CREATE,
    REMOVE,
    RENAME,
    RESIZE,
    WRITE,
    Commit,
    EngineError,
    EngineRefusedError,
    File,
    Lease,
    Position,
)

WITHIN = 60.0
"""Seconds for an answer: many times what a busy machine needs."""


@pytest.fixture(params=["memory", "redis", "valkey", "postgresql"])
def connect(request, open_engine, name):
    """Makes engines that share their servers."""
    if request.param == "memory":
        return Servers().connect
    found = request.getfixturevalue(request.param)
    url = found if request.param == "valkey" else found.url

    def connect(replicas=1):
        return open_engine(url, name, replicas, timeout=WITHIN)

    return connect


@pytest.fixture
def engine(connect):
    return connect()


@pytest.fixture
def journal(engine):
    return Journal(engine)


def test_an_engine_that_was_never_used_has_nothing(engine):
    assert engine.observe("a", "here:1") == Lease()
    assert engine.files() == {}
    assert engine.read("file", 0, 100) == b""


def test_what_is_written_is_read(engine, journal):
    journal.append((CREATE, "file", 1000), (WRITE, "file", 0, b"one"))
    journal.append((WRITE, "file", 3, b"\0\r\n\xff"))
    journal.append((WRITE, "file", 10, b"late"))
    assert engine.files() == {"file": File(1000, 14)}
    assert engine.read("file", 0, 1000) == b"one\0\r\n\xff\0\0\0late"
    assert engine.read("file", 2, 3) == b"e\0\r"
    assert engine.read("file", 14, 1) == b""


@pytest.mark.parametrize(
    ("commits", "left"),
    [
        pytest.param([[(CREATE, "a", 2), (WRITE, "a", 1, b"xyz")]], {"a": (4, b"\0xyz")}, id="over the end"),
        pytest.param([[(CREATE, "a", 10_000_000)]], {"a": (10_000_000, b"")}, id="zeros take no memory"),
        pytest.param(
            [
                [(CREATE, "old", 9), (WRITE, "old", 0, b"text"), (CREATE, "new", 5), (WRITE, "new", 0, b"gone")],
                [(RENAME, "old", "new")],
            ],
            {"new": (9, b"text")},
            id="another name",
        ),
        pytest.param(
            [[(CREATE, "a", 9), (WRITE, "a", 0, b"x")], [(CREATE, "b", 7), (RENAME, "b", "a")]],
            {"a": (7, b"")},
            id="zeros get the name of a file",
        ),
        pytest.param([[(WRITE, "a", 0, b"text"), (RENAME, "a", "a")]], {"a": (4, b"text")}, id="the name it has"),
        pytest.param(
            [[(CREATE, "a", 9), (WRITE, "a", 0, b"text"), (CREATE, "b", 1)], [(REMOVE, "a")], [(CREATE, "a", 3)]],
            {"a": (3, b""), "b": (1, b"")},
            id="removed",
        ),
        pytest.param(
            [[(CREATE, "a", 9), (WRITE, "a", 0, b"a text")], [(RESIZE, "a", 3)], [(RESIZE, "a", 20)]],
            {"a": (20, b"a t")},
            id="cut and made longer",
        ),
        pytest.param(
            [[(CREATE, "a", 9), (WRITE, "a", 0, b"a text")], [(RESIZE, "a", 3)], [(RESIZE, "a", 0), (RESIZE, "a", 20)]],
            {"a": (20, b"")},
            id="emptied",
        ),
        pytest.param(
            [
                [
                    *[(CREATE, "a", 5), (WRITE, "a", 0, b"first"), (RENAME, "a", "b"), (CREATE, "a", 6)],
                    *[(WRITE, "a", 0, b"second"), (REMOVE, "b"), (RENAME, "a", "c")],
                ]
            ],
            {"c": (6, b"second")},
            id="in order",
        ),
    ],
)
def test_operations_leave_files(engine, journal, commits, left):
    for operations in commits:
        journal.append(*operations)
    assert engine.files() == {name: File(size, len(data)) for name, (size, data) in left.items()}
    assert {name: engine.read(name, 0, 99) for name in left} == {name: data for name, (_, data) in left.items()}


def test_names_in_directories_and_long_writes(engine, journal):
    data = os.urandom(3_000_000)
    journal.append((CREATE, "sub.rewriting/file", 0), (WRITE, "sub.rewriting/file", 0, data))
    assert engine.read("sub.rewriting/file", 0, 10_000_000) == data
    assert engine.read("sub.rewriting/file", 1_000_001, 1_100_000) == data[1_000_001:2_100_001]


def test_a_file_of_many_chunks_is_read(engine, journal):
    chunk = os.urandom(1 << 20)
    journal.append((CREATE, "file", 0), *((WRITE, "file", number << 20, chunk) for number in range(11)))
    assert engine.read("file", 0, 1 << 30) == chunk * 11
    assert engine.read("file", 1 << 20, 10 << 20) == chunk * 10


def test_any_number_of_files(engine, journal):
    names = [f"file.{number}" for number in range(250)]
    journal.append(*((CREATE, name, 9) for name in names))
    for name in names:
        journal.append((WRITE, name, 0, name.encode()))
    assert engine.files() == {name: File(max(9, len(name)), len(name)) for name in names}
    assert all(engine.read(name, 0, 99) == name.encode() for name in names[::50])


def test_the_same_commit_again_changes_nothing(engine, journal):
    journal.append((CREATE, "file", 9), (WRITE, "file", 0, b"text"))
    commit = journal.append((RENAME, "file", "other"))
    answer = engine.append(commit, may_exceed=False)
    assert answer.position == commit.position
    assert answer.replicas >= 1
    assert engine.files() == {"other": File(9, 4)}


def test_a_commit_upon_another_one_is_not_made(engine, journal):
    journal.append((CREATE, "file", 9))
    lost = journal.commit((WRITE, "file", 0, b"lost"))
    later = journal.commit((WRITE, "file", 4, b"later"))
    assert engine.append(later, may_exceed=False).position == Position(1, 1)
    assert engine.files() == {"file": File(9, 0)}
    assert engine.append(lost, may_exceed=False).position == lost.position
    assert engine.append(later, may_exceed=False).position == later.position
    assert engine.append(lost, may_exceed=False).position == later.position


@pytest.mark.parametrize("epoch", [1, 9])
def test_a_leader_of_an_earlier_epoch_is_fenced(connect, engine, epoch):
    mine = engine.take(Lease(), MINE._replace(epoch=epoch))
    journal = Journal(engine, mine)
    journal.append((CREATE, "file", 9))
    other = connect()
    assert other.take(mine, OTHER._replace(epoch=epoch + 1)).epoch == epoch + 1
    answer = engine.append(journal.commit((WRITE, "file", 0, b"late")), may_exceed=False)
    assert answer == (epoch + 1, None, 0)
    assert other.files() == {"file": File(9, 0)}


def test_a_leader_goes_on_from_the_position_that_it_finds(connect, journal):
    journal.append((CREATE, "file", 9))
    other = connect()
    found = other.take(MINE, OTHER)
    assert found.position == Position(1, 1)
    commit = Commit(Position(2, 2), found.position, [(WRITE, "file", 0, b"new")], 0, OTHER.stamp.encode())
    assert other.append(commit, may_exceed=False).position == Position(2, 2)
    assert other.read("file", 0, 9) == b"new"


def test_a_lease_is_taken_renewed_and_given_back(engine):
    assert engine.take(Lease(), MINE) == MINE
    assert engine.renew(MINE) == MINE._replace(renewals=1)
    assert engine.renew(MINE) == MINE._replace(renewals=2)
    assert engine.observe("b", "there:2") == MINE._replace(renewals=2)
    assert engine.release(MINE) == MINE._replace(renewals=2, node="")
    assert engine.renew(MINE).node == ""
    assert engine.take(MINE._replace(renewals=2), OTHER) == OTHER
    assert engine.release(MINE) == OTHER


def test_a_lease_is_taken_again_when_the_answer_was_lost(engine):
    assert engine.take(Lease(), MINE) == MINE
    assert engine.take(Lease(), MINE) == MINE


@pytest.mark.parametrize("epoch", [1, 9])
def test_whoever_was_fenced_renews_nothing(engine, epoch):
    mine, other = MINE._replace(epoch=epoch), OTHER._replace(epoch=epoch + 1)
    engine.take(Lease(), mine)
    engine.take(mine, other)
    assert engine.renew(mine) == other
    assert engine.renew(other).renewals == 1


def test_a_lease_that_was_renewed_since_it_was_seen_is_not_taken(connect, engine):
    seen = engine.take(Lease(), MINE)
    engine.renew(MINE)
    assert connect().take(seen, OTHER).epoch == MINE.epoch
    found = engine.observe("a", "here:1")
    assert (found.node, found.renewals) == (MINE.node, 1)
    assert connect().take(found, OTHER) == OTHER


def test_a_renewal_restores_the_lease_that_the_engine_has_lost(engine):
    assert engine.renew(MINE, restores=False) == Lease()
    assert engine.renew(MINE) == MINE._replace(renewals=1)
    third = OTHER._replace(epoch=3, lineage=f"{OTHER.stamp} {MINE.stamp}")
    assert engine.renew(third, restores=False) == MINE._replace(renewals=1)
    assert engine.renew(third) == third._replace(renewals=1), "two changes of leader are lost"


def test_a_lease_that_was_taken_since_is_not_overwritten_whatever_its_epoch(connect, engine):
    """The leader was paused, the engine was wiped, and another node leads, as the first one."""
    mine = MINE._replace(epoch=4, lineage=MINE._replace(secret="of epoch 3").stamp)
    fresh = OTHER._replace(epoch=1)
    other = connect()
    assert other.take(Lease(), fresh) == fresh
    assert engine.renew(mine) == fresh
    assert engine.release(mine) == fresh
    journal = Journal(other, fresh)
    journal.append((CREATE, "file", 9))
    for epoch in (4, 1):  # and its own epoch was 1, too
        late = Journal(engine, mine._replace(epoch=epoch)).commit((CREATE, "late", 9))
        for commit in (late, late._replace(before=journal.last), late._replace(position=journal.last)):
            assert engine.append(commit, may_exceed=False) == (1, None, 0)
    assert engine.renew(mine._replace(epoch=1)).node == "b"
    assert engine.take(mine._replace(epoch=1), mine._replace(epoch=2)).node == "b", "it has seen another lease"
    assert set(engine.files()) == {"file"}


def test_what_must_be_there_is_known_after_every_commit(engine, journal):
    assert engine.damage() == ""
    for operations in [
        [(CREATE, "a", 9), (WRITE, "a", 0, b"text")],
        [(CREATE, "b", 9), (CREATE, "c", 9), (REMOVE, "c")],
        [(WRITE, "b", 0, b"text"), (RENAME, "b", "a")],
        [(RESIZE, "a", 1)],
        [(WRITE, "a", 1, b"more")],
        [(REMOVE, "c")],
        [(WRITE, "a", 3, b"!")],
        [(CREATE, "a", 9), (CREATE, "d", 5)],
    ]:
        commit = journal.append(*operations)
        assert engine.damage() == ""
        assert engine.append(commit, may_exceed=False).position == commit.position
        assert engine.damage() == ""
    assert set(engine.files()) == {"a", "d"}


# What only real servers do


def test_files_that_are_gone_are_missed(redis, name, open_engine):
    engine = open_engine(redis.url, name)
    journal = Journal(engine)
    server, prefix = redis.servers[0], f"{{{name}:0}}:"
    for file in ("a", "b", "c"):
        journal.append((CREATE, file, 9), (WRITE, file, 0, b"text"))
    server.ask("DEL", f"{prefix}file:c")
    assert engine.damage() == "c: expected 4 bytes, found 0"
    server.ask("SET", f"{prefix}file:c", "text")
    server.ask("HDEL", f"{prefix}files", "a")
    assert engine.damage() == "expected 3 files, found 2"
    journal.append((CREATE, "d", 9))
    assert engine.damage() == "expected 4 files, found 3"
    server.ask("DEL", f"{prefix}files")
    assert engine.damage() == "expected 4 files, found 0"


def test_what_a_leader_of_an_earlier_release_has_left_is_not_held_against_what_was_there_before(
    redis, name, open_engine
):
    engine = open_engine(redis.url, name)
    Journal(engine).append((CREATE, "a", 9))
    state, files = (f"{{{name}:0}}:{key}" for key in ("state", "files"))
    old = OTHER._replace(position=Position(1, 1))
    redis.servers[0].ask("HSET", state, "epoch", old.epoch, "node", old.node, "secret", old.secret)
    redis.servers[0].ask("HSET", files, "b", 9)
    assert engine.damage() == ""
    third = MINE._replace(epoch=3, secret="third")
    assert engine.take(old, third).epoch == 3
    assert engine.damage() == ""
    journal = Journal(engine, third)
    journal.last, journal.number = Position(1, 1), 1
    journal.append((CREATE, "c", 9))
    assert engine.damage() == ""
    redis.servers[0].ask("HDEL", files, "b")
    assert engine.damage() == "expected 3 files, found 2"


def test_a_commit_waits_for_as_many_replicas_as_are_asked_for(redis, name, open_engine):
    for wanted, found in ((0, 0), (2, 2)):
        engine = open_engine(redis.url, f"{name}-{wanted}", wanted)
        engine.take(Lease(), MINE)
        assert engine.append(Journal(engine).commit((CREATE, "file", 9)), may_exceed=False).replicas == found


def test_a_lease_whose_secret_is_no_text_after_a_bit_has_flipped_can_be_taken(redis, name, open_engine):
    open_engine(redis.url, name).take(Lease(), MINE)
    redis.primary().ask("HSET", f"{{{name}:0}}:state", "secret", b"\xf3ecret")
    other = open_engine(redis.url, name)
    assert other.take(other.observe("b", "there:2"), OTHER) == OTHER


def test_a_replica_is_not_taken_for_the_primary(redis, name, open_engine):
    engine = open_engine(f"redis://127.0.0.1:{redis.servers[1].port}", name)
    with pytest.raises(EngineError, match="this is a replica, not the primary"):
        engine.observe("a", "here:1")


def test_nobody_at_the_address_is_told_in_one_line(name, open_engine):
    engine = open_engine("redis://127.0.0.1:1", name)
    with pytest.raises(EngineError, match=r"^engine at 127\.0\.0\.1:1: .*refused.*$"):
        engine.observe("a", "here:1")


def test_a_user_who_may_not_do_everything_is_refused_before_anything_happens(redis, name, open_engine):
    server = redis.servers[0]
    server.ask("ACL", "SETUSER", "queue", "on", ">secret", "~*", "+@all", "-rename", "-setrange")
    url = f"redis://queue:secret@127.0.0.1:{server.port}"
    engine = open_engine(url, name)
    wanted = "user 'queue' lacks permission for RENAME, SETRANGE: grant it these commands and the key pattern ~"
    with pytest.raises(EngineRefusedError, match=wanted):
        engine.append(Journal(engine).commit((CREATE, "file", 9)), may_exceed=False)
    server.ask("ACL", "SETUSER", "queue", "resetkeys", "~{other:0}:*", "+@all")
    with pytest.raises(EngineRefusedError):
        engine.observe("a", "here:1")
    server.ask("ACL", "SETUSER", "queue", f"~{{{name}:0}}:*")
    assert engine.observe("a", "here:1") == Lease()
    server.ask("ACL", "SETUSER", "queue", ">new", "<secret")
    engine.close()
    engine = open_engine(url, name)
    with pytest.raises(EngineRefusedError, match="WRONGPASS"):
        engine.observe("a", "here:1")
