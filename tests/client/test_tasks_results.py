"""Results of tasks: in memory, where the clock is the test's, and at servers with a worker."""

import asyncio

import pytest
from beanstalk_client import Job
from beanstalk_client.errors import DrainingError, UnsupportedError
from beanstalk_client.tasks import (
    GiveUp,
    Middleware,
    Progress,
    Result,
    ResultGoneError,
    TaskFailedError,
    Tasks,
    current_run,
)
from beanstalk_client.tasks.steps import run_steps
from consuming import SERVERS, running
from working import WorkerProcess

from harness.servers import BEANSTALKD

tasks = Tasks("127.0.0.1:1", tube="shop")
seen = []


@tasks.task(retries=1, backoff=10)
def total(number):
    if number == 13:
        raise ValueError("13 has no total")
    if number == 0:
        raise GiveUp("nothing to add")
    return number * 3


@tasks.task
async def waited(number):
    run = current_run()
    await run.aprogress(0.25, "begun")
    seen.append((await handles[0].astate(), await handles[0].aprogress()))
    return [number]


@tasks.task
def stepped():
    current_run().progress(0.5, "half")
    seen.append((handles[0].state, handles[0].progress))
    return object()


handles = []


@pytest.fixture
def queue():
    seen.clear()
    handles.clear()
    with tasks.in_memory() as queue:
        yield queue


def test_a_result_is_there_after_the_run_and_until_its_ttl_is_over(queue):
    handle = total.result(ttl="1h").put(17)
    assert handle.state == "pending"
    with pytest.raises(TimeoutError, match="job 1 of tube shop has no result yet: it is pending"):
        handle.get(timeout=0)
    queue.run()
    assert (handle.state, handle.get(timeout=0), handle.get()) == ("done", 51, 51)
    again = tasks.result_of(handle.tube, handle.job_id)
    assert again.get() == 51
    queue.advance(3599)
    assert handle.state == "done"
    queue.advance(1)
    assert handle.state == "gone"
    with pytest.raises(ResultGoneError, match="job 1 of tube shop is gone"):
        handle.get()


def test_a_call_without_result_leaves_none_and_its_progress_goes_nowhere(queue):
    handles.append(Result(tasks, "shop", 1))
    assert stepped.put() == 1
    queue.run()
    assert seen == [("running", None)]
    assert queue.jobs() == []
    with pytest.raises(ResultGoneError):
        tasks.result_of("shop", 1).get()


def test_nobody_runs_a_result(queue):
    total.result().put(1)
    assert queue.run("59m") == 1


def test_a_failure_is_a_result_after_the_last_try_only(queue):
    handle = total.result().put(13)
    queue.run()
    assert handle.state == "pending"
    queue.run(10)
    assert handle.state == "failed"
    with pytest.raises(TaskFailedError, match="ValueError: 13 has no total") as caught:
        handle.get()
    assert caught.value.error == "ValueError: 13 has no total"
    assert "in total" in caught.value.traceback
    (buried,) = queue.jobs("shop")
    queue.client("shop").kick(1)
    assert buried.state == "ready"


def test_a_job_that_the_server_has_buried_has_failed(queue):
    handle = total.result().put(1)
    client = queue.client("shop")
    client.bury(client.reserve())
    with pytest.raises(TaskFailedError, match="the server buried the job"):
        handle.get()


def test_a_cancelled_call_is_gone(queue):
    handle = total.key("k").delay(60).result().put(1)
    assert total.cancel("k")
    assert handle.state == "gone"


def test_progress_is_told_by_coroutines_and_by_plain_functions(queue):
    handles.append(waited.result().put(4))
    queue.run()
    handles[:] = [stepped.result().put()]
    queue.run()
    assert seen == [("running", Progress(0.25, "begun")), ("running", Progress(0.5, "half"))]
    with pytest.raises(TaskFailedError, match="the result cannot be serialized: TypeError: object is not serializable"):
        handles[0].get()


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_progress_is_a_fraction(queue, fraction):
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        current_run_of(queue).progress(fraction)


