"""Starting and stopping: addresses, sockets, users, signals, systemd, and everything that can be wrong with them."""

import asyncio
import fcntl
import gc
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import termios
import time

import pytest
from activation import activated, run_shell

from beanstalk_server import Config, ConfigError, ListenerConfig, Server, StartError
from beanstalk_server.queue.client import Client
from beanstalk_server.queue.journal import Journal
from beanstalk_server.version import full_version
from harness import servers
from harness.caller import Caller
from harness.servers import run_to_end
from harness.waiting import eventually


async def test_a_server_inside_a_program(loop_factory):
    async with Server(Config(port=0)) as server:
        host, port = server.address
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"put 0 0 1 5\r\nhello\r\nreserve\r\n")
        assert await reader.readexactly(33) == b"INSERTED 1\r\nRESERVED 1 5\r\nhello\r\n"
        writer.close()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection(host, port)


def test_a_server_that_has_stopped_is_freed_with_the_jobs_that_are_left(loop_factory):
    body = b"the body of a job"

    async def main():
        async with Server(Config(port=0)) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            put = b"%d\r\n%s\r\n" % (len(body), body)
            # shorter delays than those with which a body is packed, and has no object of its own
            writer.write(b"put 0 0 60 " + put + b"put 0 30 60 " + put + b"use t\r\nput-keyed k 0 0 60 " + put)
            writer.write(b"put 0 30 60 " + put + b"put 0 0 60 " + put)
            writer.write(b"kick-job 5\r\nreserve-job 5\r\nbury 5 0\r\nreserve\r\n")
            await reader.readuntil(b"RESERVED 1 17\r\n" + body + b"\r\n")
            bodies = [job.body for job in server.broker.jobs.values()]
            assert [bytes(found) for found in bodies] == [body] * 5
            assert all(sys.getrefcount(found) > 3 for found in bodies), "the list, the loop, the call, and the job"
        writer.close()
        return bodies

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        bodies = runner.run(main())
    gc.collect()
    assert [sys.getrefcount(found) for found in bodies] == [3] * 5


def test_it_listens_on_loopback_unless_told_otherwise(launch):
    process = launch("-p", "0")
    assert process.address[0] == "127.0.0.1"
    assert process.stop() == 0


@pytest.mark.parametrize("host", ["::1", "localhost", "0.0.0.0"])
def test_hosts_and_addresses(run, host):
    server = run(listen=host)
    caller = Caller((host, server.address[1]) if host == "::1" else ("127.0.0.1", server.address[1]))
    assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"


def test_the_log_shows_version_address_and_changed_settings(launch):
    process = launch("-p", "0", "-z", "100", "--tick", "5")
    assert "beanstalk-server 0." in process.log
    assert "with port=0, max_job_size=100, tick=5.0" in process.log
    process.stop()
    assert "stopped" in process.log


def test_verbosity_logs_connections_and_then_commands(launch):
    for option, shows_commands in (("-V", False), ("-VV", True)):
        process = launch("-p", "0", option)
        caller = Caller(process.address)
        caller.ask(b"list-tube-used\r\n")
        caller.close()
        process.stop()
        host, port = process.address
        assert " connected" in process.log
        assert " disconnected" in process.log
        assert (f"{host}:" in process.log) and str(port) in process.log
        assert ("< list-tube-used" in process.log) is shows_commands


def test_a_unix_client_is_logged_without_a_port(launch, tmp_path):
    process = launch("-l", f"unix:{tmp_path}/s", "-V")
    caller = Caller(f"{tmp_path}/s")
    caller.ask(b"list-tube-used\r\n")
    caller.close()
    process.stop()
    assert "unix client" in process.log


# Sockets that cannot be opened


def start_error(**settings):
    async def main():
        async with Server(Config(**settings)):
            raise AssertionError("it started")

    with pytest.raises(StartError) as caught:
        asyncio.run(main())
    return caught.value


class FailingStart(Journal):
    """A journal, and the I/O processes of its server. The journal fails at one step of the start.

    Args:
        step: "restored", or "serving" I/O processes.
        starts: whether the I/O processes start nevertheless.
    """

    keeps = True

    def __init__(self, step, starts=True):
        self.step = step
        self.starts = starts
        super().__init__()

    def _reach(self, step):
        if step == self.step:
            self.on_failure(OSError(5, "Input/output error"))

    def restore(self, replay):
        self._reach("restored")

    def make_context(self):
        return None

    def start(self):
        pass

    async def serve(self):
        self._reach("serving")
        if not self.starts:
            raise StartError("I/O process 1 did not start: the process has exited")

    def give_up(self):
        pass


