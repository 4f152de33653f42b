"""Kills of the server, of the worker and of both, while jobs are put and run: none is lost, what runs twice is told."""

import collections
import random
import signal
import time

import pytest
from beanstalk_client import Client, ConnectionLostError, NotFoundError
from consuming import SERVERS, restartable
from working import WorkerProcess

from harness.waiting import eventually

JOBS = 150


def put(client, number):
    """Put until the server says that it has the job: a job whose put was lost is put once more."""
    body = b'{"task": "%s", "args": [%d]}' % (b"plain" if number % 3 else b"note", number)
    deadline = time.monotonic() + 60
    while True:
        try:
            return client.put(body)
        except (ConnectionLostError, OSError):
            assert time.monotonic() < deadline, "the server does not come back"


def jobs_left(client):
    try:
        found = client.stats_tube("default")
    except (NotFoundError, ConnectionLostError, OSError):
        return 1
    return sum(found[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried"))


def story(program, directory, kills, whom, seed):
    chance = random.Random(seed)
    with restartable(program, directory) as server:
        worker = WorkerProcess(server, directory)
        try:
            worker.wait_for("takes jobs from", "it has started")
            with Client(server.address, encoding=None, reconnect_timeout=20) as client:
                moments = sorted(chance.sample(range(10, JOBS), kills))
                for number in range(JOBS):
                    put(client, number)
                    if moments and number == moments[0]:
                        moments.pop(0)
                        if whom in ("worker", "both"):
                            worker.kill()
                        if whom in ("server", "both"):
                            server.kill()
                            server.start()
                        if whom in ("worker", "both"):
                            worker.start()
                eventually(lambda: jobs_left(client) == 0, "all are done", 60)
            assert worker.stop(signal.SIGTERM) == 0
            runs = collections.Counter(int(line.split()[1]) for line in worker.lines)
        finally:
            worker.close()
    assert set(runs) == set(range(JOBS)), "lost"
    return sum(count - 1 for count in runs.values())


CHECKPOINTS = """
import os, signal
from beanstalk_client.tasks import Tasks, current_run

tasks = Tasks(os.environ["QUEUE"])


def count(number):
    with open(os.environ["DIARY"], "a") as diary:
        print(number, file=diary)


def die_at(number):
    if number in (2, 5):
        os.kill(os.getpid(), signal.SIGKILL)


@tasks.task
def plain():
    run = current_run()
    for number in range(run.last_checkpoint or 0, 8):
        count(number)
        run.checkpoint(number + 1)
        die_at(number)


@tasks.task
async def note():
    run = current_run()
    for number in range(run.last_checkpoint or 0, 8):
        count(number)
        await run.acheckpoint(number + 1)
        die_at(number)
"""


@pytest.mark.parametrize("task", ["plain", "note"])
def test_a_task_goes_on_where_it_was_when_its_worker_was_killed(task, our_server, tmp_path):
    worker = WorkerProcess(our_server, tmp_path, program=CHECKPOINTS)
    try:
        with Client(our_server.address, encoding=None) as client:
            client.put(b'{"task": "%s"}' % task.encode())
            for _ in range(2):
                assert worker.end() == -signal.SIGKILL
                worker.start()
            eventually(lambda: jobs_left(client) == 0, "it is done", 60)
        assert worker.stop() == 0
        assert worker.lines == [str(number) for number in range(8)]
    finally:
        worker.close()


@pytest.mark.parametrize(("program", "whom"), [(SERVERS[0], "both"), (SERVERS[1], "worker")])
def test_no_job_is_lost_whoever_is_killed(program, whom, tmp_path, record_property):
    again = story(program, tmp_path, 2, whom, 17)
    record_property("ran again", again)
    print(f"{program}, {whom} killed twice: {again} of {JOBS} ran again")
    assert again <= 2 * 25  # what ten slots, and what was answered in vain, can be
