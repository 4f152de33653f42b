"""A binlog that cannot be used, or that fails: what the command line says, its exit status, and never a traceback."""

import contextlib
import os
import pwd
import signal
import struct
import subprocess
import sys

import pytest
from crc32c import crc32c
from on_directory import Beanstalkd

from beanstalk_server.storage.binlog import UNKNOWN_IDS
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.segment import VERSION
from harness import servers
from harness.caller import Caller
from harness.servers import run_to_end
from harness.waiting import eventually

UNUSABLE = 10
DAMAGED = 65
JOURNAL_FAILED = 74

ON_DISK = ("--body-threshold", "0", "--body-cache", "0")
"""With this, no body is in memory that has been written."""

in_memory_and_on_disk = pytest.mark.parametrize("bodies", [(), ON_DISK], ids=["in-memory", "on-disk"])

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def refusal(*options):
    """Start a server that must not start; return its exit status and the line it prints."""
    # Without coverage: a server that runs as nobody may not write the file for it.
    status, out, said = run_to_end("-p", "0", *options, environment={"COVERAGE_PROCESS_CONFIG": ""})
    assert out == ""
    assert "Traceback" not in said
    return status, said.splitlines()[-1]


def put(caller, body=b"x", delay=0):
    line = caller.ask(b"put 0 %d 60 %d\r\n%b\r\n" % (delay, len(body), body))
    assert line.startswith(b"INSERTED "), line
    return int(line.split()[1])


def filled(launch, path, count=5):
    """A directory with some jobs, left by a server that is killed."""
    process = launch("-p", "0", "-b", str(path), "-s", "4096")
    caller = Caller(process.address)
    for _ in range(count):
        put(caller, bytes(500))
    caller.close()
    process.stop(signal.SIGKILL)
    return sorted(name for name in os.listdir(path) if name.startswith("segment."))


def test_a_missing_directory_is_made(launch, tmp_path):
    process = launch("-p", "0", "-b", str(tmp_path / "jobs"))
    caller = Caller(process.address)
    put(caller)
    assert process.stop() == 0
    assert "segment.0000000001" in os.listdir(tmp_path / "jobs")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("disk/jobs", "{}/disk does not exist; create or mount it first"),
        ("file", "Not a directory"),
        ("open", "every user of this machine can write to it: use chmod o-w"),
    ],
)
def test_a_directory_that_cannot_be_used_is_refused_and_not_changed(tmp_path, name, said):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    status, line = refusal("-b", str(tmp_path / name))
    assert status == UNUSABLE
    found = f"beanstalk-server: -b/--binlog {tmp_path}/{name}: cannot be locked: {said.format(tmp_path)}"
    assert line.startswith(found)
    assert sorted(os.listdir(tmp_path)) == ["file", "open"]
    assert not os.listdir(tmp_path / "open")


def test_connections_leave_the_journal_its_files(launch, tmp_path):
    """Idle connections that take all the files they can get must neither lose a job nor end the server."""
    options = ("-p", "0", "-b", str(tmp_path), "-s", "4096")
    command = " ".join(["ulimit", "-n", "64;", "exec", sys.executable, "-m", "beanstalk_server", *options])
    process = launch(line=["bash", "-c", command])
    caller = Caller(process.address)
    put(caller)
    idle = [Caller(process.address) for _ in range(80)]
    for number in range(2, 102):
        assert put(caller, bytes(1000)) == number
        if number % 3:
            assert caller.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"
    for each in (caller, *idle):
        each.close()
    assert process.stop() == 0
    assert "connections, the maximum set by the limit on open files; new clients wait" in process.log


@needs_root
def test_a_directory_that_may_not_be_written_to_is_refused(open_path):
    status, line = refusal("-b", str(open_path), "-u", "nobody")
    assert status == UNUSABLE
    assert line.endswith(f"{open_path}: cannot be locked: Permission denied")


@needs_root
def test_a_segment_that_may_not_be_read_is_named_once(launch, open_path):
    os.chown(open_path, pwd.getpwnam("nobody").pw_uid, -1)
    filled(launch, open_path)
    os.unlink(open_path / "lock")
    for name in os.listdir(open_path):
        os.chmod(open_path / name, 0o600)
    status, line = refusal("-b", str(open_path), "-u", "nobody")
    assert status == UNUSABLE
    assert line.endswith(f"-b/--binlog {open_path}/segment.0000000001: cannot be used: Permission denied")


@needs_root
def test_the_files_belong_to_the_user_that_the_server_becomes(launch, open_path):
    nobody = pwd.getpwnam("nobody").pw_uid
    directory = open_path / "binlog"
    directory.mkdir()
    os.chown(directory, nobody, -1)
    process = launch("-p", "0", "-b", str(directory), "-u", "nobody")
    caller = Caller(process.address)
    put(caller)
    caller.close()
    found = {name: os.stat(directory / name) for name in os.listdir(directory)}
    assert len(found) >= 2
    assert all(stat.st_uid == nobody and stat.st_mode & 0o077 == 0 for stat in found.values())
    assert process.stop() == 0


