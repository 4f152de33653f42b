"""Clients and workers of task queues are measured, and their tables say how far ours is ahead."""

import dataclasses
import os
import subprocess
import sys
import time

import pytest

from bench import clients, process, tables, workers
from bench.results import Results
from bench.scenarios import ON_REQUEST
from bench.servers import Server
from bench.workers import TaskQueue
from harness.servers import INTERPRETED, ServerError
from harness.waiting import eventually

SPINS = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
FORKS = (
    f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPINS!r}])\nprint('done', flush=True)\ninput()\n"
)


def test_the_cpu_time_of_a_family_has_that_of_children_that_have_ended():
    parent = subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout.readline() == b"done\n"
        assert process.cpu_of_family(parent.pid) > 0.15
        assert process.family(parent.pid) == [parent.pid]
        assert parent.pid in process.family(os.getpid())
        parent.communicate(b"\n")


@pytest.fixture
def marks(tmp_path):
    made = workers.Marks(str(tmp_path))
    yield made
    made.close()


def test_a_mark_says_when_a_task_ran(marks, tmp_path):
    before = time.monotonic_ns()
    program = "from bench.tasks.marks import mark; mark(); input()"
    environment = os.environ | {"PYTHONPATH": str(workers.ROOT), "BENCH_MARKS": marks.path}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE) as task:
        assert before < marks.wait(task, tmp_path / "log") < time.monotonic_ns()
        task.communicate(b"\n")


def test_a_worker_that_ends_is_named_with_what_it_said(marks, tmp_path):
    log = tmp_path / "log"
    log.write_text("no such module")
    with subprocess.Popen([sys.executable, "-c", ""]) as worker, pytest.raises(ServerError, match="no such module"):
        marks.wait(worker, log)


def test_a_worker_is_ended_with_its_children():
    program = "import subprocess, sys, signal\nsubprocess.Popen(['sleep', '60'])\nprint('ready', flush=True)\ninput()\n"
    worker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with worker:
        assert worker.stdout.readline() == b"ready\n"
        [child] = process.family(worker.pid)[1:]
        workers._stop(worker)
        eventually(lambda: not alive(child), "the child has ended")


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_an_environment_that_cannot_be_made_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(workers, "INSTALLING", ((sys.executable, "-c", "raise SystemExit('no network')"),))
    with pytest.raises(ServerError, match="bench-none cannot be installed: no network"):
        workers.install(TaskQueue("none", (), 1, "bench-none"), print)


@pytest.mark.slow
def test_our_worker_is_measured():
    found = workers.measure(dataclasses.replace(workers.QUEUES["ours"], broker=INTERPRETED), 200)
    assert min(found["put_rate"], found["rate"]) > 0  # what uses CPU time for less than a tick uses none
    assert set(found) == {"rate", "cpu", "server_cpu", "put_rate", "put_cpu", "put_server_cpu"}


@pytest.fixture
def server():
    server = Server(INTERPRETED)
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("work", clients.LOADS)
def test_clients_are_measured(server, work):
    for client in clients.LOADS[work]:
        assert min(clients.measure(server, work, client, 20).values()) > 0


@pytest.mark.slow
def test_a_client_that_fails_is_named(server):
    with pytest.raises(ServerError, match="nobody"):
        clients.measure(server, clients.PUT, "nobody", 20)


def test_task_queues_have_a_row_each_and_ours_stands_beside_them():
    results = Results()
    measures = ("rate", "cpu", "server_cpu", "put_cpu", "put_server_cpu")
    results.add("workers", "ours", "", 0, [dict.fromkeys(measures, 10.0), dict.fromkeys(measures, 20.0)])
    results.add("workers", "theirs", "", 0, [dict.fromkeys(measures, 20.0), dict.fromkeys(measures, 30.0)])
    head, ours, theirs = tables.points_table(results, "workers")
    assert len(head) == len(ours) == len(theirs)
    assert ours[:3] == ["ours", "15 (10 to 20)", "15 (10 to 20)"]
    assert ours[-3:] == ["", "", ""]
    assert theirs[-3:] == ["0.58 × (0.50 to 0.67)", "1.75 × (1.50 to 2.00)", "1.75 × (1.50 to 2.00)"]


def test_a_run_of_some_scenarios_says_below_their_tables_what_it_is_and_leaves_the_rest(tmp_path):
    about = {"commit": "abc1234", "date": "2001-02-03", "machine": "2 processors", "pairs": 2, "minutes": 3.2}
    results = Results(about | {"versions": {"bench-rq": "rq 2.0"}})
    results.add("clients", "greenstalk", "put", 0, [{"rate": 10.0, "client_cpu": 5.0, "server_cpu": 5.0}])
    page = tmp_path / "page.md"
    page.write_text(
        "".join(f"<!-- bench: {name} -->\nx\n<!-- end of bench: {name} -->\n" for name in ("about", "clients"))
    )
    assert tables.write_into(page, results) == ["about"]
    kept, drawn = page.read_text().split("<!-- end of bench: about -->")
    assert kept.endswith("\nx\n")
    assert "| put | greenstalk | 10 | 5.0 | 5.0 |" in drawn
    assert "Commit abc1234, 2001-02-03: 2 processors. rq 2.0." in drawn


def test_every_client_stands_beside_the_first():
    results = Results()
    for client, rate in (("greenstalk", 10.0), ("Client", 20.0), ("Client, 100 in a pipeline", 40.0)):
        results.add("clients", client, "put", 0, [{"rate": rate, "client_cpu": 10.0 / rate, "server_cpu": 5.0}])
    rows = tables.points_table(results, "clients")
    assert [row[-1] for row in rows[1:]] == ["", "2.00 ×", "4.00 ×"]
    assert [row[-2] for row in rows[1:]] == ["", "2.00 ×", "4.00 ×"]


def test_what_is_installed_for_a_run_is_measured_on_request():
    assert "workers" in ON_REQUEST


def test_a_child_that_is_not_done_in_time_is_killed():
    with subprocess.Popen(["sleep", "60"]) as child, process.killed_after(0.0, child):
        assert child.wait() < 0
