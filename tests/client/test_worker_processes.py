"""Several workers with one command line: how they end, what becomes of one that is killed, and reloads."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
import types

import pytest
from beanstalk_client import Client, NotFoundError
from beanstalk_client.tasks import Tasks
from beanstalk_client.worker import processes
from beanstalk_client.worker.command import main
from beanstalk_client.worker.processes import BELOW, Processes
from working import PROGRAM, WorkerProcess

from harness.servers import unused_port
from harness.waiting import eventually


@pytest.fixture
def server(run):
    return run()


@pytest.fixture
def client(server):
    with Client(server.address, encoding=None) as client:
        yield client


@pytest.fixture
def launch(server, tmp_path):
    """Starts workers, and ends those that a test has left."""
    with contextlib.ExitStack() as stack:

        def begin(*options, server=server, program=PROGRAM):
            worker = WorkerProcess(server, tmp_path, *options, program=program)
            stack.callback(worker.close)
            return worker

        yield begin


@pytest.fixture
def work(launch):
    """Starts workers of two processes, and waits until both have begun."""

    def begin(*options, program=PROGRAM):
        worker = launch("--processes", "2", *options, program=program)
        eventually(lambda: len(started(worker)) == 2, "both have started", 60)
        return worker

    return begin


def started(worker):
    return [int(pid) for pid in re.findall(r"worker \S+:(\d+) takes jobs", worker.log)]


def stopped(worker):
    return [int(pid) for pid in re.findall(r"worker \S+:(\d+) has stopped", worker.log)]


def test_both_run_tasks_and_stop_when_told(work, client):
    worker = work()
    assert worker.process.pid not in started(worker)
    client.put(b'{"task": "note", "args": [1]}')
    eventually(lambda: worker.lines == ["note 1"], "it has run")
    assert worker.stop(signal.SIGINT) == 0
    assert sorted(stopped(worker)) == sorted(started(worker))


def test_one_that_is_killed_is_replaced(work):
    worker = work()
    os.kill(started(worker)[0], signal.SIGKILL)
    eventually(lambda: len(started(worker)) == 3, "another one has started", 60)
    assert "was killed by signal 9 without a stop signal" in worker.log
    assert worker.stop() == 0
    assert sorted(stopped(worker)) == sorted(started(worker)[1:])


def test_they_stop_when_the_process_is_killed_that_has_started_them(work):
    worker = work()
    worker.kill()
    eventually(lambda: sorted(stopped(worker)) == sorted(started(worker)), "they stop", 60)


def test_without_a_server_all_end(launch, tmp_path):
    nowhere = types.SimpleNamespace(address=("127.0.0.1", unused_port()))
    worker = launch("--processes", "2", server=nowhere)
    assert worker.end() == 1
    assert f"server 127.0.0.1:{nowhere.address[1]}" in worker.log


def test_each_exit_without_a_request_is_an_error_and_one_more_attempt(caplog, monkeypatch):
    """Also with status 0, and as often as it happens. The pause before the next one doubles."""
    monkeypatch.setattr(processes, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(processes, "LONGEST_PAUSE", 0.004)

    async def story(status):
        parent = Processes(["sh", "-c", f"exit {status}"], 2)
        running = asyncio.ensure_future(parent.run())
        while len(caplog.records) < 10:
            await asyncio.sleep(0.01)
        parent.stop()
        await running

    for status in (0, 2, 3):
        caplog.clear()
        asyncio.run(story(status))
        record = caplog.records[0]
        assert (record.levelname, record.event, record.status) == ("ERROR", "process-ended", status)
        assert f"exited with status {status} without a stop signal; restarting in" in caplog.text
        assert {message[-7:] for message in caplog.messages} >= {"0.001 s", "0.004 s"}


async def stopped_after(program, *, grace=30.0, signals=1, directory):
    """The status of processes that were told to stop, once or more, after each of them had made a file."""
    parent = Processes(["sh", "-c", program], 2, grace)
    running = asyncio.ensure_future(parent.run())
    while len(list(directory.iterdir())) < 2:
        await asyncio.sleep(0.01)
    for _ in range(signals):
        parent.stop()
    return await running


def test_the_status_of_those_that_fail_when_told_to_stop_is_kept(tmp_path):
    program = f"trap 'exit 3' TERM; : > {tmp_path}/$$; while :; do sleep 0.01; done"
    assert asyncio.run(stopped_after(program, directory=tmp_path)) == 3


@pytest.mark.parametrize("signals", [1, 5])
def test_one_that_ignores_the_signal_is_killed(tmp_path, monkeypatch, caplog, signals):
    monkeypatch.setattr(processes, "KILL_AFTER", 0.1)
    program = f"trap '' TERM; : > {tmp_path}/$$; exec sleep 1000"
    assert asyncio.run(stopped_after(program, grace=0.1, signals=signals, directory=tmp_path)) == 1
    assert caplog.text.count("did not exit in time: killed") == 2


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_one_that_a_task_ends_is_replaced(work, end, client):
    program = (
        PROGRAM
        + f"""
