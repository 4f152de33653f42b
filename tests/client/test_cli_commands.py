"""`beanstalk` with a server: what each command does, with this one and with beanstalkd, and how each fails."""

import asyncio
import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from functools import partial

import beanstalk_client
import pytest
from beanstalk_client.cli import mutate
from beanstalk_client.cli.main import main
from beanstalk_client.names import own_name
from beanstalk_client.worker.serving import Group, Worker
from on_terminal import BEANSTALK, OnTerminal
from scripted_server import CLOSE
from tls_peers import Files

from beanstalk_server import ListenerConfig, TubeConfig, UserConfig
from beanstalk_server.access.accounts import hash_of_token, new_token
from harness import servers
from harness.in_thread import ServerThread
from harness.waiting import eventually, eventually_asked

COMMAND = [sys.executable, "-P", "-c", f"import sys; {BEANSTALK}"]


@pytest.fixture(autouse=True)
def without_settings(monkeypatch):
    for name in ("BEANSTALK_SERVER", "BEANSTALK_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def stock():
    process = servers.start(servers.BEANSTALKD)
    yield process
    process.kill()


@pytest.fixture
def ours(run):
    return run()


@pytest.fixture(params=["ours", "stock"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def ask(capsysbinary):
    """Calls `beanstalk` with a server; returns its exit status, what it printed, and what it complained of."""

    def call(server, *arguments):
        host, port = server.address
        return answer("--server", f"{host}:{port}", *arguments)

    def answer(*arguments):
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code
        out, err = capsysbinary.readouterr()
        return status, out.decode("utf-8", "surrogateescape"), err.decode()

    call.alone = answer
    return call


@pytest.fixture
def read(ask):
    """Calls `beanstalk --json`, which must succeed; returns what it printed."""

    def call(server, *arguments):
        status, out, err = ask(server, "--json", *arguments)
        assert (status, err) == (0, "")
        return json.loads(out)

    return call


def environment(server):
    host, port = server.address
    return servers.environment_of(servers.imported(), {"BEANSTALK_SERVER": f"{host}:{port}"})


def ended(server, *arguments, **how):
    """A command as a process of its own, which has ended."""
    known = {"env": environment(server), "cwd": "/", "timeout": 60, "text": True}
    return subprocess.run([*COMMAND, *arguments], **known | how)


def fresh(server):
    """The name of a tube that no other test has."""
    fresh.count = getattr(fresh, "count", 0) + 1
    return f"tube-{fresh.count}"


def test_a_job_is_put_looked_at_set_aside_kicked_and_deleted(server, ask, read):
    tube = fresh(server)
    job = read(server, "put", tube, "--pri", "7", "--ttr", "2m", "hello")["id"]
    assert read(server, "peek", str(job)) == {"id": job, "body": "hello"}
    assert ask(server, "peek", "--ready", tube) == (0, "hello", f"job {job}\n")
    assert read(server, "bury", str(job)) == {"buried": 1}
    assert read(server, "bury", str(job)) == {"buried": 0}  # it is buried, as it was to be
    found = read(server, "stats", "--job", str(job))
    assert (found["state"], found["pri"], found["ttr"]) == ("buried", 7, 120)
    assert ask(server, "kick", tube, "5") == (0, "1 job kicked\n", "")
    assert read(server, "stats", tube)["current-jobs-ready"] == 1
    assert ask(server, "delete", str(job)) == (0, "1 job deleted\n", "")
    status, out, err = ask(server, "peek", str(job))
    assert (status, out) == (1, "")
    assert err == f"beanstalk peek: job {job}: not found\n"


@pytest.mark.parametrize(
    "line",
    ["kick nope", "kick nope 5", "pause nope 1m", "resume nope", "clear nope --yes", "redrive nope 1",
     "redrive nope --all", "move nope ready t 1", "move nope ready t --all", "ls nope", "stats nope",
     "peek --ready nope"],
)  # fmt: skip
def test_a_tube_that_does_not_exist_is_an_error(ours, ask, line):
    status, out, err = ask(ours, *line.split())
    assert (status, out) == (1, "")
    assert err.startswith(f"beanstalk {line.split()[0]}: ")
    assert err.endswith("tube nope: not found\n")
    assert "nope" not in ask(ours, "tubes", "--names")[1]


def test_one_delayed_job_is_kicked_by_its_id(server, ask, read):
    tube = fresh(server)
    job = int(ask(server, "put", tube, "--delay", "1h", "later")[1])
    assert read(server, "peek", "--delayed", tube)["id"] == job
    assert read(server, "kick", "--job", str(job)) == {"kicked": 1}
    assert read(server, "stats", "--job", str(job))["state"] == "ready"


def test_tubes_are_listed_by_prefix_and_sorted(server, ask, read):
    one, two = sorted([fresh(server), fresh(server)])
    for tube in (one, two, two):
        ask(server, "put", tube, "x")
    found = read(server, "tubes", "tube-", "--sort", "ready")
    ready = [tube["current-jobs-ready"] for tube in found]
    assert ready == sorted(ready, reverse=True)
    assert [tube["current-jobs-ready"] for tube in read(server, "tubes", two)] == [2]
    assert one in ask(server, "tubes", "--names")[1].splitlines()
    header, *rows = ask(server, "tubes", one)[1].splitlines()
    assert header.split("\t")[:3] == ["tube", "urgent", "ready"]
    assert rows[0].split("\t")[:3] == [one, "0", "1"]


def test_a_tube_is_paused_and_resumed(server, ask, read):
    tube = fresh(server)
    ask(server, "put", tube, "x")
    assert read(server, "pause", tube, "1.5m") == {"paused": tube, "seconds": 90}
    assert read(server, "stats", tube)["pause"] == 90
    assert read(server, "resume", tube) == {"resumed": tube}
    assert ask(server, "pause", tube, "90s") == (0, f"tube {tube} is paused for 90 s\n", "")
    assert ask(server, "pause", tube) == (0, f"tube {tube} is paused until resumed\n", "")
    assert read(server, "stats", tube)["pause"] == 2**32 - 1
    pairs = [line.split("\t") for line in ask(server, "stats", tube)[1].splitlines()]
    assert [pair for pair in pairs if pair[0].startswith("pause")] == [
        ["pause", "until resumed"], ["pause-time-left", "until resumed"],
    ]  # fmt: skip
    assert ask(server, "tubes", tube)[1].endswith("\tuntil resumed\n")
    assert ask(server, "resume", tube) == (0, f"tube {tube} is resumed\n", "")
    eventually(lambda: read(server, "stats", tube)["pause-time-left"] == 0, "the pause is over")


def test_of_several_jobs_to_delete_those_that_can_be_are(server, ask):
    tube = fresh(server)
    first, last = (ask(server, "put", tube, "x")[1].strip() for _ in range(2))
    status, out, err = ask(server, "delete", first, "4000000000", last)
    assert (status, out) == (1, "2 jobs deleted\n")
    assert err == "beanstalk delete: job 4000000000: not found, or reserved by a worker\n"


def test_delete_says_why_it_is_refused(ask, scripted):
    status, _, err = ask(scripted([(b"delete 7\r\n", b"INTERNAL_ERROR\r\n", CLOSE)]), "delete", "7")
    assert status == 1
    assert err == "beanstalk delete: job 7: internal error of the server: see its log (INTERNAL_ERROR)\n"


def test_a_job_that_a_worker_has_is_not_buried(server, ask):
    tube = fresh(server)
    job = ask(server, "put", tube, "x")[1].strip()
    with beanstalk_client.Client(server.address, watch=tube) as worker:
        worker.reserve(timeout=0)
        status, _, err = ask(server, "bury", job)
    assert status == 1
    assert "only that worker can bury it" in err


def test_a_body_of_any_bytes_goes_in_and_comes_out_as_it_is(server):
    tube, body = fresh(server), bytes(range(256)) * 3
    for arguments in (["put", tube], ["put", tube, "-"]):
        assert ended(server, *arguments, input=body, text=False).returncode == 0
        assert ended(server, "peek", "--ready", tube, capture_output=True, text=False).stdout == body


def test_ping_says_how_long_it_took(server, ask, read):
    assert 0 < read(server, "ping")["seconds"] < 20
    assert ask(server, "ping")[1].endswith(" ms\n")


def test_what_beanstalkd_lacks_is_said_in_one_sentence(stock, ask):
    ask(stock, "put", "t", "x")
    for extension, arguments in {
        "list-jobs": ["ls", "t"],
        "list-clients": ["clients"],
        "move-jobs": ["move", "t", "ready", "u", "1"],
        "redrive": ["redrive", "t", "1"],
        "clear-tube": ["clear", "t", "--yes"],
        "drain": ["drain"],
        "undrain": ["undrain"],
        "reprioritize": ["reprioritize", "5", "--job", "1"],
        "put-with": ["put", "t", "quit", "--key", "k"],
    }.items():
        status, out, err = ask(stock, *arguments)
        assert (status, out) == (1, "")
        assert err == "beanstalk {}: the server at {}:{} does not support {}; beanstalk-server does\n".format(
            arguments[0], *stock.address, extension
        )


def test_a_body_never_becomes_commands_of_a_server_that_lacks_put_with(stock, ask, read):
    before = read(stock, "stats")
    ask(stock, "put", "t", "put 0 0 60 1\r\nx", "--tries", "2")
    after = read(stock, "stats")
    assert after["total-jobs"] == before["total-jobs"]


def test_a_fraction_of_a_second_is_rounded_up_where_the_server_knows_none(stock, read):
    job = read(stock, "put", "fractions", "x", "--delay", "1.5s", "--ttr", "2.5")["id"]
    found = read(stock, "stats", "--job", str(job))
    assert (found["delay"], found["ttr"]) == (2, 3)


def test_a_put_replaces_a_reserved_job_and_is_due_in_time(ours, ask, read):
    unique = ["put", "t", "--key", "k", "--replace"]
    job = read(ours, *unique, "one")["id"]
    with beanstalk_client.Client(ours.address, watch="t") as worker:
        worker.reserve(timeout=0)
        refused = "beanstalk put: tube t: refused: a worker has reserved the job, or its key is held\n"
        assert ask(ours, *unique, "two")[::2] == (1, refused)
        assert read(ours, *unique, "--again", "two")["id"] == job
        worker.delete(job)
        assert worker.reserve(timeout=0).body == "two"
    assert read(ours, *unique, "three", "--delay", "2h", "--within", "1h")["id"] == job
    assert 3500 < read(ours, "stats", "--job", str(job))["time-left"] <= 3600


def test_put_with_all_that_can_be_demanded(ours, ask, read):
    demands = ["--tries", "3", "--backoff", "2s", "--ttl", "1h", "--key", "k", "--hold", "10m"]
    job = read(ours, "put", "t", "one", "--delay", "1h", *demands)["id"]
    assert (found := read(ours, "stats", "--job", str(job)))["max-tries"] == 3
    assert found["key"] == "k"
    status, _, err = ask(ours, "put", "t", "two", "--key", "k")
    assert (status, f"job {job} already has the key" in err) == (1, True)
    assert read(ours, "put", "t", "two", "--key", "k", "--replace")["id"] == job
    at = read(ours, "put", "t", "--at", "2100-01-01T00:00+00:00", "x")["id"]
    left = 4102444800 - time.time()
    assert abs(read(ours, "stats", "--job", str(at))["time-left"] - left) < 60
    assert read(ours, "stats", "--job", ask(ours, "put", "t", "--delay", "0.5", "x")[1].strip())["state"] == "delayed"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--hold", "5"],
        ["--replace"],
        ["--key", "k", "--again"],
        ["--key", "k", "--within", "5"],
        ["--at", "2100-01-01", "--delay", "5"],
    ],
)
def test_options_of_put_that_do_not_go_together(ours, ask, arguments):
    status, _, err = ask(ours, "put", "t", "x", *arguments)
    assert (status, "require" in err or "cannot be combined" in err) == (2, True)


def test_clear_asks_on_a_terminal_only(ours, ask, read):
    ask(ours, "put", "t", "x")
    status, out, err = ask(ours, "clear", "t")  # pytest's standard input is no terminal
    assert (status, out, "--yes" in err) == (2, "", True)
    for answer, status, left in (("n", 1, 1), ("", 1, 1), ("y", 0, 0)):
        with terminal(ours, "clear", "t") as own:
            own.shows("[y/N]")
            assert "1 ready, 0 delayed, 0 buried" in own.text
            own.type(answer + "\n")
            assert own.ends() == status
        assert sum(tube["current-jobs-ready"] for tube in read(ours, "tubes")) == left
    ask(ours, "put", "t", "x")
    assert ask(ours, "clear", "t", "--yes") == (0, "1 job deleted\n", "")


def test_groups(ours, ask, read):
    read(ours, "put", "t", "x", "--group", "t/1", "--limit", "one", "--at-once", "2", "--share", "s")
    job = read(ours, "put", "t", "y", "--after", "t/1")["id"]
    found = read(ours, "stats", "--group", "t/1")
    assert (found["state"], found["current-jobs-ready"], found["waiting-jobs"]) == ("open", 1, 1)
    assert read(ours, "stats", "--job", str(job))["state"] == "delayed"
    assert ask(ours, "stats", "t", "--group", "t/1")[0] == 2
    status, out, err = ask(ours, "cancel-group", "t/1")
    assert (status, out, "--yes" in err) == (2, "", True)
    with terminal(ours, "cancel-group", "t/1") as own:
        own.shows("[y/N]")
        assert "group t/1" in own.text and "1 ready, 0 delayed, 0 buried" in own.text
        own.type("n\n")
        assert own.ends() == 1
    assert ask(ours, "cancel-group", "t/1", "--yes") == (0, "1 job deleted\n", "")
    assert read(ours, "stats", "--job", str(job))["state"] == "ready"
    assert ask(ours, "stats", "--group", "t/none")[::2] == (1, "beanstalk stats: group t/none: not found\n")


def test_drain_and_undrain(ours, ask, read):
    name = "{}:{}".format(*ours.address)
    assert ask(ours, "drain") == (0, f"{name} is in drain mode: it accepts no new jobs\n", "")
    status, _, err = ask(ours, "put", "t", "x")
    assert (status, "drain mode" in err) == (1, True)
    assert ask(ours, "undrain") == (0, f"{name} accepts new jobs\n", "")
    assert [read(ours, each)["draining"] for each in ("drain", "undrain")] == [True, False]
    assert ask(ours, "put", "t", "x")[0] == 0


def test_who_is_connected(ours, ask, read):
    name = own_name("shop")
    with beanstalk_client.Client(ours.address, use="t", watch=("a", "b"), name=name) as worker:
        worker.put("x")
        found = {one["using"]: one for one in read(ours, "clients")}
        assert (found["t"]["producer"], found["t"]["watching"], found["t"]["state"]) == (1, 2, "idle")
        assert (found["t"]["client-name"], set(found["t"]["tubes"].split())) == (name, {"a", "b"})
        header, *rows = ask(ours, "clients")[1].splitlines()
        assert len(rows) == 2  # with the one that asks
        assert header.split("\t")[:3] == ["name", "user", "state"]
        assert sum(f"\t{name}\t" in row for row in rows) == 1
        assert sum("\tbeanstalk/" in row for row in rows) == 1


def test_jobs_are_moved_to_another_tube(ours, read):
    jobs = [read(ours, "put", "t", text)["id"] for text in ("one", "two", "three")]
    assert read(ours, "move", "t", "ready", "u", "2") == {"moved": 2}
    assert [read(ours, "stats", "--job", str(job))["tube"] for job in jobs] == ["u", "u", "t"]


def test_all_jobs_are_moved_in_parts(ours, read, ask, monkeypatch):
    monkeypatch.setattr(mutate, "PART", 2)
    for text in ("one", "two", "three", "four", "five"):
        read(ours, "put", "t", text)
    assert read(ours, "move", "t", "ready", "u", "--all") == {"moved": 5}
    for arguments in (["move", "u", "ready", "t"], ["redrive", "u"], ["redrive", "u", "5", "--all"]):
        assert ask(ours, *arguments)[::2] == (
            2, f"beanstalk {arguments[0]}: one of N and --all must be given\n"
        )  # fmt: skip


def test_a_delayed_job_is_called_off_and_put_off_by_its_key_or_its_id(ours, read, ask):
    jobs = [read(ours, "put", "t", "x", "--delay", "1h", "--key", key)["id"] for key in ("a", "b", "c")]
    assert read(ours, "cancel", "t", "a") == {"cancelled": 1}
    assert read(ours, "cancel", "--job", str(jobs[1])) == {"cancelled": 1}
    assert read(ours, "reschedule", "2h", "t", "c") == {"rescheduled": 1}
    assert read(ours, "stats", "--job", str(jobs[2]))["delay"] == 7200
    assert read(ours, "reschedule", "0", "--job", str(jobs[2])) == {"rescheduled": 1}
    assert ask(ours, "cancel", "t", "a")[::2] == (1, "beanstalk cancel: key a in tube t: not found\n")
    assert ask(ours, "cancel", "t", "c")[::2] == (
        1, "beanstalk cancel: key c in tube t: refused: the job is no longer delayed\n"
    )  # fmt: skip
    for arguments in (["t"], [], ["t", "a", "--job", "1"]):
        assert ask(ours, "cancel", *arguments)[::2] == (
            2, "beanstalk cancel: TUBE and KEY, or --job, must be given\n"
        )  # fmt: skip


def test_a_job_gets_another_priority_by_its_key_or_its_id_unless_it_is_reserved(ours, read, ask):
    job = read(ours, "put", "t", "x", "--key", "k")["id"]
    assert read(ours, "reprioritize", "7", "t", "k") == {"reprioritized": 1}
    assert read(ours, "stats", "--job", str(job))["pri"] == 7
    assert read(ours, "reprioritize", "0", "--job", str(job)) == {"reprioritized": 1}
    assert read(ours, "stats", "--job", str(job))["pri"] == 0
    with beanstalk_client.Client(ours.address, watch="t") as worker:
        worker.reserve(timeout=0)
        status, _, err = ask(ours, "reprioritize", "5", "t", "k")
        assert (status, "key k in tube t: refused: a worker has reserved the job" in err) == (1, True)


def test_redrive_of_a_dead_tube(run, read, monkeypatch):
    server = run(tubes=(TubeConfig(match=("t",), max_tries=1, dead_tube="dead"),))
    with beanstalk_client.Client(server.address, use="t", watch="t") as worker:
        for _ in range(5):
            worker.put("x")
            worker.release(worker.reserve(timeout=0))
    assert read(server, "redrive", "dead", "1") == {"redriven": 1}
    monkeypatch.setattr(mutate, "PART", 2)
    assert read(server, "redrive", "dead", "--all") == {"redriven": 4}


def test_show_says_why_a_job_is_where_it_is(server, ask, read):
    """Buried by a worker's task, with a report, and in a dead tube: what is said, and whose report it is."""
    tube = fresh(server)
    tasks = beanstalk_client.Tasks(server.address, tube=tube)

    @tasks.task(retries=0)
    def fail():
        raise RuntimeError("no \x1b such luck")

    fail.put()
    other = read(server, "put", tube, "--pri", "9999999", "not mine")["id"]

    async def work():
        worker = Worker(tasks, [Group((tube,), 1)], threads=1)
        working = asyncio.ensure_future(worker.run())
        async with tasks.connect_async(use=tube) as queue:
            await eventually_asked(lambda: is_buried(queue), "both are buried")
        worker.stop()
        await working

    async def is_buried(queue):
        return (await queue.stats_tube(tube))["current-jobs-buried"] == 2

    asyncio.run(work())
    tasks.close()
    with beanstalk_client.Client(server.address, use=tube) as queue:
        job = queue.peek_buried().id
    found = read(server, "show", str(job))
    assert (found["job"]["id"], found["job"]["state"], found["report"]["job"]) == (job, "buried", job)
    assert found["report"]["task"] == "fail"
    assert found["why"].endswith("(reserves: 1): RuntimeError: no \x1b such luck")
    status, out, err = ask(server, "show", str(job))
    assert (status, err) == (0, "")
    assert out.startswith(f"job {job} of tube {tube} is buried: {found['report']['worker']} buried it at ")
    assert "\nreport-task\tfail\n" in out and "\nTraceback (most recent call last):\n" in out
    assert "no \\x1b such luck" in out and "\x1b" not in out
    if isinstance(server, ServerThread):  # which tells of the next report only
        assert read(server, "show", str(other))["report"]["job"] == other
    assert ask(server, "show", "999999") == (1, "", "beanstalk show: job 999999: not found\n")


def test_show_finds_the_report_of_a_dead_letter(run, read):
    server = run(tubes=(TubeConfig(match=("t",), max_tries=1, dead_tube="dead"),))
    with beanstalk_client.Client(server.address, use="t", watch="t") as worker:
        job = worker.put("x")
        worker.release(worker.reserve(timeout=0))
        assert read(server, "show", str(job))["report"] is None
        worker.use("t.errors")
        worker.put_with(json.dumps({"job": job, "error": "why"}), key=f"job-{job}")
    found = read(server, "show", str(job))
    assert found["why"] == "it comes from t (a worker released it); no client is watching its tube"
    assert found["report"] == {"job": job, "error": "why"}


@contextlib.contextmanager
def terminal(server, *arguments, **more):
    """A command on a terminal."""
    name = "{}:{}".format(*server.address)
    with contextlib.closing(
        OnTerminal(*arguments, size=(200, 24), environment={"BEANSTALK_SERVER": name} | more)
    ) as own:
        yield own


def shown(server, *arguments, **more):
    """What a command writes to a terminal, where it must succeed."""
    with terminal(server, *arguments, **more) as own:
        assert own.ends() == 0
        return own.raw


@pytest.mark.parametrize(
    ("body", "encoding", "text"),
    [
        ("\x1b]0;gotcha\x07\n", "utf-8", r"\x1b]0;gotcha\x07"),
        ("\u202eforged \u2066\u2028caf\u00e9", "utf-8", r"\u202eforged \u2066\u2028caf" + "\u00e9"),
        ("caf\u00e9", "ascii", r"caf\xe9"),
    ],
)
def test_a_job_cannot_steer_the_terminal_of_who_looks_at_it(ours, ask, body, encoding, text):
    ask(ours, "put", "t", body)
    assert shown(ours, "peek", "1", PYTHONIOENCODING=encoding).decode(encoding).strip() == text


def test_json_cannot_steer_a_terminal_either(ours, ask):
    body = "\x9b31m\x7f\u202eforged"
    ask(ours, "put", "t", body)
    said = shown(ours, "peek", "--json", "1")
    assert said.isascii() and json.loads(said) == {"id": 1, "body": body}


def test_json_into_a_pipe_has_all_letters_in_any_encoding(ours, ask):
    ask(ours, "put", "t", "caf\u00e9")
    latin = environment(ours) | {"PYTHONIOENCODING": "latin-1"}
    done = ended(ours, "peek", "--json", "1", env=latin, capture_output=True)
    assert json.loads(done.stdout) == {"id": 1, "body": "caf\u00e9"}


def test_nothing_of_a_table_is_cut_off_by_a_narrow_terminal(ours, ask):
    tube = "tube-with-a-name-that-is-long-but-must-be-read"
    ask(ours, "put", tube, "x")
    said = shown(ours, "tubes", COLUMNS="20")
    assert tube.encode() in said and "\u2026".encode() not in said


def closing(descriptor, arguments, server):
    """What a command does that is started without one of its standard streams."""
    command = " ".join(f"'{part}'" for part in [*COMMAND, *arguments])
    run = partial(subprocess.run, env=environment(server), cwd="/", capture_output=True, text=True, timeout=60)
    done = run(["bash", "-c", f"{command} {descriptor}"])
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["tubes"], ["ping"], ["put", "t", "x"], ["top", "--once"]])
def test_without_standard_output_nothing_is_done(ours, ask, arguments):
    assert closing(">&-", arguments, ours) == (74, "", f"beanstalk {arguments[0]}: standard output is closed\n")
    assert ask(ours, "tubes", "--names")[1] == "default\n"


