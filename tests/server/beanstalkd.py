"""The real beanstalkd, for the tests that hold this server against it."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time

import pytest
from running import Caller

PROGRAM = shutil.which("beanstalkd")

needs_beanstalkd = pytest.mark.skipif(
    PROGRAM is None and os.environ.get("CI") != "true", reason="beanstalkd is not installed: nothing to compare with"
)


class Beanstalkd:
    """beanstalkd on a directory, and one connection to it."""

    def __init__(self, directory, *options):
        assert PROGRAM, "CI needs beanstalkd"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.said = None
        command = [PROGRAM, "-l", "127.0.0.1", "-p", str(port), "-b", str(directory), "-f0", *options]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert time.monotonic() < deadline and self._process.poll() is None
            time.sleep(0.01)
        self.address = ("127.0.0.1", port)
        self._caller = Caller(self.address)

    def ask(self, command):
        return self._caller.ask(command.encode() + b"\r\n")

    def put(self, body=b"body", tube="default", priority=100, delay=0, ttr=60):
        """Put a job; return its id."""
        assert self.ask(f"use {tube}").startswith(b"USING")
        self._caller.send(b"put %d %d %d %d\r\n%b\r\n" % (priority, delay, ttr, len(body), body))
        return self._number(self._caller.line())

    def reserve(self, tube):
        """Reserve the best job of a tube; return its id."""
        assert self.ask(f"watch {tube}").startswith(b"WATCHING")
        if tube != "default":
            self.ask("ignore default")
        job_id, _ = self._job(self.ask("reserve-with-timeout 0"))
        self.ask("watch default")
        if tube != "default":
            self.ask(f"ignore {tube}")
        return job_id

    def reserve_job(self, job_id):
        """Whether it could be reserved."""
        line = self.ask(f"reserve-job {job_id}")
        return line != b"NOT_FOUND\r\n" and self._job(line)[0] == job_id

    def peek(self, job_id):
        """Its body, or None."""
        line = self.ask(f"peek {job_id}")
        return None if line == b"NOT_FOUND\r\n" else self._job(line)[1]

    def stats(self, command):
        size = self._number(self.ask(command))
        text = self._caller.read(size + 2).decode()
        return {
            key: int(value) if value.isdigit() else value.strip('"')
            for key, value in re.findall(r"^([a-z-]+): (.*?)\r?$", text, re.MULTILINE)
        }

    def buried(self, tube):
        """The ids of the buried jobs in their order. They are kicked."""
        self.ask(f"use {tube}")
        found = []
        while (line := self.ask("peek-buried")) != b"NOT_FOUND\r\n":
            found.append(self._job(line)[0])
            assert self.ask("kick 1") == b"KICKED 1\r\n"
        return found

    def shows(self, ids):
        """The jobs among these that there are, with what the time is for."""
        shown = {}
        for job_id in ids:
            body = self.peek(job_id)
            if body is not None:
                shown[job_id] = (body, self.stats(f"stats-job {job_id}"))
        return shown, time.time()

    def send_until_it_ends(self, data):
        with contextlib.suppress(ConnectionError):
            self._caller.send(data)

    def line(self):
        return self._caller.line()

    def end_process(self):
        self._process.kill()

    def kill(self):
        """SIGKILL; return what it has said to its standard error."""
        self._process.kill()
        return self._end()

    def stop(self):
        self._process.terminate()
        return self._end()

    def _end(self):
        if self.said is None:
            self._caller.close()
            self.said = self._process.communicate(timeout=10)[1].decode()
        return self.said

    def _job(self, line):
        match = re.fullmatch(rb"(?:RESERVED|FOUND) (\d+) (\d+)\r\n", line)
        assert match, line
        body = self._caller.read(int(match[2]) + 2)
        assert body[-2:] == b"\r\n"
        return int(match[1]), body[:-2]

    def _number(self, line):
        match = re.fullmatch(rb"(?:INSERTED|OK) (\d+)\r\n", line)
        assert match, line
        return int(match[1])
