"""A server with I/O processes: it behaves like one without, and outlives them; they do not outlive it."""

import contextlib
import logging
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from activation import activated
from load import Load
from proxy_headers import binary
from tls_peers import Files, TlsCaller, client_certificate, client_context

from beanstalk_server import Config, ListenerConfig, TubeConfig, UserConfig
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.io_processes import processes
from beanstalk_server.server.start_error import StartError
from harness import servers
from harness.caller import Caller
from harness.waiting import eventually
from tests.cluster.simulation.commands import policed_tubes, values_of

USERS = (
    UserConfig(name="ann", token_sha256=(hash_of_token("ann"),), produce="*", consume="*"),
    UserConfig(name="bob", token_sha256=(hash_of_token("bob"),), uid=(os.getuid(),), produce="*", consume="*"),
)


@pytest.fixture
def serve(run):
    """Starts servers with I/O processes; settings are those of a server."""

    def start(*listeners, processes=1, **settings):
        if listeners:
            settings |= {"listeners": listeners}
        return run(io_processes=processes, **settings)

    return start


def listener(**keys):
    return ListenerConfig(**{"address": "127.0.0.1:0"} | keys)


def io(server):
    return server.server._io.all


def pids(server):
    return [each.pid for each in io(server)]


def is_alive(pid):
    """Whether a process runs: one that has ended, and has not been waited for, does not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


def value(caller, name):
    """A figure of stats."""
    size = int(caller.ask(b"stats\r\n").split()[1])
    lines = caller.read(size + 2).decode().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith(name + ":"))


def put(caller, body=b"x"):
    reply = caller.ask(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))
    assert reply.startswith(b"INSERTED "), reply
    return int(reply.split()[1])


# What clients see


def test_clients_of_all_processes_share_their_jobs(serve):
    server = serve(processes=2)
    assert len(set(pids(server)) | {os.getpid()}) == 3
    callers = [server.connect() for _ in range(20)]
    for caller in callers:
        put(caller)
    assert [caller.ask(b"reserve-job %d\r\n" % number) for number, caller in enumerate(reversed(callers), 1)] == [
        b"RESERVED %d 1\r\n" % number for number in range(1, 21)
    ]
    callers[0].line()
    assert value(callers[0], "current-connections") == "20"


def test_a_client_that_does_not_read_holds_up_nobody_else(serve):
    server = serve(max_job_size=1 << 20)
    deaf, other = server.connect(), server.connect()
    number = put(other, bytes(1 << 20))
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.socket.settimeout(0.1)

    def not_read_from():
        with contextlib.suppress(TimeoutError):
            while True:
                deaf.socket.send(b"peek %d\r\n" % number * 1000)
        return server.call(lambda: [each for each in server.server.connections.open if not each.intake.reading])

    (connection,) = eventually(not_read_from, "the client that does not read is not read from")
    for _ in range(100):
        assert other.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    assert server.call(lambda: connection.transport.get_write_buffer_size()) < 8 << 20
    deaf.close()
    eventually(lambda: len(server.server.connections.open) == 1, "the client that did not read is gone")


def test_one_that_hangs_up_while_it_is_not_read_from_gets_no_job(serve):
    server = serve()
    waiting, other = server.connect(), server.connect()
    waiting.send(b"reserve\r\n")
    eventually(lambda: value(other, "current-waiting") == "1", "it waits")
    waiting.send(b"list-tubes\r\n" * 20_000)
    waiting.socket.shutdown(socket.SHUT_WR)
    assert waiting.line() == b"TIMED_OUT\r\n"
    number = put(other)
    assert other.ask(b"reserve\r\n") == b"RESERVED %d 1\r\n" % number


@pytest.mark.parametrize(("processes", "most"), [(2, 5), (3, 1)])
def test_all_processes_together_take_no_more_clients_than_there_may_be(serve, caplog, processes, most):
    """Each has its part of them; a process that has all of its part leaves clients to the others."""
    server = serve(processes=processes, max_connections=most)

    def connected():
        return server.call(lambda: len(server.server.connections.open))

    callers = [server.connect() for _ in range(most + 3)]
    eventually(lambda: connected() == most, "all parts are taken")
    eventually(
        lambda: f"{most} connections, the maximum set by --max-connections; new clients wait" in caplog.text,
        "it is said",
    )
    for number in range(3):
        callers[number].close()
        callers[most + number].send(b"list-tube-used\r\n")
        eventually(lambda: connected() == most, "another one has its place")
    served = {id(each) for each in callers[3:] if each.ask(b"list-tube-used\r\n") == b"USING default\r\n"}
    assert len(served) == most


# How clients are known


def test_users_are_known_by_their_certificates_and_the_files_may_go(serve, tmp_path):
    """The processes have what the files had at the start: one that is started again later has it too."""
    files = Files(tmp_path)
    server = serve(files.listener(mutual=True, auth="certificate"), users=USERS)
    for path in tmp_path.iterdir():
        path.unlink()
    context = client_context(client_certificate("ann"))
    for _ in range(2):
        caller = TlsCaller(server.address, context)
        put(caller)
        assert server.call(lambda: [each.session.user.name for each in server.server.connections.open]) == ["ann"]
        kill(server)
        caller.socket.close()


def test_a_proxy_speaks_for_its_client(serve, caplog):
    caplog.set_level(logging.INFO)
    server = serve(listener(proxy_protocol=True, trusted=("127.0.0.0/8",)), verbosity=1)
    caller = server.connect()
    caller.send(b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 11300\r\n")
    put(caller)
    assert "192.0.2.7:4711 connected" in caplog.text
    other = server.connect()
    other.send(binary(socket.inet_aton("192.0.2.8") + socket.inet_aton("192.0.2.1") + struct.pack("!HH", 1, 2)))
    put(other)
    assert "192.0.2.8:1 connected" in caplog.text


def test_users_are_known_by_their_uids_at_a_unix_socket(serve, open_path):
    path = f"{open_path}/socket"
    server = serve(listener(address=f"unix:{path}", auth="peer"), users=USERS)
    caller = Caller(path)
    put(caller)
    assert server.call(lambda: [each.session.user.name for each in server.server.connections.open]) == ["bob"]
    caller.close()
    assert os.path.exists(path)


def test_who_is_refused_is_in_the_log_of_the_server(serve, caplog):
    server = serve(listener(auth="token"), users=USERS)
    caller = server.connect()
    assert caller.ask(b"put 0 0 60 1\r\n") == b"UNAUTHORIZED\r\n"
    name = f"127.0.0.1:{caller.socket.getsockname()[1]}"
    eventually(
        lambda: f"{name} refused at {server.server.listener_policies[0].place}" in caplog.text, "the log says so"
    )
    assert any(line.startswith(f"{name} refused") for line in caplog.messages), "as without I/O processes"


# New settings


def reload(server, *listeners, users=(), **settings):
    config = Config(listeners=listeners, users=users, io_processes=1, **settings)
    server.wait_for(server.server.reload(config))


def test_new_settings_take_effect_in_all_processes(serve, tmp_path):
    files = Files(tmp_path)
    plain = listener(address=f"127.0.0.1:{servers.unused_port()}", auth="token")
    server = serve(plain, users=USERS, processes=2)
    ann, bob = server.connect(), server.connect()
    assert ann.ask(b"auth ann\r\n") == bob.ask(b"auth bob\r\n") == b"AUTHENTICATED\r\n"
    secure = files.listener(address=f"127.0.0.1:{servers.unused_port()}")
    reload(server, plain, secure, users=USERS[:1])
    assert bob.rest() == b""
    put(ann)
    for _ in range(10):
        new = server.connect()
        assert new.ask(b"auth bob\r\n") == b"UNAUTHORIZED\r\n"
        new.close()
        new = TlsCaller(("127.0.0.1", secure.port))
        put(new)
        new.close()
    reload(server, secure, users=USERS[:1])
    put(ann)
    assert not servers.accepts(plain.port)


def test_a_listener_that_asks_for_more_lets_nobody_in_who_was_asked_for_less(serve):
    port = servers.unused_port()
    server = serve(listener(address=f"127.0.0.1:{port}"))
    caller = server.connect()
    put(caller)
    reload(server, listener(address=f"127.0.0.1:{port}", auth="token"), users=USERS)
    assert caller.rest() == b""
    other = server.connect()
    assert other.ask(b"put 0 0 60 1\r\n") == b"UNAUTHORIZED\r\n"


def test_nobody_is_lost_who_comes_during_a_reload(serve):
    one = listener(address=f"127.0.0.1:{servers.unused_port()}", auth="token")
    server = serve(one, users=USERS, processes=2)
    done = threading.Event()
    failures = []

    def come():
        try:
            while not done.is_set():
                caller = server.connect()
                assert caller.ask(b"auth ann\r\n") == b"AUTHENTICATED\r\n"
                put(caller)
                caller.close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(10):
        reload(server, one, users=USERS[: 1 + number % 2])
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


# Processes that end


def kill(server, number=0, sent=signal.SIGKILL):
    """Kill an I/O process, and wait until there is another one."""
    process = io(server)[number]
    pid = process.pid
    os.kill(pid, sent)
    eventually(lambda: process.pid not in (0, pid) and process._end and process._ready.done(), "there is a new process")
    assert not is_alive(pid)


def test_the_clients_of_a_process_that_dies_are_gone_and_their_jobs_ready(serve, caplog):
    caplog.set_level(logging.INFO)
    server = serve(processes=1)
    worker = server.connect()
    for _ in range(100):
        put(worker)
    assert worker.ask(b"reserve-batch 100 0\r\n").startswith(b"RESERVED_BATCH 100")
    kill(server)
    with contextlib.suppress(ConnectionResetError):
        worker.rest()
    other = server.connect()
    assert value(other, "current-jobs-ready") == "100"
    assert value(other, "current-connections") == "1"
    assert "I/O process 1 (pid " in caplog.text
    assert "was restarted" in caplog.text


def test_the_jobs_of_a_client_that_leaves_have_failed_and_those_of_a_process_that_dies_have_not(serve):
    server = serve(tubes=[TubeConfig(match="default", max_tries=5)])
    for tries in (1, 0):
        worker = server.connect()
        job_id = put(worker)
        assert worker.ask(b"reserve-job %d\r\n" % job_id).startswith(b"RESERVED ")
        if tries:
            worker.close()
        else:
            kill(server)
        job = server.call(lambda job_id=job_id: server.server.broker.jobs[job_id])
        eventually(lambda job=job: job.client is None, "nobody has it")
        assert getattr(job.extras, "tries", 0) == tries
        worker.close()


def test_whoever_comes_while_there_is_no_process_waits(serve):
    server = serve(processes=1)
    os.kill(pids(server)[0], signal.SIGKILL)
    caller = server.connect()
    put(caller)


def test_nothing_is_lost_when_processes_are_killed_under_load(serve):
    tubes = [TubeConfig(match=name, **values_of(policy)) for name, policy in policed_tubes(1).items()]
    server = serve(processes=2, tubes=tubes)
    with Load([server.address], 4, random.Random(1)) as load:
        for turn in range(3):
            work = sum(load.answered()) + 200
            eventually(lambda work=work: sum(load.answered()) >= work, "clients are answered")
            kill(server, turn % 2)
    problems, _, _ = load.problems(server.address)
    assert not problems, problems[:10]


def test_a_process_that_is_stopped_is_replaced(serve):
    server = serve(processes=1)
    worker = server.connect()
    put(worker)
    assert worker.ask(b"reserve\r\n") == b"RESERVED 1 1\r\n"
    kill(server, sent=signal.SIGSTOP)
    other = server.connect()
    assert other.ask(b"reserve\r\n") == b"RESERVED 1 1\r\n"


def test_signals_are_for_the_engine_process(serve):
    server = serve(processes=1)
    caller = server.connect()
    before = pids(server)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(before[0], number)
    put(caller)
    assert pids(server) == before


def test_no_process_outlives_the_server(launch):
    server = launch("-p", "0", "--io-processes", "2")
    caller = Caller(server.address)
    put(caller)
    processes = children(server.pid)
    assert len(processes) == 2
    if sys.platform == "linux":
        os.kill(processes[0], signal.SIGSTOP)
    server.kill()
    eventually(lambda: not any(map(is_alive, processes)), "the I/O processes have ended")
    with contextlib.suppress(ConnectionResetError):
        assert caller.rest() == b""


def test_a_server_that_stops_has_sent_what_it_has_answered(launch, tmp_path):
    server = launch("-p", "0", "--io-processes", "2", "-b", str(tmp_path), "-z", "1000000")
    callers = [Caller(server.address) for _ in range(8)]
    processes = children(server.pid)
    answered = []

    def work(caller):
        with contextlib.suppress(ConnectionError):
            while (reply := caller.ask(b"put 0 0 60 1\r\nx\r\n")).endswith(b"\r\n"):
                answered.append(int(reply.split()[1]))

    threads = [threading.Thread(target=work, args=[caller]) for caller in callers]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) > 1000, "there is load")
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    assert not any(map(is_alive, processes))
    for caller in callers:
        caller.close()
    again = launch("-p", "0", "--io-processes", "1", "-b", str(tmp_path))
    caller = Caller(again.address)
    assert int(value(caller, "current-jobs-ready")) >= len(answered)
    assert again.stop(signal.SIGINT) == 0


def test_stats_tells_what_the_engine_process_has_spent(serve):
    server = serve()
    caller = server.connect()
    assert value(caller, "pid") == str(os.getpid())
    assert float(value(caller, "rusage-utime")) > 0


def test_sockets_of_systemd_are_handed_on(launch):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = launch(line=activated([sock], "--io-processes", "2"), pass_fds=[sock.fileno()])
        caller = Caller(sock.getsockname())
        put(caller)
        assert server.stop() == 0
        caller.close()


def may_run_python(user):
    """Whether this process may become a user who can run this Python."""
    if os.getuid():
        return False
    asked = subprocess.run(
        [sys.executable, "-P", "-c", ""], user=user, env=servers.environment_of(servers.imported()), check=False
    )
    return asked.returncode == 0


def test_keys_that_only_root_may_read_are_handed_on_when_the_server_has_become_another_user(launch, tmp_path):
    try:
        if not may_run_python("nobody"):
            pytest.skip("nobody cannot run this Python")
    except OSError as error:
        pytest.skip(f"nobody cannot run this Python: {error.strerror}")
    files = Files(tmp_path)
    os.chmod(files.key, 0o600)
    tls = ("--tls-cert", files.cert, "--tls-key", files.key)
    server = launch("-p", "0", "-u", "nobody", "--io-processes", "1", *tls)
    before = children(server.pid)
    for _ in range(2):
        caller = TlsCaller(server.address)
        put(caller)
        caller.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(before[0], signal.SIGKILL)
        eventually(lambda: not is_alive(before[0]), "the process has ended")


def test_a_server_that_cannot_start_them_says_so(monkeypatch, run):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(StartError, match=r"--io-processes: I/O process 1 did not start"):
        run(io_processes=1)
    monkeypatch.setattr("sys.executable", "/nowhere")
    with pytest.raises(StartError, match=f"--io-processes: user id {os.getuid()} cannot run /nowhere: No such file"):
        run(io_processes=1)


STUBBORN = """
import socket, sys, time
from beanstalk_server.link.link import HEADER, NOTE, PING
from beanstalk_server.io_processes.notes import READY
link, rest = socket.socket(fileno=int(sys.argv[1])), %r
for note in rest:
    link.sendall(HEADER.pack(NOTE, 0, len(READY)) + READY)
