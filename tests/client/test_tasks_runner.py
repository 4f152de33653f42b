"""Runs of tasks: what becomes of a job whose task returns, fails, takes too long, or is none."""

import asyncio
import contextlib
import datetime
import itertools
import json
import logging
import random
import sys
import threading
from contextvars import ContextVar

import beanstalk_client.tasks.runner as runner_module
import pytest
from beanstalk_client.consumer import DONE, Bury, Release
from beanstalk_client.errors import JobTooBigError, TooLateError
from beanstalk_client.tasks import GiveUp, Message, Middleware, Put, Retry, Run, Tasks, current_run
from beanstalk_client.tasks.failure import delay_of, tries_of
from beanstalk_client.tasks.results import TaskFailedError
from beanstalk_client.tasks.runner import TaskRunner
from beanstalk_client.tasks.threads import Threads
from consuming import run
from effort import seeded


class Delivery:
    """A job in hand, in its first try unless `found` says otherwise, which is what the server tells of it."""

    job_id, tube = 7, "default"

    def __init__(self, body, *, is_called_off=False, **found):
        self.body = body
        self.is_called_off = is_called_off
        self.found = {"tube": "default", "pri": 3, "reserves": 1, **found}

    async def stats(self):
        await asyncio.sleep(0)
        return self.found

    async def save(self, body):
        await asyncio.sleep(0)
        self.body = body


@contextlib.contextmanager
def threads_of(number):
    threads = Threads(number)
    yield threads
    threads.close()


def unlucky():
    raise RuntimeError("no such luck")


def events(caplog):
    return [record.event for record in caplog.records if hasattr(record, "event")]


def reports(queue, tube="default.errors"):
    return [json.loads(job.body) for job in queue.jobs(tube)]


def test_what_fails_is_tried_again_later_and_later_and_then_buried(tasks, queue, caplog):
    moments = []

    @tasks.task(retries=3, backoff=10)
    def bad(secret):
        moments.append(queue.now)
        raise RuntimeError("no such luck")

    job_id = bad.priority(9).put("very secret")
    assert queue.run(1000) == 4
    assert [round(after - before, 3) for before, after in itertools.pairwise(moments)] == [10, 20, 40]  # no jitter
    (job,) = queue.jobs("default")
    assert (job.id, job.state, job.priority) == (job_id, "buried", 9)
    assert [str(error) for error in queue.errors] == ["no such luck"] * 4
    assert events(caplog) == ["task-failed"] * 3 + ["task-buried"]
    assert [bool(record.exc_info) for record in caplog.records] == [False] * 3 + [True]  # the last has the traceback
    assert all("RuntimeError: no such luck" in record.getMessage() for record in caplog.records)
    last = caplog.records[-1]
    assert (last.job, last.tube, last.task, last.tries) == (job_id, "default", "bad", 4)
    assert "secret" not in "".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("tries", [1, 2])
def test_all_tries_have_one_if_that_is_asked_for(tries, caplog):
    tasks = Tasks()
    bad = tasks.task(name="bad", retries=1)(unlucky)
    with tasks.in_memory():
        run(TaskRunner(tasks, None, all_tracebacks=True)(Delivery(bad.body(), reserves=tries)))
    assert [bool(record.exc_info) for record in caplog.records] == [True]


def test_a_run_and_a_put_say_which_they_are_and_no_arguments():
    message = Message("send", ["secret"], {}, {})
    put = Put(message, "mail")
    assert "secret" not in repr(message)
    assert repr(put) == "<put of send into tube mail>"
    put.job_id = 17
    assert repr(put) == "<put of send into tube mail: job 17>"
    assert repr(Run(message, "mail", 17)) == "<run of send: job 17 of tube mail>"
    assert repr(Run(message, "", 17)) == "<run of send: job 17>"


def test_a_coroutine_that_runs_what_is_in_memory_is_told_how(tasks, queue):
    tasks.task(name="note")(print).put()

    async def test():
        with pytest.raises(RuntimeError, match=r"await queue\.arun\(\)"):
            queue.run()
        return await queue.arun()

    assert run(test()) == 1


