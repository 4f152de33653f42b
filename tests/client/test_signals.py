"""Signals of programs: what forked children keep of them; and tasks, lifespans and threads that do not end."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
from beanstalk_client import Client
from working import ENDS_WITHIN, WorkerProcess

from harness.servers import ROOT
from harness.waiting import eventually

PROGRAM = """
import asyncio, atexit, contextlib, multiprocessing, os, signal, threading, time
from beanstalk_client.tasks import Tasks

DIARY = os.environ["DIARY"]


def write(*words):
    with open(DIARY, "a") as diary:
        diary.write(" ".join(map(str, words)) + "\\n")


@contextlib.asynccontextmanager
async def lifespan():
    if os.environ.get("WAITS") == "start":
        write("starts")
        await asyncio.sleep(1000)
    yield
    if os.environ.get("WAITS") == "end":
        write("ends")
        await asyncio.sleep(1000)
    if os.environ.get("WAITS") == "failing":
        raise RuntimeError("it fails")


def storm():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)


class Last:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, 15)
        kill(process, 2)


if os.environ.get("WAITS") in ("failing", "storm"):
    atexit.register(storm)
    last = Last()  # it goes when Python has dropped its handlers of signals


if os.environ.get("WAITS") == "import":
    write("imports")
    time.sleep(1000)

tasks = Tasks(os.environ["QUEUE"], connect_timeout=1.0, lifespan=lifespan)


def idle():
    write("child", os.getpid())
    time.sleep(1000)


@tasks.task
def fork():
    child = multiprocessing.get_context("fork").Process(target=idle)
    child.start()
    while f"child {child.pid}" not in open(DIARY).read():
        time.sleep(0.01)
    child.terminate()
    child.join()
    write("terminated", child.exitcode)


@tasks.task
async def fork_on_loop():
    fork.function()


@tasks.task
def fork_and_return(error):
    child = os.fork()
    if child:
        write("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    elif error:
        raise RuntimeError(error)


@tasks.task
def outlive():
    multiprocessing.get_context("fork").Process(target=idle).start()
    time.sleep(1000)


@tasks.task
async def outlive_on_loop():
    multiprocessing.get_context("fork").Process(target=idle).start()
    await asyncio.sleep(1000)


@tasks.task
async def stubborn():
    write("begins")
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)


@tasks.task(retries=0)
async def sleep():
    write("begins")
    await asyncio.sleep(1000)


@tasks.task
async def blocking():
    write("begins")
    while True:
        time.sleep(1000)


@tasks.task
async def lingering():
    threading.Thread(target=time.sleep, args=[1000]).start()
    write("begins")
