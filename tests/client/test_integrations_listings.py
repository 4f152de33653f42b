"""The listings of docs/integrations.md run, as a reader would put them into files, with a server and with workers."""

import os
import subprocess
import sys

import django
import pytest

from harness import servers
from harness.servers import ROOT
from harness.waiting import eventually
from tests.server.recipes import blocks

PAGE = ROOT / "docs" / "integrations.md"

MORE_SETTINGS = """
SECRET_KEY = "not secret"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""


@pytest.fixture
def address():
    process = servers.start(servers.imported())
    yield "{}:{}".format(*process.address)
    process.stop()


class Program:
    """The files of a section, and the processes that run them."""

    def __init__(self, title, directory, address):
        self._directory = directory
        self.more = []  # blocks that are no files
        for language, text in blocks(PAGE, title):
            assert language in ("python", "sh")
            text = text.replace("127.0.0.1:11300", address)
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
        environment = dict(os.environ, PYTHONPATH=path, DJANGO_SETTINGS_MODULE="settings", PYTHONUNBUFFERED="1")
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
            worker.wait(20)
            log.close()
        return self.read("log")


def test_taskiq(tmp_path, address):
    program = Program("taskiq", tmp_path, address)
    assert program.run("order.py") == "nobody is reminded of order 17\n"
    log = program.work("-m", "taskiq", "worker", "shop:broker", "--workers", "1", until={"order 16 is not paid"})
    assert "order 17" not in log


def test_django(tmp_path, address):
    program = Program("Django", tmp_path, address)
    program.write("settings.py", program.read("settings.py") + MORE_SETTINGS)
    program.write("shop/__init__.py", "")
    if django.VERSION >= (6,):
        program.write("settings.py", program.read("settings.py").replace('"django_tasks", ', ""))
        program.write("shop/tasks.py", program.read("shop/tasks.py").replace("django_tasks", "django.tasks"))
    begin = "import django, runpy; django.setup(); runpy.run_path({!r})"
    assert "no issues" in program.run("-m", "django", "check")
    assert program.run("-c", begin.format("order.py")) == "nobody is reminded of order 17\n"
    (on_commit,) = Program("What it supports", tmp_path, address).more
    program.write("commit.py", on_commit)
    program.run("-c", begin.format("commit.py"))
    options = ("--queue", "default", "--queue", "mail", "--at-once", "10")
    until = {"there are 3 orders", "there are 3 customers"}
    log = program.work("-m", "django", "beanstalk_worker", *options, until=until)
    assert "order 17" not in log
    assert "worker-stopped" in log or "has stopped" in log