@seeded(20)
def test_in_memory_seconds_in_parts_are_as_long_as_in_one_piece(tasks, seed):
    chance = random.Random(seed)
    note = tasks.task(name="note")(print)
    with tasks.in_memory(now=chance.uniform(1.5e9, 2.5e9)) as queue:
        note.delay(1).put()
        assert [queue.run(0.1) for _ in range(10)] == [0] * 9 + [1]


def test_why_a_job_is_buried_is_there_to_be_read(tasks, queue):
    bad = tasks.task(name="bad", retries=0)(unlucky)
    job_id = bad.put()
    queue.run()
    (report,) = reports(queue)
    assert (report["job"], report["tube"], report["task"], report["tries"]) == (job_id, "default", "bad", 1)
    assert report["error"] == "RuntimeError: no such luck"
    assert report["traceback"][0] == "Traceback (most recent call last):"
    assert __file__ in report["traceback"][1]  # it begins with the task, not with what has called it
    queue.client().kick(1)
    queue.run()
    assert len(reports(queue)) == 1  # one for each job


def test_a_kick_gives_all_tries_back(tasks, queue):
    bad = tasks.task(name="bad", retries=2, backoff=1)(unlucky)
    bad.put()
    for _ in range(3):
        assert queue.run(100) == 3
        assert queue.client().kick(1) == 1


def test_a_task_may_say_when_and_whether_it_is_tried_again(tasks, queue):
    runs = []

    @tasks.task(backoff=1000)
    def busy():
        runs.append(queue.now)
        if len(runs) < 3:
            raise Retry(delay=7)
        raise GiveUp("it will never do")

    @tasks.task(give_up_on=KeyError)
    def wrong():
        raise KeyError("x")

    busy.put()
    wrong.put()
    assert queue.run(100) == 4
    assert [after - before for before, after in itertools.pairwise(runs)] == [7, 7]
    assert {job.state for job in queue.jobs("default")} == {"buried"}
    assert sorted(report["error"] for report in reports(queue)) == [
        "KeyError: 'x'",
        "beanstalk_client.tasks.failure.GiveUp: it will never do",
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff", "the body cannot be read: UnicodeDecodeError: invalid start byte at byte 0"),
        (b"secret", "the body cannot be read: JSONDecodeError: Expecting value at character 0"),
        (b"[1]", 'the body is not a mapping with "task", "args" and "kwargs"'),
        (b"{}", 'the body is not a mapping with "task", "args" and "kwargs"'),
        (b'{"task": 1}', 'in the body, "task" must be a string, "args" a list, "kwargs" and "meta" mappings'),
        (b'{"task": "x", "args": {"a": 1}}', 'in the body, "task" must be a string'),
        (b'{"task": "x"}', "this worker has no task 'x'"),
    ],
)
def test_what_nobody_can_run_is_buried_at_once_with_the_reason(tasks, queue, body, why, caplog):
    queue.client("mail").put(body)
    queue.run(1000)
    assert [job.state for job in queue.jobs("mail")] == ["buried"]
    (report,) = reports(queue, "mail.errors")
    assert why in report["error"]
    assert events(caplog) == ["task-buried"]
    assert "secret" not in caplog.text


def outcome_of_unknown(**found):
    tasks = Tasks(errors=None)
    with tasks.in_memory():
        job = Delivery(b'{"task": "later"}', **({"age": 0, "delay": 0, "releases": 0} | found))
        return run(TaskRunner(tasks, None, 0.0, unknown_task_grace=300)(job))


def test_an_unknown_task_is_left_to_other_workers_until_the_grace_is_over(caplog):
    age, releases, waits = 0, 0, []
    delay = 0
    while isinstance(outcome := outcome_of_unknown(age=age, releases=releases, delay=delay), Release):
        assert outcome.priority == 3
        delay = outcome.delay
        waits.append(delay)
        age, releases = age + delay, releases + 1
    assert waits == [5, 10, 20, 40, 80, 145]
    assert isinstance(outcome, Bury)
    assert events(caplog) == ["task-unknown"] * 6 + ["task-buried"]


def test_the_grace_counts_from_when_a_job_was_first_due():
    assert outcome_of_unknown(age=900, delay=900).delay == 5
    assert outcome_of_unknown(age=910, delay=5, releases=1, reserves=2).delay == 10
    assert outcome_of_unknown(age=1000, **{"max-tries": 0, "tries": 0}).delay == 5  # it may have had a moment
    assert isinstance(outcome_of_unknown(age=300), Bury)
    assert isinstance(outcome_of_unknown(age=1200, delay=900), Bury)
    assert outcome_of_unknown(age=10, releases=20, reserves=21).delay == 290  # a job that has often been released


