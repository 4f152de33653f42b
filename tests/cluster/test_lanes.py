"""Commits of several shards leave together, and what goes wrong with one of them is nothing to the others."""

import asyncio
import threading

import pytest
from leading import on

from beanstalk_server.cluster.commit_sender import DivergedError, FencedError
from beanstalk_server.cluster.engine.interface import START, Commit, CommitCall, EngineError, Position
from beanstalk_server.cluster.engine_writer import GivenUpError
from harness.waiting import WITHIN, eventually_async


@on(4)
async def test_commits_of_one_round_of_the_event_loop_leave_together(node, *leaders):
    for leader in leaders:
        leader.write(b"%d" % leader.shard, WITHIN)
    assert node.engine.calls == [], "perhaps others have something, too"
    for leader in leaders:
        assert await leader.ended(1) == [b"%d" % leader.shard]
        assert leader.stored() == b"%d" % leader.shard
    assert node.engine.calls == [[0, 1, 2, 3]]


@on(4)
async def test_what_comes_while_the_engine_is_asked_leaves_together(node, first, *others):
    asked, answering = threading.Event(), threading.Event()
    node.engine.on_call = lambda: (asked.set(), answering.wait(WITHIN))
    first.write(b"one")
    await eventually_async(asked.is_set, "the engine is asked")
    for leader in (*others, first):
        leader.write(b"two")
        await asyncio.sleep(0)
    answering.set()
    await first.ended(2)
    for leader in others:
        await leader.ended(1)
    assert node.engine.calls == [[0], [0, 1, 2, 3]]


@on(3)
async def test_whoever_has_something_joins_a_write_before_it_leaves(node, *leaders):
    node.pace.joiners = [leader.write for leader in leaders[1:]]
    leaders[0].write()
    for leader in leaders:
        await leader.ended(1)
    await asyncio.sleep(0)
    assert node.engine.calls == [[0, 1, 2]]
    assert node.pace.told == ["join", "hold", "release"], "no other write was scheduled"


@on(3)
async def test_nobody_is_let_go_while_another_write_follows_which_may_be_joined(node, first, second, third):
    asked, answering = threading.Event(), threading.Event()
    node.engine.on_call = lambda: (asked.set(), answering.wait(WITHIN))
    first.write()
    await eventually_async(asked.is_set, "the engine is asked")
    second.write()
    node.pace.joiners = [third.write]
    answering.set()
    await third.ended(1)
    assert node.engine.calls == [[0], [1, 2]]
    assert node.pace.told == ["join", "hold", "join", "hold", "release"]


@on(2)
async def test_a_write_leaves_although_one_that_joins_it_fails(node, first, second):
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail():
        second.write()
        raise LookupError("a mistake")

    node.pace.joiners = [fail]
    first.write()
    await first.ended(1)
    await second.ended(1)
    assert [type(error) for error in errors] == [LookupError]
    assert node.engine.calls == [[0, 1]]


@on(1)
async def test_a_node_with_one_shard_waits_for_no_other_and_holds_nobody(node, leader):
    leader.write(b"one", WITHIN)
    assert leader.ends == [b"one"]
    assert "hold" not in node.pace.told


@on(4)
async def test_each_shard_is_answered_for_itself(node, fine, fenced, diverged, late):
    servers = node.servers
    servers.lead(1)
    servers.change("lease", 2, servers.primary.of(2).lease._replace(position=Position(1, 0)), 0)
    attempts = []

    def refuse_first(method):
        if method == 3 and not attempts:
            attempts.append(method)
            raise EngineError("not now")

    servers.before_call = refuse_first
    for leader in node.leaders:
        leader.write(b"text")
    assert await fine.ended(1) == [b"text"]
    assert isinstance((await fenced.ended(1))[0], FencedError)
    assert isinstance((await diverged.ended(1))[0], DivergedError)
    assert await late.ended(1) == [b"text"]
    assert (fine.stored(), fenced.stored(), late.stored()) == (b"text", b"", b"text")


