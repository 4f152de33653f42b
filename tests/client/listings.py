"""The listings of a page as files of a program, and the processes that run them."""

import os
import subprocess
import sys

from harness.servers import ROOT
from harness.waiting import eventually
from tests.server.recipes import blocks


class Program:
    """The files of a section, and the processes that run them."""

    def __init__(self, page, title, directory, address):
        self._directory = directory
        self.more = []  # blocks that are no files
        for language, text in blocks(page, title):
            assert language in ("python", "sh")
            text = text.replace("11300", str(address[1]))
            first, _, rest = text.partition("\n")
            if first.startswith("# "):
                self.write(first[2:], rest)
            else:
                self.more.append(text)

    def write(self, name, text):
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def read(self, name):
        return (self._directory / name).read_text()

    def _options(self):
        path = os.pathsep.join([str(self._directory), str(ROOT / "client")])
        environment = dict(os.environ, PYTHONPATH=path, PYTHONUNBUFFERED="1")
        if (self._directory / "settings.py").exists():
            environment["DJANGO_SETTINGS_MODULE"] = "settings"
        return {"cwd": self._directory, "env": environment}

    def run(self, *arguments):
        done = subprocess.run(
            [sys.executable, "-P", *arguments], capture_output=True, text=True, timeout=60, **self._options()
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def work(self, *arguments, until):
        """Let a worker run until its output has these lines."""
        log = (self._directory / "log").open("w+")
        worker = subprocess.Popen([sys.executable, "-P", *arguments], stdout=log, stderr=log, **self._options())
        try:
            eventually(lambda: until <= set(self.read("log").splitlines()), f"its output has {until}")
        finally:
            worker.terminate()
            worker.wait(60)
            log.close()
            print(self.read("log"))  # pytest shows it if the test fails
        return self.read("log")