import signal, sys

@tasks.task
async def leave():
    {end}
"""
    )
    worker = work(program=program)
    client.put_with(b'{"task": "leave"}', tries=1)
    if end != "sys.exit(0)":
        eventually(lambda: len(started(worker)) == 3, "another one has started", 60)
        assert "exited with status 0 without a stop signal" in worker.log
    client.put(b'{"task": "note", "args": [1]}')
    eventually(lambda: worker.lines == ["note 1"], "it has run")
    assert worker.process.poll() is None
    assert worker.stop() == 0


def test_commands_of_tasks_have_an_empty_standard_input(launch, client):
    program = (
        PROGRAM
        + """
import subprocess

@tasks.task
def cat():
    ended = subprocess.run(["cat"], capture_output=True)
    write("cat", ended.returncode, len(ended.stdout))
"""
    )
    worker = launch("--processes", "2", program=program)
    client.put(b'{"task": "cat"}')
    eventually(lambda: "cat 0 0" in worker.lines, "it has run", 60)


@pytest.mark.parametrize("option", [("--max-jobs", "5"), ("--max-memory", "1MB")])
def test_a_process_at_its_limit_is_replaced_at_once(work, option, client):
    worker = work(*option)
    for number in range(20):
        client.put(b'{"task": "plain", "args": [%d]}' % number)
    eventually(lambda: len(started(worker)) >= 3, "another one has started", 60)
    eventually(lambda: len(worker.lines) == 20, "all have run", 60)
    assert sorted(worker.lines) == sorted(f"plain {number}" for number in range(20))
    assert (
        f"{option[0]}: " in worker.log
        and "exited with status 0 after reaching --max-jobs or --max-memory" in worker.log
    )
    assert "ERROR" not in worker.log
    assert worker.stop() == 0


def test_a_worker_of_one_process_ends_at_its_limit_after_the_jobs_that_run(launch, tmp_path, client):
    worker = launch("--max-jobs", "2")
    worker.wait_for("takes jobs from", "it has started")
    gate = tmp_path / "gate"
    client.put(b'{"task": "wait", "args": [1, "%s"]}' % str(gate).encode())
    eventually(lambda: worker.lines == ["begins 1"], "it runs")
    client.put(b'{"task": "note", "args": [2]}')
    worker.wait_for("--max-jobs: 2 jobs", "it is at its limit")
    client.put(b'{"task": "note", "args": [3]}')
    gate.touch()
    assert worker.end() == 0
    assert client.stats_tube("default")["current-jobs-ready"] == 1
    assert sorted(worker.lines) == ["begins 1", "ends 1", "note 2"]


HANGING_END = """
import contextlib
import program_base
from program_base import *

@contextlib.asynccontextmanager
async def lifespan():
    yield
    await asyncio.sleep(600)


tasks = program_base.tasks
tasks.lifespan = lifespan
"""


def test_at_its_limit_a_worker_has_begun_no_more_jobs_and_waits_for_no_lifespan(launch, tmp_path, client):
    (tmp_path / "program_base.py").write_text(PROGRAM)
    for number in range(9):
        client.put(b'{"task": "plain", "args": [%d]}' % number)
    worker = launch("--max-jobs", "2", "--grace", "0.1", program=HANGING_END)
    assert worker.end() == 1
    assert "forced to exit" in worker.log
    assert sorted(worker.lines) == ["plain 0", "plain 1"]
    assert client.stats_tube("default")["current-jobs-ready"] == 7


def test_reload_without_watchfiles_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert main(["program:tasks", "--reload"]) == 2
    assert capsys.readouterr().err == (
        "beanstalk-worker: --reload needs watchfiles: pip install './client[reload]' in a clone of beanstalk-server\n"
    )
    assert BELOW not in os.environ


def test_a_changed_file_begins_a_new_worker(launch, server, tmp_path):
    pytest.importorskip("watchfiles")
    worker = launch("--reload")
    eventually(lambda: len(started(worker)) == 1, "it has started", 60)

    program = tmp_path / "program.py"

    def is_reloaded():  # the watch may begin after the first change
        if time.time() - program.stat().st_mtime > 3:
            program.write_text(program.read_text() + "\n")
        return len(started(worker)) >= 2

    eventually(is_reloaded, "another one has started", 60)
    assert stopped(worker)[:1] == started(worker)[:1]
    worker.stop()


MISBEHAVING = """
import asyncio, time

