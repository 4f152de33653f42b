"""The writer sends what its work has collected, for as long as it takes, and tells everybody when it is durable."""

import asyncio
import threading

import pytest
from memory_engine import MemoryCommitter, Servers

from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine.interface import EngineError, Position
from beanstalk_server.cluster.engine_writer import EngineWriter, GivenUpError
from beanstalk_server.cluster.lanes import Lanes
from beanstalk_server.cluster.sender import DivergedError, FencedError, Sender
from harness.waiting import WITHIN, eventually_async


class Step:
    """A leader, whose writer works on a file in the engine."""

    def __init__(self, servers):
        self.servers = servers
        self.engine = servers.connect()
        self.committer = MemoryCommitter(servers, 1)
        self.lanes = Lanes(self.committer)
        lease = servers.lead()
        before = EngineDirectory(self.engine, Sender(lease, 1))
        before.create("a")
        before.sync()
        self.sender = Sender(lease._replace(position=Position(1, 1)), 1)
        self.directory = EngineDirectory(self.engine, self.sender)
        self.directory.lock()
        self.writer = EngineWriter(self.engine, self.directory, self.sender, self.lanes, 0)
        self.file = self.directory.open("a")
        self.writer.start()
        self.ends = []

    def write(self, text=b"x", wait=0.0):
        """Begin a commit; `ends` gets its error, or the text."""
        end = self.file.size()
        self.writer.begin(
            lambda: self.file.write(end, text),
            lambda error: self.ends.append(text if error is None else error),
            wait,
        )

    async def ended(self, count):
        await eventually_async(lambda: len(self.ends) >= count, f"{count} commits end")
        return self.ends

    def close(self):
        self.writer.close()
        self.lanes.close()

    def stored(self):
        return bytes(self.servers.primary.files["a"][1])


def on(servers):
    """Run a test as a coroutine that gets a leader, and close its writer afterwards."""

    def decorate(test):
        async def work():
            step = Step(servers)
            try:
                await test(step)
            finally:
                step.close()

        asyncio.run(work())

    return decorate


@pytest.fixture
def servers():
    return Servers()


def test_a_commit_that_is_quick_has_ended_when_begin_returns(servers):
    @on(servers)
    async def _(step):
        step.write(b"one", WITHIN)
        assert step.ends == [b"one"]
        assert step.stored() == b"one"
        assert step.writer.durable == Position(1, 2)
        assert step.writer.latency.percentile(1.0) >= 0


def test_commits_are_made_one_after_the_other_and_end_in_order(servers):
    threads = set()
    servers.before_call = lambda _: threads.add(threading.current_thread())

    @on(servers)
    async def _(step):
        threads.clear()
        for number in range(5):
            step.write(b"%d" % number)
        assert step.ends == [], "nothing was waited for"
        assert await step.ended(5) == [b"0", b"1", b"2", b"3", b"4"]
        assert step.stored() == b"01234"
        assert threads.isdisjoint({threading.current_thread()})


def test_work_that_collects_nothing_ends_when_all_before_it_is_durable(servers):
    @on(servers)
    async def _(step):
        step.writer.begin(lambda: None, step.ends.append)
        assert step.ends == [], "never within the call"
        await step.ended(1)
        servers.is_reachable = False
        step.write(b"x")
        step.writer.begin(lambda: None, step.ends.append)
        await asyncio.sleep(0)
        servers.is_reachable = True
        assert await step.ended(3) == [None, b"x", None]


def test_what_the_work_raises_is_told_and_nothing_is_sent(servers):
    @on(servers)
    async def _(step):
        calls = servers.calls
        step.writer.begin(lambda: step.directory.open("b"), step.ends.append, WITHIN)
        await step.ended(1)
        assert isinstance(step.ends[0], FileNotFoundError)
        assert servers.calls == calls
        with pytest.raises(FileNotFoundError):
            await step.writer.run(lambda: step.directory.open("b"))


def test_run_returns_what_the_work_returns_when_it_is_durable(servers):
    @on(servers)
    async def _(step):
        def work():
            step.file.write(0, b"abc")
            return 7

        assert await step.writer.run(work) == 7
        assert step.stored() == b"abc"


def test_an_engine_that_is_away_is_waited_for_as_long_as_it_takes(servers):
    @on(servers)
    async def _(step):
        servers.is_reachable = False
        step.write(b"one")
        calls = servers.calls
        await eventually_async(lambda: servers.calls >= calls + 4, "attempts")
        step.write(b"two")
        assert step.ends == []
        servers.is_reachable = True
        assert await step.ended(2) == [b"one", b"two"]
        assert step.stored() == b"onetwo"


def test_a_commit_is_made_once_although_its_answer_was_lost(servers):
    @on(servers)
    async def _(step):
        servers.lost_answers = 3
        step.write(b"one")
        await step.ended(1)
        assert servers.primary.lease.position == step.writer.durable == Position(1, 2)


def test_nothing_ends_before_the_replicas_have_it(servers):
    @on(servers)
    async def _(step):
        servers.lag()
        step.write(b"one", 0.01)
        calls = servers.calls
        await eventually_async(lambda: servers.calls >= calls + 3, "attempts")
        assert step.stored() == b"one"
        assert step.ends == []
        servers.lag(False)
        await step.ended(1)


