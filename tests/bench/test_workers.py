"""Workers of task queues are measured."""

import dataclasses
import os
import subprocess
import sys
import time

import pytest

from bench import process, workers
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
    program = "from bench.tasks import mark; mark(); input()"
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


@pytest.mark.slow
def test_our_worker_is_measured():
    found = workers.enqueue_and_run(dataclasses.replace(workers.QUEUES["ours"], broker=INTERPRETED), 200)
    assert min(found["put_rate"], found["rate"]) > 0  # what uses CPU time for less than a tick uses none
    assert set(found) == {"rate", "cpu", "server_cpu", "put_rate", "put_cpu", "put_server_cpu"}
