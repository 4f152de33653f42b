"""The client's commands for batches, groups, limits, shares and weights, at a server in virtual time."""

import asyncio

import pytest
from beanstalk_client import AsyncClient, NotFoundError, ReservationLostError
from beanstalk_client.commands import make
from beanstalk_client.tasks import Tasks
from virtual import World
from virtual_client import connect


@pytest.fixture
def world():
    return World()


@pytest.fixture
def queue(world):
    with connect(world) as client:
        yield client


def test_batches(queue):
    assert queue.put_batch(["a", "b", "c"], priority=5) == [1, 2, 3]
    jobs = queue.reserve_batch(2, 0)
    assert queue.touch_batch([*jobs, 9]) == (2, 1)
    assert queue.touch_all() == 2
    assert queue.release_batch(jobs[:1], 7, "1m") == (1, 0)
    assert queue.stats_job(1)["pri"] == 7
    assert queue.delete_batch([1, jobs[1], 9]) == (2, 1)
    assert queue._session.reserved == set()
    assert queue.reserve(0).body == "c"


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: make.put_batch([]),
        lambda: make.put_batch([b""] * 513),
        lambda: make.delete_batch([]),
        lambda: make.touch_batch([1] * 1001),
        lambda: make.release_batch([2**64]),
        lambda: make.watch("a", 0),
        lambda: make.reserve_mode("weighed"),
        lambda: make.put_with(b"", after="g", group="g"),
        lambda: make.put_with(b"", limit="g", limit_count=0),
        lambda: make.put_with(b"", share="a b"),
    ],
)
def test_what_no_server_takes_is_not_sent(make_it):
    with pytest.raises(ValueError, match=r"must|after"):
        make_it()


def test_a_batch_of_jobs_of_a_lost_connection_is_not_sent(world, queue):
    queue.put_batch(["a"])
    job = queue.reserve(0)
    queue._session.lose()
    with pytest.raises(ReservationLostError):
        queue.release_batch([job])


def test_groups_limits_and_shares(queue):
    queue.put_with("a", group="g", limit="one", share="s")
    second = queue.put_with("b", group="g", limit="one")
    queue.put_with("c", after="g")
    job = queue.reserve(0)
    assert queue.stats_job(second)["limit"] == "one"
    assert queue.stats_group("g")["current-jobs-reserved"] == 1
    assert queue.cancel_group("g") == 1
    queue.delete(job)
    assert queue.reserve(0).body == "c"
    with pytest.raises(NotFoundError):
        queue.stats_group("none")


def test_weights_and_mode_are_told_to_the_next_connection(queue):
    assert queue.watch("a", 2) == 2
    queue.reserve_mode("weighted")
    session = queue._session
    assert [command.data for command in session.greet()] == [b"watch a 2\r\n", b"reserve-mode weighted\r\n"]
    queue.watch("a")
    assert session.watched["a"] == 2
    queue.ignore("a")
    queue.reserve_mode("priority")
    assert session.greet() == []


@pytest.mark.sockets
async def test_a_reserve_that_is_cancelled_costs_a_command_and_no_connection(run):
    server = run()

    async with AsyncClient(server.address) as queue, AsyncClient(server.address) as other:
        origins = set()
        for number in range(4):
            reserving = asyncio.ensure_future(queue.reserve())
            while not (await other.stats())["current-waiting"]:
                await asyncio.sleep(0.001)
            reserving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reserving
            await queue.put(f"{number}")
            await queue.delete((await queue.reserve(0)).id)
            origins.add(queue._session.origin)
        assert len(origins) == 1, "the first one is left behind; then it knows the command"
        assert (await other.stats())["cmd-cancel-reserve"] == 3


def test_a_program_puts_groups_and_limits():
    tasks = Tasks(tube="images")
    done = []
    resize = tasks.task(name="resize")(done.append)
    report = tasks.task(name="report", tube="mail")(done.append)
    with tasks.in_memory() as queue:
        group = tasks.group("images", "one")
        assert str(group) == "images/one"
        assert group.stats() == {}
        group.add(resize).put("a")
        group.add(resize.delay(10).limit("user-1", 2).share("x")).put("b")
        following = tasks.group()
        group.then(report).group(following).put("all")
        following.then(report).put("last")
        assert group.stats()["waiting-jobs"] == 1
        queue.run()
        assert done == ["a"]
        queue.run(10)
        assert done == ["a", "b", "all", "last"]
        assert group.stats()["state"] == "ended"
        again = tasks.group("images")
        again.add(resize).put("c")
        assert again.cancel() == 1
        assert tasks.group().cancel() == 0
        assert asyncio.run(again.astats())["state"] == "ended"
        assert asyncio.run(again.acancel()) == 0
        with pytest.raises(TypeError, match="must be a task, or a call"):
            group.add(print)
