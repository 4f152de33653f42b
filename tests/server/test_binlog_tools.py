"""From beanstalkd to this server and back, with jobs in every state; and the tools for the binlog as processes."""

import io
import json
import random
import re
import signal
import subprocess
import sys
import threading

import pytest

from beanstalk_server.cli import binlog as binlog_cli
from harness.caller import Caller
from harness.servers import command, environment_of, imported

PASSES = {"age", "time-left"}
"""The time fields of stats-job."""


def tool(*arguments, **keywords):
    """A tool as a process."""
    return subprocess.Popen(
        [*command(imported()), "binlog", *map(str, arguments)],
        env=environment_of(imported()),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **keywords,
    )


def done(*arguments):
    """Run a tool; return its exit status, output and errors."""
    process = tool(*arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


class Pipeline:
    """One connection, on which all commands are sent before the first reply is read."""

    def __init__(self, address):
        self.caller = Caller(address)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.caller.close()

    def ask(self, commands):
        """Send commands; return each reply as its line and its body, which is None if it has none."""
        sender = threading.Thread(target=self.caller.send, args=[b"".join(commands)])
        sender.start()
        replies = [self._reply() for _ in commands]
        sender.join()
        return replies

    def _reply(self):
        line = self.caller.line().rstrip(b"\r\n")
        size = re.fullmatch(rb"(?:OK|(?:FOUND|RESERVED) \d+) (\d+)", line)
        return line, self.caller.read(int(size[1]) + 2)[:-2] if size else None

    def shows(self, ids):
        """Body and stats of those of these jobs that exist, without what depends on the time and the file."""
        ids = list(ids)
        peeked = self.ask([b"peek %d\r\n" % n for n in ids])
        stats = self.ask([b"stats-job %d\r\n" % n for n in ids])
        return {
            n: (body, self._lasting(text)) for n, (_, body), (_, text) in zip(ids, peeked, stats, strict=True) if text
        }

    @staticmethod
    def _lasting(text):
        stats = dict(re.findall(r'^([a-z-]+): "?(.*?)"?$', text.decode(), re.MULTILINE))  # in YAML, "a" is a
        return {key: value for key, value in stats.items() if key not in PASSES | {"file"}}


def put(chance, n, jobs):
    """The commands that put one of this many jobs."""
    tube = chance.choice([b"default", b"a", b"b-c", b"d" * 200])
    size = chance.choice([0, 1, 10, 100, 100, 1000]) if n % (jobs // 20) else 65_533
    delay = chance.choice([0, 0, 1000, 2**32 - 1])
    body = chance.randbytes(size)
    return b"use %b\r\n" % tube, b"put %d %d %d %d\r\n%b\r\n" % (
        chance.choice([0, 1023, 1024, 2**32 - 1]), delay, chance.choice([500, 2**32 - 1]), size, body
    )  # fmt: skip


def live_through(clients, chance, jobs):
    """Bring this many jobs into every state, by every change that beanstalkd writes; return the deleted ones."""
    commands = [command for n in range(jobs) for command in put(chance, n, jobs)]
    replies = clients.ask(commands)
    assert [line for line, _ in replies[1::2]] == [b"INSERTED %d" % n for n in range(1, jobs + 1)]
    ids = list(range(1, jobs + 1))
    chance.shuffle(ids)
    buried, kicked, released, deleted, held = (ids[jobs * part // 10 : jobs * (part + 1) // 10] for part in range(5))
    clients.ask([b"reserve-job %d\r\n" % n for n in buried + kicked + released])
    clients.ask([b"bury %d %d\r\n" % (n, n) for n in buried + kicked])
    clients.ask([b"kick-job %d\r\n" % n for n in kicked])
    clients.ask([b"release %d 7 2000\r\n" % n for n in released])
    clients.ask([b"kick-job %d\r\n" % n for n in released[::2]])
    clients.ask([b"delete %d\r\n" % n for n in deleted])
    replies = clients.ask([b"reserve-job %d\r\n" % n for n in held + buried[::10]])
    assert all(line.startswith(b"RESERVED") for line, _ in replies)
    clients.ask([b"bury %d 5\r\n" % n for n in buried[::10]])  # for the second time
    return deleted


def as_after_a_restart(shown):
    """A reservation is not written: the job comes back as it was before."""
    expected = {}
    for n, (body, stats) in shown.items():
        if stats["state"] == "reserved":
            state = "ready" if stats["delay"] == "0" else "delayed"
            stats = stats | {"state": state, "reserves": str(int(stats["reserves"]) - 1)}
        expected[n] = (body, stats)
    return expected


@pytest.mark.parametrize("jobs", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_jobs_in_every_state_come_from_beanstalkd_and_go_back(launch, launch_beanstalkd, tmp_path, jobs):
    ids = range(1, jobs + 10)
    path, back = tmp_path / "jobs", tmp_path / "back"
    path.mkdir()
    server = launch_beanstalkd(path, "-F", "-s", str(100 * jobs))
    with Pipeline(server.address) as clients:
        deleted = live_through(clients, random.Random(1), jobs)
        before = clients.shows(ids)
    states = [stats["state"] for _, stats in before.values()]
    assert len(before) == jobs - len(deleted)
    assert {state: states.count(state) > 0.09 * jobs for state in states} == dict.fromkeys(
        ["ready", "delayed", "buried", "reserved"], True
    )
    server.kill()
    assert len(list(path.glob("binlog.*"))) > 3
    expected = as_after_a_restart(before)

    process = launch("-p", "0", "-b", str(path))
    with Pipeline(process.address) as clients:
        assert clients.shows(ids) == expected
    assert process.stop() == 0

    status, out, err = done("dump", "--live", path)
    assert (status, err) == (0, "")
    live = [json.loads(line) for line in out.splitlines()]
    assert {job["id"] for job in live} == expected.keys()
    status, out, err = done("export", path, "--to", back)
    assert (status, err) == (0, "")
    assert out.startswith(f"exported {len(expected)} jobs to {back}: ")
    assert "-z" not in out

    server = launch_beanstalkd(back)
    with Pipeline(server.address) as clients:
        assert clients.shows(ids) == expected
    for tube in ("default", "a", "b-c", "d" * 200):
        order = [job["id"] for job in live if (job["tube"], job["state"]) == (tube, "buried")]
        assert server.buried(tube) == order
    assert server.put() == jobs + 1
    assert server.stop() == ""


@pytest.fixture
def served(launch, tmp_path):
    """A server with jobs of several megabytes in its directory."""
    process = launch("-p", "0", "-b", str(tmp_path / "jobs"))
    with Pipeline(process.address) as clients:
        replies = clients.ask([b"put 1 0 9 2000\r\n%b\r\n" % (b"x" * 2000)] * 2000)
    assert replies[-1] == (b"INSERTED 2000", None)
    return process


def test_what_a_killed_server_leaves_is_whole(served, tmp_path):
    served.kill()
    status, out, err = done("verify", tmp_path / "jobs")
    assert (status, err) == (0, "")
    assert re.fullmatch(r"total +2000 +2000 +0 +\d+ +\d+  whole", out.splitlines()[-1])


def test_a_tool_whose_reader_goes_away_ends_quietly(served, tmp_path):
    served.stop()
    process = tool("dump", tmp_path / "jobs")
    assert json.loads(process.stdout.readline())["type"] == "commit"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 141


def test_an_interrupt_ends_a_tool_quietly(served, tmp_path):
    caller = Caller(served.address)
    for _ in range(300):  # so that the tool prints more than the pipe takes
        assert caller.ask(b"put 0 0 60 1000\r\n" + bytes(1000) + b"\r\n").startswith(b"INSERTED")
    caller.close()
    served.stop()
    process = tool("dump", tmp_path / "jobs")
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_progress_bar_is_shown_on_a_terminal_only(served, tmp_path, monkeypatch, capsys, is_terminal):
    served.stop()
    stderr = io.StringIO()
    stderr.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(binlog_cli, "BAR_DELAY", 0)
    assert binlog_cli.main(["verify", str(tmp_path / "jobs")]) == 0
    assert ("B/s" in stderr.getvalue()) == is_terminal
    assert capsys.readouterr().out.count("\n") == 3
