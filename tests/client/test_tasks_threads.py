"""The threads of plain functions: this many at a time, nothing lost, and one wake-up for many results."""

import asyncio
import threading

import pytest
from beanstalk_client.tasks.threads import Threads
from consuming import run


def with_threads(number, story):
    async def body():
        threads = Threads(number)
        try:
            await story(threads)
        finally:
            threads.close()

    run(body())


def test_each_call_has_its_own_result():
    async def story(threads):
        results = await asyncio.gather(*(threads.run(pow, (number, 2), {}) for number in range(1000)))
        assert results == [number**2 for number in range(1000)]

    with_threads(4, story)


def test_exceptions_come_back():
    def fail(kind):
        raise kind("oh")

    async def story(threads):
        for kind, seen in (
            (ValueError, ValueError),
            (StopIteration, RuntimeError),
            (KeyboardInterrupt, RuntimeError),
            (SystemExit, SystemExit),
        ):
            with pytest.raises(seen):
                await threads.run(fail, (kind,), {})

    with_threads(1, story)


def test_as_many_run_at_a_time_as_there_are_threads():
    barrier = threading.Barrier(3)

    async def story(threads):
        places = await asyncio.gather(*(threads.run(barrier.wait, (20,), {}) for _ in range(9)))
        assert sorted(places) == [0, 0, 0, 1, 1, 1, 2, 2, 2]

    with_threads(3, story)


def test_no_more_run_at_a_time_than_there_are_threads():
    running, most, lock = 0, 0, threading.Lock()
    pause = threading.Event()

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        pause.wait(0.001)
        with lock:
            running -= 1

    async def story(threads):
        await asyncio.gather(*(threads.run(work, (), {}) for _ in range(50)))
        assert most == 2

    with_threads(2, story)


def test_a_call_that_is_cancelled_before_it_begins_never_does():
    began = []
    gate = threading.Event()

    async def story(threads):
        first = asyncio.ensure_future(threads.run(gate.wait, (20,), {}))
        second = asyncio.ensure_future(threads.run(began.append, (2,), {}))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.set()
        await first
        await threads.run(began.append, (3,), {})
        assert began == [3]
        assert threads.overdue == 0

    with_threads(1, story)


def test_a_call_that_ends_when_it_is_cancelled_is_not_overdue():
    async def story(threads):
        loop = asyncio.get_running_loop()
        has_told = threading.Event()
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *arguments: (wake(*arguments), has_told.set())
        call = asyncio.ensure_future(threads.run(int, (), {}))
        await asyncio.sleep(0)
        assert has_told.wait(60)  # the event loop is about to hear of it
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert threads.overdue == 0

    with_threads(1, story)


def test_threads_in_a_row_and_after_rests_lose_no_call():
    async def story(threads):
        for number in range(300):
            assert await threads.run(int, (number,), {}) == number
            if number % 50 == 0:
                await asyncio.sleep(0.002)

    with_threads(3, story)


def test_a_quick_batch_wakes_the_loop_once():
    wakes, ended = [], threading.Semaphore(0)

    async def story(threads):
        loop = asyncio.get_running_loop()
        await threads.run(int, (), {})
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *arguments: (wakes.append(1), wake(*arguments))
        batch = [asyncio.ensure_future(threads.run(ended.release, (), {})) for _ in range(10)]
        await asyncio.sleep(0)
        assert all(ended.acquire(timeout=60) for _ in batch)  # the loop does not turn until all have run
        await asyncio.gather(*batch)
        assert 1 <= len(wakes) < 10

    with_threads(10, story)


def test_there_is_a_thread():
    async def story():
        with pytest.raises(ValueError, match="0 threads"):
            Threads(0)

    run(story())


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_call_that_blocks_among_quick_ones_holds_up_none_of_them(before):
    gate = threading.Event()

    async def story(threads):
        for _ in range(3):  # from now on, quick calls are expected
            await asyncio.gather(*(threads.run(int, (), {}) for _ in range(10)))
        quick = [asyncio.ensure_future(threads.run(int, (number,), {})) for number in range(before)]
        blocked = asyncio.ensure_future(threads.run(gate.wait, (60,), {}))
        quick += [asyncio.ensure_future(threads.run(int, (number,), {})) for number in range(before, 10)]
        assert await asyncio.gather(*quick) == list(range(10))
        for number in range(10):
            assert await threads.run(int, (number,), {}) == number
        assert not blocked.done()
        gate.set()
        assert await blocked

    with_threads(2, story)
