"""The units for systemd: what systemd's own tools say of them, and what the server does under what they forbid."""

import contextlib
import os
import re
import signal
from pathlib import Path

import programs
import pytest
from beanstalk_client.deliver.command import make_parser as deliver_parser
from lint import passes
from units import SERVICE, SOCKET, SYSTEMD, command_line, installed, settings

from beanstalk_server.settings.declaration import BAD_OPTION
from beanstalk_server.storage.errors import DAMAGED
from harness.caller import Caller
from harness.servers import ROOT, Process, command, imported, unused_port
from harness.waiting import eventually

DEBIANS = "/etc/default/beanstalkd"

LARGEST_EXPOSURE = 1.5
"""Of 10, as `systemd-analyze security` counts: a service without any sandbox has 9.6."""


def systemd_says(*arguments):
    return passes(programs.find("systemd-analyze", "systemd"), *arguments)


@pytest.mark.slow
def test_systemd_finds_nothing_wrong(tmp_path):
    assert systemd_says("verify", *installed(tmp_path, "/bin/true")) == ""


@pytest.mark.slow
def test_systemd_finds_little_that_it_may_do():
    said = systemd_says("security", "--offline=true", "--no-pager", SERVICE)
    level = re.search(r"Overall exposure level for .*: ([\d.]+)", said)
    assert level, said
    assert float(level[1]) <= LARGEST_EXPOSURE


def test_the_socket_is_where_debians_is():
    assert settings(SOCKET)["Socket", "ListenStream"] == ["127.0.0.1:11300"]
    assert SOCKET.stem == SERVICE.stem  # which is how systemd knows that they belong together


def test_the_user_is_debians():
    assert re.search(r"^u beanstalkd - ", (SYSTEMD / "beanstalk-server.conf").read_text(), re.MULTILINE)
    unit = settings(SERVICE)
    assert (unit["Service", "User"], unit["Service", "StateDirectory"]) == (["beanstalkd"], ["beanstalkd"])


def test_no_core_dump_shows_a_token():
    assert settings(SERVICE)["Service", "LimitCORE"] == ["0"]


def test_what_does_not_get_better_is_not_tried_again():
    assert settings(SERVICE)["Service", "RestartPreventExitStatus"] == [f"{BAD_OPTION} 33 34 {DAMAGED}"]


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({}, "-l 127.0.0.1 -p 11300"),
        ({DEBIANS: "# a comment\nBEANSTALKD_LISTEN_ADDR=0.0.0.0\nBEANSTALKD_LISTEN_PORT=1\n"}, "-l 0.0.0.0 -p 1"),
        (
            {DEBIANS: '#BEANSTALKD_EXTRA="-F"\nBEANSTALKD_EXTRA="-b /var/lib/beanstalkd -z 70000"\n'},
            "-l 127.0.0.1 -p 11300 -b /var/lib/beanstalkd -z 70000",
        ),
    ],
)
def test_debians_file_is_read_as_it_is(files, line):
    assert command_line(files)[0] == ["beanstalk-server", *line.split()]


def test_a_variable_of_the_server_may_be_set_in_a_file_of_its_own():
    _, variables = command_line({"/etc/default/beanstalk-server": "BEANSTALK_SERVER_MAX_JOB_SIZE=70000\n"})
    assert variables["BEANSTALK_SERVER_MAX_JOB_SIZE"] == "70000"


@pytest.fixture
def serve(tmp_path):
    """Starts the server as the service does, with a port and a directory of this machine, and ends it."""
    begun = []

    def start(files, *before):
        line, variables = command_line(files)
        places = {"11300": str(unused_port()), "/var/lib/beanstalkd": str(tmp_path / "state")}
        words = [places.get(word, word) for word in line[1:]]
        address = ("127.0.0.1", int(places["11300"]))
        line = [*before, *command(imported()), *words]
        begun.append(Process(imported(), line, address, environment=variables))
        return begun[-1]

    yield start
    for process in begun:
        if process.status is None:
            os.killpg(process.pid, signal.SIGKILL)  # strace would leave the server behind
        process.kill()


def test_the_server_serves_with_debians_file(serve):
    debians = Path(DEBIANS)
    text = debians.read_text() if debians.exists() else ""
    process = serve({DEBIANS: text + '\nBEANSTALKD_EXTRA="-b /var/lib/beanstalkd"\n'})
    with contextlib.closing(Caller(process.address)) as caller:
        assert caller.ask(b"put 0 0 1 1\r\nx\r\n") == b"INSERTED 1\r\n"
    assert process.stop() == 0


