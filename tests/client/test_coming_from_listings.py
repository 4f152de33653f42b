"""The listings of docs/coming-from.md run, with a server and a worker, and each call that a table names works."""

import re
import subprocess
import time

import programs
import pytest
from beanstalk_client.tasks import Tasks
from clients_of_others import RUNS_WITHIN, of_debian
from listings import Program

from harness.servers import ROOT
from tests.server.recipes import blocks

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "coming-from.md"


CALLS = r"`((?:remind|tasks|group|handle)\b[^`]*|(?:handle|group) = [^`]*)`"


@pytest.mark.parametrize("section", ["RQ", "Celery"])
def test_each_call_of_a_table_works(section):
    """The right column of each row is a program: its calls are made in their order, and the queue runs after each."""
    table = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE)
    tasks = Tasks(tube="mail")
    reminded = []

    @tasks.task(retries=3, backoff=10)
    def remind(order):
        reminded.append(order)

    for moved_from, here in rows:
        with tasks.in_memory() as queue:
            names = {"remind": remind, "tasks": tasks, "moment": time.time() + 900, "key": "order-17"}
            names |= {"group": tasks.group(), "handle": None}
            before = len(reminded)
            for call in re.findall(CALLS, here):
                if call in ("remind.delay(16)", "handle.progress", "handle.state"):
                    continue  # without `put`, this warns; of a handle, the listings of docs/workers.md tell
                exec(call, names)
                queue.run("20m")
            if ".put(" in here:
                assert len(reminded) > before, moved_from
    assert any("result" in moved_from and "handle.get(" in here for moved_from, here in rows)
    assert any("tasks.group()" in here for _, here in rows)
    assert not [moved_from for moved_from, here in rows if here == "none"]


def test_greenstalk(tmp_path, run):
    assert Program(PAGE, "greenstalk", tmp_path, run().address).run("producer.py") == "hello\n"


def test_rq(tmp_path, run):
    program = Program(PAGE, "RQ", tmp_path, run().address)
    assert program.run("order.py") == "order 17 needs no reminder\n"
    until = {"order 16 is not paid"}
    log = program.work("-m", "beanstalk_client.worker", "shop:tasks", "--at-once", "10", until=until)
    assert "order 17" not in log


def test_a_sorted_set(tmp_path, run):
    program = Program(PAGE, "A Redis sorted set, and libraries built on one", tmp_path, run().address)
    assert program.run("delays.py").splitlines() == ["True", "cancelled: no worker gets it", "1", "order-18"]


def test_celery(tmp_path, run):
    address = run().address
    Program(PAGE, "RQ", tmp_path, address)  # which has the task
    program = Program(PAGE, "Celery", tmp_path, address)
    assert program.run("orders.py") == "True\nFalse\n"
    program.work("-m", "beanstalk_client.worker", "shop:tasks", until={"order 18 is not paid"})


def test_rabbitmq(tmp_path, run):
    program = Program(PAGE, "RabbitMQ's delayed message exchange", tmp_path, run().address)
    assert program.run("reminders.py") == "order 18 is not paid\n"


def test_sqs(tmp_path, run):
    program = Program(PAGE, "SQS beyond 15 minutes", tmp_path, run().address)
    assert program.run("orders.py") == "['order 18']\n(1, 0)\n"


def run_other(directory, address, title, *line, page=PAGE):
    """Write the listings of a section in another language, run one, and return the lines that it prints."""
    for _, text in blocks(page, title):
        name = re.match(r"(?://|#) (\S+\.\w+)\n", text)[1]
        (directory / name).write_text(text.replace("11300", str(address[1])))
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=RUNS_WITHIN, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_redisson(tmp_path, run):
    java = programs.find("java", "default-jdk-headless")
    found = run_other(tmp_path, run().address, "Redisson's delayed queue", java, "Orders.java")
    assert found == ["INSERTED 1", "CANCELLED", "NOT_FOUND"]


def test_bullmq(tmp_path, run):
    node = programs.find("node", "nodejs")
    address = run().address
    run_other(tmp_path, address, "Node", node, "beanstalk.mjs", page=ROOT / "docs" / "clients.md")
    assert run_other(tmp_path, address, "BullMQ", node, "orders.mjs") == ["INSERTED 1", "RESCHEDULED", "CANCELLED"]


def test_sidekiq(tmp_path, run):
    of_debian("ruby", ["-e", "require 'beaneater'"], "ruby-beaneater", "")
    found = run_other(tmp_path, run().address, "Sidekiq", "ruby", "orders.rb")
    assert found == ["CANCELLED", "order 16 is not paid"]