from program_base import DIARY, note, plain, tasks, write


@tasks.task(timeout=0.2, retries=0)
def hang():
    write("hangs")
    time.sleep(600)


@tasks.task(timeout=5, retries=0)
def brief():
    time.sleep(0.3)
    write("brief")


@tasks.task(retries=0)
async def ends_the_loop():
    async def end():
        raise SystemExit(3)

    await asyncio.ensure_future(end())


@tasks.task(retries=0)
async def cancels_all():
    write("cancels")
    await asyncio.sleep(0.1)  # so that the other one runs, too
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(60)


@tasks.task(retries=0)
async def interrupts():
    raise KeyboardInterrupt
"""


@pytest.fixture
def alone(launch, tmp_path):
    def begin(*options):
        (tmp_path / "program_base.py").write_text(PROGRAM)
        worker = launch(*options, program=MISBEHAVING)
        worker.wait_for("takes jobs", "it has started")
        return worker

    return begin


def test_a_worker_takes_no_job_that_no_thread_can_run_and_ends_with_an_error_if_all_hang(alone, client):
    worker = alone("--threads", "2")
    for task in ("hang", "hang", *["plain"] * 5):
        client.put(b'{"task": "%s", "args": [%s]}' % (task.encode(), b"7" if task == "plain" else b""))
    assert worker.end() == 1
    assert worker.lines == ["hangs"] * 2
    assert "all 2 threads hang in functions that exceeded their timeout" in worker.log
    found = client.stats_tube("default")
    assert (found["current-jobs-buried"], found["current-jobs-ready"]) == (2, 5)
    worker.start()
    eventually(lambda: worker.lines.count("plain 7") == 5, "another worker runs the rest", 60)


def test_a_job_of_another_tube_that_waits_for_threads_that_hang_runs(alone, client):
    worker = alone("--threads", "1", "--tube", "default", "--tube", "other")
    client.put(b'{"task": "hang"}')
    eventually(lambda: worker.lines == ["hangs"], "no thread is free", 60)
    client.use("other")
    client.put_with(b'{"task": "brief"}', tries=1)
    assert worker.end() == 1
    assert worker.lines == ["hangs", "brief"]
    assert client.stats_tube("other")["current-jobs-buried"] == 0


def test_jobs_that_no_thread_can_run_wait_in_the_server(alone, client):
    worker = alone("--threads", "1")
    for _ in range(5):
        client.put(b'{"task": "brief"}')
    most = []

    def is_done():
        most.append(client.stats_tube("default")["current-jobs-reserved"])
        return worker.lines == ["brief"] * 5

    eventually(is_done, "all have run", 60)
    assert max(most) == 1


def test_a_task_that_cancels_all_tasks_ends_no_worker(alone, client):
    worker = alone()
    client.put_batch([b'{"task": "cancels_all"}'] * 2)
    eventually(lambda: worker.log.count("buried after 1 try: asyncio.exceptions.CancelledError") == 2, "both", 60)
    client.put(b'{"task": "note", "args": [1]}')
    eventually(lambda: worker.lines == ["cancels", "cancels", "note 1"], "it runs on", 60)


def test_what_a_task_raises_ends_no_worker(alone, client):
    worker = alone()
    for task in ("ends_the_loop", "interrupts"):
        client.put(b'{"task": "%s"}' % task.encode())
    eventually(lambda: worker.log.count("buried after 1 try") == 2, "both have failed", 60)
    client.put(b'{"task": "note", "args": [1]}')
    eventually(lambda: worker.lines == ["note 1"], "it runs on", 60)
    assert worker.stop() == 0


DEADLY = (
    PROGRAM
    + """
import signal

@tasks.task(retries=2, backoff=0.01)
async def kill():
    write("kill")
    os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_a_job_that_kills_its_worker_is_buried_with_a_report_after_its_last_attempt(work, server, monkeypatch):
    worker = work(program=DEADLY)
    tasks = Tasks(server.address, errors=".errors")
    kill = tasks.task(name="kill", retries=2)(print)
    job_id = kill.put()
    with Client(server.address, encoding=None, use="default.errors") as client:

        def report():
            with contextlib.suppress(NotFoundError):
                return json.loads(client.peek_ready().body)

        eventually(lambda: report() is not None, "there is a report", 60)
        assert client.stats_job(job_id)["state"] == "buried"
        found = report()
        assert (found["job"], found["tube"], found["task"], found["tries"]) == (job_id, "default", "kill", 3)
        assert found["error"] == "WorkerLostError: the connection of the worker was lost in the last attempt"
    tasks.close()
    assert worker.lines == ["kill"] * 3
    assert worker.process.poll() is None
