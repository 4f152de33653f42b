"""Calls of tasks: what is put, when it is due, and how it is called off; in memory, and at real servers."""

import asyncio
import contextlib
import datetime
import functools
import inspect
import json
import math
import os
import subprocess
import sys
import threading

import beanstalk_client.memory
import pytest
from beanstalk_client import AsyncClient, Client, ExistsError, TooLateError, UnknownCommandError, UnsupportedError
from beanstalk_client.core import ClientCore, ClientOptions
from beanstalk_client.tasks import JSON, Middleware, Serializer, Tasks
from consuming import new_tube, run, running

from harness.servers import BEANSTALKD, ROOT
from harness.waiting import eventually


@contextlib.contextmanager
def tasks_at(server):
    tasks = Tasks(server.address, tube=new_tube())
    yield tasks
    tasks.close()


def test_where_the_server_is_can_be_said_whatever_may_be_sent_there():
    tasks = Tasks("beanstalk://:secret@queue.example:1", insecure_token=True)
    assert tasks.where == "queue.example:1"


def test_an_option_that_no_client_has_is_refused_at_once():
    with pytest.raises(
        TypeError, match=r"^unknown option tokn of Tasks; the options of clients are connect_timeout, .*, token,"
    ):
        Tasks(tokn="secret")
    keywords = inspect.signature(ClientCore).parameters.keys()
    assert set(ClientOptions.__annotations__) == keywords - {"addresses", "encoding"}


def test_a_task_is_still_the_function(tasks):
    @tasks.task
    def add(first, second=1):
        """Add two numbers."""
        return first + second

    assert add(1, second=2) == 3
    assert (add.__name__, add.__doc__, add.name) == ("add", "Add two numbers.", "add")
    assert not add.is_async


def test_a_put_call_is_made_by_whoever_runs_it(tasks, queue):
    called = []

    @tasks.task
    def note(*args, **kwargs):
        called.append((args, kwargs))

    assert note.put("a", [1, {"b": None}], c="ü") == 1
    assert not called
    assert queue.run() == 1
    assert called == [(("a", [1, {"b": None}]), {"c": "ü"})]
    assert not queue.jobs()


def test_the_body_is_json_that_anybody_can_write(tasks, queue):
    called = []
    tasks.task(name="note")(called.append)
    assert tasks.get("note").body("é") == '{"task":"note","args":["é"],"kwargs":{}}'.encode()
    queue.client("default").put(b'{"task": "note", "args": [1]}')
    queue.client("default").put(
        json.dumps({"task": "note", "args": [2], "kwargs": None, "meta": {}, "more": 1}).encode()
    )
    assert queue.run() == 2
    assert called == [1, 2]