def test_without_standard_input_or_error(ours):
    assert closing("<&-", ["put", "t"], ours) == (
        2,
        "",
        "beanstalk put: no body given, and standard input is closed\n",
    )
    assert closing("<&-", ["put", "t", "x"], ours) == (0, "1\n", "")
    status, _, err = closing("<&-", ["clear", "t"], ours)
    assert (status, "--yes" in err) == (2, True)
    assert closing("2>&-", ["peek", "9"], ours) == (1, "", "")


@pytest.mark.parametrize("no_color", [{}, {"NO_COLOR": "1"}])
def test_a_table_has_colours_on_a_terminal_if_they_are_wanted(ours, ask, no_color):
    ask(ours, "put", "t", "x")
    ask(ours, "bury", "1")
    assert (b"\x1b[31m" in shown(ours, "tubes", **no_color)) is not bool(no_color)  # a buried job is red


def test_tail_of_beanstalkd_shows_the_next_ready_job_and_says_so(stock, ask):
    tube = fresh(stock)
    ask(stock, "put", tube, "one")
    status, out, err = ask(stock, "tail", tube, "--jobs", "1", "--ids")
    assert (status, out.split("\t")[1]) == (0, "one\n")
    assert "printing only the next ready job" in err


def test_the_jobs_of_a_tube_are_listed_by_state(ours, ask, read):
    ids = {}
    for state, options in {"ready": [], "buried": [], "delayed": ["--delay", "1h", "--key", "k"]}.items():
        ids[state] = read(ours, "put", "t", "body", *options)["id"]
    ask(ours, "bury", str(ids["buried"]))
    with beanstalk_client.Client(ours.address, watch="t") as worker:
        ids["reserved"] = worker.reserve(timeout=0).id
        ids["ready"] = read(ours, "put", "t", "another")["id"]
        found = {job["id"]: job["state"] for job in read(ours, "ls", "t")}
        assert found == {job: state for state, job in ids.items()}
        for state, job in ids.items():
            assert [each["id"] for each in read(ours, "ls", "t", state)] == [job]
    (delayed,) = read(ours, "ls", "t", "delayed")
    assert (delayed["key"], delayed["size"]) == ("k", 4)
    header, row = ask(ours, "ls", "t", "delayed")[1].splitlines()
    assert dict(zip(header.split("\t"), row.split("\t"), strict=True))["key"] == "k"
    status, out, err = ask(ours, "ls", "t", "--limit", "2")
    assert (status, len(out.splitlines()), err) == (0, 3, "showing the first 2 jobs; use --limit to show more\n")
    assert ask(ours, "ls", "t", "--limit", "4")[2] == ""
    assert ask(ours, "ls", "nothing") == (1, "", "beanstalk ls: tube nothing: not found\n")


