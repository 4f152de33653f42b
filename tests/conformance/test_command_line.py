"""What the programs of conformance/ print, and their exit status."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from wrong_server import answers, wrong_server

from conformance.address import connect
from conformance.compare.servers import started
from conformance.conversation import read
from conformance.run import hold_and_clean
from harness.servers import BEANSTALKD, INTERPRETED, SOURCES, Process, command, imported, unused_port

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(program):
    with started(program) as server:
        yield server


both = pytest.mark.parametrize("program", ["ours", BEANSTALKD], indirect=True)


@pytest.fixture
def our_server():
    with started(imported()) as server:
        yield server


@pytest.fixture
def conformance(tmp_path):
    """Runs the program as the wheel has it: without this repository and other packages (-S)."""
    (tmp_path / "beanstalk_conformance").symlink_to(ROOT / "conformance")

    def run(*arguments):
        line = [sys.executable, "-S", "-m", "beanstalk_conformance", *map(str, arguments)]
        return run_in("/", line, env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"})

    return run


def run_in(directory, line, **options):
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=100, **options)
    return done.returncode, done.stdout, done.stderr


def run_comparison(*arguments, module="conformance.compare"):
    return run_in(ROOT, [sys.executable, "-m", module, *map(str, arguments)])


def address_of(server):
    return "{}:{}".format(*server.address)


@both
def test_a_server_is_tested_and_what_needs_another_one_is_not_run(conformance, server):
    status, printed, _ = conformance(address_of(server), "--only", "drain-mode")
    assert status == 2
    assert (
        "protocol       0       0       10\n\nnot run, protocol:\n   10  needs to send a signal to the server\n"
        in printed
    )
    status, printed, _ = conformance(address_of(server), "--only", "kick-job")
    assert status == 0
    assert re.search(r"\nprotocol       6       0        1\n", printed)


@both
def test_extensions_are_run_if_the_server_lists_them(conformance, server):
    status, printed, _ = conformance(address_of(server), "--group", "extensions", "--only", "malformed-puts")
    if server.ours:
        assert (status, "extensions       3       0        0\n" in printed) == (0, True)
    else:
        assert status == 2
        assert "extensions       0       0        3\n" in printed
        assert "    3  not offered: put-batch, put-keyed, put-with\n" in printed


RESTART = """
kill -9 $(cat {directory}/pid)
while test -e /proc/$(cat {directory}/pid)/exe; do sleep 0.01; done
{line} > {directory}/log 2>&1 &
echo $! > {directory}/pid
"""


@both
def test_a_server_with_a_binlog_is_restarted_by_the_command(conformance, program, tmp_path):
    (tmp_path / "binlog").mkdir(0o700)
    port = unused_port()
    line = [*command(program), "-l", "127.0.0.1", "-p", str(port), "-b", str(tmp_path / "binlog")]
    environment = f"PYTHONPATH={shlex.quote(SOURCES)} " if program == INTERPRETED else ""
    restart = tmp_path / "restart"
    restart.write_text(RESTART.format(directory=tmp_path, line=environment + shlex.join(line)))
    pid = tmp_path / "pid"
    first = Process(program, line, ("127.0.0.1", port))
    pid.write_text(str(first.pid))
    asked = (f"127.0.0.1:{port}", "--group", "binlog", "--only", "job is")
    try:
        status, printed, _ = conformance(*asked)
        assert (status, "needs --restart" in printed) == (2, True)
        status, printed, _ = conformance(*asked, "--restart", f"sh {restart}")
        assert status == 0, printed
        assert re.search(r"\nbinlog       [4-9]       0        0\n", printed)
    finally:
        first.kill()
        subprocess.run(["kill", "-9", pid.read_text().strip()], stderr=subprocess.DEVNULL, check=False)


def test_the_commands_of_the_page_run(our_server):
    listed = re.findall(
        r"^    python3 -m conformance (.*)", (ROOT / "conformance" / "README.md").read_text(), re.MULTILINE
    )
    assert len(listed) == 3
    for words in listed:
        given = words.replace("127.0.0.1:11300", address_of(our_server)).replace(
            "systemctl restart beanstalkd", "exit 3"
        )
        only = "a deleted job" if "--restart" in given else "the largest pause" if "pause" in given else "kick-job"
        line = [sys.executable, "-m", "conformance", *shlex.split(given, comments=True), "--only", only]
        status, printed, _ = run_in(ROOT, line)
        assert (status, "exit" in given) in [(0, False), (1, True)], printed


def test_a_restart_command_that_does_not_restart_is_reported(conformance, our_server):
    status, printed, _ = conformance(address_of(our_server), "--only", "a deleted job", "--restart", "exit 3")
    assert status == 1
    assert "expected  restart\n    received  --restart: the command exited with status 3: \n" in printed


def test_a_server_that_holds_jobs_is_left_alone(conformance, our_server):
    with connect(our_server.address) as sock:
        sock.sendall(b"put 0 0 60 1\r\nx\r\n")
        assert sock.recv(100) == b"INSERTED 1\r\n"
    status, _, complaint = conformance(address_of(our_server))
    assert status == 2
    assert "has jobs, and a run would delete them" in complaint
    assert our_server.stats()["current-jobs-ready"] == "1"


def test_a_wrong_server_is_reported_and_ends_with_1(conformance):
    with wrong_server(answers(b"list-tube-used", b"USING nothing\r\n")) as server:
        status, printed, _ = conformance(address_of(server), "--only", "a client begins with the tube default")
    assert status == 1
    assert 'received  "USING nothing\\r\\n"\n' in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nowhere",), "is not an address: must be HOST:PORT or unix:PATH"),
        (("unix:/nonexistent",), "No such file"),
        (("127.0.0.1:1", "--only", "no such words"), "no conversation matches --group and --only"),
        (("127.0.0.1:1", "--file", "/nonexistent"), "No such file"),
    ],
)
def test_a_run_that_cannot_begin_says_why_in_one_line(conformance, arguments, complaint):
    status, printed, said = conformance(*arguments)
    assert (status, printed) == (2, "")
    assert said.startswith("beanstalk-conformance: ")
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--start", "/nonexistent/beanstalkd"), "/nonexistent/beanstalkd is not installed"),
        (("--start", "/bin/false"), "/bin/false did not start"),
    ],
)
def test_a_comparison_that_cannot_begin_says_why_in_one_line(arguments, complaint):
    status, printed, said = run_comparison(*arguments)
    assert (status, printed) == (2, "")
    assert said.startswith("conformance: ")
    assert complaint in said
    assert said.count("\n") == 1


def test_a_conversation_that_fails_is_shown_and_ends_with_1(tmp_path):
    (tmp_path / "mine.txt").write_text("== no job is buried\n> list-tube-used\n< BURIED\n")
    status, printed, _ = run_comparison("--start", imported(), tmp_path / "mine.txt")
    assert status == 1
    assert (
        'mine.txt:1: no job is buried\n    > list-tube-used\n    expected  < BURIED\n    received  "USING default'
        in printed
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
    status, printed, _ = run_comparison(
        "--seconds", 0, "--seed", 5, "--ours", imported(), module="conformance.compare.fuzz"
    )
    assert status == 0
    said = r"seed 5\n\d+ s: 0 scripts, 0 commands, 0 replies, 0 differences \(0 scripts took too long\)\n"
    assert re.fullmatch(said, printed)
