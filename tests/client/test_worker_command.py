"""The worker as a program: what it runs, how it ends, and what it says to who makes a mistake."""

import asyncio
import contextlib
import json
import signal

import pytest
from beanstalk_client import AsyncClient, Client, NotFoundError
from beanstalk_client.tasks import Tasks
from beanstalk_client.worker.command import find_tasks, groups_of, main, make_parser, read_group
from beanstalk_client.worker.serving import Group, Worker
from consuming import running
from working import WorkerProcess

from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness.servers import BEANSTALKD, unused_port
from harness.waiting import eventually


@pytest.fixture
def work(server, tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(*options, **keywords):
            worker = WorkerProcess(server, tmp_path, *options, **keywords)
            stack.callback(worker.close)
            worker.wait_for("takes jobs from", "it has started")
            return worker

        yield begin


@pytest.fixture
def client(server):
    with Client(server.address, encoding=None) as client:
        yield client
        for state in ("ready", "delayed", "buried"):
            with contextlib.suppress(NotFoundError):
                while True:
                    client.delete(getattr(client, f"peek_{state}")())


def call(task, *args):
    arguments = ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in args)
    return f'{{"task": "{task}", "args": [{arguments}]}}'.encode()


def test_it_runs_tasks_and_ends_when_told(work, client):
    worker = work()
    for number in range(20):
        client.put(call("note", number))
        client.put(call("plain", number))
    eventually(lambda: len(worker.lines) == 40, "all have run")
    assert worker.stop() == 0
    assert sorted(worker.lines) == sorted(f"{kind} {number}" for kind in ("note", "plain") for number in range(20))
    assert client.stats_tube("default")["current-jobs-reserved"] == 0
    assert "worker " in worker.log and "has stopped" in worker.log


BURST = """
import os
from beanstalk_client import Tasks

tasks = Tasks(os.environ["QUEUE"])


@tasks.task(tube="first")
def first(number):
    second.put(number)


@tasks.task(tube="second")
def second(number):
    with open(os.environ["DIARY"], "a") as file:
        file.write(f"{number}\\n")
"""


def test_a_burst_ends_when_no_job_is_left(work, client):
    client.use("first")
    client.put(call("first", 9), delay=3600)
    for number in range(3):
        client.put(call("first", number))
    worker = work("--burst", program=BURST)
    assert worker.process.wait(60) == 0
    assert sorted(worker.diary.read_text().split()) == ["0", "1", "2"]
    assert client.stats_tube("first")["current-jobs-delayed"] == 1


def test_its_log_is_for_programs_if_that_is_asked_for(work, client):
    worker = work("--log-format", "json")
    client.put(call("fail"))
    worker.wait_for("task-buried", "it is buried")
    assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.log.splitlines()]
    told = {line["event"]: line for line in lines}
    assert [line["event"] for line in lines].count("task-failed") == 1
    assert (told["task-buried"]["task"], told["task-buried"]["tries"]) == ("fail", 2)
    assert "Traceback" in told["task-buried"]["exception"] and "exception" not in told["task-failed"]


def test_an_unknown_task_is_buried_when_the_grace_is_over(work, client):
    worker = work("--unknown-task-grace", "2", "--log-format", "json")
    client.put(call("later"), delay=3)
    worker.wait_for("task-buried", "it is buried")
    assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.log.splitlines()]
    assert [line["event"] for line in lines if line.get("job")] == ["task-unknown", "task-buried"]


def test_a_tube_that_no_task_has_is_warned_of(work):
    worker = work("--tube", "nosuch", "--tube", "default")
    assert "WARNING --tube nosuch: no task of program:tasks uses it; its tubes are default\n" in worker.log
    assert "--tube default" not in worker.log
    assert worker.stop() == 0


def test_told_to_stop_it_lets_run_what_runs(work, client, tmp_path):
    worker = work()
    client.put(call("wait", 1, str(tmp_path / "gate")))
    eventually(lambda: worker.lines == ["begins 1"], "it runs")
    worker.tell(signal.SIGINT)
    worker.wait_for("stopping: ", "it has heard")
    client.put(call("note", 2))
    (tmp_path / "gate").touch()
    assert worker.end() == 0
    assert worker.lines == ["begins 1", "ends 1"]
    assert client.stats_tube("default")["current-jobs-ready"] == 1


@pytest.mark.parametrize("grace", [("--grace", "0.1"), ()])
def test_what_does_not_end_in_time_or_is_told_twice_is_given_back(work, client, tmp_path, grace):
    worker = work(*grace)
    job_id = client.put(call("wait", 1, str(tmp_path / "gate")), 99)
    eventually(lambda: worker.lines == ["begins 1"], "it runs")
    worker.tell()
    worker.wait_for("stopping: ", "it has heard")
    if not grace:
        worker.tell()
    assert worker.end() == 0
    found = client.stats_job(job_id)
    releases = 0 if client.knows("give-back") else 1
    assert (found["state"], found["pri"], found["releases"]) == ("ready", 99, releases)


