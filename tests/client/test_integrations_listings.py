"""The listings of docs/integrations.md run, as a reader would put them into files, with a server and with workers."""

import django
import pytest
from listings import Program

from harness.servers import ROOT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "integrations.md"

MORE_SETTINGS = """
SECRET_KEY = "not secret"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""


def test_taskiq(tmp_path, run):
    program = Program(PAGE, "taskiq", tmp_path, run().address)
    assert program.run("order.py") == "nobody is reminded of order 17\n"
    log = program.work("-m", "taskiq", "worker", "shop:broker", "--workers", "1", until={"order 16 is not paid"})
    assert "order 17" not in log


def test_django(tmp_path, run):
    address = run().address
    program = Program(PAGE, "Django", tmp_path, address)
    program.write("settings.py", program.read("settings.py") + MORE_SETTINGS)
    program.write("shop/__init__.py", "")
    if django.VERSION >= (6,):
        program.write("settings.py", program.read("settings.py").replace('"django_tasks", ', ""))
        program.write("shop/tasks.py", program.read("shop/tasks.py").replace("django_tasks", "django.tasks"))
    begin = "import django, runpy; django.setup(); runpy.run_path({!r})"
    assert "no issues" in program.run("-m", "django", "check")
    assert program.run("-c", begin.format("order.py")) == "nobody is reminded of order 17\n"
    (on_commit,) = Program(PAGE, "What it supports", tmp_path, address).more
    program.write("commit.py", on_commit)
    program.run("-c", begin.format("commit.py"))
    (results,) = Program(PAGE, "Results of tasks", tmp_path, address).more
    program.write("results.py", results)
    settings = program.read("settings.py")
    program.write("settings.py", settings.replace('"backoff": 2', '"backoff": 2, "result_ttl": "1h"'))
    assert program.run("-c", begin.format("results.py")) == "READY 0\n"
    program.write("settings.py", settings)
    options = ("--queue", "default", "--queue", "mail", "--at-once", "10")
    until = {"there are 3 orders", "there are 3 customers"}
    log = program.work("-m", "django", "beanstalk_worker", *options, until=until)
    assert "order 17" not in log
    assert "worker-stopped" in log or "has stopped" in log