def test_the_attempts_that_a_server_allows_do_not_shorten_the_grace():
    assert outcome_of_unknown(**{"max-tries": 3, "tries": 0}).delay == 5
    assert outcome_of_unknown(age=5, releases=1, delay=5, **{"max-tries": 3, "tries": 1}).delay == 295
    last = outcome_of_unknown(age=300, releases=2, delay=295, **{"max-tries": 3, "tries": 2})
    assert (last.delay, last.priority) == (0, 3)  # the server buries it, or moves it to its dead tube


def test_arguments_that_do_not_fit_are_no_failure_that_is_tried_again(tasks, queue, caplog):
    @tasks.task(retries=3)
    def send(to, subject): ...

    @tasks.task(retries=1)
    async def bad(number):
        raise TypeError("inside")

    for args in (b"[]", b"[1,2,3]", b'[1],"kwargs":{"subjekt":2}'):
        queue.client().put(b'{"task":"send","args":%s}' % args)
    assert queue.run(1000) == 3
    assert [job.state for job in queue.jobs("default")] == ["buried"] * 3
    assert "task send: missing a required argument: 'to'" in reports(queue)[0]["error"]
    bad.put(1)
    assert queue.run(1000) == 2
    assert [str(error) for error in queue.errors[3:]] == ["inside"] * 2


def test_a_report_is_no_call(tasks, queue):
    """A worker that takes jobs from a tube of reports by mistake runs nothing again."""

    bad = tasks.task(name="bad", retries=0)(unlucky)
    bad.put()
    queue.run()
    (job,) = queue.jobs("default.errors")
    queue.client("mail").put(job.body)
    assert queue.run() == 1
    assert len(queue.errors) == 1
    assert "not a call" in reports(queue, "mail.errors")[0]["error"]


def test_a_long_report_fits_into_a_job(tasks, queue):
    """As JSON in ASCII, a character takes up to six bytes, and an end of a line eight."""

    @tasks.task(retries=0)
    def bad():
        raise RuntimeError("\u00e4" * 20_000 + "\n" * 20_000 + "the end")

    bad.put()
    queue.run()
    (job,) = queue.jobs("default.errors")
    assert 30_000 < len(job.body) < 65_535
    assert "the end" in reports(queue, "default.errors")[0]["traceback"][-1]


def test_the_name_of_an_unknown_task_cannot_fill_or_forge_the_log(tasks, queue, caplog):
    queue.client("mail").put(json.dumps({"task": "x\n2026 ERROR " + "y" * 60_000}).encode())
    queue.run()
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 1000
    assert len(queue.jobs("mail.errors")[0].body) < 65_535


def test_reports_can_be_left_out():
    tasks = Tasks(errors=None)
    with tasks.in_memory() as queue:
        queue.client().put(b"?")
        queue.run()
        assert [job.tube for job in queue.jobs()] == ["default"]


def test_a_task_that_exits_has_failed(tasks, queue):
    tasks.task(name="leave", retries=0)(sys.exit)
    tasks.get("leave").put(3)
    queue.run()
    assert [type(error) for error in queue.errors] == [SystemExit]


def test_a_coroutine_that_takes_too_long_is_cancelled(tasks, queue):
    ended = []

    @tasks.task(retries=0, timeout=0.01)
    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    @tasks.task(timeout=30)
    async def quick():
        ended.append("quick")

    slow.put()
    quick.put()
    queue.run()
    assert ended == ["cancelled", "quick"]
    assert reports(queue)[0]["error"].endswith("timed out after 0.01 s")
    assert not queue.jobs("default", "ready")


