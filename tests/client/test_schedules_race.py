"""Many schedulers at a real server: as processes that are killed, by the real clock, and at a server that cannot."""

import contextlib
import datetime
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from beanstalk_client.blocking import Client
from beanstalk_client.errors import ForbiddenError, TimedOutError, UnsupportedError
from beanstalk_client.schedules import MOMENT, Scheduler
from beanstalk_client.tasks import Tasks

from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness import servers
from harness.waiting import eventually

SPEED = 500.0
"""How fast the moved clock goes."""

PROGRAM = Path(__file__).with_name("racing_scheduler.py")
CLIENT = Path(__file__).parents[2] / "client"


def address_of(server):
    host, port = server.address
    return f"{host}:{port}"


def environment():
    return servers.environment_of(servers.imported()) | {"PYTHONPATH": str(CLIENT)}


def taken(queue):
    """The arguments of all jobs that are due, which are deleted."""
    done = []
    while True:
        try:
            jobs = queue.reserve_batch(1000, timeout=0)
        except TimedOutError:
            return done
        for job in jobs:
            queue.delete(job)
            done.append(Tasks().serializer.read(job.body)["args"])


@pytest.mark.parametrize(("many", "kills"), [(3, 2), pytest.param(8, 6, marks=pytest.mark.slow)])
def test_schedulers_that_are_killed_at_random_put_each_firing_once(run, many, kills):
    address = address_of(run())
    chance = random.Random(8)
    began = time.time()

    def start():
        line = [sys.executable, "-P", str(PROGRAM), address, str(began), str(SPEED)]
        return subprocess.Popen(line, env=environment(), cwd="/")

    fired = []
    with Client(address, encoding=None, watch="work") as queue, contextlib.ExitStack() as stack:
        racers = [start() for _ in range(many)]
        stack.callback(lambda: [(each.kill(), each.wait()) for each in racers])

        def some_more(number):
            fired.extend(taken(queue))
            return len(fired) >= number

        for number in range(100, 100 * kills + 1, 100):
            eventually(lambda number=number: some_more(number), f"{number} firings", within=60)
            victim = chance.randrange(many)
            racers[victim].kill()
            racers[victim].wait()
            racers[victim] = start()
        eventually(lambda: some_more(100 * kills + 100), "the last goes on", within=60)
        for each in racers:
            each.kill()
            each.wait()
        fired += taken(queue)
    for name, interval in (("sevens", 7), ("elevens", 11)):
        moments = sorted(datetime.datetime.fromisoformat(at).timestamp() for which, at in fired if which == name)
        assert moments == [moments[0] + n * interval for n in range(len(moments))]  # none twice, none left out
        assert len(moments) > 20 * kills


APP = """
from beanstalk_client.schedules import MOMENT
from beanstalk_client.tasks import Tasks

tasks = Tasks({address!r})

@tasks.every(seconds=1, args=[MOMENT])
@tasks.task(tube="work")
def note(moment):
    print(moment, flush=True)
"""


