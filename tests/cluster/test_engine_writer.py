"""The writer sends what its work has collected, for as long as it takes, and tells everybody when it is durable."""

import asyncio
import threading

import pytest
from leading import on

from beanstalk_server.cluster.commit_sender import DivergedError, FencedError
from beanstalk_server.cluster.engine.interface import EngineError, Position
from beanstalk_server.cluster.engine_writer import GivenUpError
from harness.waiting import WITHIN, eventually_async


@on(1)
async def test_a_commit_that_is_quick_has_ended_when_begin_returns(node, step):
    step.write(b"one", WITHIN)
    assert step.ends == [b"one"]
    assert step.stored() == b"one"
    assert step.writer.durable == Position(1, 2)
    assert step.writer.latency.percentile(1.0) >= 0


@on(1)
async def test_commits_are_made_one_after_the_other_and_end_in_order(node, step):
    servers = node.servers
    threads = set()
    servers.before_call = lambda _: threads.add(threading.current_thread())
    threads.clear()
    for number in range(5):
        step.write(b"%d" % number)
    assert step.ends == [], "nothing was waited for"
    assert await step.ended(5) == [b"0", b"1", b"2", b"3", b"4"]
    assert step.stored() == b"01234"
    assert threads.isdisjoint({threading.current_thread()})


@on(1)
async def test_work_that_collects_nothing_ends_when_all_before_it_is_durable(node, step):
    servers = node.servers
    step.writer.begin(lambda: None, step.ends.append)
    assert step.ends == [], "never within the call"
    await step.ended(1)
    servers.is_reachable = False
    step.write(b"x")
    step.writer.begin(lambda: None, step.ends.append)
    await asyncio.sleep(0)
    servers.is_reachable = True
    assert await step.ended(3) == [None, b"x", None]


@on(1)
async def test_what_the_work_raises_is_told_and_nothing_is_sent(node, step):
    servers = node.servers
    calls = servers.calls
    step.writer.begin(lambda: step.directory.open("b"), step.ends.append, WITHIN)
    await step.ended(1)
    assert isinstance(step.ends[0], FileNotFoundError)
    assert servers.calls == calls
    with pytest.raises(FileNotFoundError):
        await step.writer.run(lambda: step.directory.open("b"))


@on(1)
async def test_run_returns_what_the_work_returns_when_it_is_durable(node, step):
    def work():
        step.file.write(0, b"abc")
        return 7

    assert await step.writer.run(work) == 7
    assert step.stored() == b"abc"


@on(1)
async def test_an_engine_that_is_away_is_waited_for_as_long_as_it_takes(node, step):
    servers = node.servers
    servers.is_reachable = False
    step.write(b"one")
    calls = servers.calls
    await eventually_async(lambda: servers.calls >= calls + 4, "attempts")
    step.write(b"two")
    assert step.ends == []
    servers.is_reachable = True
    assert await step.ended(2) == [b"one", b"two"]
    assert step.stored() == b"onetwo"


@on(1)
async def test_an_idle_leader_that_hears_of_a_lost_tail_writes_it_again(node, step):
    servers = node.servers
    durable = step.writer.durable
    step.write(b"one")
    await step.ended(1)
    step.writer.check(durable, durable)
    assert servers.primary.lease.position == step.writer.durable, "an answer from before the commit proves nothing"
    calls = servers.calls
    step.writer.check(step.writer.durable, step.writer.durable)
    assert servers.calls == calls
    servers.lag()
    for replica in servers.replicas:
        replica.dataset.files["a"][1].clear()
        replica.dataset.lease = replica.dataset.lease._replace(position=durable)
    servers.fail_over()
    step.writer.check(durable, step.writer.durable)
    await eventually_async(lambda: step.stored() == b"one", "the tail is written again")


@on(1)
async def test_a_commit_waits_for_a_lease_that_the_engine_has_lost_and_says_so(node, step):
    servers = node.servers
    lost = []
    step.writer.on_lost_lease = lambda: lost.append(step.ends[:])
    lease = servers.primary.lease
    servers.primary.lease = lease._replace(epoch=0, secret="")
    step.write(b"one")
    await eventually_async(lambda: len(lost) > 1, "the engine is asked again")
    assert lost[-1] == []
    servers.primary.lease = lease
    assert await step.ended(1) == [b"one"]


