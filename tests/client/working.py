"""Workers as processes, for tests: `python -m beanstalk_client.worker` with a program of the test's own."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from beanstalk_client import Client

from harness.servers import ROOT
from harness.waiting import eventually

ENDS_WITHIN = 60
"""Seconds until a worker must have ended that was told to."""

PROGRAM = """
import asyncio, os, time
from beanstalk_client.tasks import Tasks

tasks = Tasks(os.environ["QUEUE"], connect_timeout=1.0)
DIARY = os.environ["DIARY"]


def write(*words):
    with open(DIARY, "a") as diary:
        diary.write(" ".join(map(str, words)) + "\\n")


@tasks.task
async def note(number):
    write("note", number)


@tasks.task
def plain(number):
    write("plain", number)


@tasks.task
async def wait(number, gate):
    write("begins", number)
    while not os.path.exists(gate):
        await asyncio.sleep(0.01)
    write("ends", number)


@tasks.task(retries=1, backoff=0.05)
def fail():
    write("fail")
    raise RuntimeError("no such luck")
"""


class Shop:
    """The workers of a shop with another task queue, as processes at a server, and the notes that their tasks write.

    Args:
        module: what `python -m` runs, with its first arguments.
        environment: variables, beside SHOP_QUEUE and SHOP_NOTES.
    """

    def __init__(self, address, directory, *module, **environment):
        self._address = address
        self.url = "beanstalk://{}:{}".format(*address)
        self._notes = directory / "notes"
        self._notes.touch()
        self._log = (directory / "log").open("w+")
        self._line = [sys.executable, "-P", "-m", *module]
        path = os.pathsep.join([str(Path(__file__).parent), str(ROOT / "client")])
        known = {"PYTHONPATH": path, "SHOP_QUEUE": self.url, "SHOP_NOTES": str(self._notes)}
        self._environment = {**os.environ, **known, **environment}
        self._workers = []

    def start(self, *options):
        worker = subprocess.Popen(
            [*self._line, *options],
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._workers.append(worker)
        return worker

    def stop(self, worker):
        worker.terminate()
        return worker.wait(60)

    def kill(self, worker):
        """As a machine that fails does: its processes are gone, all of them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def close(self):
        for worker in self._workers:
            self.kill(worker)
        print(self.log)
        self._log.close()

    @property
    def notes(self):
        return self._notes.read_text().splitlines()

    def jobs(self, tube):
        """How many are ready, reserved and delayed."""
        with Client(self._address) as client:
            found = client.stats_tube(tube)
            return found["current-jobs-ready"], found["current-jobs-reserved"], found["current-jobs-delayed"]

    @property
    def log(self):
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()


class WorkerProcess:
    """A worker of PROGRAM, or of what `program` says, at a server."""

    def __init__(self, server, directory, *options, program=PROGRAM):
        host, port = server.address
        (directory / "program.py").write_text(program)
        self.diary = directory / "diary"
        self.diary.touch()
        self._log = (directory / "log").open("a+")
        self.environment = {
            **os.environ,
            "QUEUE": f"{host}:{port}",
            "DIARY": str(self.diary),
            "PYTHONPATH": str(ROOT / "client"),
        }
        self._line = [sys.executable, "-m", "beanstalk_client.worker", "program:tasks", *options]
        self._directory = directory
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self._line, env=self.environment, cwd=self._directory, stdout=self._log, stderr=self._log
        )

    @property
    def lines(self):
        return self.diary.read_text().splitlines()

    @property
    def log(self):
        return os.pread(self._log.fileno(), 1 << 22, 0).decode()

    def wait_for(self, word, what):
        eventually(lambda: word in self.log, what, ENDS_WITHIN)

    def tell(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def end(self):
        """Its exit status, once it has ended."""
        return self.process.wait(ENDS_WITHIN)

    def stop(self, number=signal.SIGTERM):
        """Its exit status, once it has ended as it was told to."""
        self.tell(number)
        return self.end()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self._log.close()
