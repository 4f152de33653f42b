"""`beanstalk work`: what becomes of a job, whatever its command, the worker, the connection and the server do."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys

import beanstalk_client
import pytest
from beanstalk_client import Client
from beanstalk_client.cli import attempt
from beanstalk_client.cli.attempt import Rules
from beanstalk_client.consumer import DONE, Bury, Release
from consuming import restartable
from on_terminal import BEANSTALK

from beanstalk_server import ListenerConfig, TubeConfig, UserConfig
from beanstalk_server.access.accounts import hash_of_token, new_token
from harness import servers
from harness.waiting import eventually, eventually_async

COMMAND = [sys.executable, "-P", "-c", f"import sys; {BEANSTALK}"]

NUMBERS = itertools.count()

UNTIL_TOLD = 'echo $$ > "$D/started.$BEANSTALK_JOB_ID"; while [ ! -e "$D/go" ]; do sleep 0.02; done; exit ${STATUS:-0}'
"""A command that says that it runs, and ends when it is told to."""


class Working:
    """A worker as a process, and the server that it works for."""

    def __init__(self, server, tube, directory, *arguments, **more):
        self.directory = directory
        self._said = (directory / "said").open("w+b")
        self._out = (directory / "out").open("w+b")
        host, port = server.address
        known = {"BEANSTALK_SERVER": f"{host}:{port}", "D": str(directory)} | more
        self.process = subprocess.Popen(
            [*COMMAND, "work", tube, *arguments],
            env=servers.environment_of(servers.imported(), known),
            cwd="/",
            stdout=self._out,
            stderr=self._said,
        )

    def said(self):
        return os.pread(self._said.fileno(), 1 << 20, 0).decode()

    def printed(self):
        return os.pread(self._out.fileno(), 1 << 20, 0).decode()

    def says(self, text):
        eventually(lambda: text in self.said(), f"it says {text!r}; it has said {self.said()!r}")

    def starts(self, job):
        """Wait until the command of a job runs; return its process."""
        path = self.directory / f"started.{job}"
        return int(eventually(lambda: path.exists() and path.read_text().strip(), f"the command of job {job} runs"))

    def go(self):
        (self.directory / "go").touch()

    def ends(self, *signals):
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(60)

    def close(self):
        self.go()
        self.process.kill()
        self.process.wait()
        self._said.close()
        self._out.close()


@pytest.fixture
def tube():
    return f"tube-{next(NUMBERS)}"


@pytest.fixture
def work(tmp_path, tube):
    """Starts workers, and ends those that a test has left."""
    with contextlib.ExitStack() as stack:

        def start(server, *arguments, **more):
            worker = Working(server, tube, tmp_path, *arguments, **more)
            stack.callback(worker.close)
            return worker

        yield start


@pytest.fixture
def queue(server, tube):
    with beanstalk_client.Client(server.address, use=tube) as client:
        yield client


def state(queue, job):
    try:
        return queue.stats_job(job)["state"]
    except beanstalk_client.NotFoundError:
        return "deleted"


def becomes(queue, job, what):
    eventually(lambda: state(queue, job) == what, f"the job is {what}; it is {state(queue, job)}")


@pytest.mark.parametrize(
    ("status", "tries", "fate"),
    [
        (0, 1, DONE),
        (0, 9, DONE),
        (1, 1, Release(2)),
        (1, 2, Release(4)),
        (-9, 2, Release(4)),
        (1, 3, Bury()),
        (1, 9, Bury()),
        (75, 1, Release(2)),
        (75, 9, Release(10)),
        (75, 10**6, Release(10)),
        (65, 1, Bury()),
    ],
)
def test_the_exit_status_decides(status, tries, fate):
    found = Rules(backoff=2, backoff_max=10, max_tries=3).fate(status, tries)
    assert (type(found), getattr(found, "delay", 0)) == (type(fate), getattr(fate, "delay", 0))


def test_without_a_number_of_tries_nothing_is_buried_for_failing():
    assert Rules(backoff=0, backoff_max=10, max_tries=0).fate(1, 10**6).delay == 0


def attempted(command, killed_when=None):
    """Run a command, and end it when a condition holds; return its status, and why it was ended."""

    async def story():
        killed = asyncio.Event()
        running = asyncio.ensure_future(attempt.run(command, b"", {"BEANSTALK_JOB_ID": "1"}, None, None, killed))
        if killed_when is not None:
            await eventually_async(killed_when, "the command runs")
            killed.set()
        return await running

    return asyncio.run(story())


def test_a_command_is_not_given_the_token(monkeypatch):
    monkeypatch.setenv("BEANSTALK_TOKEN", "secret")
    assert attempted(["sh", "-c", "! env | grep secret"]) == (0, "")


def test_each_way_to_end_on_each_server(server, queue, work, tube):
    """The body is the exit status; the command says what it was given."""
    jobs = {status: queue.put(str(status)) for status in (0, 1, 65, 75)}
    script = (
        'read s || true; [ "$s" = "$(cat "$0")" ] || exit 99; echo "$BEANSTALK_JOB_TUBE $BEANSTALK_JOB_TRY"; exit $s'
    )
    worker = work(server, "--backoff", "1h", "-n", "2", "--", "sh", "-c", script, "{}")
    for status, what in {0: "deleted", 1: "delayed", 65: "buried", 75: "delayed"}.items():
        becomes(queue, jobs[status], what)
    assert worker.ends(signal.SIGTERM) == 0
    assert worker.printed() == f"{tube} 1\n" * 4
    worker.says(f"job {jobs[65]}, try 1: status 65")
    assert f"job {jobs[0]}," not in worker.said()


def test_a_job_that_fails_too_often_is_buried(server, queue, work):
    job = queue.put("x")
    work(server, "--backoff", "0", "--max-tries", "3", "--", "false")
    becomes(queue, job, "buried")
    assert queue.stats_job(job)["reserves"] == 3


def test_outcomes_as_json(server, queue, work, tube):
    job = queue.put("x")
    worker = work(server, "--json", "--", "echo", "hello")
    becomes(queue, job, "deleted")
    assert worker.ends(signal.SIGINT) == 0
    found = json.loads(worker.printed())
    assert found.pop("seconds") >= 0
    assert found == {"id": job, "tube": tube, "try": 1, "status": 0, "outcome": "deleted", "delay": 0, "why": ""}
    assert "hello\n" in worker.said()


@pytest.mark.parametrize("said", [["--json", "2>err"], ["-v", "2>&1 >/dev/null"]])
def test_a_worker_whose_reader_has_gone_stops_after_the_job(server, queue, tube, tmp_path, said):
    queue.use(tube)
    for _ in range(300):
        queue.put(b"x")
    option, where = said
    host, port = server.address
    command = " ".join(f"'{part}'" for part in COMMAND)
    script = f"{command} work {tube} {option} -n 2 -- sleep 0.01 {where} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script],
        env=servers.environment_of(servers.imported(), {"BEANSTALK_SERVER": f"{host}:{port}"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[1:] == ["141"]
    assert "Traceback" not in done.stdout + done.stderr
    if option == "--json":
        assert (tmp_path / "err").read_text() == ""
    found = queue.stats_tube(tube)
    assert found["current-jobs-ready"] + found["cmd-delete"] == 300  # none is reserved, delayed or buried
    assert 0 < found["cmd-delete"] < 300


def test_a_job_whose_command_takes_longer_than_its_ttr_stays_with_the_worker(server, queue, work):
    job = queue.put("x", ttr=3)
    worker = work(server, "--", "sh", "-c", UNTIL_TOLD)
    worker.starts(job)
    touched = queue.stats()["cmd-touch"]
    eventually(lambda: queue.stats()["cmd-touch"] >= touched + 4, "the job is touched for longer than its time to run")
    assert queue.stats_job(job)["timeouts"] == 0
    worker.go()
    becomes(queue, job, "deleted")


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(server, queue, work):
    job = queue.put("x")
    worker = work(
        server, "--timeout", "0.2", "--backoff", "1h", "--", "sh", "-c", "sleep 1000 & echo $! > $D/child; wait"
    )
    worker.says("timed out after 0.2 s")
    becomes(queue, job, "delayed")
    child = int((worker.directory / "child").read_text())
    eventually(lambda: gone(child), "what the command has started is ended, too")


def test_what_a_command_has_left_behind_is_killed_before_the_next_attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(attempt, "GRACE", 0.2)
    child = tmp_path / "child"
    stubborn = f"""sh -c 'trap "" TERM; echo $$ > {child}; exec sleep 1000' & wait"""
    status, why = attempted(["sh", "-c", stubborn], lambda: child.exists() and child.read_text().strip())
    assert (status, why) == (-signal.SIGTERM, "stopped by a second signal")
    eventually(lambda: gone(int(child.read_text())), "its child has ended, too")


AS_PROCESS_ONE = """
import asyncio, ctypes, pathlib, sys, time
from beanstalk_client.cli import attempt

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: orphans come to us
started = pathlib.Path(sys.argv[1])