def allowed_calls():
    """The system calls that the unit lets the server make."""

    def calls_of(name):
        if not name.startswith("@"):
            return {name}
        listed = [line.strip() for line in systemd_says("syscall-filter", "--no-pager", name).splitlines()[1:]]
        return {call for each in listed if each and not each.startswith("#") for call in calls_of(each)}

    allowed = set()
    for line in settings(SERVICE)["Service", "SystemCallFilter"]:
        calls = {call for name in line.removeprefix("~").split() for call in calls_of(name)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed | calls_of("@default")


@pytest.mark.slow
def test_the_server_makes_no_system_call_that_is_forbidden(serve, tmp_path):
    """Its start, a job that is put, taken and deleted through an I/O process, a reload and its stop."""
    trace = tmp_path / "trace"
    files = {
        DEBIANS: 'BEANSTALKD_EXTRA="-b /var/lib/beanstalkd --io-processes 1"\n',
        "/etc/default/beanstalk-server": f"TMPDIR={tmp_path}\nPYTHONDONTWRITEBYTECODE=1\n",
    }
    process = serve(files, programs.find("strace"), "-f", "-qq", "-s", "256", "-e", "signal=none", "-o", str(trace))
    with contextlib.closing(Caller(process.address)) as caller:
        assert caller.ask(b"put 0 0 1 1\r\nx\r\n") == b"INSERTED 1\r\n"
        assert caller.ask(b"reserve\r\n") == b"RESERVED 1 1\r\n"
        assert caller.line() == b"x\r\n"
        assert caller.ask(b"delete 1\r\n") == b"DELETED\r\n"
    server = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    os.kill(server, signal.SIGHUP)
    eventually(lambda: "SIGHUP: ignored" in process.log, "the server has reloaded")
    os.kill(server, signal.SIGTERM)
    assert process.wait() == 0

    lines = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines()]
    made = {found[1] for line in lines if (found := re.match(r"(?:<\.\.\. )?(\w+)(?:\(| resumed)", line))}
    assert {"execve", "epoll_ctl", "listen", "fdatasync"} <= made
    assert made - allowed_calls() == set()

    families = {found[1] for line in lines if (found := re.match(r"socket(?:pair)?\((\w+)", line))}
    assert families <= set(settings(SERVICE)["Service", "RestrictAddressFamilies"][0].split())
    assert [line for line in lines if re.match(r"(mmap|mprotect|pkey_mprotect)\(", line) and makes_code(line)] == []
    written = {
        found[1] for line in lines if (found := re.match(r'openat\([^"]*"([^"]+)", [^)]*O_(?:WRONLY|RDWR|CREAT)', line))
    }
    assert written
    # What measures coverage writes its own files.
    others = {path for path in written if not Path(path).name.startswith(".coverage")}
    assert {path for path in others if not path.startswith((f"{tmp_path}/state", "/dev/null"))} == set()
    assert any('"/proc/sys/' in line and "ENOENT" not in line for line in lines)
    assert ("Service", "ProcSubset") not in settings(SERVICE)  # which would hide that


def makes_code(line):
    """Whether a call makes memory that is written to executable, as MemoryDenyWriteExecute= has it."""
    return "PROT_EXEC" in line and ("PROT_WRITE" in line or not line.startswith("mmap("))


def page_of(name):
    return (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.slow
def test_the_unit_of_the_deliverer_is_one(tmp_path):
    (unit,) = re.findall(r"```ini\n(.*?)```", page_of("deploy"), re.DOTALL)
    program, *options = re.search(r"^ExecStart=(.*)", unit, re.MULTILINE)[1].split()
    assert deliver_parser().parse_args(options).tube == ["webhooks"]
    path = tmp_path / "beanstalk-deliver.service"
    path.write_text(unit.replace(program, "/bin/true"))
    assert systemd_says("verify", path) == ""


@pytest.mark.parametrize("page", ["deploy", "tutorial"])
def test_a_worker_whose_server_comes_late_is_started_until_it_is_there(page):
    (unit,) = re.findall(r"```ini\n(.*?)```", page_of(page), re.DOTALL)
    assert {"StartLimitIntervalSec=0", "Restart=always"} <= set(unit.splitlines())


def test_the_line_that_keeps_jobs_on_the_disk(serve, tmp_path):
    line, path = re.search(r"^echo (BEANSTALK_SERVER_\S+) >> (\S+)$", page_of("deploy"), re.MULTILINE).groups()
    assert command_line({path: line})[1]["BEANSTALK_SERVER_BINLOG"] == "/var/lib/beanstalkd"
    kept = tmp_path / "state"
    process = serve({path: line.replace("/var/lib/beanstalkd", str(kept))})
    assert process.stop() == 0
    assert kept.is_dir()