def current_run_of(queue):
    runs = []

    @Tasks("127.0.0.1:1").task
    def noted():
        runs.append(current_run())

    with noted.tasks.in_memory() as memory:
        noted.put()
        memory.run()
    return runs[0]


def test_a_result_that_is_too_large_is_a_failure(queue):
    big = Tasks("127.0.0.1:1", tube="big")

    @big.task
    def spread():
        return "x" * 70_000

    with big.in_memory() as memory:
        handle = spread.result().put()
        assert memory.run() == 1
        with pytest.raises(TaskFailedError, match="the result has 700"):
            handle.get()


def test_a_middleware_that_swallows_makes_the_result_none(queue):
    import contextlib

    class Swallow(Middleware):
        @contextlib.contextmanager
        def running(self, run):
            with contextlib.suppress(ValueError):
                yield

    other = Tasks("127.0.0.1:1", tube="quiet", middleware=[Swallow()])
    other_total = other.task(total.function)
    with other.in_memory() as memory:
        handle = other_total.result().put(13)
        memory.run()
        assert handle.get() is None


def test_await_waits_for_the_result(queue):
    async def story():
        handle = await total.result().aput(2)
        waiting = asyncio.ensure_future(handle.aget(timeout=30))
        await asyncio.sleep(0)
        await queue.arun()
        return await waiting, await handle, await handle.astate()

    assert asyncio.run(story()) == (6, 6, "done")


PROGRAM = """
import time
from beanstalk_client.tasks import Tasks, current_run
tasks = Tasks("{address}", tube="shop")

@tasks.task(retries=0)
def total(number):
    current_run().progress(0.5, "half")
    if number == 13:
        raise ValueError("13 has no total")
    return number * 3

@tasks.task
async def wrong():
    try:
        current_run().progress(0.5)
    except RuntimeError as error:
        await current_run().aprogress(1)
        return str(error)
"""


class Asked:
    """Tasks whose server answers these questions, one after the other."""

    serializer = tasks.serializer

    def __init__(self, *answers):
        self.answers = list(answers)

    def _do(self, tube, steps):
        return run_steps(steps, lambda: self)

    def peek_keyed(self, key):
        return Job(1, self.serializer.write(self.answers.pop(0)))

    def stats_job(self, job_id):
        return self.answers.pop(0)


def test_a_failure_that_is_put_between_two_questions_is_found():
    told = {"state": "failed", "error": "ValueError: 13 has no total", "traceback": []}
    handle = Result(Asked({"state": "running", "progress": 0.5}, {"state": "buried", "tube": "shop"}, told), "shop", 1)
    with pytest.raises(TaskFailedError, match="13 has no total"):
        handle.get()


@pytest.mark.sockets
def test_a_worker_puts_results_and_two_kinds_of_clients_get_them(tmp_path):
    with running(SERVERS[0]) as server:
        host, port = server.address
        source = PROGRAM.format(address=f"{host}:{port}")
        worker = WorkerProcess(server, tmp_path, program=source)
        space = {}
        exec(source, space)
        try:
            handle = space["total"].result(ttl=60).put(17)
            assert handle.get(timeout=60) == 51

            async def story():
                try:
                    await told_by_coroutines()
                finally:
                    await space["tasks"].aclose()

            async def told_by_coroutines():
                failed = await space["total"].result().aput(13)
                with pytest.raises(TaskFailedError, match="13 has no total"):
                    await failed
                told = await space["wrong"].result().aput()
                assert "await current_run().aprogress" in await told.aget(timeout=60)
                with pytest.raises(TimeoutError):
                    await (await space["total"].delay(60).result().aput(1)).aget(timeout=0.05)

            asyncio.run(story())
            assert worker.stop() == 0
        finally:
            space["tasks"].close()
            worker.close()