def test_ls_and_show_count_the_attempts_of_a_job_alike(ours, ask, read):
    job = read(ours, "put", "t", "x")["id"]
    with beanstalk_client.Client(ours.address, watch="t") as worker:
        for _ in range(3):
            delivery = worker.reserve(timeout=0)
            worker.release(delivery)
        worker.bury(worker.reserve(timeout=0))
    report = {"job": job, "worker": "w", "buried": "2026-11-28T01:00:00Z", "tries": 4, "error": "E"}
    ask(ours, "put", "t.errors", "--key", f"job-{job}", json.dumps(report))
    header, row = ask(ours, "ls", "t")[1].splitlines()
    shown = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert (shown["reserves"], shown["failures"]) == ("4", "0")
    assert read(ours, "show", str(job))["why"] == "w buried it at 2026-11-28T01:00:00Z (reserves: 4): E"


def test_tail_shows_jobs_as_they_come_and_takes_none(ours, ask, read):
    """One that a worker reserves at once is shown, too; each is shown once, and only the worker's reserves count."""
    for body in ("old", "older"):
        read(ours, "put", "t", body)
    command = [*COMMAND, "--json", "tail", "t", "--interval", "10ms", "-n", "1", "--jobs", "4"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(ours), cwd="/", text=True) as process,
        beanstalk_client.Client(ours.address, use="t", watch="t") as worker,
    ):
        assert json.loads(process.stdout.readline())["body"] == "old"
        job = worker.reserve(timeout=0)
        jobs = [worker.put(body) for body in ("one", "two")]
        assert [json.loads(process.stdout.readline())["id"] for _ in jobs] == jobs
        other = worker.put("urgent", priority=0)
        assert worker.reserve(timeout=0).id == other
        assert json.loads(process.stdout.readline()) == {"id": other, "body": "urgent"}
        assert process.wait(60) == 0
        assert [worker.stats_job(each)["reserves"] for each in (job.id, *jobs, other)] == [1, 0, 0, 1]