@pytest.mark.parametrize("name", ["spare.1", "segment.0000000001", "lock"])
def test_no_symbolic_link_is_followed(tmp_path, name):
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"precious" * 1000)
    directory = tmp_path / "jobs"
    directory.mkdir()
    (directory / name).symlink_to(theirs)
    status, line = refusal("-b", str(directory))
    assert status == UNUSABLE
    assert line.endswith("Too many levels of symbolic links")
    assert theirs.read_bytes() == b"precious" * 1000


def test_a_directory_that_another_server_uses_is_refused(launch, tmp_path):
    process = launch("-p", "0", "-b", str(tmp_path))
    status, line = refusal("-b", str(tmp_path))
    assert status == UNUSABLE
    assert line == f"beanstalk-server: -b/--binlog {tmp_path}: another server uses this directory"
    caller = Caller(process.address)
    put(caller)
    assert process.stop() == 0


def remove(lock):
    lock.unlink()


def move_away(lock):
    lock.rename(lock.with_name("lock.old"))


@pytest.mark.parametrize("lose", [remove, move_away])
def test_a_server_whose_lock_is_lost_stops_and_nothing_acknowledged_is_lost(launch, tmp_path, lose):
    first = launch("-p", "0", "-b", str(tmp_path), "-s", "4096")
    caller = Caller(first.address)
    acknowledged = {put(caller, bytes(500)) for _ in range(20)}
    lose(tmp_path / "lock")
    second = launch("-p", "0", "-b", str(tmp_path), "-s", "4096")
    caller.send(b"put 0 0 60 1\r\nx\r\n")
    with contextlib.suppress(ConnectionError):
        assert caller.rest() == b""
    caller.close()
    assert first.wait() == JOURNAL_FAILED
    assert f"the lock file was removed or replaced, so another server may use the directory: '{tmp_path}/lock'" in (
        first.log
    )
    caller = Caller(second.address)
    acknowledged |= {put(caller, bytes(500)) for _ in range(20)}
    caller.close()
    assert second.stop(signal.SIGKILL) == -signal.SIGKILL
    third = launch("-p", "0", "-b", str(tmp_path))
    caller = Caller(third.address)
    assert all(caller.ask(b"delete %d\r\n" % number) == b"DELETED\r\n" for number in acknowledged)
    caller.close()
    assert third.stop() == 0


def test_a_server_whose_lock_is_lost_writes_nothing_when_it_stops(launch, tmp_path):
    process = launch("-p", "0", "-b", str(tmp_path))
    (tmp_path / "lock").unlink()
    assert process.stop() == JOURNAL_FAILED
    assert "the lock file was removed or replaced" in process.log
    assert "stopped" not in os.listdir(tmp_path)


def test_a_directory_that_beanstalkd_uses_is_refused(tmp_path):
    real = Beanstalkd(tmp_path)
    real.put()
    status, line = refusal("-b", str(tmp_path))
    real.stop()
    assert status == UNUSABLE
    assert line.endswith("another server uses this directory")