async def story():
    killed = asyncio.Event()
    command = ["sh", "-c", f"sleep 1000 & echo > {started}; wait"]
    running = asyncio.ensure_future(attempt.run(command, b"", {}, None, None, killed))
    while not started.exists():
        await asyncio.sleep(0.01)
    killed.set()
    began = time.monotonic()
    await running
    return time.monotonic() - began

print("killed" if asyncio.run(story()) >= attempt.GRACE else "ended")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_a_worker_that_is_process_one_waits_for_what_is_left_behind(tmp_path):
    """As in a container: nobody else does, and what has ended would count as running until it is killed."""
    done = servers.run([sys.executable, "-P", "-c", AS_PROCESS_ONE, str(tmp_path / "started")])
    assert (done.stdout, done.stderr) == ("ended\n", "")


def gone(pid):
    """Whether a process has ended; it may not have been waited for yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_commands_end_and_takes_no_more(server, queue, work, number):
    first, second = queue.put("x"), queue.put("y")
    worker = work(server, "--", "sh", "-c", UNTIL_TOLD)
    worker.starts(first)
    worker.process.send_signal(number)
    worker.says("stopping after the running commands")
    worker.go()
    assert worker.process.wait(60) == 0
    assert (state(queue, first), state(queue, second)) == ("deleted", "ready")


def test_a_second_signal_ends_commands_and_releases_their_jobs(server, queue, work):
    job = queue.put("x")
    worker = work(server, "--max-tries", "1", "--", "sh", "-c", UNTIL_TOLD)
    worker.starts(job)
    worker.process.send_signal(signal.SIGTERM)
    worker.says("stopping after the running commands")  # two signals at once may be one
    assert worker.ends(signal.SIGTERM) == 0
    assert state(queue, job) == "ready"
    assert "stopped by a second signal" in worker.said()


def test_a_command_that_is_killed_has_failed(server, queue, work):
    job = queue.put("x")
    worker = work(server, "--backoff", "1h", "--", "sh", "-c", UNTIL_TOLD)
    os.kill(worker.starts(job), signal.SIGKILL)
    becomes(queue, job, "delayed")
    worker.says("status -9")


@pytest.mark.parametrize("server", [servers.imported()], indirect=True)  # beanstalkd misses such a timeout at times
def test_a_worker_that_was_stopped_beyond_the_ttr_takes_its_job_back(server, queue, work):
    job = queue.put("x", ttr=1)
    worker = work(server, "--", "sh", "-c", UNTIL_TOLD)
    worker.starts(job)
    worker.process.send_signal(signal.SIGSTOP)
    becomes(queue, job, "ready")
    worker.process.send_signal(signal.SIGCONT)
    becomes(queue, job, "reserved")
    worker.go()
    becomes(queue, job, "deleted")
    assert "may run twice" not in worker.said()


@pytest.mark.parametrize("server", [servers.imported()], indirect=True)
def test_a_job_that_another_worker_had_meanwhile_is_left_to_it(server, queue, work, tube):
    job = queue.put("x", ttr=3)
    worker = work(server, "--", "sh", "-c", UNTIL_TOLD)
    worker.starts(job)
    worker.process.send_signal(signal.SIGSTOP)
    with beanstalk_client.Client(server.address, watch=tube) as other:
        taken = other.reserve(timeout=60)
        other.touch(taken)
        worker.go()
        worker.process.send_signal(signal.SIGCONT)
        eventually(
            lambda: other.touch(taken) or "may run twice" in worker.said(), "the worker tells that it has lost the job"
        )
        assert state(queue, job) == "reserved"
        other.delete(taken)
    assert f"job {job}, try 1: status 0" in worker.said()
    assert "lost: another worker reserved the job" in worker.said()


@pytest.mark.parametrize("program", [servers.imported(), servers.BEANSTALKD])
@pytest.mark.parametrize("when", ["while it runs", "when it has ended"])
def test_a_server_that_is_killed_and_comes_back_with_its_jobs(program, when, work, tube, tmp_path):
    """The command runs once more, after its first run has ended: the server has another id."""
    (tmp_path / "binlog").mkdir()
    with restartable(program, tmp_path / "binlog") as server:
        with beanstalk_client.Client(server.address, use=tube) as queue:
            job = queue.put("x")
        worker = work(server, "-v", "--", "sh", "-c", "echo ran >> $D/runs; " + UNTIL_TOLD)
        pid = worker.starts(job)
        server.kill()
        worker.says("lost connection to ")
        if when == "when it has ended":
            worker.go()
            eventually(lambda: gone(pid), "the command has ended")
        server.start()
        with beanstalk_client.Client(server.address, use=tube) as queue:
            if when == "while it runs":
                eventually(lambda: queue.stats_tube(tube)["current-watching"], "the worker is back", 60)
                assert state(queue, job) != "deleted"
                worker.go()
            becomes(queue, job, "deleted")
            worker.says(f"job {job}, try 1: status 0")
            next_job = queue.put("y")
            becomes(queue, next_job, "deleted")
        assert (tmp_path / "runs").read_text() == "ran\n" * 3
        assert worker.ends(signal.SIGTERM) == 0


def test_a_worker_stops_although_there_is_no_server_any_more(work, tube):
    server = servers.start(servers.imported())
    with beanstalk_client.Client(server.address, use=tube) as queue:
        job = queue.put("x")
    worker = work(server, "--answer-within", "0.2", "--", "sh", "-c", UNTIL_TOLD)
    worker.starts(job)
    server.kill()
    worker.says("lost connection to ")
    worker.process.send_signal(signal.SIGTERM)
    worker.go()
    assert worker.process.wait(60) == 0
    assert "connection lost; the job may run twice" in worker.said()


def test_a_worker_without_a_server_or_a_command_does_not_begin(server, work, tmp_path):
    class Nowhere:
        address = ("127.0.0.1", servers.unused_port())

    assert work(Nowhere, "--", "true").process.wait(60) == 69
    assert work(server, "--", str(tmp_path / "nothing")).process.wait(60) == 2


def test_a_command_that_cannot_be_started_leaves_its_job(server, queue, work, tmp_path):
    """It is there when the worker begins, and gone when the job comes."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    worker = work(server, "--backoff", "1h", "--", str(program))
    eventually(lambda: queue.stats()["current-waiting"] == 1, "the worker waits")
    program.unlink()
    job = queue.put("x")
    becomes(queue, job, "delayed")
    worker.says(
        "not started after 0.0 s, released with a delay of 3600 s: cannot start the command: No such file or directory"
    )


