"""Clients that are kept: how many connections they take, when they end, and to which tube their commands go."""

import asyncio
import contextlib
import gc
import threading

import pytest
from beanstalk_client import Client, ConnectionLostError, ForbiddenError
from beanstalk_client.clients import SharedClient
from beanstalk_client.tasks import Tasks
from consuming import SERVERS, new_tube, restartable, run

from harness.waiting import eventually


@pytest.fixture
def tasks(our_server):
    tasks = Tasks(our_server.address, tube=new_tube())
    tasks.task(name="note")(print)
    yield tasks
    tasks.close()


@pytest.fixture
def queue(our_server):
    with Client(our_server.address) as queue:
        yield queue


def connections(queue):
    return queue.stats()["current-connections"] - 1


def test_an_event_loop_that_ends_leaves_no_connection(tasks, queue):
    note = tasks.get("note")
    for _ in range(20):
        asyncio.run(note.aput())
    eventually(lambda: connections(queue) == 0, "no connection is left")
    assert queue.stats_tube(tasks.tube)["current-jobs-ready"] == 20
    assert len(tasks._of_loops) == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of asyncio, for a loop that is closed with a transport in use
def test_nor_does_one_that_is_closed_without_the_end_of_asyncio_run(tasks, queue):
    note = tasks.get("note")
    for _ in range(5):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(note.aput())
        loop.close()
    asyncio.run(note.aput())
    eventually(lambda: connections(queue) == 0, "no connection is left")
    assert len(tasks._of_loops) == 0
    gc.collect()


def test_all_tubes_share_the_connection_of_an_event_loop(tasks, queue):
    notes = [tasks.task(name=f"note-{number}", tube=new_tube())(print) for number in range(50)]

    async def story():
        await asyncio.gather(*(note.aput() for note in notes for _ in range(3)))
        return await asyncio.to_thread(connections, queue)

    assert run(story()) == 1
    assert [queue.stats_tube(note.tube)["current-jobs-ready"] for note in notes] == [3] * 50


def test_a_thread_that_another_library_has_made_leaves_no_connection(tasks, queue):
    done = threading.Semaphore(0)

    def call():
        tasks.get("note").put()
        threading.current_thread()  # makes an object for this thread that lives on
        done.release()

    import _thread

    for _ in range(5):
        _thread.start_new_thread(call, ())
        assert done.acquire(timeout=60)
    eventually(lambda: connections(queue) == 0, "no connection is left")


class Scripted:
    """A client whose `use` waits until the test lets it go on, or fails."""

    def __init__(self):
        self.log = []
        self.gates = {}
        self.errors = {}
        self.used = "default"

    async def use(self, tube):
        self.log.append(f"use {tube}")
        if tube in self.gates:
            await self.gates[tube].wait()
        if tube in self.errors:
            raise self.errors[tube]
        self.used = tube

    async def close(self):
        pass


async def rounds(number=20):
    for _ in range(number):
        await asyncio.sleep(0)


async def test_no_command_is_given_while_another_tube_is_in_use():
    client = Scripted()
    shared = SharedClient(client)
    ends = asyncio.Event()

    async def put(tube, waits=False):
        async with shared.using(tube):
            assert client.used == tube
            client.log.append(f"put {tube}")
            if waits:
                await ends.wait()
            assert client.used == tube

    calls = [asyncio.ensure_future(put("a", waits=True))]
    await rounds()
    calls += [asyncio.ensure_future(put(tube)) for tube in ("a", "b", "a", "b")]
    await rounds()
    assert client.log == ["use a", "put a", "put a"]
    ends.set()
    await asyncio.gather(*calls)
    assert client.log == ["use a", "put a", "put a", "use b", "put b", "put b", "use a", "put a"]


async def test_a_call_that_is_cancelled_while_its_use_is_under_way_leaves_the_tube_to_no_other():
    client = Scripted()
    client.gates["b"] = asyncio.Event()
    shared = SharedClient(client)

    async def put(tube):
        async with shared.using(tube):
            client.log.append(f"put {tube} into {client.used}")

    await put("a")
    cancelled = asyncio.ensure_future(put("b"))
    await rounds()
    cancelled.cancel()
    after = asyncio.ensure_future(put("a"))
    await rounds()
    assert client.log == ["use a", "put a into a", "use b"]
    client.gates["b"].set()
    await after
    assert client.log[3:] == ["use a", "put a into a"]
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_a_tube_that_is_refused_fails_its_own_calls_only():
    client = Scripted()
    client.errors["b"] = ForbiddenError()
    shared = SharedClient(client)

    async def put(tube):
        async with shared.using(tube):
            return client.used

    found = await asyncio.gather(*map(put, "abbca"), return_exceptions=True)
    assert [type(each) for each in found] == [str, ForbiddenError, ForbiddenError, str, str]
    assert [each for each in found if isinstance(each, str)] == ["a", "c", "a"]


async def test_a_server_that_is_lost_fails_all_who_wait_at_once():
    client = Scripted()
    client.errors["a"] = ConnectionLostError("gone")
    shared = SharedClient(client)

    async def put(tube):
        async with shared.using(tube):
            pass

    found = await asyncio.gather(*map(put, "abc"), return_exceptions=True)
    assert [type(each) for each in found] == [ConnectionLostError] * 3
    assert client.log == ["use a"]
    client.errors.clear()
    await put("c")


async def test_a_put_after_a_restart_goes_to_its_own_tube():
    with restartable(SERVERS[0]) as server:
        tasks = Tasks(server.address, reconnect_timeout=30)
        one, two = (tasks.task(name=name, tube=name)(print) for name in ("one", "two"))

        await asyncio.gather(one.aput(), two.aput(), one.aput())
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        for note in (two, one, two):
            with contextlib.suppress(ConnectionLostError):  # of the put that has met the loss
                await note.aput()
        with Client(server.address) as queue:
            for tube in ("one", "two"):
                queue.use(tube)
                assert f'"{tube}"' in queue.peek_ready().body


async def test_a_blocking_call_in_an_event_loop_is_an_error_before_it_blocks():
    tasks = Tasks("127.0.0.1:1")
    note = tasks.task(name="note")(print)
    handle, group = tasks.result_of("default", 1), tasks.group()
    calls = {
        "put": note.put,
        "result": note.result().put,
        "cancel": lambda: note.cancel("a"),
        "get": lambda: handle.get(timeout=1),
        "state": lambda: handle.state,
        "progress": lambda: handle.progress,
        "stats": group.stats,
        "cancel of a group": group.cancel,
    }

    for call in calls.values():
        with pytest.raises(
            RuntimeError, match=r"^a blocking call would block the event loop: await the asyncio variant"
        ):
            call()