def test_a_coroutine_that_does_not_end_when_it_is_cancelled_is_given_up_and_goes_on(tasks, queue, monkeypatch):
    monkeypatch.setattr(runner_module, "CANCELLED_WITHIN", 0.01)
    gates, cancelled = [], []

    @tasks.task(retries=0, timeout=0.01)
    async def stubborn():
        gates.append(asyncio.Event())
        while not gates[0].is_set():
            try:
                await gates[0].wait()
            except asyncio.CancelledError:
                cancelled.append(1)
        cancelled.append("goes on")

    @tasks.task
    async def end():
        gates[0].set()
        await asyncio.sleep(0)

    stubborn.put()
    end.put()
    queue.run()
    assert reports(queue)[0]["error"].endswith("timed out after 0.01 s and was cancelled, but continues to run")
    assert cancelled == [1, "goes on"]


@pytest.mark.parametrize("timeout", [None, 30])
async def test_a_coroutine_that_the_worker_cancels_has_not_timed_out(tasks, timeout):
    """A signal to the worker is handled, also in a task with a timeout."""
    began = asyncio.Event()

    @tasks.task(timeout=timeout)
    async def slow():
        began.set()
        await asyncio.Event().wait()

    attempt = asyncio.ensure_future(TaskRunner(tasks, None)(Delivery(slow.body(), is_called_off=True)))
    await began.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt


async def cancels_what_it_awaits():
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


async def cancels_itself_and_fails():
    asyncio.current_task().cancel()
    raise ValueError("oh")


async def cancels_itself_and_swallows_it():
    asyncio.current_task().cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    raise ValueError("oh")


def raises(kind):
    async def coroutine():
        raise kind()

    return coroutine


def raises_plainly(kind):
    def function():
        raise kind()

    return function


KINDS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, BaseException)
MISBEHAVING = [
    cancels_what_it_awaits,
    cancels_itself,
    cancels_itself_and_fails,
    cancels_itself_and_swallows_it,
    *map(raises, KINDS),
    *map(raises_plainly, KINDS),
]


@pytest.mark.parametrize("result", [False, True])
@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize("function", MISBEHAVING)
def test_each_exception_of_a_task_is_a_failure_with_backoff_and_a_report(tasks, queue, function, timeout, result):
    task = tasks.task(name="bad", retries=2, backoff=10, timeout=timeout)(function)
    (task.result() if result else task).put()
    assert [queue.run(), queue.run(9), queue.run(1), queue.run(100)] == [1, 0, 1, 1]
    (report,) = reports(queue)
    assert report["tries"] == 3
    assert [job.state for job in queue.jobs("default")] == ["buried"]


def test_a_task_that_cancels_itself_and_returns_is_done_and_has_its_result(tasks, queue):
    @tasks.task
    async def returns():
        asyncio.current_task().cancel()
        return 7

    handle = returns.result().put()
    assert queue.run() == 1
    assert handle.get() == 7


@pytest.mark.parametrize("function", [function for kind in KINDS for function in (raises(kind), raises_plainly(kind))])
async def test_each_exception_is_a_failure_in_a_worker_with_threads(tasks, function):
    job = Delivery(tasks.task(name="bad", retries=2, backoff=10)(function).body())
    with threads_of(1) as threads:
        assert (await TaskRunner(tasks, threads)(job)).delay >= 10


async def test_a_test_that_is_cancelled_cancels_the_task_that_it_runs_in_memory(tasks, queue):
    ended = []

    @tasks.task
    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    waits.put()

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(queue.arun(), 0.05)
    assert ended == ["cancelled"] and not queue.errors


class Raising(Middleware):
    """Raises an exception in one place."""

    def __init__(self, place, error):
        self.place = place
        self.error = error

    def _fail_in(self, place):
        if self.place == place:
            raise self.error

    @contextlib.contextmanager
    def running(self, run):
        self._fail_in("enter")
        try:
            yield
        finally:
            self._fail_in("exit")

    @contextlib.contextmanager
    def putting(self, put):
        self._fail_in("put")
        yield
        self._fail_in("after put")

    def failed(self, run, failure):
        self._fail_in("failed")


