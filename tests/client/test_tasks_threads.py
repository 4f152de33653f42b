"""The threads of plain functions: this many at a time, nothing lost, and one wake-up for many results."""

import asyncio
import contextlib
import threading

import pytest
from beanstalk_client.tasks import threads as threads_module
from beanstalk_client.tasks.failure import RunTimeoutError
from beanstalk_client.tasks.threads import Threads


@contextlib.asynccontextmanager
async def threads_of(number, **options):
    threads = Threads(number, **options)
    try:
        yield threads
    finally:
        threads.close()


async def test_each_call_has_its_own_result():
    async with threads_of(4) as threads:
        results = await asyncio.gather(*(threads.run(pow, (number, 2), {}) for number in range(1000)))
        assert results == [number**2 for number in range(1000)]


async def test_exceptions_come_back():
    def fail(kind):
        raise kind("oh")

    async with threads_of(1) as threads:
        for kind, seen in (
            (ValueError, ValueError),
            (StopIteration, RuntimeError),
            (GeneratorExit, RuntimeError),
            (KeyboardInterrupt, KeyboardInterrupt),
            (asyncio.CancelledError, asyncio.CancelledError),
            (SystemExit, SystemExit),
        ):
            with pytest.raises(seen):
                await threads.run(fail, (kind,), {})


async def test_as_many_run_at_a_time_as_there_are_threads():
    barrier = threading.Barrier(3)

    async with threads_of(3) as threads:
        places = await asyncio.gather(*(threads.run(barrier.wait, (20,), {}) for _ in range(9)))
        assert sorted(places) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


async def test_no_more_run_at_a_time_than_there_are_threads():
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

    async with threads_of(2) as threads:
        await asyncio.gather(*(threads.run(work, (), {}) for _ in range(50)))
        assert most == 2


async def test_a_call_that_is_cancelled_before_it_begins_never_does():
    began = []
    gate = threading.Event()

    async with threads_of(1) as threads:
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


async def test_a_call_that_ends_when_it_is_cancelled_is_not_overdue():
    async with threads_of(1) as threads:
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


async def test_threads_in_a_row_and_after_rests_lose_no_call():
    async with threads_of(3) as threads:
        for number in range(300):
            assert await threads.run(int, (number,), {}) == number
            if number % 50 == 0:
                await asyncio.sleep(0.002)


async def test_the_clock_of_a_call_starts_when_a_thread_begins_it():
    gate, began = threading.Event(), []

    async with threads_of(1) as threads:
        first = asyncio.ensure_future(threads.run(gate.wait, (60,), {}))
        second = asyncio.ensure_future(threads.run(began.append, (2,), {}, 0.01))
        await asyncio.sleep(0.05)  # several times its timeout
        assert not second.done() and threads.room() == -1
        gate.set()
        await asyncio.gather(first, second)
        assert began == [2] and threads.overdue == 0 and threads.room() == 1


async def test_calls_that_wait_for_threads_that_hang_get_new_ones(monkeypatch):
    monkeypatch.setattr(threads_module, "PATIENCE", 0.01)
    gate, hung = threading.Event(), []

    async with threads_of(2, on_hang=lambda: hung.append(1)) as threads:
        hanging = [asyncio.ensure_future(threads.run(gate.wait, (60,), {}, 0.01)) for _ in range(5)]
        waits = asyncio.ensure_future(threads.run(int, (1,), {}, 0.01))
        results = await asyncio.gather(*hanging, return_exceptions=True)
        assert [type(result) for result in results] == [RunTimeoutError] * 5
        assert await waits == 1  # by the third pair of threads
        assert await threads.run(int, (2,), {}) == 2
        assert hung == [1] and threads.overdue == 5
        gate.set()


async def test_threads_that_come_back_in_time_do_not_hang(monkeypatch):
    monkeypatch.setattr(threads_module, "PATIENCE", 60)
    gate, hung, room = threading.Event(), [], []

    async with threads_of(1, on_hang=lambda: hung.append(1), on_room=lambda: room.append(1)) as threads:
        with pytest.raises(RunTimeoutError):
            await threads.run(gate.wait, (60,), {}, 0.01)
        waits = asyncio.ensure_future(threads.run(int, (3,), {}, 0.01))
        gate.set()
        assert await waits == 3
        assert not hung and room and threads.overdue == 0


async def test_there_is_a_thread():
    with pytest.raises(ValueError, match="threads is 0"):
        Threads(0)
