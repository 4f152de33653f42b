"""What the console says where there is nothing to show: what belongs there, and a command that puts it there."""

import contextlib
import html
import re
import signal
import subprocess
import sys

import pytest
from beanstalk_client import Client
from beanstalk_client.schedules.scheduler import PLAN_KEY
from visiting import visiting

from harness.console import BEANSTALK
from harness.servers import INTERPRETED, environment_of
from harness.waiting import eventually

PROGRAMS = {
    "beanstalk": [sys.executable, "-P", "-c", f"'{BEANSTALK}'"],
    "beanstalk-worker": [sys.executable, "-m", "beanstalk_client.worker"],
    "beanstalk-server": [sys.executable, "-P", "-m", "beanstalk_server", "--check-config"],
}
SHOP = """
from beanstalk_client import Tasks

tasks = Tasks("127.0.0.1:{}", tube="mails")

@tasks.every("1h")
@tasks.task
def send():
    pass
"""


@pytest.fixture
def server(run):
    return run()


@pytest.fixture
def queue(server):
    with Client(server.address) as client:
        yield client


@pytest.fixture
def visitor(server):
    return visiting(server.address)


def commands(page):
    return [html.unescape(found) for found in re.findall(r'<pre aria-label="Command">(.*?)</pre>', page.text)]


@contextlib.contextmanager
def running(command, directory="."):
    """Run what a page shows, in a shell as its reader does."""
    program, _, rest = command.partition(" ")
    line = f"exec {' '.join(PROGRAMS[program])} {rest}"
    process = subprocess.Popen(line, shell=True, cwd=directory, env=environment_of(INTERPRETED), stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):  # the second one ends the command of a job
            process.send_signal(number)
        process.communicate(timeout=60)


def run_it(command):
    with running(command) as process:
        assert process.wait(60) == 0


async def test_the_first_minute_of_a_server(queue, visitor):
    put, work, tasks = commands(await visitor.get("/"))
    assert tasks == "beanstalk-worker shop:tasks"
    run_it(put)
    queue.use("default")
    assert queue.peek_ready().body == "hello"
    with running(work) as worker:
        assert worker.stdout.read(5) == b"hello"
    await next(iter(visitor.app.state.users._users.values())).sampler.sample()
    assert commands(await visitor.get("/")) == []


async def test_a_tube_without_jobs_says_how_to_get_them_there(queue, visitor):
    tube = "$(tube);"
    queue.watch(tube)
    for state in ("ready", "delayed"):
        (put,) = commands(await visitor.get(f"/tube?name={tube}&state={state}"))
        run_it(put)
        assert queue.stats_tube(tube)[f"current-jobs-{state}"] == 1
        assert commands(await visitor.get(f"/tube?name={tube}&state={state}")) == []
    for state, after in (("reserved", "ready"), ("buried", "buried")):
        (work,) = commands(await visitor.get(f"/tube?name={tube}&state={state}"))
        with running(work):
            eventually(lambda state=state: queue.stats_tube(tube)[f"current-jobs-{state}"], f"a job is {state}")
        eventually(lambda after=after: queue.stats_tube(tube)[f"current-jobs-{after}"], f"it is {after} again")


async def test_a_page_without_failures_says_how_to_get_one(queue, visitor):
    queue.put("a")
    await visitor.get("/")
    await next(iter(visitor.app.state.users._users.values())).sampler.sample()
    (work,) = commands(await visitor.get("/failures"))
    with running(work):
        eventually(lambda: queue.stats_tube("default")["current-jobs-buried"], "the job is buried")


async def test_a_page_without_schedules_says_how_to_get_them(server, queue, visitor, tmp_path):
    (work,) = commands(await visitor.get("/schedules"))
    (tmp_path / "shop.py").write_text(SHOP.format(server.address[1]))
    with running(work, tmp_path):
        eventually(
            lambda: (
                "schedules" in queue.tubes()
                and any(job.get("key", "").startswith(PLAN_KEY) for job in queue.list_jobs("schedules", "delayed"))
            ),
            "there is a plan",
        )
    await visitor.get("/schedules")
    assert "every 3600 s" in visitor.text and commands(visitor.page) == []


async def test_other_empty_pages_say_what_belongs_there(queue, visitor):
    assert commands(await visitor.get("/tubes"))[0].endswith(" put mails hello")
    assert commands(await visitor.get("/clients"))[0].endswith(" work default -- cat")
    (cluster,) = commands(await visitor.get("/cluster"))
    run_it(cluster)
    assert "Each action in this console is listed here" in (await visitor.get("/log")).text
    for path in ("/tubes?q=none", "/clients?q=none"):
        page = await visitor.get(path)
        assert commands(page) == [] and f'<a href="{path.partition("?")[0]}">All' in page.text


async def test_a_console_that_changes_nothing_offers_no_form(server):
    async with visiting(server.address, read_only=True) as visitor:
        assert "in the form of" not in (await visitor.get("/")).text