def test_tail_tells_of_a_job_that_is_gone_before_it_can_be_shown(ours, ask, monkeypatch):
    ask(ours, "put", "t", "x")
    ask(ours, "put", "t", "y")
    peek = beanstalk_client.Client.peek
    monkeypatch.setattr(
        beanstalk_client.Client,
        "peek",
        lambda client, job: (client.delete(job) if job == 1 else None, peek(client, job))[1],
    )
    status, out, err = ask(ours, "tail", "t", "--jobs", "1")
    assert (status, out, err) == (0, "y\n", "job 1 was gone before it could be read\n")


def test_watch_repeats_what_looks_and_nothing_else(ours, ask):
    assert ask(ours, "watch", "-n", "10ms", "--times", "3", "tubes", "--names") == (0, "default\n" * 3, "")
    _, out, _ = ask(ours, "watch", "--json", "--times", "1", "tubes")
    assert [tube["name"] for tube in json.loads(out)] == ["default"]
    for command in (["clear", "t", "--yes"], []):
        assert ask(ours, "watch", *command)[0] == 2


BUT_ENDS = {"bench": ["--seconds", "0.1"], "tail": ["--jobs", "1"], "watch": ["--times", "1"]}
"""More options for the commands that run for long."""


@pytest.mark.slow
def test_the_commands_that_the_page_shows_first_succeed(ours, ask):
    page = (servers.ROOT / "docs" / "beanstalk.md").read_text()
    lines = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1].splitlines()
    assert {shlex.split(line)[1] for line in lines} > set(BUT_ENDS)
    with beanstalk_client.Client(ours.address, use="mails", watch="mails") as queue:
        for body in ("buried", "ready"):
            queue.put(body)
        queue.bury(queue.reserve(timeout=0))
    for line in lines:
        words = shlex.split(line.partition(" > ")[0])[1:]
        if words[0] == "tail":
            ask(ours, "resume", "mails")
        words[1:1] = BUT_ENDS.get(words[0], [])
        status, _, err = ask(ours, *words)
        assert status == 0, f"{line}: {err}"


