"""What python -m conformance and python -m conformance.fuzz print, and their exit status."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.compare.pool import hold_and_clean
from conformance.compare.servers import started
from conformance.conversation import read
from harness.caller import connect
from harness.servers import imported

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server():
    with started(imported()) as server:
        yield server


def conformance(*arguments, module="conformance"):
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_conversations_can_be_held_with_a_running_server(server):
    host, port = server.address
    status, printed, _ = conformance("--against", f"{host}:{port}", "--only", "drain-mode")
    assert status == 0
    assert "10 that need a server of their own" in printed
    status, printed, _ = conformance("--against", f"{host}:{port}", "--only", "kick-job")
    assert status == 0
    assert re.search(r"bury +6 of 6\n", printed)


def test_a_server_that_holds_jobs_is_left_alone(server):
    with connect(server.address) as sock:
        sock.sendall(b"put 0 0 60 1\r\nx\r\n")
        assert sock.recv(100) == b"INSERTED 1\r\n"
    status, _, complaint = conformance("--against", "{}:{}".format(*server.address))
    assert status == 2
    assert "holds jobs, and a run would delete them" in complaint
    assert server.stats()["current-jobs-ready"] == "1"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--against", "nowhere"), "is not an address: must be HOST:PORT or unix:PATH"),
        (("--against", "unix:/nonexistent"), "No such file"),
        (("--start", "/nonexistent/beanstalkd"), "/nonexistent/beanstalkd is not installed"),
        (("--start", "/bin/false"), "/bin/false does not start"),
        (("--only", "no such words"), "no conversation has this in its title or theme"),
    ],
)
def test_a_run_that_cannot_begin_says_why_in_one_line(arguments, complaint):
    status, printed, said = conformance(*arguments)
    assert (status, printed) == (2, "")
    assert said.startswith("conformance: ")
    assert complaint in said
    assert said.count("\n") == 1


def test_a_conversation_that_fails_is_shown_and_ends_with_1(tmp_path):
    (tmp_path / "mine.txt").write_text("== no job is buried\n> list-tube-used\n< BURIED\n")
    status, printed, _ = conformance("--start", imported(), tmp_path / "mine.txt")
    assert status == 1
    assert (
        "ours: mine.txt:1: no job is buried\n      > list-tube-used\n    - < BURIED\n    + b'USING default" in printed
    )


def test_a_server_that_dies_fails_the_conversation():
    (conversation,) = read("== the server answers\n> list-tube-used\n< USING default\n", "name.txt")
    with started(imported()) as server:
        server.process.kill()
        server.process.wait()
        outcome = hold_and_clean(conversation, server)
    assert outcome.status == "failed"
    assert "refused" in outcome.transcript[-1]


def test_fuzzing_says_how_much_it_has_done(beanstalkd):
    status, printed, _ = conformance("--seconds", 0, "--seed", 5, "--ours", imported(), module="conformance.fuzz")
    assert status == 0
    said = r"seed 5\n\d+ s: 0 scripts, 0 commands, 0 replies, 0 differences \(0 scripts took too long\)\n"
    assert re.fullmatch(said, printed)