def test_the_policy_of_a_tube_decides_where_no_backoff_is_given(run, work, tube):
    """The server counts the tries, and buries in the end; what a kick gives back is a first try again."""
    server = run(tubes=(TubeConfig(match=("*",), max_tries=2),))
    with beanstalk_client.Client(server.address, use=tube) as queue:
        job = queue.put("x")
        worker = work(server, "--backoff", "0", "--", "sh", "-c", "echo $BEANSTALK_JOB_TRY; exit 1")
        becomes(queue, job, "buried")
        worker.says(f"job {job}, try 2: status 1 after 0.0 s, buried")
        queue.kick_job(job)
        eventually(lambda: worker.printed() == "1\n2\n1\n2\n", "a kicked job is tried anew")


def test_a_worker_needs_the_right_to_look(run, work, tube):
    token = new_token()
    user = UserConfig(name="w", token_sha256=(hash_of_token(token),), produce=("*",), consume=("*",))
    server = run(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(user,))
    with Client(server.address, token=token, use=tube, watch=tube) as queue:
        queue.put("x")
        worker = work(server, "--", "true", BEANSTALK_TOKEN=token)
        assert worker.process.wait(60) == 1
        worker.says("a worker needs the right to inspect its tube: refused")
        assert queue.reserve(timeout=60).body == "x"
    worker = work(server, "--", "true", BEANSTALK_TOKEN=new_token())
    assert worker.process.wait(60) == 1