@pytest.mark.sockets
def test_at_beanstalkd_a_result_is_refused_and_nothing_is_put():
    with running(BEANSTALKD) as server:
        tasks = Tasks(server.address)
        total = tasks.task(name="total")(lambda: 1)
        with pytest.raises(UnsupportedError, match="results need jobs with keys"):
            total.result().put()
        client = tasks.connect()
        assert client.stats()["total-jobs"] == 0
        client.close()
        tasks.close()


def test_a_failed_call_that_is_kicked_is_tried_again(queue):
    handle = total.result().put(0)
    queue.run()
    assert handle.state == "failed"
    queue.client("shop").kick(1)
    assert handle.state == "pending"
    queue.run()
    assert handle.state == "failed"


def test_a_replaced_call_does_not_have_the_failure_of_the_one_before(queue):
    before = total.key("sum").result().put(0)
    queue.run()
    with pytest.raises(TaskFailedError, match="nothing to add"):
        before.get()
    handle = total.key("sum", replace=True).result().put(5)
    with pytest.raises(TimeoutError):
        handle.get(timeout=0)
    queue.run()
    assert handle.get() == 15


def test_what_a_run_says_that_was_given_up_replaces_no_result(queue):
    runs = []

    @tasks.task(name="given-up")
    def given_up():
        runs.append(current_run())
        return 1

    handle = given_up.result().put()
    queue.run()
    runs[0].progress(0.5, "still at work")
    assert handle.get() == 1
    asyncio.run(runs[0].aprogress(0.5, "still at work"))
    assert handle.get() == 1


@pytest.mark.parametrize("ttl", [-5, float("nan"), float("inf"), 2**32, "1h", None])
def test_a_ttl_that_cannot_be_asks_for_no_result(queue, ttl):
    body = tasks.serializer.write({"task": total.name, "args": [1], "meta": {"result": ttl}})
    queue.client("shop").put(body)
    assert queue.run() == 1
    assert queue.jobs() == []


def test_of_a_failure_that_is_too_large_the_error_is_kept(queue):
    @tasks.task(name="wide", retries=0)
    def wide():
        raise ValueError("\U0001f600" * 20_000)

    handle = wide.result().put()
    queue.run()
    with pytest.raises(TaskFailedError, match="ValueError: \U0001f600"):
        handle.get()


@pytest.mark.parametrize("tube", ["shop", "t" * 195])
def test_a_result_that_cannot_be_put_is_lost_and_its_task_runs_once(tube, monkeypatch):
    other = Tasks("127.0.0.1:1", tube=tube)
    runs = []

    @other.task
    def once():
        runs.append(1)

    async def refuse(*_, **__):
        raise DrainingError

    with other.in_memory() as memory:
        once.result().put()
        if tube == "shop":
            monkeypatch.setattr("beanstalk_client.tasks.results._put", refuse)
        memory.run("1h")
    assert runs == [1]


def test_a_task_that_waits_for_its_own_tube_is_warned_of_once(queue, caplog):
    mine = Tasks("127.0.0.1:1", tube="shop")
    add = mine.task(name="add")(sum)
    other = mine.task(name="other", tube="else")(sum)

    async def waits(count):
        for _ in range(count):
            for task in (add, other):
                with pytest.raises(TimeoutError):
                    await (await task.result().aput([1])).aget(timeout=0.001)

    mine.task(waits)
    with mine.in_memory() as own:
        waits_task = mine.get("waits")
        waits_task.put(2)
        waits_task.put(1)
        own.run()
    warned = [record.getMessage() for record in caplog.records if record.event == "waits-for-own-tube"]
    assert warned == [
        "task waits waits for a result of its own tube shop: workers deadlock if such tasks fill all their slots or "
        "threads; use a different tube for the task that it waits for"
    ]


def test_a_plain_task_in_memory_cannot_wait_for_a_job_that_runs_after_it():
    mine = Tasks("127.0.0.1:1", tube="shop")
    add = mine.task(name="add")(sum)
    found = []

    @mine.task
    def waits():
        with pytest.raises(RuntimeError, match="cannot run before this call returns"):
            add.result().put([1]).get()
        found.append(True)

    with mine.in_memory() as own:
        waits.put()
        own.run()
    assert found == [True]
