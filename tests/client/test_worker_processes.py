"""Several workers with one command line: how they end, what becomes of one that is killed, and reloads."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
import types

import pytest
from beanstalk_client import Client
from beanstalk_client.worker.command import main
from beanstalk_client.worker.processes import BELOW, Processes
from working import PROGRAM, WorkerProcess

from harness.servers import unused_port
from harness.waiting import eventually


@pytest.fixture
def server(run):
    return run()


@pytest.fixture
def work(server, tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(*options):
            worker = WorkerProcess(server, tmp_path, *options)
            stack.callback(worker.close)
            eventually(lambda: len(started(worker)) == 2, "both have started", 60)
            return worker

        yield begin


def started(worker):
    return [int(pid) for pid in re.findall(r"worker \S+:(\d+) takes jobs", worker.log)]


def stopped(worker):
    return [int(pid) for pid in re.findall(r"worker \S+:(\d+) has stopped", worker.log)]


def test_both_run_tasks_and_stop_when_told(work, server):
    worker = work("--processes", "2")
    assert worker.process.pid not in started(worker)
    with Client(server.address, encoding=None) as client:
        client.put(b'{"task": "note", "args": [1]}')
        eventually(lambda: worker.lines == ["note 1"], "it has run")
    worker.tell(signal.SIGINT)
    assert worker.end() == 0
    assert sorted(stopped(worker)) == sorted(started(worker))


def test_one_that_is_killed_is_replaced(work):
    worker = work("--processes", "2")
    os.kill(started(worker)[0], signal.SIGKILL)
    eventually(lambda: len(started(worker)) == 3, "another one has started", 60)
    assert "was killed by signal 9" in worker.log
    worker.tell()
    assert worker.end() == 0
    assert sorted(stopped(worker)) == sorted(started(worker)[1:])


def test_they_stop_when_the_process_is_killed_that_has_started_them(work):
    worker = work("--processes", "2")
    worker.kill()
    eventually(lambda: sorted(stopped(worker)) == sorted(started(worker)), "they stop", 60)


def test_without_a_server_all_end(tmp_path):
    nowhere = types.SimpleNamespace(address=("127.0.0.1", unused_port()))
    worker = WorkerProcess(nowhere, tmp_path, "--processes", "2")
    try:
        assert worker.end() == 1
        assert f"server 127.0.0.1:{nowhere.address[1]}" in worker.log
    finally:
        worker.close()


def test_the_status_of_those_that_fail_at_the_same_time_is_kept():
    """One that has ended already is told to stop, because another has failed."""
    for _ in range(20):
        assert asyncio.run(Processes(["sh", "-c", "exit 3"], 8).run()) == 3


def test_reload_without_watchfiles_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert main(["program:tasks", "--reload"]) == 2
    assert capsys.readouterr().err == "beanstalk-worker: --reload needs watchfiles: pip install './client[reload]'\n"
    assert BELOW not in os.environ


def test_a_changed_file_begins_a_new_worker(server, tmp_path):
    pytest.importorskip("watchfiles")
    worker = WorkerProcess(server, tmp_path, "--reload")
    try:
        eventually(lambda: len(started(worker)) == 1, "it has started", 60)

        program = tmp_path / "program.py"

        def is_reloaded():  # the watch may begin after the first change
            if time.time() - program.stat().st_mtime > 3:
                program.write_text(program.read_text() + "\n")
            return len(started(worker)) >= 2

        eventually(is_reloaded, "another one has started", 60)
        assert stopped(worker)[:1] == started(worker)[:1]
        worker.tell()
        worker.end()
    finally:
        worker.close()


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
async def interrupts():
    raise KeyboardInterrupt
"""


@pytest.fixture
def alone(server, tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(*options):
            (tmp_path / "program_base.py").write_text(PROGRAM)
            worker = WorkerProcess(server, tmp_path, *options, program=MISBEHAVING)
            stack.callback(worker.close)
            worker.wait_for("takes jobs", "it has started")
            return worker

        yield begin


def test_a_worker_takes_no_job_that_no_thread_can_run_and_ends_with_an_error_if_all_hang(alone, server):
    worker = alone("--threads", "2")
    with Client(server.address, encoding=None) as client:
        for task in ("hang", "hang", *["plain"] * 5):
            client.put(b'{"task": "%s", "args": [%s]}' % (task.encode(), b"7" if task == "plain" else b""))
        assert worker.end() == 1
        assert worker.lines == ["hangs"] * 2
        assert "all threads, 2, hang in functions that have exceeded their timeout" in worker.log
        found = client.stats_tube("default")
        assert (found["current-jobs-buried"], found["current-jobs-ready"]) == (2, 5)
        worker.start()
        eventually(lambda: worker.lines.count("plain 7") == 5, "another worker runs the rest", 60)


def test_jobs_that_no_thread_can_run_wait_in_the_server(alone, server):
    worker = alone("--threads", "1")
    with Client(server.address, encoding=None) as client:
        for _ in range(5):
            client.put(b'{"task": "brief"}')
        most = []

        def is_done():
            most.append(client.stats_tube("default")["current-jobs-reserved"])
            return worker.lines == ["brief"] * 5

        eventually(is_done, "all have run", 60)
        assert max(most) == 1


def test_what_a_task_raises_ends_no_worker(alone, server):
    worker = alone()
    with Client(server.address, encoding=None) as client:
        for task in ("ends_the_loop", "interrupts"):
            client.put(b'{"task": "%s"}' % task.encode())
        eventually(lambda: worker.log.count("buried after 1 try") == 2, "both have failed", 60)
        client.put(b'{"task": "note", "args": [1]}')
        eventually(lambda: worker.lines == ["note 1"], "it runs on", 60)
    worker.tell()
    assert worker.end() == 0
