"""Leases and commits of many shards, in all engines: one behaviour of each."""

import threading

import pytest
from commits import MINE, OTHER
from memory_engine import Servers

from beanstalk_server.cluster.engine.choice import connect_to
from beanstalk_server.cluster.engine.interface import (
    CREATE,
    REMOVE,
    START,
    WRITE,
    Commit,
    CommitCall,
    EngineError,
    EngineFullError,
    EngineRefusedError,
    Lease,
    Load,
    Position,
    Report,
    move,
    observe,
    release,
    renew,
    take,
)
from harness.engines import Alone
from harness.waiting import eventually


@pytest.fixture
def connect():
    """Names an engine: the result makes connections to it, which are closed at the end."""
    made = []

    def connect(*arguments, **options):
        connect_once = connect_to(*arguments, **options)

        def make():
            made.append(connect_once())
            return made[-1]

        return make

    yield connect
    for each in made:
        each.close()


@pytest.fixture(params=["memory", "redis", "postgresql"])
def connector(request, connect, name):
    if request.param == "memory":
        return Servers().engine
    return connect(request.getfixturevalue(request.param).url, name, 1, timeout=60.0)


@pytest.fixture
def engine(connector):
    return connector()


def created(number, before=START, epoch=1, operations=((CREATE, "file", 9),)):
    return Commit(Position(epoch, number), before, list(operations), 0, MINE.stamp.encode())


def lead(connector, shards):
    """Take the leases of this many shards."""
    connector().perform([take(shard, Lease(), MINE) for shard in range(shards)])


# How many shards there are


def test_the_first_node_fixes_how_many_shards_there_are(connector, engine):
    assert engine.shards(0) == 0
    assert engine.shards(8) == 8
    assert engine.shards(8) == 8
    assert connector().shards(4) == 8
    assert connector().shards(0) == 8


def test_an_engine_from_before_there_were_shards_has_one(connector, engine):
    connector().perform([take(0, Lease(), MINE)])
    assert engine.shards(8) == 1
    assert engine.shards(1) == 1


def test_an_engine_that_has_lost_the_number_gets_it_from_whoever_leads(connector, engine):
    engine.shards(8)
    wiped = connector()
    assert engine.perform([renew(0, MINE)])[0].renewals == 1
    assert wiped.shards(4) == 8


# Leases


def test_leases_of_all_shards_in_one_call(engine):
    engine.shards(100)
    shards = range(100)
    assert engine.perform([observe(each) for each in shards]) == [Lease()] * 100
    claims = [MINE._replace(secret=f"of {each}") for each in shards]
    assert engine.perform([take(each, Lease(), claims[each]) for each in shards]) == claims
    renewed = engine.perform([renew(each, claims[each]) for each in shards[::2]])
    assert renewed == [each._replace(renewals=1) for each in claims[::2]]
    seen = engine.perform([observe(each) for each in shards])
    assert [each.renewals for each in seen] == [1, 0] * 50
    assert [each.secret for each in seen] == [each.secret for each in claims]


def test_calls_of_all_kinds_in_any_order(engine):
    engine.shards(4)
    engine.perform([take(0, Lease(), MINE), take(1, Lease(), MINE)])
    found = engine.perform([release(0, MINE, "b"), observe(2), renew(1, MINE), take(3, Lease(), OTHER), observe(0)])
    given = MINE._replace(node="", successor="b")
    assert found == [given, Lease(), MINE._replace(renewals=1), OTHER, given]


def test_a_look_sees_whatever_changes(connector, engine):
    engine.shards(2)
    other = connector()
    other.shards(2)

    def look():
        return engine.perform([observe(1)])[0]

    assert look() == Lease()
    other.perform([take(1, Lease(), MINE)])
    assert look() == MINE
    other.perform([renew(1, MINE)])
    assert look() == MINE._replace(renewals=1)
    other.perform([move(1, "b")])[0]
    assert look() == MINE._replace(renewals=1, successor="b")
    other.perform([release(1, MINE, "c")])
    assert look() == MINE._replace(renewals=1, node="", successor="c")
    other.perform([take(1, look(), OTHER)])
    assert look() == OTHER


def test_whoever_comes_late_gets_no_lease_and_renews_none(connector, engine):
    engine.shards(2)
    assert connector().perform([take(0, Lease(), OTHER._replace(epoch=1))])[0].node == "b"
    assert engine.perform([take(0, Lease(), MINE), take(1, Lease(), MINE)]) == [OTHER._replace(epoch=1), MINE]
    assert engine.perform([renew(0, MINE), renew(1, MINE)])[0] == OTHER._replace(epoch=1)
    assert engine.perform([release(0, MINE), release(1, MINE)])[0] == OTHER._replace(epoch=1)