"""


@pytest.fixture
def server(run):
    return run()


@pytest.fixture
def work(server, tmp_path, monkeypatch):
    with contextlib.ExitStack() as stack:

        def begin(*options, waits="", word="takes jobs from"):
            monkeypatch.setenv("WAITS", waits)
            worker = WorkerProcess(server, tmp_path, "--grace", "0.1", *options, program=PROGRAM)
            stack.callback(worker.close)
            if word:
                worker.wait_for(word, "it has started")
            return worker

        yield begin


def put(server, task):
    with Client(server.address, encoding=None) as client:
        return client.put(b'{"task": "%s"}' % task.encode())


@pytest.mark.parametrize("task", ["fork", "fork_on_loop"])
def test_a_signal_to_a_forked_child_is_its_own(work, server, task):
    worker = work()
    put(server, task)
    eventually(lambda: f"terminated {-signal.SIGTERM}" in worker.lines, "the child has ended")
    put(server, task)
    eventually(lambda: worker.lines.count(f"terminated {-signal.SIGTERM}") == 2, "the worker still works")
    assert worker.stop() == 0
    assert "stopping: " in worker.log


@pytest.mark.parametrize(("error", "status"), [("", 0), ("no such luck", 1)])
def test_a_forked_child_that_returns_from_the_task_ends(work, server, error, status):
    worker = work()
    with Client(server.address, encoding=None) as client:
        client.put(json.dumps({"task": "fork_and_return", "args": [error]}).encode())
    eventually(lambda: worker.lines == [f"ended {status}"], "the child has ended")


@pytest.mark.parametrize("task", ["outlive", "outlive_on_loop"])
def test_a_forked_child_does_not_keep_the_jobs_of_a_worker_that_is_killed(work, server, task):
    worker = work()
    with Client(server.address, encoding=None) as client:
        job = client.put(b'{"task": "%s"}' % task.encode(), ttr=1000)
        eventually(lambda: worker.lines, "the child has begun")
        try:
            assert client.stats_job(job)["state"] == "reserved"
            worker.kill()
            eventually(lambda: client.stats_job(job)["state"] == "ready", "the job is free")
        finally:
            os.kill(int(worker.lines[0].split()[1]), signal.SIGKILL)


@pytest.mark.parametrize("task", ["stubborn", "blocking"])
def test_a_task_that_does_not_end_holds_up_no_stop(work, server, task):
    worker = work()
    put(server, task)
    eventually(lambda: worker.lines == ["begins"], "it runs")
    assert worker.stop() == 1
    assert "forced to exit with status 1" in worker.log


def test_a_stop_costs_a_job_no_attempt(work, server):
    worker = work()
    with Client(server.address) as client:
        job_id = client.put_with('{"task": "sleep"}', tries=1)
        eventually(lambda: worker.lines == ["begins"], "it runs")
        assert worker.stop() == 0
        found = client.stats_job(job_id)
        assert (found["state"], found["tries"], found["reserves"]) == ("ready", 0, 0)


def test_a_third_signal_ends_a_worker_at_once(work, server):
    worker = work("--grace", "1000")
    put(server, "stubborn")
    eventually(lambda: worker.lines == ["begins"], "it runs")
    for word in ("stopping: ", "are cancelled and given back", "forced to exit"):
        worker.tell()
        worker.wait_for(word, word)
    assert worker.end() == 1


def test_a_lifespan_that_waits_at_its_start_is_cancelled(work):
    worker = work(waits="start", word="")
    eventually(lambda: worker.lines == ["starts"], "it waits", ENDS_WITHIN)
    assert worker.stop() == 0
    assert "has stopped" in worker.log


def test_a_lifespan_that_waits_at_its_end_holds_up_no_stop(work):
    worker = work(waits="end")
    assert worker.stop() == 1
    assert worker.lines == ["ends"]
    assert "forced to exit with status 1" in worker.log


def test_a_thread_that_does_not_end_holds_up_no_exit(work, server):
    worker = work()
    put(server, "lingering")
    eventually(lambda: worker.lines == ["begins"], "it runs")
    assert worker.stop() == 1
    assert "has stopped" in worker.log and "forced to exit" in worker.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_slow_import_ends_the_program(work, number):
    worker = work(waits="import", word="")
    eventually(lambda: worker.lines == ["imports"], "it imports", ENDS_WITHIN)
    assert worker.stop(number) == 0  # by a handler: without one, the kernel ignores the signal for process 1
    assert not worker.log


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
@pytest.mark.parametrize(("waits", "status"), [("storm", 0), ("failing", 1)])
def test_signals_at_the_end_do_not_change_the_status(work, options, waits, status):
    worker = work(*options, waits=waits)
    assert worker.stop() == status
    assert "KeyboardInterrupt" not in worker.log


def test_a_fork_in_a_thread_restores_the_mask_of_signals():
    program = (
        "import os, signal, threading\n"
        "from beanstalk_client import signals\n"
        "signals.handle(signal.SIGTERM, lambda *_: None)\n"
        "def fork():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os._exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])) or\n"
        "                 (signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL) * 100)\n"
        "    status = os.waitpid(child, 0)[1]\n"
        "    print(status, len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))\n"
        "thread = threading.Thread(target=fork)\n"
        "thread.start(); thread.join(); fork()\n"
        "print(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert told.stdout.splitlines() == ["0 0", "0 0", "True"], told.stderr