@pytest.mark.parametrize(("step", "starts"), [("restored", True), ("serving", True), ("serving", False)])
def test_a_journal_that_fails_during_the_start_ends_it_with_its_own_exit_status(step, starts):
    """Such as a write error: a client of the first I/O process may put before the last one is ready."""
    journal = FailingStart(step, starts)
    server = Server(Config(listen="127.0.0.1", port=0, io_processes=1), make_io=lambda *_: journal, _journal=journal)
    with pytest.raises(StartError, match=r"the journal failed: \[Errno 5\] Input/output error") as caught:
        asyncio.run(server.start())
    assert caught.value.status == 74


def test_a_port_that_is_taken_is_refused(run):
    server = run()
    error = start_error(port=server.address[1])
    where = f"-l/--listen 127.0.0.1 -p/--port {server.address[1]}"
    holder = rf" by .* \(pid {os.getpid()}\)" if sys.platform == "linux" else ""
    assert re.fullmatch(f"{re.escape(where)}: Address already in use{holder}", str(error))
    assert error.status == 111


def test_a_host_that_does_not_exist_is_refused():
    assert str(start_error(listen="no.such.host.invalid")).startswith(
        "-l/--listen no.such.host.invalid -p/--port 11300: "
    )
    assert "Cannot assign" in str(start_error(listen="192.0.2.1", port=0))
    assert "Servname" in str(start_error(port="nosuchservice")) or "service" in str(start_error(port="nosuchservice"))


def test_a_unix_socket_left_by_a_dead_server_is_replaced_and_a_live_one_is_not(run, tmp_path):
    path = f"{tmp_path}/socket"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(path)
    dead.close()
    server = run(listen=f"unix:{path}")
    caller = server.connect()
    assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    assert str(start_error(listen=f"unix:{path}")) == f"-l/--listen unix:{path}: another server is listening there"
    assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"


def test_unix_paths_that_cannot_be_used_are_refused(tmp_path):
    (tmp_path / "file").write_text("precious")
    assert "exists, but is not a socket" in str(start_error(listen=f"unix:{tmp_path}/file"))
    assert (tmp_path / "file").read_text() == "precious"
    assert "No such file" in str(start_error(listen=f"unix:{tmp_path}/missing/socket"))
    assert "Not a directory" in str(start_error(listen=f"unix:{tmp_path}/file/socket"))
    assert "too long" in str(start_error(listen=f"unix:{tmp_path}/{'x' * 200}"))


# Users


def test_a_user_that_does_not_exist_is_refused():
    error = start_error(port=0, user="nosuchuser")
    assert (str(error), error.status) == ("-u/--user nosuchuser: no such user", 33)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_it_becomes_another_user_once_the_socket_is_open(launch):
    process = launch("-p", "0", "-u", "nobody")
    with open(f"/proc/{process.pid}/status") as file:
        ids = {line.split()[0]: line.split()[1:5] for line in file if line.startswith(("Uid", "Gid"))}
    nobody = pwd.getpwnam("nobody")
    assert ids == {"Uid:": [str(nobody.pw_uid)] * 4, "Gid:": [str(nobody.pw_gid)] * 4}
    assert process.stop() == 0


def test_a_user_that_this_process_may_not_become_is_refused(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "initgroups", refuse)
    error = start_error(port=0, user="root")
    assert (str(error), error.status) == ("-u/--user root: cannot switch to this user: Operation not permitted", 34)


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_within_a_second_with_thousands_of_clients(launch, number):
    process = launch("-p", "0")
    callers = [Caller(process.address) for _ in range(2000 if number == signal.SIGTERM else 10)]
    for caller in callers:
        caller.send(b"put 0 0 1 1\r\nx\r\nreserve\r\n")
    assert callers[-1].line() == b"INSERTED %d\r\n" % len(callers)
    assert process.stop(number) == 0
    assert "Traceback" not in process.log


def test_a_client_that_speaks_http_is_disconnected_counted_and_logged(run, caplog):
    server = run()
    caller = Caller(server.address)
    assert caller.ask(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nput 0 0 60 1\r\nx\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert caller.rest() == b""
    eventually(lambda: "HTTP request" in caplog.text, "it is logged")
    assert f"{caller.socket.getsockname()[1]} refused at 127.0.0.1:" in caplog.text
    caller.close()
    assert server.server.listeners.failures == 1
    assert not server.server.broker.jobs


@pytest.mark.parametrize(("option", "expected"), [([], 111), (["--check-config"], 5)], ids=["start", "check"])
def test_a_service_that_is_not_known_is_refused(option, expected):
    status, _, said = run_to_end("-p", "abc", *option)
    assert status == expected
    assert said.endswith("no such service: must be a number from 0 to 65535, or the name of a service\n")


def test_a_server_in_a_terminal_ends_with_it(tmp_path):
    """And reloads when it is asked to while the terminal is there."""
    master, slave = os.openpty()
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*servers.command(servers.imported()), "-p", "0"],
            stdin=slave,
            stdout=file,
            stderr=file,
            env=servers.environment_of(servers.imported()),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    os.close(slave)
    try:
        eventually(lambda: "listens on" in log.read_text(), "it has started")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "SIGHUP: ignored" in log.read_text(), "it has nothing to reload")
        os.close(master)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