while True:
    link.sendall(HEADER.pack(PING, 0, 0))
    time.sleep(0.2)
"""


@pytest.fixture
def stubborn(monkeypatch, tmp_path):
    """Makes I/O processes that are ready this many times, whatever settings they are given, and do nothing else."""

    def make(times):
        (tmp_path / "stubborn.py").write_text(STUBBORN % (" " * times))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(processes, "PROGRAM", "stubborn")
        monkeypatch.setattr(processes, "READY_WITHIN", 1)

    return make


def test_one_that_never_takes_its_settings_is_not_waited_for(stubborn, run):
    stubborn(0)
    with pytest.raises(StartError, match="I/O process 1 did not start: settings not applied within 1 s"):
        run(io_processes=1)


def test_one_that_does_not_take_new_settings_is_replaced(stubborn, serve, caplog):
    stubborn(1)
    server = serve(listener())
    with caplog.at_level(logging.ERROR):
        reload(server, listener())
    assert "settings not applied within 1 s" in caplog.text


def test_time_is_not_spent_while_nobody_asks(serve):
    """An idle server's processes sleep, but for a sign of life in a second."""
    server = serve(processes=1)
    pid = pids(server)[0]

    def ticks():
        with open(f"/proc/{pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))

    before = ticks()
    time.sleep(0.5)  # not to wait for anything: it is what is measured
    assert ticks() - before < 10
