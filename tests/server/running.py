"""Servers for the tests that go through sockets: in a thread of this process, and as a process of their own."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import beanstalk_server
from beanstalk_server import Server

SOURCES = Path(beanstalk_server.__file__).parents[1]


class Running:
    """A server in a thread, with an event loop of its own."""

    def __init__(self, config, loop_factory):
        self._config = config
        self._loop_factory = loop_factory
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self):
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            self.loop = runner.get_loop()
            runner.run(self._serve())

    async def _serve(self):
        self._stop = asyncio.Event()
        async with Server(self._config) as self.server:
            self.address = self.server.address
            self._started.set()
            await self._stop.wait()

    def call(self, function, *arguments):
        """Call a function in the server's thread; return its result."""

        async def work():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(10)

    def stop(self):
        self.call(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def connect(self):
        return Caller(self.address)


class Caller:
    """A plain socket, with a way to read just as much as a test wants."""

    def __init__(self, address):
        family = (
            socket.AF_UNIX if isinstance(address, str) else socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        )
        self.socket = socket.socket(family)
        self.socket.settimeout(20)
        self.socket.connect(address)
        self._file = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data)

    def line(self):
        return self._file.readline()

    def read(self, count):
        return self._file.read(count)

    def ask(self, data):
        """Send a command and read one line."""
        self.send(data)
        return self.line()

    def rest(self):
        """Everything until the server closes."""
        return self._file.read()

    def close(self):
        self._file.close()
        self.socket.close()


class Process:
    """A server as a process: `beanstalk-server` with these options."""

    def __init__(self, *options, environment=None, command=None, pass_fds=()):
        self.process = subprocess.Popen(
            command or [sys.executable, "-m", "beanstalk_server", *options],
            env=clean_environment(environment),
            cwd="/",
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )
        self.log = ""
        self._wait_until_it_listens()

    def _wait_until_it_listens(self):
        while "listens on" not in self.log:
            line = self.process.stderr.readline()
            assert line, f"the server did not start: {self.log}"
            self.log += line

    @property
    def address(self):
        host, port = re.search(r"listens on \[?([^ ]*?)\]?:(\d+)", self.log).groups()
        return host, int(port)

    def send_signal(self, number):
        self.process.send_signal(number)

    def stop(self, number=signal.SIGTERM):
        """Stop it; return its exit status."""
        self.send_signal(number)
        with contextlib.suppress(ValueError):
            self.log += self.process.stderr.read()
        return self.process.wait(10)


def clean_environment(environment=None):
    """This environment without any setting of the server, with the package that the tests are run on."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BEANSTALK_SERVER_")}
    return kept | {"PYTHONPATH": str(SOURCES)} | (environment or {})


def run_to_end(*options, environment=None):
    """Run a server that is expected not to start; return exit status and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "beanstalk_server", *options],
        env=clean_environment(environment),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