def test_a_renewal_tells_the_leader_who_is_to_succeed_it(connector, engine):
    engine.perform([take(1, Lease(), MINE)])
    assert connector().perform([move(1, "b")])[0].successor == "b"
    assert engine.perform([renew(1, MINE)]) == [MINE._replace(renewals=1, successor="b")]
    assert connector().perform([move(1, "")])[0].successor == ""
    assert engine.perform([renew(1, MINE)])[0].successor == ""


def test_a_request_to_move_ends_with_the_leader(connector, engine):
    engine.perform([take(1, Lease(), MINE)])
    engine.perform([move(1, "b")])[0]
    assert engine.perform([take(1, MINE, OTHER)]) == [OTHER]
    engine.perform([release(1, OTHER)])
    assert engine.perform([move(1, "a")])[0].successor == "", "no node leads"
    assert engine.perform([move(2, "a")])[0] == Lease()


def test_nodes_report_what_they_have_to_do(connector, engine):
    engine.perform([], Report("a", "there:1"))
    engine.perform([], Report("a", "here:1"))
    engine.perform([observe(0)], Report("b", "[::1]:2", Load(3, 4000, 5_000_000)))
    members = sorted(connector().members())
    assert [(each.node, each.address, each.load) for each in members] == [
        ("a", "here:1", Load()),
        ("b", "[::1]:2", Load(3, 4000, 5_000_000)),
    ]
    assert all(0 <= each.seen < 60 for each in members)


# Commits


def test_commits_of_all_shards_in_one_call(connector):
    lead(connector, 40)
    engine = connector()
    names = [f"file.{shard}" for shard in range(40)]
    calls = [
        CommitCall(shard, created(1, operations=[(CREATE, name, 9), (WRITE, name, 0, name.encode())]), False)
        for shard, name in enumerate(names)
    ]
    for _ in range(2):  # the second time, they are all there
        answers = engine.append(calls)
        assert [each[:2] for each in answers] == [(1, (1, 1))] * 40
        assert all(each.replicas >= 1 for each in answers)
    write = [
        CommitCall(shard, created(2, Position(1, 1), operations=[(WRITE, name, 0, b"text")]), bool(shard % 2))
        for shard, name in enumerate(names)
    ]
    assert [each[:2] for each in engine.append(write)] == [(1, (1, 2))] * 40
    for shard, name in enumerate(names):
        assert set(engine.files(shard)) == {name}
        assert engine.read(shard, name, 0, 4) == b"text"


def test_each_shard_has_its_own_answer(connector):
    lead(connector, 4)
    engine = connector()
    assert [each.position for each in engine.append([CommitCall(shard, created(1), False) for shard in range(4)])]
    connector().perform([take(1, MINE, OTHER)])
    answers = engine.append(
        [
            CommitCall(0, created(2, Position(1, 1)), False),
            CommitCall(1, created(2, Position(1, 1)), False),  # fenced
            CommitCall(2, created(9, Position(1, 8)), False),  # diverged
            CommitCall(3, created(2, Position(1, 1), epoch=2), False),  # the engine has lost the lease
        ]
    )
    assert [each[:2] for each in answers] == [(1, (1, 2)), (2, None), (1, (1, 1)), (1, None)]
    assert answers[0].replicas >= 1


def test_a_closed_engine_does_nothing(engine):
    engine.append([CommitCall(0, created(1), False)])
    engine.close()
    found = engine.append([CommitCall(0, created(1), False), CommitCall(1, created(1), False)])
    found += engine.perform([observe(0), observe(1)])
    assert [type(each) for each in found] == [EngineError] * 4
    with pytest.raises(EngineError):
        engine.members()


# What only real servers do


def test_too_few_replicas_confirm_no_lease_and_no_number(redis, name, connect):
    connector = connect(redis.url, name, 3)
    engine = connector()
    with pytest.raises(EngineError, match="only 2 of 3 replicas have confirmed the number of shards"):
        engine.shards(8)
    found = engine.perform([take(0, Lease(), MINE), observe(1), take(2, Lease(), OTHER)])
    assert [str(each) for each in found[::2]] == ["engine: only 2 of 3 replicas have confirmed the lease"] * 2
    assert found[1] == Lease()
    assert str(engine.perform([renew(0, MINE)])[0]) == str(found[0])
    lead(connect(redis.url, name, 1), 2)
    answers = connector().append([CommitCall(shard, created(1), False) for shard in range(2)])
    assert [each.replicas for each in answers] == [2, 2]


