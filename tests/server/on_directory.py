"""A server with a directory, and one connection to it: the same calls for this server and for beanstalkd."""

import re
import time

from harness.caller import Caller
from harness.servers import BEANSTALKD, launch, start


class OnDirectory:
    """A process, and one connection to it."""

    def __init__(self, process):
        self.process = process
        self.address = process.address
        self.caller = Caller(process.address)

    def ask(self, command):
        return self.caller.ask(command.encode() + b"\r\n")

    def put(self, body=b"body", tube="default", priority=100, delay=0, ttr=60):
        """Put a job; return its id."""
        assert self.ask(f"use {tube}").startswith(b"USING")
        self.caller.send(b"put %d %d %d %d\r\n%b\r\n" % (priority, delay, ttr, len(body), body))
        return self._number(self.caller.line())

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
        """Reserve a job by its id; return whether that was possible."""
        line = self.ask(f"reserve-job {job_id}")
        return line != b"NOT_FOUND\r\n" and self._job(line)[0] == job_id

    def peek(self, job_id):
        """The body of a job, or None if there is no such job."""
        line = self.ask(f"peek {job_id}")
        return None if line == b"NOT_FOUND\r\n" else self._job(line)[1]

    def stats(self, command):
        size = self._number(self.ask(command))
        text = self.caller.read(size + 2).decode()
        return {
            key: int(value) if value.isdigit() else value.strip('"')
            for key, value in re.findall(r"^([a-z-]+): (.*?)\r?$", text, re.MULTILINE)
        }

    def buried(self, tube):
        """Kick the buried jobs; return their ids in order."""
        self.ask(f"use {tube}")
        found = []
        while (line := self.ask("peek-buried")) != b"NOT_FOUND\r\n":
            found.append(self._job(line)[0])
            assert self.ask("kick 1") == b"KICKED 1\r\n"
        return found

    def shows(self, ids):
        """Those of these jobs that exist: body, statistics, and the time of the statistics."""
        shown = {}
        for job_id in ids:
            body = self.peek(job_id)
            if body is not None:
                shown[job_id] = (body, self.stats(f"stats-job {job_id}"), time.time())
        return shown

    def kill(self):
        """SIGKILL; return what it has logged."""
        self.process.kill()
        self.caller.close()
        return self.process.log

    def stop(self):
        """SIGTERM; return what it has logged."""
        self.caller.close()
        self.process.stop()
        return self.process.log

    def _job(self, line):
        match = re.fullmatch(rb"(?:RESERVED|FOUND) (\d+) (\d+)\r\n", line)
        assert match, line
        body = self.caller.read(int(match[2]) + 2)
        assert body[-2:] == b"\r\n"
        return int(match[1]), body[:-2]

    def _number(self, line):
        match = re.fullmatch(rb"(?:INSERTED|OK) (\d+)\r\n", line)
        assert match, line
        return int(match[1])


class Ours(OnDirectory):
    """This server."""

    def __init__(self, directory, *options):
        super().__init__(launch("-p", "0", "-b", str(directory), *options))


class Beanstalkd(OnDirectory):
    """beanstalkd, which syncs before each reply unless told otherwise."""

    def __init__(self, directory, *options):
        super().__init__(start(BEANSTALKD, ["-b", str(directory), "-f0", *options]))