def test_no_server_is_status_69(ask):
    port = servers.unused_port()
    status, out, err = ask.alone("ping", "--server", f"127.0.0.1:{port}")
    assert (status, out) == (69, "")
    assert err == f"beanstalk ping: 127.0.0.1:{port}: cannot connect: Connection refused\n"


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n",
            "lost: the server speaks HTTP: use its port for jobs (HTTP/1.1 400 Bad Request)",
        ),
        (b"WHAT_EVER 1\r\n", "unexpected reply 'WHAT_EVER 1'"),
        (b"USI", "connection lost: the server closed it; the server may require TLS: use --tls or --tls-ca FILE"),
        (b"", "connection lost: the server closed it; the server may require TLS: use --tls or --tls-ca FILE"),
    ],
)
def test_what_is_no_beanstalk_server_is_told_in_one_line(ask, scripted, said, what):
    status, _, err = ask(scripted([(b"list-tube-used\r\n", said, CLOSE)]), "ping")
    assert status == (69 if "lost" in what else 1)
    assert err.count("\n") == 1
    assert what in err


@pytest.mark.parametrize(
    "reply",
    [b"OK abc", b"OK 3\r\nxyz", b"OK -9", b"OK 99999999999", b"FOUND 1 99999999999", b"FOUND x 1\r\na", b"EXISTS"],
)
def test_replies_that_make_no_sense_are_told_in_one_line(ask, reply):
    commands = [["stats"], ["tubes"], ["ls", "t"], ["clients"], ["peek", "1"], ["bury", "1"], ["tail", "t"]]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            for _ in commands:
                sock, _ = listener.accept()
                with sock, contextlib.suppress(ConnectionError):
                    while sock.recv(100):
                        sock.sendall(reply + b"\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        for command in commands:
            server = f"127.0.0.1:{listener.getsockname()[1]}"
            status, _, err = ask.alone(*command, "--server", server, "--answer-within", "5")
            assert status == (69 if "invalid reply" in err else 1), command
            assert err.count("\n") == 1
            assert "invalid reply" in err or "unexpected reply" in err


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(ask):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        status, _, err = ask.alone("ping", "--server", f"127.0.0.1:{port}", "--answer-within", "0.05")
    assert (status, "no answer within 0.05 s" in err) == (69, True)


def test_a_url_names_a_server_and_its_token_is_not_shown(ours, ask):
    host, port = ours.address
    assert ask.alone("ping", "--server", f"beanstalk://{host}:{port}")[0] == 0
    status, _, err = ask.alone("ping", "--server", "beanstalk://:secret@queue.invalid")
    assert (status, err) == (
        2, "beanstalk ping: warning: other users of this machine can read the token on the command line: use "
        "--token-file, BEANSTALK_TOKEN or BEANSTALK_SERVER\n"
        "beanstalk ping: beanstalk://queue.invalid: refused to send the token without TLS: use --tls "
        "or --tls-ca FILE\n"
    )  # fmt: skip


@pytest.mark.parametrize("address", [":1", "host:99999", "unix:", "a b", "host:x"])
def test_a_bad_address_is_status_2(ask, address):
    status, _, err = ask.alone("ping", "--server", address)
    assert (status, "bad address" in err) == (2, True)


def test_a_unix_socket_and_the_environment(run, ask, tmp_path, monkeypatch):
    path = tmp_path / "socket"
    run(listeners=(ListenerConfig(address=f"unix:{path}"),))
    monkeypatch.setenv("BEANSTALK_SERVER", f"unix:{path}")
    assert ask.alone("ping")[0] == 0


def test_tls_and_a_token(run, ask, tmp_path, monkeypatch):
    files, token = Files(tmp_path), new_token()
    (tmp_path / "token").write_text(token + "\n")
    user = UserConfig(name="u", token_sha256=(hash_of_token(token),), produce=("mail-*",))
    server = run(listeners=(files.listener(auth="token"),), users=(user,))
    trusting = ["--tls-ca", files.ca]
    known = [*trusting, "--token-file", str(tmp_path / "token")]
    assert ask(server, "put", "mail-1", "x", *known)[:2] == (0, "1\n")
    assert ask(server, "put", "other", "x", *known)[::2] == (
        1, "beanstalk put: tube other: refused: this user lacks the right to run this command\n"
    )  # fmt: skip
    status, _, err = ask(server, "put", "mail-1", "x", *trusting)
    assert (status, "requires a valid token" in err) == (1, True)
    monkeypatch.setenv("BEANSTALK_TOKEN", new_token())
    assert ask(server, "put", "mail-1", "x", *trusting)[0] == 1
    monkeypatch.setenv("BEANSTALK_TOKEN", token)
    assert ask(server, "put", "mail-1", "x", *trusting)[0] == 0
    status, _, err = ask(server, "put", "mail-1", "x", "--tls")
    assert (status, "TLS handshake failed" in err) == (69, True)
    assert token not in err


@pytest.mark.parametrize("server", ["queue.invalid", "192.0.2.1:11300", "[2001:db8::1]:11300"])
def test_a_token_does_not_cross_a_network_in_the_clear(ask, monkeypatch, server):
    monkeypatch.setenv("BEANSTALK_TOKEN", "secret")
    status, _, err = ask.alone("ping", "--server", server, "--answer-within", "0.01")
    assert (status, "without TLS" in err, "secret" in err) == (2, True, False)


@pytest.mark.parametrize("server", ["localhost", "127.0.0.2", "[::1]", "unix:/nowhere"])
def test_a_token_needs_no_tls_on_this_machine(ask, monkeypatch, server):
    monkeypatch.setenv("BEANSTALK_TOKEN", "secret")
    status, _, err = ask.alone("ping", "--server", server if "/" in server else f"{server}:{servers.unused_port()}")
    assert (status, "cannot connect" in err) == (69, True)


def test_tls_with_a_server_that_has_none_is_not_waited_for_for_ever(ask):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        status, _, err = ask.alone("ping", "--server", address, "--tls", "--answer-within", "0.05")
    assert status == 69
    assert err.startswith(
        f"beanstalk ping: {address}: no answer within 0.05 s (--answer-within); perhaps the server does not use TLS"
    )


def test_a_token_for_a_server_that_knows_none(ours, ask, monkeypatch):
    monkeypatch.setenv("BEANSTALK_TOKEN", "secret")
    status, _, err = ask(ours, "ping")
    assert (status, "does not support tokens" in err, "secret" in err) == (1, True, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token-file", "/nonexistent"],
        ["--tls-key", "/nonexistent"],
        ["--tls-ca", "/nonexistent"],
        ["--tls-cert", "/nonexistent"],
    ],
)
def test_files_that_are_not_there_are_status_2(ask, arguments):
    status, _, err = ask.alone("ping", *arguments)
    assert (status, err.count("\n")) == (2, 1)