def test_a_second_lock_in_the_same_process_keeps_beanstalkd_out_too(tmp_path):
    first, second = RealDirectory(tmp_path), RealDirectory(tmp_path / "." / ".." / tmp_path.name)
    assert first.lock()
    assert not second.lock()
    second.unlock()
    done = subprocess.run(
        [*servers.command(servers.BEANSTALKD), "-p", "0", "-b", str(tmp_path)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 10, done
    first.unlock()
    assert second.lock()
    second.unlock()


def test_a_directory_of_a_newer_server_is_refused(launch, tmp_path):
    name = filled(launch, tmp_path)[-1]
    with open(tmp_path / name, "r+b") as file:
        header = bytearray(file.read(32))
        header[8:12] = struct.pack("<I", 99)
        header[28:] = struct.pack("<I", crc32c(bytes(header[:28])))
        file.seek(0)
        file.write(header)
    for options in ((), ("--salvage",)):
        status, line = refusal("-b", str(tmp_path), *options)
        assert status == UNUSABLE
        assert line.endswith(
            f"{tmp_path}/{name}: format version 99 is newer than this server supports (up to {VERSION})"
        )


def test_a_damaged_directory_is_refused_and_can_be_salvaged(launch, tmp_path):
    name = filled(launch, tmp_path, 30)[0]
    with open(tmp_path / name, "r+b") as file:
        file.seek(800)
        file.write(b"damage")
    status, line = refusal("-b", str(tmp_path))
    assert status == DAMAGED
    assert f"{tmp_path}/{name}: damaged at offset " in line
    assert line.endswith("use --salvage to start without the unreadable jobs")
    process = launch("-p", "0", "-b", str(tmp_path), "--salvage")
    assert "salvaged 29 jobs; the damaged files are kept in" in process.log
    caller = Caller(process.address)
    assert put(caller) == 31 + UNKNOWN_IDS, "the damage may have hidden ids"
    assert UNKNOWN_IDS == 2**20, "as docs/operating.md says"
    assert process.stop() == 0
    assert "Traceback" not in process.log
    assert os.listdir(tmp_path / "damaged") == [name]
    process = launch("-p", "0", "-b", str(tmp_path))
    assert "recovered 30 jobs" in process.log


def test_a_directory_with_beanstalkds_files_and_this_servers(launch, tmp_path):
    name = filled(launch, tmp_path)[0]
    (tmp_path / "binlog.1").write_bytes(struct.pack("<i", 7) + bytes(100))
    status, line = refusal("-b", str(tmp_path))
    assert status == UNUSABLE
    assert f"holds files of beanstalkd (binlog.1) and of this server ({name})" in line


# A disk that is full


@pytest.fixture
def small_disk(tmp_path, request):
    """A file system of some mebibytes."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}m", "tmpfs", str(path)]
    if os.getuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@in_memory_and_on_disk
@pytest.mark.parametrize("small_disk", [2], indirect=True)
def test_a_full_disk_refuses_puts_and_nothing_else(launch, small_disk, bodies):
    process = launch("-p", "0", "-b", str(small_disk / "binlog"), "-s", "65536", *bodies)
    (small_disk / "ballast").write_bytes(bytes(500_000))
    caller = Caller(process.address)
    count = 0
    while (line := caller.ask(b"put 5 0 60 2000\r\n%b\r\n" % bytes(2000))).startswith(b"INSERTED"):
        count += 1
        assert count < 1000
    assert line == b"OUT_OF_MEMORY\r\n"
    assert count > 50
    for _ in range(20):  # many times the room that is set aside
        for number in range(1, 51):
            ask = b"reserve-job %d\r\nrelease %d 1 0\r\nreserve-job %d\r\nbury %d 1\r\nkick-job %d\r\n"
            caller.send(ask % (number, number, number, number, number))
            for expected in (b"RELEASED\r\n", b"BURIED\r\n"):
                assert caller.line().startswith(b"RESERVED")
                caller.read(2002)
                assert caller.line() == expected
            assert caller.line() == b"KICKED\r\n"
    assert caller.ask(b"delete 1\r\n") == b"DELETED\r\n"
    os.unlink(small_disk / "ballast")
    more = -1  # one was deleted
    for _ in range(151):
        eventually(
            lambda: caller.ask(b"put 5 0 60 2000\r\n%b\r\n" % bytes(2000)) != b"OUT_OF_MEMORY\r\n",
            "the room is found",
        )
        more += 1
    assert process.stop() == 0
    assert "cannot allocate a segment: No space left on device; puts that need one are refused" in process.log
    assert "the disk has space again" in process.log
    assert "Traceback" not in process.log
    assert process.log.count("No space left") < 100, "it is logged, but not all the time"
    process = launch("-p", "0", "-b", str(small_disk / "binlog"))
    assert f"recovered {count + more} jobs" in process.log


# A disk that fails


FAILING = """
import os, sys
from beanstalk_server.cli.server import main
operation, broken = sys.argv[1:3]
work = getattr(os, operation)
def work_or_fail(*arguments):
    if os.path.exists(broken):
        raise OSError(5, "Input/output error")
    return work(*arguments)
setattr(os, operation, work_or_fail)
sys.exit(main(sys.argv[3:]))
"""


def on_failing_disk(launch, path, operation, *options):
    """A server whose disk fails in this operation from the moment when the file `broken` is there."""
    line = [sys.executable, "-c", FAILING, operation, str(path / "broken"), "-p", "0", "-b", str(path / "b"), *options]
    return launch(line=line)


@pytest.mark.parametrize("options", [("fdatasync",), ("fdatasync", "-f", "10"), ("pwrite",)])
def test_the_process_ends_by_itself_when_the_disk_fails_and_acknowledges_nothing(launch, tmp_path, options):
    process = on_failing_disk(launch, tmp_path, *options)
    caller = Caller(process.address)
    put(caller)
    (tmp_path / "broken").touch()
    caller.send(b"put 0 0 60 1\r\nb\r\n")
    with contextlib.suppress(ConnectionError):
        assert caller.rest() in (b"", b"INSERTED 2\r\n" if "-f" in options else b"")
    assert process.wait() == JOURNAL_FAILED
    assert (
        "the journal failed: the server is stopping and acknowledges no more changes: "
        f"[Errno 5] Input/output error: '{tmp_path}/b/segment.0000000001'"
    ) in process.log
    assert "Traceback" not in process.log


def test_a_failure_at_the_very_end_is_logged_too(launch, tmp_path):
    process = on_failing_disk(launch, tmp_path, "fdatasync", "-F")
    caller = Caller(process.address)
    put(caller)
    (tmp_path / "broken").touch()
    caller.close()
    assert process.stop() == JOURNAL_FAILED
    assert "the journal failed" in process.log
    assert "Traceback" not in process.log