TWO_SIGNALS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "beanstalk_server.settings.options":
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)

sys.meta_path.insert(0, Finder())
"""


def test_signals_before_everything_is_imported_take_effect_when_the_server_has_started(launch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(TWO_SIGNALS)
    sources = servers.environment_of(servers.imported()).get("PYTHONPATH", "")
    process = launch("-p", "0", environment={"PYTHONPATH": f"{tmp_path}:{sources}"})
    eventually(lambda: "SIGHUP: ignored, because the server has nothing to reload" in process.log, "the log says so")
    assert "draining" in process.log
    assert process.stop() == 0


FIRST_PROCESS = """
import os, signal, sys

process, os.getpid = os.getpid(), lambda: 1

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "beanstalk_server.settings.options":
            os.kill(process, signal.SIGTERM)

sys.meta_path.insert(0, Finder())
"""


def test_the_first_process_of_a_container_is_stopped_by_a_signal_that_came_while_it_was_loaded(tmp_path):
    """The kernel throws away what such a process has no handler for."""
    (tmp_path / "sitecustomize.py").write_text(FIRST_PROCESS)
    environment = servers.environment_of(servers.imported())
    path = f"{tmp_path}:{environment.get('PYTHONPATH', '')}"
    line = [*servers.command(servers.imported()), "-p", "0"]
    done = subprocess.run(line, env=environment | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stopped" in done.stderr


# systemd


@pytest.mark.skipif(sys.platform != "linux", reason="names that are not paths are Linux's")
def test_sockets_that_systemd_has_opened(launch, tmp_path):
    tcp = socket.create_server(("127.0.0.1", 0))
    name = f"beanstalk-server-{os.getpid()}-{tcp.getsockname()[1]}"
    sockets = [tcp]
    for address in (f"{tmp_path}/socket", f"\0{name}"):
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(address)
        sockets[-1].listen()
    process = launch(line=activated(sockets, "-l", "0.0.0.0", "-p", "1"), pass_fds=[sock.fileno() for sock in sockets])
    addresses = f"127.0.0.1:{tcp.getsockname()[1]}, unix:{tmp_path}/socket, unix:@{name}"
    assert f"listens on {addresses} with default settings" in process.log
    for given in ("-l/--listen 0.0.0.0", "-p/--port 1"):
        warning = f"{given}: ignored, because systemd has opened the sockets (LISTEN_FDS)\n"
        eventually(lambda warning=warning: warning in process.log, "the log says so")
    for address in (tcp.getsockname(), f"{tmp_path}/socket", f"\0{name}"):
        caller = Caller(address)
        assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        caller.close()
    assert process.stop() == 0
    assert os.path.exists(f"{tmp_path}/socket"), "the socket is systemd's, not ours"
    for sock in sockets:
        sock.close()


def test_an_inherited_file_that_is_no_listening_socket_is_refused():
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with open(os.devnull) as file:
        for inherited, words in ((datagram, "not a listening TCP or UNIX socket"), (file, "is not a socket")):
            command = activated([inherited], "-p", "0")
            code, _, said = run_shell(command, inherited.fileno())
            assert code == 111
            assert said.startswith("beanstalk-server: LISTEN_FDS: file 3 ")
            assert words in said
    datagram.close()


@pytest.mark.parametrize("option", ["--help", "--version", "--check-config"])
def test_a_reader_that_goes_away_is_no_failure(option):
    reader, writer = os.pipe()
    os.close(reader)
    program = servers.imported()
    command, environment = [*servers.command(program), option], servers.environment_of(program)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, cwd="/", check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
@pytest.mark.parametrize("words", [["--help"], ["token"], ["token", "--help"]])
def test_an_output_that_cannot_be_written_is_told(words):
    program = servers.imported()
    command, environment = [*servers.command(program), *words], servers.environment_of(program)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, cwd="/", check=False)
    said = b"beanstalk-server: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (74, said)


# Bad options


def test_a_bad_option_is_named_in_one_line():
    said = "--bogus: no such option; beanstalk-server --help lists all options"
    assert run_to_end("--bogus") == (5, "", f"beanstalk-server: {said}\n")


def test_help_and_version():
    assert run_to_end("-v")[:2] == (0, f"beanstalk-server {full_version()}\n")
    code, said, _ = run_to_end("-h")
    assert code == 0
    assert "BEANSTALK_SERVER_MAX_JOB_SIZE" in said


# What goes wrong while it runs


async def test_a_connection_that_arrives_while_the_server_stops_does_not_keep_it(loop_factory):
    server = Server(Config(port=0))
    await server.start()
    callers = [Caller(server.address) for _ in range(50)]  # all of them wait to be accepted
    await asyncio.sleep(0)
    await asyncio.wait_for(server.stop(), 60)
    assert (server.listeners.taken, len(server.connections.open)) == (0, 0)
    for caller in callers:
        caller.close()


async def test_a_server_may_be_stopped_twice(loop_factory):
    async with Server(Config(port=0)) as server:
        address = server.address
        await server.stop()
        await server.stop()
    with pytest.raises(ConnectionRefusedError):
        Caller(address)


def test_a_socket_path_that_has_become_anothers_is_left_alone(launch, tmp_path):
    path = tmp_path / "socket"
    process = launch("-l", f"unix:{path}")
    path.unlink()
    path.write_text("another's")
    assert process.stop() == 0
    assert path.read_text() == "another's"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_socket_path_that_cannot_be_removed_stays_and_is_logged(launch, open_path):
    path = open_path / "socket"
    process = launch("-l", f"unix:{path}", "-u", "nobody")
    caller = Caller(str(path))
    assert process.stop() == 0
    assert "cannot remove the socket's path: Permission denied" in process.log
    caller.close()


def test_a_timer_that_fails_does_not_stop_the_others(run, caplog):
    server = run()
    caller, other = server.connect(), server.connect()
    caller.ask(b"put 0 1 60 1\r\nx\r\n")
    broker = server.server.broker

    class Failing(Client):
        def on_outcome(self, outcome):
            raise RuntimeError("no answer is taken")

    def fail_soon():
        client = Failing()
        broker.connect(client)
        broker.reserve(client, 1, time.monotonic_ns())
        server.server.turns.run_pending()

    server.call(fail_soon)
    assert other.ask(b"reserve-with-timeout 2\r\n") == b"RESERVED 1 1\r\n"
    assert "no answer is taken" in caplog.text


def test_a_connection_that_fails_is_dropped_and_the_others_are_not(run, caplog):
    server = run()
    caller = server.connect()
    caller.ask(b"list-tube-used\r\n")
    (connection,) = server.server.connections.open
    other = server.connect()
    other.ask(b"list-tube-used\r\n")

    class Failing:
        def __init__(self, transport):
            self.abort = transport.abort

        def is_closing(self):
            raise RuntimeError("broken")

    def fail():
        connection.transport = Failing(connection.transport)
        server.server.turns.enqueue(connection)
        server.server.turns.run_pending()

    server.call(fail)
    assert caller.rest() == b""
    assert "RuntimeError: broken" in caplog.text
    assert other.ask(b"list-tube-used\r\n") == b"USING default\r\n"


def test_a_client_whose_hangup_cannot_be_watched_is_served_all_the_same(run, caplog):
    server = run()
    caller, producer = server.connect(), server.connect()
    caller.send(b"reserve\r\n")
    producer.ask(b"list-tube-used\r\n")

    class Full:
        def register(self, *_):
            raise OSError(28, "No space left on device")

    hangups = server.server.hangups
    epoll, hangups._epoll = hangups._epoll, Full()
    caller.send(b"use aa\r\n" * 10_000)
    eventually(lambda: "No space left on device" in caplog.text, "the warning is logged")
    hangups._epoll = epoll
    producer.ask(b"put 0 0 1 1\r\nx\r\n")
    assert caller.line() == b"RESERVED 1 1\r\n"
    assert caller.read(3 + 100_000) == b"x\r\n" + b"USING aa\r\n" * 10_000


def test_running_out_of_files_is_logged_and_accepting_goes_on_later(run, caplog):
    server = run()
    listeners = server.server.listeners
    listener = listeners.all[0]
    sock = listener.sock

    class Full:
        def accept(self):
            raise OSError(24, "Too many open files")

        def fileno(self):
            return sock.fileno()

    listener.sock = Full()
    server.call(listeners.accept, listener)
    assert "cannot accept connections, trying again in 1 s: Too many open files" in caplog.text
    listener.sock = sock
    server.call(listeners.accept_again, listener)
    caller = server.connect()
    assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"


@pytest.mark.parametrize("limit", ["the limit on open files", "--max-connections"])
def test_a_client_that_comes_when_all_connections_are_taken_waits_until_one_is_gone(run, caplog, limit):
    server = run(max_connections=3 if limit == "--max-connections" else 0)
    if not server.server.config.max_connections:
        server.call(setattr, server.server.listeners, "limit", 3)
    taken = [server.connect() for _ in range(3)]
    for caller in taken:
        assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    waiting = [server.connect() for _ in range(3)]
    for caller in waiting:
        caller.send(b"list-tube-used\r\n")
    for caller in taken:
        for _ in range(20):
            assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        assert len(server.server.connections.open) == 3
    for caller, next_one in zip(taken, waiting, strict=True):
        caller.close()
        assert next_one.line() == b"USING default\r\n"
    said = f"3 connections, the maximum set by {limit}; new clients wait until one closes"
    assert caplog.messages.count(said) == 1
    assert server.server.listeners.shortages >= 1
    for caller in waiting:
        caller.close()
    other = server.connect()
    assert other.ask(b"list-tube-used\r\n") == b"USING default\r\n"


def test_clients_are_counted_at_all_listeners_together_and_operators_at_none(run, tmp_path):
    listeners = (ListenerConfig(address="127.0.0.1:0"), ListenerConfig(address=f"unix:{tmp_path}/s"))
    server = run(max_connections=2, http="127.0.0.1:0", listeners=listeners)
    first, second = map(Caller, server.server.listeners.addresses)
    for caller in (first, second):
        assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    third = server.connect()
    third.send(b"list-tube-used\r\n")
    eventually(lambda: server.call(lambda: server.server.listeners._full), "it waits")
    operator = Caller(server.server._http.listeners.addresses[0])
    assert operator.ask(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n") == b"HTTP/1.1 200 OK\r\n"
    second.close()
    assert third.line() == b"USING default\r\n"
    for caller in (first, third, operator):
        caller.close()


def test_a_reload_changes_how_many_clients_there_may_be(run):
    server = run(max_connections=1)
    callers = [server.connect() for _ in range(3)]
    for caller in callers:
        caller.send(b"list-tube-used\r\n")
    assert callers[0].line() == b"USING default\r\n"
    eventually(lambda: server.call(lambda: server.server.listeners._full), "the others wait")
    server.wait_for(server.server.reload(Config(port=0, max_connections=2)))
    assert callers[1].line() == b"USING default\r\n"
    eventually(lambda: server.call(lambda: server.server.listeners._full), "the last one waits")
    server.wait_for(server.server.reload(Config(port=0)))
    assert callers[2].line() == b"USING default\r\n"
    server.wait_for(server.server.reload(Config(port=0, max_connections=1)))
    for caller in callers:
        assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n", "it is not disconnected"
    late = server.connect()
    late.send(b"list-tube-used\r\n")
    for caller in callers[:2]:
        caller.close()
    eventually(lambda: len(server.server.connections.open) == 1, "they are gone")
    assert server.call(lambda: server.server.listeners.taken) == 1
    callers[2].close()
    assert late.line() == b"USING default\r\n"


def test_malformed_numbers_and_hosts_are_refused_in_one_line():
    assert "no such host" in str(start_error(listen="a..b"))
    code, _, said = run_to_end("-p", "²")
    assert code == 111
    assert said.startswith("beanstalk-server: -l/--listen 127.0.0.1 -p/--port ²: ")
    assert said.count("\n") == 1
    command = ["bash", "-c", f"LISTEN_FDS=x LISTEN_PID=$$ exec {sys.executable} -m beanstalk_server"]
    assert run_shell(command, 0)[::2] == (111, "beanstalk-server: LISTEN_FDS: 'x' is not a number\n")


def test_a_server_that_is_too_busy_to_answer_counts_as_alive(tmp_path):
    path = f"{tmp_path}/socket"
    busy = socket.socket(socket.AF_UNIX)
    busy.bind(path)
    busy.listen(0)
    waiting = []
    for _ in range(3):
        probe = socket.socket(socket.AF_UNIX)
        probe.setblocking(False)
        probe.connect_ex(path)
        waiting.append(probe)
    assert str(start_error(listen=f"unix:{path}")) == f"-l/--listen unix:{path}: another server is listening there"
    for sock in [busy, *waiting]:
        sock.close()


def test_io_processes_are_made_by_whoever_puts_a_server_together():
    with pytest.raises(ConfigError, match=r"--io-processes: create the server with beanstalk_server.server_of"):
        Server(Config(io_processes=1))