@on(2)
async def test_a_shard_that_finds_the_engine_full_is_alone_with_that(node, big, small):
    servers = node.servers
    small.write(b"before")
    await small.ended(1)
    servers.limit = 0
    big.write(b"text")
    small.write(b"text")
    assert await big.ended(1) == [b"text"]
    assert await small.ended(2) == [b"before", b"text"]
    assert big.directory.is_full
    assert small.directory.is_full


@on(3)
async def test_whoever_gives_up_disturbs_no_other(node, first, second, third):
    asked, answering = threading.Event(), threading.Event()
    node.engine.on_call = lambda: (asked.set(), answering.wait(WITHIN))
    for leader in node.leaders:
        leader.write(b"one")
    await eventually_async(asked.is_set, "the engine is asked")
    second.write(b"two")
    third.write(b"two")
    first.writer.give_up(GivenUpError("enough"))
    assert [str(each) for each in first.ends] == ["enough"], "at once"
    answering.set()
    assert await second.ended(2) == [b"one", b"two"]
    assert await third.ended(2) == [b"one", b"two"]
    first.write(b"three")
    await first.ended(2)
    assert [str(each) for each in first.ends] == ["enough", "enough"]
    assert node.engine.calls == [[0, 1, 2], [1, 2]]


@on(3)
async def test_what_was_given_up_before_it_left_is_not_sent(node, first, second, third):
    first.write(b"one")
    second.write(b"one")
    first.writer.give_up(GivenUpError("enough"))
    assert await second.ended(1) == [b"one"]
    assert node.engine.calls == [[1]]
    assert first.stored() == b""


@on(2)
async def test_a_shard_may_be_led_again(node, first, second):
    first.writer.give_up(GivenUpError("enough"))
    node.lanes.open(0)
    answers = []
    commit = Commit(Position(1, 2), Position(1, 1), [], 0, node.servers.primary.lease.stamp.encode())
    node.lanes.append(CommitCall(0, commit, False), answers.append)
    second.write(b"one")
    await second.ended(1)
    await eventually_async(lambda: answers, "an answer")
    assert answers[0].position == Position(1, 2)


@on(3)
async def test_whoever_fails_at_the_end_of_a_commit_holds_up_no_other_shard(node, *leaders):
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    for leader in leaders:
        leader.writer.begin(lambda leader=leader: leader.file.write(0, b"a"), lambda _: 1 // 0)
        leader.write(b"two")
    for leader in leaders:
        await leader.ended(1)
    assert [type(each) for each in failures] == [ZeroDivisionError] * 3


@on(2)
async def test_an_error_that_nobody_expects_ends_all_that_were_sent_together(node, *leaders):
    def fail():
        raise ZeroDivisionError

    node.engine.on_call = fail
    for leader in leaders:
        leader.write(b"one")
    for leader in leaders:
        assert isinstance((await leader.ended(1))[0], ZeroDivisionError)


@on(2)
async def test_a_shard_that_begins_anew_does_not_wait_for_others(node, wiped, other):
    servers = node.servers
    lease = servers.primary.journals.pop(0).lease
    servers.change("lease", 0, lease._replace(position=START), 0)
    wiped.write(b"lost")
    other.write(b"one")
    assert isinstance((await wiped.ended(1))[0], DivergedError)
    await other.ended(1)
    await wiped.writer.restart()
    wiped.file = wiped.directory.create("a")
    wiped.write(b"two")
    other.write(b"two")
    assert (await wiped.ended(2))[1] == b"two"
    assert await other.ended(2) == [b"one", b"two"]
    assert (wiped.stored(), other.stored()) == (b"two", b"onetwo")


@pytest.mark.parametrize("shards", [1, 3])
def test_closed_lanes_leave_no_thread(shards):
    @on(shards)
    async def write(node, *leaders):
        for leader in leaders:
            leader.write()
            await leader.ended(1)

    write()
    assert not [each for each in threading.enumerate() if each.name == "engine"]
