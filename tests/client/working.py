"""Workers as processes, for tests: `python -m beanstalk_client.worker` with a program of the test's own."""

import os
import signal
import subprocess
import sys

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

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self._log.close()