ERRORS = (RuntimeError("of the hook"), asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt())


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", ["enter", "exit", "failed"])
def test_an_error_of_middleware_is_logged_and_changes_nothing(tasks, queue, caplog, place, error):
    inner = []

    class Inner(Middleware):
        @contextlib.contextmanager
        def running(self, run):
            try:
                yield
            except BaseException as error:
                inner.append(type(error))
                raise
            else:
                inner.append(None)

        def failed(self, run, failure):
            inner.append(failure.tries)

    tasks.middleware += [Raising(place, error), Inner(), Raising(place, error)]
    good = tasks.task(name="good")(lambda: 7).result().put()
    bad = tasks.task(name="bad", retries=1, backoff=10)(lambda: 1 / 0).result().put()
    assert queue.run(1000) == 3
    assert good.get() == 7
    with pytest.raises(TaskFailedError, match="ZeroDivisionError"):
        bad.get()
    assert [report["error"] for report in reports(queue)] == ["ZeroDivisionError: division by zero"]
    assert inner == [None, ZeroDivisionError, 1, ZeroDivisionError, 2]
    assert events(caplog).count("middleware-failed") == (4 if place == "failed" else 6)


@pytest.mark.parametrize("place", ["put", "after put"])
def test_an_error_of_middleware_prevents_no_put_and_makes_none_look_lost(tasks, queue, caplog, place):
    tasks.middleware.append(Raising(place, RuntimeError("of the hook")))
    note = tasks.task(name="note")(lambda: None)
    assert note.put() == 1
    assert asyncio.run(note.aput()) == 2
    assert events(caplog) == ["middleware-failed"] * 2


@pytest.mark.parametrize("place", ["enter", "exit"])
def test_middleware_may_ask_for_a_retry_or_give_up(tasks, queue, place):
    ran = []
    tasks.task(name="good")(lambda: ran.append(1)).put()
    tasks.middleware.append(Raising(place, Retry(delay=30)))
    assert queue.run() == 1
    tasks.middleware[:] = [Raising(place, GiveUp("closed"))]
    assert [queue.run(29), queue.run(1)] == [0, 1]
    assert reports(queue)[0]["error"].endswith("GiveUp: closed")
    assert ran == ([] if place == "enter" else [1, 1])


async def test_middleware_that_raises_exceptions_swallows_no_cancellation_of_the_worker(tasks):
    class Swallows(Middleware):
        def running(self, run):
            return contextlib.suppress(BaseException)

    tasks.middleware.append(Swallows())

    @tasks.task
    async def waits():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await TaskRunner(tasks, None)(Delivery(waits.body(), is_called_off=True))


def test_a_backoff_that_fails_is_replaced_by_the_usual_one(tasks, queue, caplog):
    bad = tasks.task(name="bad", retries=2, backoff=lambda failure: 1 / 0)(unlucky)
    bad.put()
    assert [queue.run(), queue.run(1.9), queue.run(0.1), queue.run(4)] == [1, 0, 1, 1]
    assert events(caplog) == ["backoff-failed", "task-failed"] * 2 + ["task-buried"]


def test_a_function_that_returns_a_generator_or_a_coroutine_has_not_run(tasks, queue):
    async def numbers():
        yield 1

    async def outer():
        return inner

    inner = asyncio.sleep(0)
    returning = {"wrapped": lambda: numbers(), "lazy": lambda: (number for number in range(3)), "outer": outer}
    for name, function in returning.items():
        tasks.task(name=name, retries=0)(function).put()
    queue.run()
    inner.close()
    assert [report["error"] for report in reports(queue)] == [
        f"TypeError: task {name} returned a coroutine or generator, whose code did not run" for name in returning
    ]


def test_lone_surrogates_of_an_error_are_escaped(tasks, queue, monkeypatch):
    told, worker_log = [], logging.getLogger("beanstalk_client.worker")
    monkeypatch.setattr(worker_log, "propagate", False)  # pytest would keep the traceback, and xdist cannot send it
    monkeypatch.setattr(worker_log, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(worker_log.handlers[0], "handle", lambda record: told.append(record.getMessage()))

    @tasks.task(retries=0)
    def bad():
        raise ValueError("file \udcff")

    handle = bad.result().put()
    queue.run()
    with pytest.raises(TaskFailedError) as caught:
        handle.get()
    (report,) = reports(queue)
    assert caught.value.error == report["error"] == "ValueError: file \\udcff"
    assert told
    for text in (caught.value.traceback, "".join(report["traceback"]), *told):
        text.encode()


def test_delays_and_priorities_are_checked_where_they_are_made():
    for bad in (1e12, -1, float("nan"), float("inf"), 2**32):
        for kind in (Release, Retry):
            with pytest.raises(ValueError, match="delay"):
                kind(bad)
    for kind in (lambda priority: Release(0, priority), Bury):
        for bad in (-1, 2**32):
            with pytest.raises(ValueError, match="priority"):
                kind(bad)
        with pytest.raises(TypeError, match="priority"):
            kind("high")


async def test_a_plain_function_that_takes_too_long_is_given_up_and_goes_on(tasks, caplog):
    release, ended = threading.Event(), []

    @tasks.task(timeout=0.01)
    def slow():
        release.wait(60)
        ended.append("slow")

    with threads_of(1) as threads:
        outcome = await TaskRunner(tasks, threads)(Delivery(slow.body()))
        assert 2 <= outcome.delay <= 2.2
        assert threads.overdue == 1
        assert threads.room() == 0 and not ended
        release.set()
        while threads.overdue:
            await asyncio.sleep(0.001)
        assert ended == ["slow"]
    assert events(caplog) == ["task-failed"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GiveUp, Retry])
