"""Celery itself over this server and over beanstalkd: workers that run, wait, are killed, and lose their server."""

import collections
import contextlib
import datetime
import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from beanstalk_client.blocking import Client
from beanstalk_client.integrations.kombu import cancel
from celery import group

from harness.servers import ROOT
from harness.waiting import eventually

PROGRAM = "celery_program"


class Works:
    """An application of Celery, its workers, and what its tasks have written down."""

    def __init__(self, address, directory, **options):
        self.directory = directory
        self.environment = {
            "BROKER": "beanstalk://{}:{}".format(*address),
            "OPTIONS": json.dumps(options),
            "DIRECTORY": str(directory),
        }
        self.workers = []
        os.environ.update(self.environment)
        sys.modules.pop(PROGRAM, None)
        self.tasks = importlib.import_module(PROGRAM)
        self.app = self.tasks.app

    def start(self, pool, *arguments, at_once=2):
        """Start a worker; return its process."""
        name = f"w{len(self.workers)}"
        line = [sys.executable, "-m", "celery", "-A", PROGRAM, "worker", "-P", pool, "-c", str(at_once), "-l", "info"]
        paths = os.pathsep.join([str(ROOT / "client"), str(Path(__file__).parent), str(ROOT)])
        with (self.directory / f"{name}.log").open("w") as log:
            worker = subprocess.Popen(
                [*line, "-n", f"{name}@test", *arguments],
                env=os.environ | self.environment | {"PYTHONPATH": paths},
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def log(self, number=0):
        return (self.directory / f"w{number}.log").read_text()

    def lines(self):
        """What the tasks have written, each line as its words."""
        path = self.directory / "lines"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def stop(self, worker):
        """Let a worker end by itself, once it has begun: before that, a signal ends it at once."""
        number = self.workers.index(worker)
        eventually(lambda: f"w{number}@test ready" in self.log(number), "the worker is ready", 60)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0

    def end(self):
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.app.close()
        sys.modules.pop(PROGRAM, None)


@pytest.fixture
def works(tmp_path, monkeypatch):
    """Makes an application for a server."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with contextlib.ExitStack() as stack:

        def start(server, **options):
            made = Works(server.address, tmp_path, **options)
            stack.callback(made.end)
            return made

        yield start


def publish_with_eta(task, names, first, step):
    """Publish a task for each name, the first due in this many seconds, each other one a step later."""
    began = time.time()
    for number, name in enumerate(names):
        due = began + first + number * step
        task.apply_async((name, due), eta=datetime.datetime.fromtimestamp(due, datetime.UTC))


def times_of(lines):
    """How often each of the tasks has run that were published with an eta; none early."""
    assert [line for line in lines if float(line[2]) < float(line[1])] == []
    return collections.Counter(name for name, _, _ in lines)


@pytest.mark.parametrize(
    ("pool", "either"),
    [
        ("threads", "ours"),
        pytest.param("prefork", "ours", marks=pytest.mark.slow),
        pytest.param("solo", "beanstalkd", marks=pytest.mark.slow),
    ],
    indirect=["either"],
)
def test_a_worker_does_what_is_due_when_it_is_due_and_once(either, works, pool):
    its = works(either)
    names = [str(number) for number in range(60)]
    publish_with_eta(its.tasks.note, names, 0.5, 0.02)
    worker = its.start(pool)
    assert (its.tasks.add.s(1, 2) | its.tasks.add.s(3)).delay().get(timeout=30) == 6
    assert group(its.tasks.add.s(n, n) for n in range(20))().get(timeout=30) == list(range(0, 40, 2))
    assert its.tasks.try_again.delay().get(timeout=30) == "done"
    eventually(lambda: len(its.lines()) >= 63, "all has been done")
    its.stop(worker)
    tries = [line for line in its.lines() if line[0] == "try"]
    assert [number for _, number, _ in tries] == ["0", "1", "2"]
    assert all(float(b[2]) - float(a[2]) >= 0.3 for a, b in itertools.pairwise(tries))
    assert times_of([line for line in its.lines() if line[0] != "try"]) == dict.fromkeys(names, 1)
    assert not {"ERROR", "CRITICAL", "Traceback"} & set(its.log().replace("/", " ").split())
    with Client(either.address) as client:
        left = client.stats_tube("celery")
    assert [left[f"current-jobs-{state}"] for state in ("ready", "delayed", "reserved", "buried")] == [0] * 4


@pytest.mark.slow
def test_a_task_that_is_acknowledged_late_is_done_again_when_its_worker_is_killed(run, works):
    """Also while processes of its pool live on that were forked when it was connected."""
    its = works(run())
    first = its.start("prefork", "--max-tasks-per-child", "1")
    assert [its.tasks.add.delay(n, n).get(timeout=30) for n in range(3)] == [0, 2, 4]
    its.tasks.take.delay("a", 1000)
    eventually(lambda: ["begin", "a", "False"] in its.lines(), "it is being done")
    first.kill()
    its.start("prefork")
    eventually(lambda: ["begin", "a", "True"] in its.lines(), "it is being done again")


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_tasks_that_take_longer_than_their_time_to_run_are_done_once(run, works, pool):
    """Also those that the worker has reserved, and not begun."""
    server = run()
    its = works(server, ttr=3)
    for name in "ab":
        its.tasks.take.delay(name, 3.5)
    worker = its.start(pool, at_once=1)
    eventually(lambda: its.lines().count(["end", "b"]), "all are done")
    its.stop(worker)
    assert its.lines() == [line for name in "ab" for line in (["begin", name, "False"], ["end", name])]


@pytest.mark.slow
def test_the_highest_priority_is_done_first(run, works):
    its = works(run())
    for priority in (0, 5, 9, 1):
        its.tasks.note.apply_async((str(priority),), priority=priority)
    its.start("solo", "--prefetch-multiplier", "1")
    eventually(lambda: len(its.lines()) == 4, "all are done")
    assert [line[0] for line in its.lines()] == ["9", "5", "1", "0"]


@pytest.mark.slow
def test_a_worker_goes_on_when_its_server_is_killed_and_comes_back(restartable, works):
    its = works(restartable)
    its.start("prefork")
    names = [str(number) for number in range(40)]
    publish_with_eta(its.tasks.note, names, 0.5, 0.04)
    eventually(lambda: len(its.lines()) > 5, "it has begun")
    restartable.kill()
    restartable.start()
    eventually(lambda: len({line[0] for line in its.lines()}) == 40, "all are done")
    times = times_of(its.lines())
    assert set(times.values()) <= {1, 2}
    assert list(times.values()).count(2) < 20  # those of which the server had not heard that they were taken


@pytest.mark.slow
def test_a_task_may_be_cancelled_before_it_is_due(run, works):
    its = works(run())
    later = its.tasks.note.apply_async(("x",), countdown=1000)
    now = its.tasks.note.delay("y")
    assert cancel(its.app, later.id)
    assert later.status == "REVOKED"
    assert not cancel(its.app, later.id)
    assert not cancel(its.app, now.id)
    assert not cancel(its.app, later.id, queue="elsewhere")
    assert its.app.control.purge() == 1


@pytest.mark.slow
def test_the_listings_of_the_documents_work_as_they_stand(run, tmp_path, capsys):
    host, port = run().address
    page = (ROOT / "docs" / "celery.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"__name__": "shop"}
    exec(first.replace("127.0.0.1:11300", f"{host}:{port}").replace("/var/lib/shop", str(tmp_path)), names)
    exec(second, names)
    assert capsys.readouterr().out == "nobody is reminded\n"
    names["app"].close()


@pytest.mark.slow
def test_workers_are_controlled(run, works):
    its = works(run())
    workers = [its.start("solo"), its.start("prefork")]

    def who_answers():
        return {name for answer in its.app.control.ping(timeout=0.5, limit=2) for name in answer}

    eventually(lambda: who_answers() == {"w0@test", "w1@test"}, "both answer")
    workers[0].kill()
    workers[0].wait()
    eventually(lambda: who_answers() == {"w1@test"}, "only the other answers")
    result = its.tasks.take.delay("a", 1000)
    eventually(lambda: its.lines() == [["begin", "a", "False"]], "it is being done")
    its.app.control.revoke(result.id, terminate=True)
    eventually(lambda: result.status == "REVOKED", "it is revoked")
    its.app.control.shutdown()
    assert workers[1].wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_a_thousand_tasks_with_an_eta_and_kills_of_a_worker_and_of_the_server(restartable, works, late):
    its = works(restartable)
    workers = [its.start("prefork"), its.start("threads")]
    names = [str(number) for number in range(1000)]
    publish_with_eta(its.tasks.note_late if late else its.tasks.note, names, 3, 0.01)
    eventually(lambda: len(its.lines()) > 200, "they have begun")
    workers[0].kill()
    its.start("prefork")
    eventually(lambda: len(its.lines()) > 500, "they go on", 60)
    restartable.kill()
    restartable.start()
    eventually(lambda: len({line[0] for line in its.lines()}) == 1000, "all are done", 60)
    for worker in its.workers[1:]:
        its.stop(worker)
    times = times_of(its.lines())
    twice = list(times.values()).count(2)
    print(f"{len(times)} tasks, {twice} of them twice")
    assert set(times.values()) <= {1, 2}
    assert twice <= 2 * 3 * 4  # what two workers had prefetched, and at the kill of one that of one
