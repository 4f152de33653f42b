"""The thread that writes: order, results, failures, and an end that comes too late for who waits."""

import asyncio
import random
import threading

import pytest

from beanstalk_server.storage.write_thread import WriteThread
from harness.waiting import WITHIN, eventually_async

LONG = WITHIN  # seconds: a wait that the work ends within, however busy the machine is


@pytest.fixture
def thread():
    thread = WriteThread("writes")
    yield thread
    thread.close()


async def test_work_that_ends_in_time_has_ended_when_begin_returns(thread):
    ended = []
    for number in range(3):
        thread.begin(lambda number=number: ended.append(number), ended.append, LONG)
    assert ended == [0, None, 1, None, 2, None]


async def test_the_event_loop_goes_on_when_the_work_takes_longer(thread):
    disk = threading.Event()
    ended = []
    thread.begin(disk.wait, ended.append, 0.001)
    assert ended == [], "the work has not ended"
    disk.set()
    await eventually_async(lambda: ended == [None], "the end of the work")
    thread.begin(lambda: None, ended.append, LONG)
    assert ended == [None, None], "the late end has not been taken for that of the next piece"


async def test_work_for_which_nobody_waits_ends_on_the_event_loop(thread):
    threads = []
    thread.begin(
        lambda: threads.append(threading.current_thread()), lambda _: threads.append(threading.current_thread())
    )
    await eventually_async(lambda: len(threads) == 2, "the end of the work")
    assert threads[0] is not threads[1] is threading.current_thread()


async def test_the_work_is_done_in_order(thread):
    done = []
    await asyncio.gather(*[thread.run(lambda number=number: done.append(number)) for number in range(100)])
    assert done == list(range(100))


async def test_results_and_exceptions_come_back(thread):
    assert await thread.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    errors = []
    thread.begin(lambda: 1 // 0, errors.append, LONG)
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_a_caller_that_is_gone_disturbs_nobody(thread):
    disk = threading.Event()
    caller = asyncio.ensure_future(thread.run(disk.wait))
    await asyncio.sleep(0)
    caller.cancel()
    disk.set()
    assert await thread.run(lambda: 42) == 42


async def test_every_end_is_reported_once_whether_it_was_in_time_or_not(thread):
    rng = random.Random(11)

    ended = []
    count = 3000
    for number in range(count):
        wait = rng.choice([0, 1e-7, 1e-6, 1e-5, 1e-4])
        thread.begin(lambda: None, lambda _, number=number: ended.append(number), wait)
        if rng.random() < 0.1:
            await asyncio.sleep(0)
    await eventually_async(lambda: len(ended) == count, "the end of all work")
    assert sorted(ended) == list(range(count))


async def test_close_waits_for_the_work():
    thread = WriteThread("writes")
    done = []
    for number in range(10):
        thread.begin(lambda number=number: done.append(number), lambda _: None)
    thread.close()
    assert done == list(range(10))


def test_a_thread_that_has_had_no_work_closes():
    WriteThread("idle").close()
    assert "idle" not in {thread.name for thread in threading.enumerate()}