def test_no_middleware_swallows_what_another_one_refuses_a_put_with(error):
    class Swallowing(Middleware):
        @contextlib.contextmanager
        def putting(self, put):
            with contextlib.suppress(BaseException):
                yield

    class Refusing(Middleware):
        def putting(self, put):
            raise error

    tasks = Tasks(middleware=[Swallowing(), Refusing()])
    with tasks.in_memory(), pytest.raises(error):
        tasks.task(name="x")(print).put()


def test_middleware_is_around_each_run_and_may_swallow(tasks, queue):
    told = []

    class Tell(Middleware):
        def __init__(self, name):
            self.name = name

        @contextlib.contextmanager
        def running(self, run):
            told.append((self.name, run.message.task, run.tube, run.job_id))
            try:
                yield
            except ZeroDivisionError:
                told.append((self.name, "swallowed"))

    tasks.middleware += [Tell("outer"), Tell("inner")]
    divide = tasks.task(name="divide")(lambda: 1 / 0)
    job_id = divide.put()
    queue.run()
    assert told == [
        ("outer", "divide", "default", job_id),
        ("inner", "divide", "default", job_id),
        ("inner", "swallowed"),
    ]
    assert not queue.jobs()


async def test_a_task_knows_its_run_and_has_its_context_in_threads_too(tasks):
    variable = ContextVar("variable")
    seen = []

    class Set(Middleware):
        @contextlib.contextmanager
        def running(self, run):
            token = variable.set(run.job_id)
            yield
            variable.reset(token)

    tasks.middleware.append(Set())

    @tasks.task
    def look(meaning):
        seen.append((variable.get(), current_run().job_id, current_run().message.args))

    with threads_of(2) as threads:
        assert await asyncio.ensure_future(TaskRunner(tasks, threads)(Delivery(look.body(42)))) is DONE
    assert seen == [(7, 7, [42])]
    with pytest.raises(LookupError):
        current_run()


async def test_middleware_is_around_calls_of_plain_functions_in_their_thread(tasks):
    seen = []

    class Look(Middleware):
        @contextlib.contextmanager
        def calling(self, run):
            seen.append(("begin", run.job_id, threading.get_ident()))
            yield
            seen.append(("end", run.job_id, threading.get_ident()))

    tasks.middleware += [Middleware(), Look()]

    @tasks.task
    def plain(meaning):
        seen.append((meaning, threading.get_ident()))

    @tasks.task
    async def coroutine(): ...

    with threads_of(2) as threads:
        assert await asyncio.ensure_future(TaskRunner(tasks, threads)(Delivery(plain.body(42)))) is DONE
        thread = seen[0][-1]
        assert thread != threading.get_ident()
        assert seen == [("begin", 7, thread), (42, thread), ("end", 7, thread)]
        assert await asyncio.ensure_future(TaskRunner(tasks, threads)(Delivery(coroutine.body()))) is DONE
    assert len(seen) == 3