def test_what_a_failover_loses_is_written_again(servers):
    @on(servers)
    async def _(step):
        for number in range(3):
            step.write(b"%d" % number)
        await step.ended(3)
        for replica in servers.replicas:
            replica.dataset.files["a"][1][:] = b"0"
            replica.dataset.lease = replica.dataset.lease._replace(position=Position(1, 2))
        servers.fail_over()
        step.write(b"3")
        await step.ended(4)
        assert step.stored() == b"0123"


def test_an_idle_leader_that_hears_of_a_lost_tail_writes_it_again(servers):
    @on(servers)
    async def _(step):
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


def test_a_commit_waits_for_a_lease_that_the_engine_has_lost_and_says_so(servers):
    @on(servers)
    async def _(step):
        lost = []
        step.writer.on_lost_lease = lambda: lost.append(step.ends[:])
        lease = servers.primary.lease
        servers.primary.lease = lease._replace(epoch=0, secret="")
        step.write(b"one")
        await eventually_async(lambda: len(lost) > 1, "the engine is asked again")
        assert lost[-1] == []
        servers.primary.lease = lease
        assert await step.ended(1) == [b"one"]


def test_another_leader_ends_everything_for_good(servers):
    @on(servers)
    async def _(step):
        servers.lead()
        step.write(b"one")
        step.write(b"two")
        await step.ended(2)
        step.write(b"three")
        assert all(isinstance(error, FencedError) for error in await step.ended(3))
        assert step.stored() == b""


def test_an_engine_that_was_wiped_ends_everything_until_the_writer_begins_anew(servers):
    @on(servers)
    async def _(step):
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


def test_a_writer_that_begins_anew_waits_for_the_engine(servers):
    @on(servers)
    async def _(step):
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


def test_whoever_gives_up_waits_for_nothing(servers):
    hanging = threading.Event()

    @on(servers)
    async def _(step):
        def hang(method):
            if method == "append":
                hanging.set()
                assert closed.wait(WITHIN)
                raise EngineError("closed")

        closed = threading.Event()
        close, step.committer.close = step.committer.close, lambda: (close(), closed.set())
        servers.before_call = hang
        step.write(b"one")
        step.write(b"two")
        await eventually_async(hanging.is_set, "the engine is asked")
        step.writer.give_up(GivenUpError("enough"))
        assert [str(error) for error in step.ends] == ["enough", "enough"]
        step.write(b"three")
        await step.ended(3)
        assert str(step.ends[2]) == "enough"


def test_whoever_gives_up_during_a_pause_is_not_woken(servers):
    @on(servers)
    async def _(step):
        servers.is_reachable = False
        step.write(b"one")
        await eventually_async(lambda: step.writer._timer is not None, "a pause")
        step.writer.give_up(GivenUpError("enough"))
        assert step.writer._timer is None
        assert len(step.ends) == 1


def test_an_error_that_nobody_expects_ends_everything(servers):
    @on(servers)
    async def _(step):
        def fail(method):
            raise ZeroDivisionError

        servers.before_call = fail
        step.write(b"one")
        assert isinstance((await step.ended(1))[0], ZeroDivisionError)


def test_whoever_fails_at_the_end_of_a_commit_holds_up_nobody(servers):
    @on(servers)
    async def _(step):
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
        step.write(b"one")
        step.writer.begin(lambda: step.file.write(3, b"two"), lambda _: 1 // 0)
        step.write(b"three")
        assert await step.ended(2) == [b"one", b"three"]
        assert [type(error) for error in failures] == [ZeroDivisionError]


def test_a_full_engine_takes_changes_but_creates_nothing_until_it_has_room_again():
    servers = Servers(limit=0)
    now = [0.0]

    async def work():
        step = Step(servers)
        step.writer._clock = lambda: now[0]
        step.write(b"one")
        step.write(b"two")
        assert await step.ended(2) == [b"one", b"two"]
        assert step.directory.is_full
        with pytest.raises(OSError, match="limit of memory"):
            await step.writer.run(lambda: step.directory.create("b", 10))
        servers.limit = 1000
        with pytest.raises(OSError, match="limit of memory"):
            await step.writer.run(lambda: step.directory.create("b", 10))
        await step.writer.run(lambda: None)  # the engine has answered the request for room
        now[0] += 2.0
        with pytest.raises(OSError, match="limit of memory"):
            step.directory.create("b", 10)
        await eventually_async(lambda: not step.directory.is_full, "somebody has asked the engine")
        await step.writer.run(lambda: step.directory.create("b", 10))
        step.close()

    asyncio.run(work())


def test_the_log_says_when_commits_have_to_wait_and_when_they_do_not_any_more(servers, caplog):
    now = [100.0]
    caplog.set_level("INFO", "beanstalk_server")

    @on(servers)
    async def _(step):
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
        "the engine takes no commits: the engine cannot be reached; changes wait",
        "the engine takes commits again, after 30 s",
    ]