@on(1)
async def test_another_leader_ends_everything_for_good(node, step):
    servers = node.servers
    servers.lead()
    step.write(b"one")
    step.write(b"two")
    await step.ended(2)
    step.write(b"three")
    assert all(isinstance(error, FencedError) for error in await step.ended(3))
    assert step.stored() == b""


@on(1)
async def test_an_engine_that_was_wiped_ends_everything_until_the_writer_begins_anew(node, step):
    servers = node.servers
    step.write(b"one")
    await step.ended(1)
    servers.wipe()
    servers.renew()
    step.write(b"two")
    step.write(b"three")
    await step.ended(3)
    step.write(b"four")
    assert all(isinstance(error, DivergedError) for error in (await step.ended(4))[1:])
    await step.writer.restart()
    assert step.directory.all_names() == []
    step.file = step.directory.create("a")
    step.write(b"five")
    await step.ended(5)
    assert step.stored() == b"five"
    assert servers.primary.lease.position == Position(1, 5), "no position is used twice"


@on(1)
async def test_a_writer_that_begins_anew_waits_for_the_engine(node, step):
    servers = node.servers
    servers.wipe()
    servers.renew()
    step.write(b"one")
    await step.ended(1)
    servers.is_reachable = False
    restarting = asyncio.ensure_future(step.writer.restart())
    calls = servers.calls
    await eventually_async(lambda: servers.calls >= calls + 2, "attempts")
    servers.is_reachable = True
    await restarting


@on(1)
async def test_whoever_gives_up_waits_for_nothing(node, step):
    servers = node.servers
    hanging = threading.Event()

    def hang(method):
        if method == "append":
            hanging.set()
            assert closed.wait(WITHIN)
            raise EngineError("closed")

    closed = threading.Event()
    close, node.engine.close = node.engine.close, lambda: (close(), closed.set())
    servers.before_call = hang
    step.write(b"one")
    step.write(b"two")
    await eventually_async(hanging.is_set, "the engine is asked")
    step.writer.give_up(GivenUpError("enough"))
    assert [str(error) for error in step.ends] == ["enough", "enough"]
    step.write(b"three")
    await step.ended(3)
    assert str(step.ends[2]) == "enough"


@on(1)
async def test_whoever_gives_up_during_a_pause_is_not_woken(node, step):
    servers = node.servers
    servers.is_reachable = False
    step.write(b"one")
    await eventually_async(lambda: step.writer._timer is not None, "a pause")
    step.writer.give_up(GivenUpError("enough"))
    assert step.writer._timer is None
    assert len(step.ends) == 1


@on(1, limit=0)
async def test_a_full_engine_takes_changes_but_creates_nothing_until_it_has_room_again(node, step):
    servers = node.servers
    now = [0.0]
    step.writer._clock = lambda: now[0]
    step.write(b"one")
    step.write(b"two")
    assert await step.ended(2) == [b"one", b"two"]
    assert step.directory.is_full
    with pytest.raises(OSError, match="memory limit"):
        await step.writer.run(lambda: step.directory.create("b", 10))
    servers.limit = 1000
    with pytest.raises(OSError, match="memory limit"):
        await step.writer.run(lambda: step.directory.create("b", 10))
    await step.writer.run(lambda: None)  # the engine has answered the request for room
    now[0] += 2.0
    with pytest.raises(OSError, match="memory limit"):
        step.directory.create("b", 10)
    await eventually_async(lambda: not step.directory.is_full, "somebody has asked the engine")
    await step.writer.run(lambda: step.directory.create("b", 10))


@on(1)
async def test_the_log_says_when_commits_have_to_wait_and_when_they_do_not_any_more(node, step, *, caplog):
    servers = node.servers
    now = [100.0]
    caplog.set_level("INFO", "beanstalk_server")
    step.writer._clock = lambda: now[0]
    servers.is_reachable = False
    step.write(b"one")
    calls = servers.calls
    await eventually_async(lambda: servers.calls >= calls + 2, "attempts")
    assert not caplog.records, "a moment is not worth a line"
    now[0] += 30.0
    await eventually_async(lambda: caplog.records, "a line")
    servers.is_reachable = True
    await step.ended(1)

    assert caplog.messages == [
        "the engine does not accept commits: the engine cannot be reached; changes wait",
        "the engine accepts commits again, after 30 s",
    ]