def test_a_call_that_the_function_does_not_take_is_not_put(tasks, queue):
    @tasks.task
    def note(what, *, how=""): ...

    for args, kwargs, complaint in [
        ((), {}, "missing a required argument: 'what'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"who": 2}, "got an unexpected keyword argument 'who'"),
    ]:
        for call in (note.put, note.delay(5).put, note.body, lambda *a, **k: run(note.aput(*a, **k))):
            with pytest.raises(TypeError, match=f"^task note: {complaint}$"):
                call(*args, **kwargs)
    with pytest.raises(TypeError, match="task note: missing"):
        tasks.every(minutes=5)(note)
    assert not queue.jobs()


def test_what_a_decorator_gives_is_not_asked_of_who_puts(tasks, queue):
    called = []

    def connected(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function("connection", *args, **kwargs)

        return call

    @tasks.task
    @connected
    def note(connection, what):
        called.append((connection, what))

    note.put(1)
    tasks.task(name="builtin")(min).put(1, 2)  # of which Python knows no signature
    assert queue.run() == 2
    assert called == [("connection", 1)]


def test_what_cannot_be_written_is_not_put_and_named(tasks, queue):
    @tasks.task
    def note(what, *more, how=""): ...

    for args, kwargs, argument, kind in [
        ((object(),), {}, "what", TypeError),
        ((1, 2, object()), {}, "3", TypeError),
        ((1, {2: [{3}]}), {}, "more", TypeError),
        ((1,), {"how": object()}, "how", TypeError),
        (("\ud800",), {}, "what", ValueError),
    ]:
        for call in (note.put, note.delay(5).put, note.body):
            with pytest.raises(kind, match=rf"^task note, argument {argument}: .*(serializable|surrogates)"):
                call(*args, **kwargs)
    tasks.middleware.append(Stamp())
    with pytest.raises(TypeError, match=r"^task note: .*not serializable"):
        note.put(1)
    assert not queue.jobs()


class Stamp(Middleware):
    """Adds what JSON cannot write."""

    @contextlib.contextmanager
    def putting(self, put):
        put.message.meta["stamp"] = object()
        yield


def test_a_serializer_is_two_functions():
    tasks = Tasks(serializer=Serializer(lambda content: JSON.write(content)[::-1], lambda body: JSON.read(body[::-1])))
    called = []
    tasks.task(name="note")(called.append)
    with tasks.in_memory() as queue:
        tasks.get("note").put("x")
        assert queue.jobs()[0].body.startswith(b"}")
        queue.run()
    assert called == ["x"]


def test_a_delayed_call_is_made_at_its_moment(tasks, queue):
    moments = []

    @tasks.task
    def note():
        moments.append(queue.now)

    began = queue.now
    note.delay(900).put()
    note.at(began + 100).put()
    note.at(datetime.datetime.fromtimestamp(began + 200, datetime.UTC)).put()
    note.at(began - 100).put()
    assert queue.run(1000) == 4
    assert [round(moment - began, 3) for moment in moments] == [0, 100, 200, 900]


def test_a_moment_has_a_time_zone(tasks):
    note = tasks.task(name="note")(print)
    with pytest.raises(ValueError, match="has no time zone"):
        note.at(datetime.datetime(2027, 1, 1))
    with pytest.raises(ValueError, match="delay is -1"):
        note.delay(-1)


def test_durations_may_be_texts_and_timedeltas(tasks, queue):
    note = tasks.task(name="note", backoff="1m", timeout=datetime.timedelta(minutes=2), ttr="90s")(print)
    assert (note.backoff, note.timeout, note.default_ttr) == (60, 120, 90)
    note.key("a", hold="1h").delay("15m").ttl(datetime.timedelta(days=1)).ttr("2m").put()
    (job,) = queue.jobs()
    assert (job.due - queue.now, job.hold, job.ttl, job.ttr) == (900, 3600, 86400, 120)
    queue.advance("14m")
    assert queue.run("59s") == 0
    assert queue.run(datetime.timedelta(seconds=1)) == 1
    with pytest.raises(ValueError, match="delay is 'soon': must be seconds, a timedelta, or a number with a unit"):
        note.delay("soon")
    with pytest.raises(ValueError, match="ttl is -1: must be from 0 to 4294967295"):
        note.ttl(-1)


def test_a_call_is_off_or_it_is_too_late(tasks, queue):
    note = tasks.task(name="note")(print)
    job_id = note.key("order-17").delay(900).put()
    assert note.cancel("order-17") is True
    assert note.cancel("order-17") is False  # there is none any more
    assert note.cancel(job_id) is False
    job_id = note.delay(900).put()
    assert note.cancel(job_id) is True
    note.key("order-17").put()
    assert note.cancel("order-17") is False  # it is ready
    assert queue.run(1000) == 1


def test_a_key_is_one_jobs(tasks, queue):
    called = []
    note = tasks.task(name="note")(called.append)
    job_id = note.key("a").delay(10).put(1)
    with pytest.raises(ExistsError) as error:
        note.key("a").put(2)
    assert error.value.id == job_id
    assert note.key("a", replace=True).delay(20).put(3) == job_id
    note.key("b", hold=100).put(4)
    queue.run(30)
    assert called == [4, 3]
    with pytest.raises(ExistsError):
        note.key("b").put(5)
    with pytest.raises(TooLateError):
        note.key("b", replace=True).put(5)
    queue.advance(100)
    note.key("b").put(6)


def test_a_call_that_is_put_while_it_runs_runs_again_with_the_latest_arguments(tasks, queue):
    called = []

    @tasks.task
    def index(version):
        called.append(version)
        if version == 1:
            again = [index.again().key("page").put(version) for version in (2, 3)]
            assert again == [job_id, job_id]
            with pytest.raises(TooLateError):
                index.key("page", replace=True).put(4)
            raise RuntimeError("no such luck")  # which is no failure of the version that runs again

    job_id = index.key("page").again().put(1)
    assert queue.run() == 2
    assert called == [1, 3]
    assert not queue.jobs()


def test_each_put_that_may_replace_another_one_has_a_body_of_its_own(tasks, queue):
    """A worker that has lost its connection finds out by it that its job was replaced."""
    note = tasks.task(name="note")(print)
    bodies = set()
    for call in (note.key("a", replace=True), note.key("a").again()) * 2:
        call.put()
        bodies.add(queue.jobs()[0].body)
    assert len(bodies) == 4
    note.key("b").put()
    assert queue.jobs()[1].body == note.body()


def test_a_call_is_postponed_for_as_long_as_it_says_at_most(tasks, queue):
    called = []
    index = tasks.task(name="index")(lambda version: called.append((version, queue.now)))
    began = queue.now
    for version in range(30):
        index.key("page", replace=True).delay(5).within("1m").put(version)
        queue.run(4)
    assert called == [(14, began + 60), (29, began + 60 + 60)]


def test_again_and_within_are_about_a_key(tasks, queue):
    note = tasks.task(name="note")(print)
    with pytest.raises(ValueError, match="again requires a key"):
        note.again().put()
    with pytest.raises(ValueError, match="within requires replace"):
        note.key("a").within(5).put()
    with pytest.raises(ValueError, match="within is -1: must be from 0"):
        note.within(-1)
    assert not queue.jobs()


def test_a_job_that_waits_gets_another_priority_or_it_is_too_late(tasks, queue):
    note = tasks.task(name="note")(print)
    job_id = note.key("order-17").put()
    assert note.reprioritize("order-17", 3) is True
    assert note.reprioritize(job_id, 4) is True
    assert queue.jobs()[0].priority == 4
    assert note.reprioritize("order-18", 3) is False
    queue.client().reserve()
    assert note.reprioritize(job_id, 5) is False


def test_a_call_can_be_kept_and_put_often(tasks, queue):
    called = []
    note = tasks.task(name="note")(called.append)
    urgent = note.priority(1)
    late = urgent.delay(5)
    note.put("usual")
    urgent.put("urgent")
    late.put("late")
    assert [(job.priority, job.state) for job in queue.jobs()] == [(65536, "ready"), (1, "ready"), (1, "delayed")]
    queue.run(10)
    assert called == ["urgent", "usual", "late"]


def test_a_call_that_is_never_put_warns(tasks, queue):
    @tasks.task
    def cancel_order(number): ...

    begin = "^a call of task cancel_order with "
    with pytest.warns(RuntimeWarning, match=rf"{begin}delay was never put: .*; delay takes only a duration") as told:
        cancel_order.delay(17)  # as in Celery
    assert told[0].filename == __file__
    with pytest.warns(RuntimeWarning, match=f"{begin}delay, key was never put"):
        cancel_order.key("order-17").delay("15m")
    with pytest.warns(RuntimeWarning, match=f"{begin}delay was never put"):
        cancel_order.delay(0)
    with pytest.raises(ValueError, match="ttl is -1"):
        cancel_order.delay(5).ttl(-1)
    kept = cancel_order.priority(3)
    kept.put(1)
    del kept
    run(cancel_order.key("a").delay(5).aput(1))
    assert cancel_order.cancel("a") is True
    assert run(cancel_order.acancel("a")) is False
    assert len(queue.jobs()) == 1


def test_a_call_that_a_program_keeps_to_its_end_does_not_warn(tmp_path):
    (tmp_path / "shop.py").write_text(
        "from beanstalk_client import Tasks\ntasks = Tasks()\n@tasks.task\ndef note(): ...\nurgent = note.priority(1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    program = "from shop import note, urgent; kept = note.key('a'); import shop; cycle = [kept]; cycle.append(cycle)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("address", ["redis://localhost", "127.0.0.1:x", None])
def test_an_address_that_is_none_is_refused_before_anything_is_put(address):
    with pytest.raises((TypeError, ValueError), match="must b"):
        Tasks(address)


def test_two_tasks_have_two_names(tasks):
    @tasks.task
    def note(): ...

    with pytest.raises(ValueError, match="a task note already exists"):
        tasks.task(note.function)
    tasks.task(name="other")(note.function)
    assert repr(tasks) == "<Tasks: note, other>"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"retries": -1}, "retries is -1"),
        ({"backoff": -1}, "backoff is -1"),
        ({"timeout": 0}, "timeout is 0"),
        ({"priority": 2**32}, "priority is 4294967296"),
        ({"ttr": 0.5}, "ttr is 0.5"),
        ({"ttr": "long"}, "ttr is 'long'"),
        ({"retries": "3"}, "retries is '3': must be a whole number"),
        ({"backoff": None}, "backoff is None: must be seconds"),
        ({"give_up_on": "KeyError"}, "give_up_on is 'KeyError': must be a list or a tuple"),
        ({"give_up_on": 5}, "give_up_on is 5: must be a list or a tuple"),
        ({"give_up_on": int}, "give_up_on has <class 'int'>: must be classes of exceptions"),
        ({"give_up_on": (KeyError, None)}, "give_up_on has None: must be classes of exceptions"),
        ({"give_up_on": (KeyError, (OSError,))}, "give_up_on has .*: must be classes of exceptions"),
        *(({option: given}, option) for option in ("backoff", "timeout", "ttr") for given in (math.nan, math.inf)),
        ({"tube": "my mail"}, "bad tube 'my mail'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(tasks, options, error):
    with pytest.raises((TypeError, ValueError), match=error if "tube" in options else f"task note: {error}"):
        tasks.task(name="note", **options)(print)


def test_a_key_is_a_text_and_never_taken_for_the_id_of_a_job(tasks, queue):
    note = tasks.task(name="note")(print)
    job_id = note.delay(900).put()
    with pytest.raises(TypeError, match=f"key is {job_id}: must be a string"):
        note.key(job_id)
    assert [job.id for job in queue.jobs()] == [job_id]


def test_a_call_reaches_a_server(server):
    with tasks_at(server) as tasks:

        @tasks.task(priority=7, ttr=33)
        def note(what): ...

        ids = [note.put(1), note.delay(900).put(2), note.priority(8).ttr(5).put(3)]
        with tasks.connect() as client:
            found = [client.stats_job(job_id) for job_id in ids]
            assert [(job["pri"], job["ttr"], job["delay"]) for job in found] == [(7, 33, 0), (7, 33, 900), (8, 5, 0)]
            assert {job["tube"] for job in found} == {tasks.tube}
            assert client.peek(ids[0]).body == b'{"task":"note","args":[1],"kwargs":{}}'


def test_calls_of_two_tubes_go_to_their_own(server):
    with tasks_at(server) as tasks:
        other = tasks.task(tube=new_tube(), name="other")(print)
        here = tasks.task(name="here")(print)

        async def put():
            try:
                return await asyncio.gather(*(task.aput() for task in (here, other) * 10))
            finally:
                await tasks.aclose()

        ids = [task.put() for task in (here, other) * 2] + run(put())
        with tasks.connect() as client:
            assert [client.stats_job(job_id)["tube"] for job_id in ids] == [here.tube, other.tube] * 12


def test_moments_keys_and_cancels_at_a_server(our_server):
    with tasks_at(our_server) as tasks:
        note = tasks.task(name="note")(print)

        async def story():
            try:
                job_id = await note.key("a").at(4_000_000_000).aput()
                with pytest.raises(ExistsError):
                    await note.key("a").aput()
                assert await note.acancel("a") is True
                assert await note.acancel("a") is False
                assert await note.acancel(job_id) is False
                assert await note.areprioritize(job_id, 3) is False
                job_id = await note.key("c").again().delay(9).within(5).aput()
                assert job_id == await note.key("c").again().aput()
                assert await note.areprioritize("c", 3) is True
                assert await note.acancel(await note.delay(9).aput()) is True
            finally:
                await tasks.aclose()

        run(story())
        job_id = note.key("b", hold=5).delay(100).tries(3).ttl(50).put()
        with tasks.connect() as client:
            found = client.stats_job(job_id)
            assert (found["key"], found["max-tries"]) == ("b", 3)
        assert note.cancel("b") is True
        assert note.cancel("b") is False


def test_beanstalkd_knows_neither_moments_nor_keys():
    with running(BEANSTALKD) as server, tasks_at(server) as tasks:
        note = tasks.task(name="note")(print)
        for call in (note.at(4_000_000_000), note.key("a"), note.key("a").again(), note.tries(3)):
            with pytest.raises(UnsupportedError):
                call.put()
        with pytest.raises(UnknownCommandError):
            note.cancel("a")
        with pytest.raises(UnknownCommandError):
            note.reprioritize("a", 3)
        job_id = note.delay(5).put()
        with tasks.connect() as client:
            assert client.stats_tube(tasks.tube)["total-jobs"] == 1
            client.delete(job_id)


def test_each_thread_and_each_process_has_a_client_of_its_own(our_server, monkeypatch):
    with tasks_at(our_server) as tasks:
        note = tasks.task(name="note")(print)
        note.put()
        note.put()
        ours = tasks._of_threads.get()
        found = []
        thread = threading.Thread(target=lambda: found.append((note.put(), tasks._of_threads.get())))
        thread.start()
        thread.join()
        assert found[0][1] is not ours
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: -1)
            note.put()
            assert tasks._of_threads.get() is not ours
            ours.close()


def test_a_forgotten_in_memory_is_an_error_where_a_program_asks_for_that(our_server, monkeypatch):
    with tasks_at(our_server) as tasks:
        note = tasks.task(name="note")(print)

        async def story(calls):
            await note.aput(1)
            monkeypatch.setattr(Tasks, "only_in_memory", True)
            for call in calls:
                with pytest.raises(RuntimeError, match=r"with tasks\.in_memory"):
                    await call()
            await tasks.aclose()

        note.put(1)  # there are connections already
        run(story([note.aput, note.delay(5).aput, lambda: note.acancel("a")]))
        for call in (note.put, note.delay(5).put, lambda: note.cancel("a"), tasks.connect, tasks.connect_async):
            with pytest.raises(RuntimeError, match=r"with tasks\.in_memory"):
                call()
        with tasks.in_memory() as queue:
            note.put(1)
            run(note.delay(5).aput(2))
            assert len(queue.jobs()) == 2
        tasks.only_in_memory = False
        with tasks.connect() as client:
            assert client.stats_tube(tasks.tube)["total-jobs"] == 2


def test_middleware_is_around_each_put(our_server):
    told = []

    class Stamp(Middleware):
        def __init__(self, name):
            self.name = name

        @contextlib.contextmanager
        def putting(self, put):
            told.append(f"{self.name} begins")
            put.message.meta[self.name] = put.message.task
            yield
            told.append(f"{self.name} ends with job {put.job_id} in {put.tube}")

    with tasks_at(our_server) as tasks:
        tasks.middleware += [Stamp("outer"), Stamp("inner")]
        note = tasks.task(name="note")(print)
        job_id = note.put(1)
        with tasks.connect() as client:
            assert JSON.read(client.peek(job_id).body)["meta"] == {"outer": "note", "inner": "note"}
        where = f"ends with job {job_id} in {tasks.tube}"
        assert told == ["outer begins", "inner begins", f"inner {where}", f"outer {where}"]


def test_the_client_of_a_thread_that_has_ended_is_closed(our_server):
    with tasks_at(our_server) as tasks, tasks.connect() as client:
        note = tasks.task(name="note")(print)
        note.put()
        before = client.stats()["current-connections"]
        for _ in range(5):
            thread = threading.Thread(target=note.put)
            thread.start()
            thread.join()
        del thread
        eventually(lambda: client.stats()["current-connections"] == before, "only this thread has a connection")


def lines_of_memory(count):
    """How many lines of the queue in memory are executed to put and to run this many jobs."""
    tasks, lines = Tasks(), 0
    note = tasks.task(name="note")(print)

    def trace(frame, event, _):
        nonlocal lines
        lines += event == "line"
        return trace if frame.f_code.co_filename == beanstalk_client.memory.__file__ else None

    before = sys.gettrace()
    with tasks.in_memory() as queue:
        sys.settrace(trace)
        try:
            for number in range(count):
                note.put()
                note.key(f"k{number}").delay(number + 1).put()
            assert queue.run(count) == 2 * count
        finally:
            sys.settrace(before)
    return lines


def test_in_memory_a_job_costs_the_same_however_many_there_are():
    assert lines_of_memory(200) < 5 * lines_of_memory(50)


def test_a_generator_function_is_no_task():
    tasks = Tasks()

    def numbers():
        yield 1

    async def later_numbers():
        yield 1

    class Numbers:
        def __call__(self):
            yield 1

    for function in (numbers, later_numbers, Numbers(), functools.partial(numbers)):
        with pytest.raises(TypeError, match="is a generator function"):
            tasks.task(name="numbers")(function)
    assert tasks.get("numbers") is None


def test_the_server_counts_the_attempts_of_a_task(our_server):
    with tasks_at(our_server) as tasks, tasks.connect() as client:
        note = tasks.task(name="note", retries=2)(print)
        calls = (note, note.delay(60), note.tries(7))
        found = [client.stats_job(call.put())["max-tries"] for call in calls]

        async def aput():
            try:
                return await note.aput()
            finally:
                await tasks.aclose()

        found.append(client.stats_job(asyncio.run(aput()))["max-tries"])
        assert found == [3, 3, 7, 3]


@pytest.mark.parametrize("given", [KeyError, [KeyError], (KeyError, OSError), {KeyError}])
def test_the_exceptions_after_which_a_task_is_given_up_are_a_class_or_several(tasks, queue, given):
    @tasks.task(give_up_on=given)
    def fail():
        raise KeyError

    fail.put()
    assert queue.run(math.inf) == 1


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Tasks(errors=""), "errors is '': must be"),
        (lambda: Tasks(errors=5), "errors is 5: must be a string"),
        (lambda: Tasks(errors=" of mail"), "bad tube 'TUBE of mail': must be"),
        (lambda: Tasks(tube=5), "tube is 5: must be a string"),
        (lambda: Tasks(tube="a b"), "bad tube 'a b'"),
        (lambda: Tasks(lifespan=5), "lifespan is 5: must be a function"),
        (lambda: Tasks(middleware=5), "middleware is 5: must be a list or a tuple"),
        (lambda: Tasks(middleware="abc"), "middleware is 'abc': must be a list or a tuple"),
        (lambda: Tasks(middleware=[Middleware]), "middleware has <class .*>: must be an instance"),
        (lambda: Tasks().task(5), "function is 5: must be a function"),
        (lambda: Tasks().task(name=5)(print), "name of a task is 5: must be a string"),
        (lambda: Tasks().result_of(5, 1), "tube is 5: must be a string"),
        (lambda: Tasks().result_of("a", "x"), "job_id is 'x': must be a whole number"),
        (lambda: Tasks().group(tube=5), "tube is 5: must be a string"),
        (lambda: Tasks().group(name=5), "name is 5: must be a string"),
        (lambda: Tasks().task(print).group(5), "group is 5: must be a string"),
        (lambda: Tasks().task(print).after(5), "group is 5: must be a string"),
        (lambda: Tasks().task(print).priority("x"), "priority is 'x': must be a whole number"),
        (lambda: Tasks().task(print).priority(-1), "priority is -1: must be from 0"),
        (lambda: Tasks().task(print).tries("x"), "tries is 'x': must be a whole number"),
        *((lambda at=at: Tasks().task(print).at(at), f"at is {at}: must be from 0") for at in (INF, NAN, -1, 1e12)),
        *((lambda days=days: Tasks().every(days=days), "interval: the sum of its parts") for days in (INF, 1e12)),
        *((lambda given=given: Tasks().every(given), "interval: the sum of its parts") for given in (INF, 10**30)),
        *(
            (lambda given=given: Tasks().every(given), "bad interval .*: must be whole seconds, from 1")
            for given in (1e12, "100000d")
        ),
        (lambda: Client("127.0.0.1:1", watch=5), "watch is 5: must be a list or a tuple"),
        (lambda: Client("127.0.0.1:1", token=5), "bad token: must be a string"),
        (lambda: AsyncClient("127.0.0.1:1", server_name=5), "server_name is 5: must be a string"),
    ],
)
@pytest.mark.filterwarnings("ignore:a call of task")
def test_an_argument_that_cannot_be_is_refused_at_once(make, error):
    with pytest.raises((TypeError, ValueError), match=error):
        make()


@pytest.mark.parametrize("value", [NAN, -1, 1e400, "long", None])
@pytest.mark.parametrize("method", ["advance", "run"])
def test_the_clock_of_a_test_moves_by_a_time_only(tasks, queue, method, value):
    tasks.every("5m")(tasks.task(name="note")(print))
    before = queue.now
    with pytest.raises((TypeError, ValueError), match=r"seconds|duration"):
        getattr(queue, method)(value)
    assert queue.now == before


@pytest.mark.parametrize(
    "options", [{"now": NAN}, {"now": "5s"}, {"now": INF}, {"now": -1}, {"max_job_size": "x"}, {"max_job_size": -1}]
)
def test_a_queue_in_memory_has_a_clock_and_a_size_that_can_be(tasks, options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))), tasks.in_memory(**options):
        pass


def test_a_test_can_run_until_nothing_is_left(tasks, queue):
    ran = []
    note = tasks.task(name="note")(lambda: ran.append(queue.now))
    began = queue.now
    note.delay("1h").put()
    note.delay("30d").put()
    assert queue.run(INF) == 2
    assert [moment - began for moment in ran] == pytest.approx([3600, 30 * 86400])
    assert queue.now == ran[-1]