@pytest.fixture
def app(tmp_path):
    """Writes a program with a schedule; runs it with a module of the client, in processes that end with the test."""
    with contextlib.ExitStack() as stack:

        class App:
            def write(self, address, text=APP):
                (tmp_path / "app.py").write_text(text.format(address=address))

            def start(self, module, *options):
                process = subprocess.Popen(
                    [sys.executable, "-m", f"beanstalk_client.{module}", "app:tasks", *options],
                    env=environment(),
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                stack.enter_context(process)
                stack.callback(process.kill)
                return process

            def run(self, module, *options):
                process = self.start(module, *options)
                out, err = process.communicate(timeout=30)
                return process.returncode, out, err

        yield App()


def test_two_schedulers_put_a_firing_once_and_it_is_not_early(run, app):
    address = address_of(run())
    app.write(address)
    both = [app.start("scheduler"), app.start("scheduler")]
    with Client(address, encoding=None, watch="work") as queue:
        fired = []
        while len(fired) < 3:
            job = queue.reserve(timeout=60)
            now = time.time()
            moment = datetime.datetime.fromisoformat(Tasks().serializer.read(job.body)["args"][0]).timestamp()
            queue.delete(job)
            assert now >= moment
            fired.append(moment)
        assert fired == [fired[0], fired[0] + 1, fired[0] + 2]
    for each in both:
        each.terminate()
        assert each.wait(60) == 0


def test_a_worker_plans_the_schedules_beside_its_work(run, app):
    app.write(address_of(run()))
    worker = app.start("worker", "--schedule", "--at-once", "1")
    lines = [worker.stdout.readline() for _ in range(2)]
    worker.terminate()
    assert worker.wait(60) == 0
    first, second = (datetime.datetime.fromisoformat(line.strip()) for line in lines)
    assert second - first == datetime.timedelta(seconds=1)


def test_once_plans_and_ends(run, app):
    address = address_of(run())
    app.write(address)
    assert app.run("scheduler", "--once")[0] == 0
    with Client(address) as queue:
        assert queue.stats_tube("work")["current-jobs-delayed"] > 500


def test_list_shows_what_fires_when_and_asks_no_server(app):
    app.write("127.0.0.1:1")
    status, out, _ = app.run("scheduler", "--list")
    assert status == 0
    assert out.startswith("note: next 20") and out.endswith("(every 1 s, missed once, tube work)\n")


def test_beanstalkd_cannot_do_this_and_one_line_says_so(beanstalkd, app):
    app.write(address_of(beanstalkd))
    status, _, err = app.run("scheduler")
    assert status == 1
    (line,) = err.strip().splitlines()
    assert line.startswith("beanstalk_client.scheduler: server 127.0.0.1") and "put-with" in line


def test_a_program_without_schedules_is_told_so(app):
    app.write("x", "from beanstalk_client.tasks import Tasks\ntasks = Tasks()\n")
    status, _, err = app.run("scheduler")
    assert (status, err) == (2, "beanstalk_client.scheduler: app:tasks has no schedules\n")


def test_what_a_user_may_not_do_is_named(run, caplog):
    listener = ListenerConfig(address="127.0.0.1:0", user="planner")
    user = UserConfig(name="planner", produce=("schedules", "work"), inspect=("schedules",))
    address = address_of(run(listeners=(listener,), users=(user,)))
    tasks = Tasks(address)

    @tasks.every(hours=1, args=[MOMENT])
    @tasks.task(tube="forbidden")
    def refused(moment): ...

    @tasks.every(hours=1, args=[MOMENT])
    @tasks.task(tube="work")
    def allowed(moment): ...

    Scheduler(tasks.connect, tasks.schedules).run_once()
    assert "schedule refused not planned, retrying: ForbiddenError" in caplog.text
    assert "schedule allowed" not in caplog.text
    with pytest.raises(ForbiddenError):
        Scheduler(tasks.connect, tasks.schedules, group="other").run_once()


def test_what_stands_above_a_task():
    tasks = Tasks()

    @tasks.cron("0 8 * * mon", tz="Europe/Berlin", args=[MOMENT])
    @tasks.every(hours=12, missed="skip", name="twice-a-day", kwargs={"moment": MOMENT})
    @tasks.task(tube="work")
    def note(moment):
        return moment

    assert note("x") == "x"
    assert [repr(each) for each in tasks.schedules] == [
        "<Schedule twice-a-day: every 43200 s>",
        "<Schedule note: cron 0 8 * * mon Europe/Berlin>",
    ]
    for wrong in (
        lambda: tasks.every(hours=1, args=[MOMENT])(note),  # there is one of this name
        lambda: tasks.every(hours=1, name="a b", args=[MOMENT])(note),
        lambda: tasks.every(hours=1, name="x", missed="never", args=[MOMENT])(note),
        lambda: tasks.every(args=[MOMENT])(note),
        lambda: tasks.cron("* * * *"),
    ):
        with pytest.raises(ValueError, match=r"another (name|one)|missed is|whole seconds|five fields"):
            wrong()
    with pytest.raises(TypeError, match="above"):
        tasks.every(hours=1)(lambda: None)
    with pytest.raises(TypeError):
        tasks.every(hours=1, name="y", args=[object()])(note)


def test_a_scheduler_waits_for_a_server_that_is_not_there(run, monkeypatch, caplog):
    monkeypatch.setattr("beanstalk_client.passes.RETRY_AFTER", (0.01, 0.05))
    port = servers.unused_port()
    tasks = Tasks(f"127.0.0.1:{port}", connect_timeout=0.1)

    @tasks.every(hours=1)
    @tasks.task(tube="work")
    def note(): ...

    one = Scheduler(tasks.connect, tasks.schedules)
    with one.in_thread():
        eventually(lambda: "planning of group schedules failed, retrying" in caplog.text, "it says so")
        server = run(port=port)
        eventually(lambda: one._is_whole, "it has planned")
    with Client(address_of(server)) as queue:
        assert queue.stats_tube("work")["current-jobs-delayed"] == 1
    assert caplog.text.count("failed, retrying") == 1


def test_unsupported_is_raised_before_anything_is_sent(beanstalkd):
    tasks = Tasks(address_of(beanstalkd))
    with pytest.raises(UnsupportedError):
        Scheduler(tasks.connect, []).run()