def test_the_next_attempt_finds_what_was_saved_last(tasks, queue):
    found = []

    @tasks.task(retries=5, backoff=1)
    def send(pages):
        run = current_run()
        found.append(run.last_checkpoint)
        for number in range(run.last_checkpoint or 0, len(pages)):
            run.checkpoint(number + 1)
            assert run.last_checkpoint == number + 1
            if number in (0, 2):
                pages.clear()  # which is no change of the job
                raise RuntimeError("no such luck")

    job_id = send.key("k").put(["a", "b", "c", "d"])
    assert queue.run(0) == 1
    (job,) = queue.jobs("default")
    assert (job.id, job.message.args, job.message.checkpoint) == (job_id, [["a", "b", "c", "d"]], 1)
    assert queue.run(100) == 2
    assert found == [None, 1, 3]
    send.key("k").put([])
    assert queue.jobs("default")[0].message.checkpoint is None


def test_a_job_that_is_kicked_goes_on_and_one_that_is_replaced_begins_anew(tasks, queue):
    found = []

    @tasks.task
    def send():
        found.append(current_run().last_checkpoint)
        current_run().checkpoint({"page": len(found)})
        raise GiveUp("no such luck")

    job_id = send.key("k").put()
    queue.run()
    queue.client().kick_job(job_id)
    queue.run()
    assert send.key("k", replace=True).put() == job_id
    queue.run()
    assert found == [None, {"page": 1}, None]


def test_nothing_is_saved_of_what_runs_again(tasks, queue):
    found = []

    @tasks.task
    def send(number):
        found.append((number, current_run().last_checkpoint))
        if number == 1:
            send.key("k").again().put(2)
            with pytest.raises(TooLateError):
                current_run().checkpoint("half")
            assert current_run().last_checkpoint is None

    send.key("k").put(1)
    queue.run()
    assert found == [(1, None), (2, None)]


@pytest.mark.parametrize("runs_in", ["coroutine", "thread", "a loop of a thread's own"])
async def test_a_checkpoint_is_saved_in_the_event_loop_of_the_worker(tasks, runs_in):
    loops, refused = [], []

    async def story():
        run = current_run()
        try:
            run.checkpoint(1)
        except RuntimeError as error:
            refused.append(str(error))
        await run.acheckpoint([run.last_checkpoint])

    def plain():
        if runs_in != "thread":
            return asyncio.run(story())
        current_run().checkpoint([None])
        return None

    class Noting(Delivery):
        async def save(self, body):
            loops.append(asyncio.get_running_loop())
            await super().save(body)

    task = tasks.task(name="send")(story if runs_in == "coroutine" else plain)
    delivery = Noting(task.body())
    with threads_of(1) as threads:
        assert await asyncio.ensure_future(TaskRunner(tasks, threads)(delivery)) is DONE
    assert json.loads(delivery.body) == {"task": "send", "args": [], "kwargs": {}, "checkpoint": [None]}
    assert loops == [asyncio.get_running_loop()]
    assert ["await current_run().acheckpoint" in text for text in refused] == [True] * (runs_in != "thread")


def test_a_checkpoint_that_cannot_be_written_or_is_too_large_is_not_saved(tasks, queue):
    @tasks.task
    def send():
        current_run().checkpoint("half")
        with pytest.raises(TypeError, match="task send, checkpoint: object is not serializable"):
            current_run().checkpoint(object())
        with pytest.raises(JobTooBigError):
            current_run().checkpoint(65536 * "x")
        assert current_run().last_checkpoint == "half"
        raise GiveUp("no such luck")

    send.put()
    queue.run()
    assert [str(error) for error in queue.errors] == ["no such luck"]
    assert queue.jobs("default")[0].message.checkpoint == "half"


def test_backoff_doubles_up_to_a_day():
    assert [delay_of(2, failure, jitter=0) for failure in (1, 2, 3, 12)] == [2, 4, 8, 4096]
    assert delay_of(2, 100, jitter=0) == 86400
    assert delay_of(lambda failure: failure * 10, 3, jitter=0) == 30
    assert delay_of("1m", 2, jitter=0) == 120
    assert delay_of(lambda failure: datetime.timedelta(hours=failure), 3, jitter=0) == 3 * 3600
    assert Retry("1m").delay == Retry(datetime.timedelta(minutes=1)).delay == Release("1m").delay == 60
    assert len({delay_of(2, 1) for _ in range(20)}) > 1


COUNTED = {"reserves": 14, "buries": 1, "kicks": 1, "max-tries": 13}