WORKER, PRODUCER = new_token(), new_token()


def users(*rights):
    """A worker with these rights to the tube work, and who puts and looks."""
    worker = UserConfig(name="worker", token_sha256=(hash_of_token(WORKER),), **dict.fromkeys(rights, ("work",)))
    producer = UserConfig(
        name="producer", token_sha256=(hash_of_token(PRODUCER),), produce=("*",), inspect=("*",), admin=("*",)
    )
    return {"listeners": (ListenerConfig(address="127.0.0.1:0", auth="token"),), "users": (worker, producer)}


async def work_until_buried(server, tasks, body):
    """Let a worker run in this process until the server has buried a job with this body."""
    worker = Worker(tasks, [Group(("work",), 2)], threads=1)
    work = asyncio.ensure_future(worker.run())
    async with AsyncClient(server.address, token=PRODUCER, encoding=None, use="work") as client:
        await client.put(body)
        while not (await client.stats_tube("work"))["current-jobs-buried"]:
            assert not work.done()
            await asyncio.sleep(0.01)
    worker.stop()
    await work


async def test_a_worker_needs_no_right_to_other_tubes(run):
    server = run(**users("consume", "inspect"))
    tasks = Tasks(server.address, token=WORKER, tube="work", errors=None)
    tries = []

    @tasks.task(retries=1, backoff=0)
    def fail():
        tries.append(1)
        raise RuntimeError

    await work_until_buried(server, tasks, fail.body())
    assert len(tries) == 2


def test_a_worker_that_could_not_count_tries_does_not_begin(run):
    server = run(**users("consume"))
    tasks = Tasks(server.address, token=WORKER, tube="work")
    with pytest.raises(PermissionError, match="lacks the right to inspect tube work"):
        asyncio.run(Worker(tasks, [Group(("work",), 2)], threads=1).run())


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_a_worker_that_may_not_consume_exits_at_once(run, tmp_path, monkeypatch, capsys, options):
    where = "{}:{}".format(*run(**users("inspect")).address)
    source = f"from beanstalk_client import Tasks\ntasks = Tasks({where!r}, token={WORKER!r}, tube='work')\n"
    name = f"unwanted{len(options)}"
    (tmp_path / f"{name}.py").write_text(f"{source}tasks.task(name='x')(print)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main([f"{name}:tasks", *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        f"beanstalk-worker: server {where}: FORBIDDEN: this user lacks the right to consume in tube work: "
    )
    assert error.count("\n") == 1


async def test_the_log_says_which_right_a_report_and_a_result_lack(run, caplog):
    server = run(**users("consume", "inspect"))
    tasks = Tasks(server.address, token=WORKER, tube="work")

    @tasks.task(retries=0)
    def fail():
        raise RuntimeError

    await work_until_buried(server, tasks, fail.encode(fail.message([], {}, 60.0)))
    said = {record.event: record.getMessage() for record in caplog.records if hasattr(record, "event")}
    assert "FORBIDDEN: this user lacks" in said["report-lost"] and "in tube work.errors" in said["report-lost"]
    assert "FORBIDDEN: this user lacks" in said["result-lost"] and "in tube work.results" in said["result-lost"]


def test_a_lifespan_is_around_all_jobs(work, client):
    program = """
import contextlib
from beanstalk_client.tasks import Tasks
import os

def write(line):
    with open(os.environ["DIARY"], "a") as diary:
        diary.write(line + "\\n")

@contextlib.asynccontextmanager
async def lifespan():
    write("opens")
    yield
    write("closes")

tasks = Tasks(os.environ["QUEUE"], lifespan=lifespan)

@tasks.task
def note():
    write("note")
"""
    worker = work(program=program)
    client.put(call("note"))
    eventually(lambda: "note" in worker.lines, "it has run")
    worker.stop()
    assert worker.lines == ["opens", "note", "closes"]


LOGGING = """
import contextlib, logging.config, os
from beanstalk_client.tasks import Tasks

def configure():
    logging.config.dictConfig({"version": 1, "root": {"level": "ERROR", "handlers": []}})

@contextlib.asynccontextmanager
async def lifespan():
    if "lifespan" in os.environ["PLACE"]:
        configure()
    yield

if "import" in os.environ["PLACE"]:
    configure()
tasks = Tasks(os.environ["QUEUE"], lifespan=lifespan)

@tasks.task
def note(): ...
"""