def test_a_reader_that_has_gone_is_no_failure(ours, ask):
    command = " ".join(f"'{part}'" for part in COMMAND)
    script = f"{command} stats | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], env=environment(ours), cwd="/", capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")
    with open("/dev/full", "wb") as full:
        done = ended(ours, "stats", stdout=full, stderr=subprocess.PIPE)
        assert (done.returncode, "No space left on device" in done.stderr) == (74, True)
        assert ended(ours, "peek", "--buried", "t", stderr=full).returncode == 1
        assert ended(ours, "stats", stdout=full, stderr=full).returncode == 74


@pytest.mark.parametrize(
    ("arguments", "lacks", "status"),
    [
        (["completion", "bash"], "shtab", 69),
        (["ping"], "rich", 0),  # into a pipe
        (["man"], "shtab", 0),
    ],
)
def test_without_the_extra_it_says_how_to_get_it(ours, arguments, lacks, status):
    script = f"import sys; sys.modules[{lacks!r}] = None; {BEANSTALK}"
    done = subprocess.run(
        [*COMMAND[:-1], script, *arguments], env=environment(ours), cwd="/", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status
    needs = f"beanstalk {arguments[0]}: needs {lacks}: pip install './client[cli]' in a clone of beanstalk-server\n"
    assert done.stderr == (needs if status else "")


def test_a_command_imports_no_server_and_no_tables(ours):
    script = "import sys; from beanstalk_client.cli.main import main; main(); print(*sys.modules)"
    command = [*COMMAND[:-1], script, "ping"]
    found = subprocess.check_output(command, env=environment(ours), cwd="/", text=True, timeout=60).split()
    assert "beanstalk_client" in found
    unwanted = {"asyncio", "uvloop", "rich", "shtab", "beanstalk_server.queue.broker", "beanstalk_server.wire.session"}
    assert not unwanted & set(found)