def test_nodes_with_another_number_of_shards_are_refused_also_later(redis, name, connect):
    connector = connect(redis.url, name, 1)
    eight, four = connector(), connector()
    eight.shards(8)
    four._shards = 4  # it has seen another engine
    eight.perform([take(0, Lease(), MINE)])
    assert isinstance(four.perform([observe(0)])[0], EngineRefusedError)
    assert connect(redis.url, name, 1)().perform([observe(0)]) == [MINE]


def test_servers_that_have_forgotten_the_scripts_get_them_again(redis, name, connect):
    connector = connect(redis.url, name, 1)
    lead(connector, 3)
    engine = connector()
    commits = [created(1), created(2, Position(1, 1), operations=[(REMOVE, "file")])]
    for commit in commits:
        redis.servers[0].ask("SCRIPT", "FLUSH")
        answers = engine.append([CommitCall(shard, commit, shard == 2) for shard in range(3)])
        assert [each.position for each in answers] == [commit.position] * 3
        redis.servers[0].ask("SCRIPT", "FLUSH")
        assert len(engine.perform([renew(shard, MINE) for shard in range(3)], Report("a", "here:1"))) == 3


def test_another_thread_closes_a_engine_that_waits(redis, name, connect):
    engine = connect(redis.url, name, 3, timeout=30.0)()
    answers = []
    calls = [CommitCall(shard, created(1), False) for shard in range(3)]
    thread = threading.Thread(target=lambda: answers.extend(engine.append(calls)))
    thread.start()
    eventually(lambda: int(redis.servers[0].info("clients")["blocked_clients"]), "commits wait for a third replica")
    engine.close()
    thread.join(60)
    assert not thread.is_alive()
    assert [type(each) for each in answers] == [EngineError] * 3


def test_an_engine_that_is_full_refuses_each_commit_for_itself(directory, connect):
    servers = Alone(directory / "full-shards", replicas=0)
    try:
        connector = connect(servers.url, "full", 0)
        lead(connector, 3)
        engine = connector()
        engine.append([CommitCall(shard, created(1), False) for shard in range(3)])
        servers.servers[0].ask("CONFIG", "SET", "maxmemory", 1)
        commit = created(2, Position(1, 1), operations=[(REMOVE, "file")])
        first, second, third = engine.append([CommitCall(shard, commit, shard == 1) for shard in range(3)])
        assert isinstance(first, EngineFullError)
        assert second.position == Position(1, 2)
        assert isinstance(third, EngineFullError)
        found = connector().perform([take(0, MINE, OTHER)], Report("a", "here:1"))
        assert found == [OTHER._replace(position=Position(1, 1))]
        assert connector().perform([renew(1, MINE)])[0].renewals == 1
        servers.servers[0].ask("CONFIG", "SET", "maxmemory", 0)
        assert engine.append([CommitCall(2, commit, False)])[0].position == Position(1, 2)
    finally:
        servers.close()


@pytest.mark.parametrize("kind", ["sentinel", "redis_cluster"])
def test_all_shards_move_to_the_new_primary(kind, request, name, connect):
    """Commit to twelve shards while a primary goes; one commit of each is made, whatever happens."""
    servers = request.getfixturevalue(kind)
    connector = connect(servers.url, name, 1, timeout=1.0)
    engine = connector()
    shards = range(12)

    def until_made(make):
        """Call until each shard is answered well."""
        left = set(shards)

        def is_over():
            for shard, answer in make(sorted(left)):
                if not isinstance(answer, EngineError) and getattr(answer, "replicas", 1):
                    left.discard(shard)
            return not left

        eventually(is_over, "all shards are answered", 60)

    def append(number):
        def make(left):
            commit = created(number, Position(1, number - 1) if number > 1 else START)
            return zip(left, engine.append([CommitCall(each, commit, False) for each in left]), strict=True)

        until_made(make)

    assert engine.shards(12) == 12
    until_made(lambda left: zip(left, engine.perform([take(each, Lease(), MINE) for each in left]), strict=True))
    append(1)
    servers.primary().kill()
    append(2)
    until_made(lambda left: zip(left, engine.perform([observe(each) for each in left]), strict=True))
    servers.restart()
    servers.settle()
    append(3)
    found = engine.perform([observe(each) for each in shards], Report("a", "here:1"))
    assert [each.epoch for each in found] == [1] * 12
    assert [each.position for each in connector().perform([observe(each) for each in shards])] == [Position(1, 3)] * 12
    assert [each.node for each in engine.members()] == ["a"]
    assert engine.check() == []