@pytest.mark.parametrize("place", ["import", "lifespan"])
def test_a_program_that_configures_logging_does_not_silence_the_worker(place, work, monkeypatch):
    monkeypatch.setenv("PLACE", place)
    worker = work(program=LOGGING)
    worker.stop()
    assert "has stopped" in worker.log


@pytest.mark.parametrize("step", ["before", "after"])
@pytest.mark.parametrize(
    "error",
    [
        "ConnectionRefusedError(111, 'Connection refused')",
        "ValueError('no such pool')",
        "SystemExit('x')",
        "KeyboardInterrupt('x')",
        "asyncio.CancelledError('x')",
    ],
)
def test_an_error_of_the_lifespan_is_no_error_of_the_server(step, error, our_server, monkeypatch, caplog):
    @contextlib.asynccontextmanager
    async def lifespan():
        if step == "before":
            raise eval(error)
        yield
        raise eval(error)

    tasks = Tasks(our_server.address, lifespan=lifespan)
    tasks.task(name="note")(print)
    monkeypatch.setattr("beanstalk_client.worker.command.find_tasks", lambda _: tasks)
    monkeypatch.setattr(Worker, "consume", lambda *_: asyncio.sleep(0))
    assert main(["program:tasks"]) == 1
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    name, text = error.partition("(")[0].rpartition(".")[2], str(eval(error))
    assert record.event == "lifespan-failed"
    assert record.getMessage().startswith(f"the lifespan of program:tasks failed: {name}: {text} (")


@pytest.mark.parametrize(
    ("app", "source", "said"),
    [
        ("nothing", "", "must be MODULE:NAME"),
        ("absent_program:tasks", "", "no module absent_program in the working directory"),
        ("present:other", "tasks = 1", "module present has no attribute other"),
        ("present:tasks", "tasks = 1", "present:tasks is an int, not a Tasks object"),
        ("present:tasks", "import absent_module", "ModuleNotFoundError: No module named 'absent_module'"),
        ("present:tasks", "1 / 0", "ZeroDivisionError: division by zero"),
        ("present:tasks", "a b", "line 1: invalid syntax"),
        ("present:tasks", "from beanstalk_client import Tasks; tasks = Tasks()", "has no tasks"),
    ],
)
def test_a_mistake_is_told_in_one_line(app, source, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "present.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "present", raising=False)
    assert main([app]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("beanstalk-worker: ")
    assert error.count("\n") == 1


def test_schedules_need_a_server_that_knows_moments(tmp_path, monkeypatch, capsys):
    with running(BEANSTALKD) as server:
        where = "{}:{}".format(*server.address)
        (tmp_path / "planned.py").write_text(
            f"from beanstalk_client.tasks import Tasks\ntasks = Tasks({where!r})\n"
            "@tasks.every(hours=1)\n@tasks.task\ndef note(): ...\n"
        )
        monkeypatch.chdir(tmp_path)
        assert main(["planned:tasks", "--schedule"]) == 1
    said = f"beanstalk-worker: server {where}: --schedule: schedules need put-with, which the server does not support"
    assert said in capsys.readouterr().err


def test_no_server_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    port = unused_port()
    source = f"from beanstalk_client import Tasks\ntasks = Tasks('127.0.0.1:{port}')\ntasks.task(name='x')(print)\n"
    (tmp_path / "lonely.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["lonely:tasks"]) == 1
    error = capsys.readouterr().err
    assert error.count(f"127.0.0.1:{port}: ") == 1
    assert error.count("\n") == 1


def test_tubes_and_their_slots(tmp_path, monkeypatch):
    source = """
from beanstalk_client import Tasks
tasks = Tasks()
tasks.task(name="a", tube="mail")(print)
tasks.task(name="b", tube="letters")(print)
"""
    (tmp_path / "tubes_program.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    tasks = find_tasks("tubes_program:tasks")

    def groups(*arguments):
        return groups_of(make_parser().parse_args(["tubes_program:tasks", *arguments]), tasks)

    assert groups() == [(("letters",), 10), (("mail",), 10)]
    assert groups("--at-once", "3") == [(("letters",), 3), (("mail",), 3)]
    assert groups("--tube", "mail=2", "--tube", "a,b") == [(("mail",), 2), (("a", "b"), 10)]
    assert read_group("a=1").at_once == 1


@pytest.mark.parametrize(
    "arguments", [["--tube", "=3"], ["--tube", "a=0"], ["--at-once", "x"], ["--grace", "-1"], ["--threads", "0"]]
)
def test_a_wrong_option_is_told(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(["x:y", *arguments])
    assert error.value.code == 2
    error = capsys.readouterr().err
    assert "must be" in error or "must begin with the name of a tube" in error