@pytest.mark.parametrize(
    ("found", "tries"),
    [
        ({"reserves": 5, "buries": 0, "kicks": 0}, 5),
        ({"reserves": 14, "buries": 1, "kicks": 1}, 1),
        ({"reserves": 2, "buries": 1, "kicks": 1}, 1),
        ({"reserves": 5, "buries": 0, "kicks": 3}, 5),  # a kick of a delayed job gives no tries back
        *((COUNTED | {"tries": tries}, tries + 1) for tries in (0, 3, 12)),
        ({"reserves": 9, "buries": 0, "tries": 2, "max-tries": 0}, 3),  # the job has a backoff alone
        ({"reserves": 9, "buries": 0, "tries": 0, "max-tries": 0}, 9),  # and here a ttl
    ],
)
def test_tries_are_counted_from_the_last_kick_on_or_by_the_server(found, tries):
    assert tries_of(found, retries=12) == tries


def test_what_the_server_gives_up_is_reported_and_released_so_that_it_goes_where_the_server_says(tasks, queue, caplog):
    bad = tasks.task(name="bad", retries=12)(unlucky)

    def attempt(tries):
        return run(TaskRunner(tasks, None)(Delivery(bad.body(), pri=9, buries=0, tries=tries, **{"max-tries": 3})))

    outcome = attempt(1)
    assert isinstance(outcome, Release) and outcome.delay >= 2
    assert "failed, try 2 of 3; retrying" in caplog.text
    outcome = attempt(2)
    assert (type(outcome), outcome.delay, outcome.priority) == (Release, 0, 9)
    assert events(caplog) == ["task-failed", "task-buried"]
    (report,) = reports(queue)
    assert (report["job"], report["tries"], report["error"]) == (7, 3, "RuntimeError: no such luck")


class NotesFailError(Exception):
    @property
    def __notes__(self):
        raise RuntimeError("no notes")


class ClassFailsError(Exception):
    @property
    def __class__(self):
        raise RuntimeError("no class")


class TracebackFailsError(Exception):
    def with_traceback(self, trace):
        raise RuntimeError("no traceback")


class OddRetryError(Retry):
    delay = "soon"


HOSTILE = {
    "notes": NotesFailError,
    "class": ClassFailsError,
    "traceback": TracebackFailsError,
    "syntax": lambda: SyntaxError("x", ("f", "no", "y", "z")),
    "retry": OddRetryError,
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_an_exception_whose_methods_fail_is_a_failure_as_well(what, kind):
    tasks = Tasks(errors=None)
    fail = (raises if kind == "coroutine" else raises_plainly)(HOSTILE[what])
    job = Delivery(tasks.task(name="fail", retries=0)(fail).body())
    with threads_of(1) as threads:
        assert isinstance(await TaskRunner(tasks, threads)(job), Bury)
        assert threads.room() == 1


def test_a_task_that_is_cancelled_by_itself_after_its_end_has_its_own_outcome(tasks):
    @tasks.task(retries=3, backoff=5)
    async def late():
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        raise ValueError("x")

    outcome = run(TaskRunner(tasks, None, 0.0)(Delivery(late.body(), pri=9)))
    assert (outcome.delay, outcome.priority) == (5, 9)


def test_a_result_whose_methods_fail_is_no_result(tasks, queue):
    class Odd(dict):
        def items(self):
            raise SystemExit(3)

    @tasks.task
    def odd():
        return Odd(a=1)

    handle = odd.result().put()
    queue.run()
    with pytest.raises(TaskFailedError, match="the result cannot be serialized: SystemExit: 3"):
        handle.get()


def test_a_handler_of_the_log_that_fails_decides_nothing(tasks, queue, capsys, monkeypatch):
    def fail(record):
        raise RuntimeError("the disk is full")

    handler = logging.NullHandler()
    monkeypatch.setattr(handler, "handle", fail)
    monkeypatch.setattr(logging.getLogger("beanstalk_client.worker"), "handlers", [handler])

    @tasks.task(retries=1, backoff=1)
    def bad():
        raise ValueError("x")

    bad.put()
    assert queue.run(10) == 2
    assert [report["error"] for report in reports(queue)] == ["ValueError: x"]
    assert "buried after 2 tries: ValueError: x (logging failed: RuntimeError)" in capsys.readouterr().err
