"""`taskiq worker` as a process, with this package's broker: what becomes of tasks when it, or the server, ends."""

import asyncio
import collections
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import taskiq_shop
from beanstalk_client import Client

from harness.waiting import eventually

HERE = Path(__file__).parent


class Shop:
    """The program of `taskiq_shop` at a server: its workers are processes, its producer is this one."""

    def __init__(self, address, directory):
        self._url = "beanstalk://{}:{}".format(*address)
        self._notes = directory / "notes"
        self._notes.touch()
        self._log = (directory / "log").open("w+")
        self._workers = []
        self._address = address

    def start_worker(self, *options):
        path = os.pathsep.join([str(HERE), str(HERE.parents[1] / "client")])
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "taskiq", "worker", "taskiq_shop:broker", "--workers", "1", *options],
            env=dict(os.environ, PYTHONPATH=path, SHOP_QUEUE=self._url, SHOP_NOTES=str(self._notes)),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._workers.append(worker)
        return worker

    def stop_worker(self):
        worker = self._workers.pop()
        worker.terminate()
        worker.wait(60)

    def kill_worker(self):
        """As a machine that fails does: its processes are gone, all of them."""
        worker = self._workers.pop()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def close(self):
        while self._workers:
            self.kill_worker()
        self._log.close()

    def send(self, calls):
        """Send tasks: their names, labels and arguments."""

        async def main():
            broker = taskiq_shop.BeanstalkBroker(self._url, tube="shop")
            for name, labels, *args in calls:
                await getattr(taskiq_shop, name).kicker().with_broker(broker).with_labels(**labels).kiq(*args)
            await broker.shutdown()

        asyncio.run(main())

    @property
    def notes(self):
        return self._notes.read_text().splitlines()

    def jobs(self):
        with Client(self._address) as client:
            found = client.stats_tube("shop")
            return found["current-jobs-ready"], found["current-jobs-reserved"], found["current-jobs-delayed"]

    @property
    def log(self):
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()


@pytest.fixture
def shop(restartable, tmp_path):
    with contextlib.closing(Shop(restartable.address, tmp_path)) as shop:
        yield shop
        print(shop.log)


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_ends_what_runs_and_gives_back_what_does_not(shop):
    shop.send([("bake", {}, number, 0.5) for number in range(20)])
    worker = shop.start_worker("--max-async-tasks", "3")
    eventually(lambda: len(shop.notes) == 3, "three cakes are in the oven")
    assert shop.jobs() == (10, 10, 0), "it has reserved ten at most"
    shop.stop_worker()
    assert worker.returncode == 0
    counted = collections.Counter(note.split()[0] for note in shop.notes)
    assert counted["begun"] == counted["done"]
    assert 3 <= counted["done"] < 20
    assert shop.jobs() == (20 - counted["done"], 0, 0)


def test_a_worker_that_is_killed_costs_no_task(shop):
    shop.send([("bake", {}, number, 0.2) for number in range(30)])
    shop.start_worker()
    eventually(lambda: "done" in " ".join(shop.notes), "a cake is done")
    shop.kill_worker()
    shop.start_worker()
    eventually(lambda: shop.jobs() == (0, 0, 0), "nothing is left to do")
    done = collections.Counter(note for note in shop.notes if note.startswith("done"))
    assert len(done) == 30
    assert sum(done.values()) <= 40, "those that it had reserved may have run twice: ten at most"


@pytest.mark.slow
def test_a_thousand_tasks_with_a_delay_survive_kills_of_the_worker_and_the_server_and_none_is_early(shop, restartable):
    began = time.time()
    due = {number: began + 3 + number % 7 for number in range(1000)}
    shop.send([("remind", {"at": moment}, number, moment) for number, moment in due.items()])
    shop.start_worker()
    shop.start_worker()
    eventually(lambda: len(shop.notes) > 200, "some are done")
    shop.kill_worker()
    shop.start_worker()
    eventually(lambda: len(shop.notes) > 500, "more are done")
    restartable.kill()
    restartable.start()
    try:
        eventually(lambda: shop.jobs() == (0, 0, 0), "nothing is left to do", 60)
    finally:
        print("ready, reserved, delayed:", shop.jobs())
    runs = collections.Counter()
    for note in shop.notes:
        number, late = note.split()
        runs[int(number)] += 1
        assert float(late) >= 0, f"{number} was early"
    assert set(runs) == set(due)
    twice = sum(runs.values()) - 1000
    print(f"{twice} of 1000 ran twice")
    assert twice <= 30, "ten at most in hand of each worker, and each of three was interrupted once"


@pytest.mark.slow
def test_a_task_is_tried_again_in_another_process(shop):
    shop.send([("deliver", {}, 17), ("grind", {}, 18)])
    shop.start_worker()
    eventually(lambda: len(shop.notes) == 4, "all attempts are made")
    assert sorted(shop.notes) == ["17 0", "17 1", "17 2", "18"]
