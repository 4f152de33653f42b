"""The blocking client: with this server, with beanstalkd, and with servers that fail at every byte."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import programs
import pytest
from beanstalk_client import (
    Client,
    ConnectionLostError,
    NoAnswerError,
)
from beanstalk_client.commands import make
from beanstalk_client.connection import Connection
from scripted_server import CLOSE, RESET, SILENCE, extensions

from beanstalk_server import Server
from beanstalk_server.settings.options import Config
from beanstalk_server.settings.sections import ListenerConfig
from harness import servers
from harness.waiting import WITHIN, eventually

pytestmark = pytest.mark.usefixtures("unnamed")  # their peers say what they expect, byte by byte


@pytest.mark.parametrize("give_up", [CLOSE, RESET], ids=["closed", "reset"])
def test_a_loss_at_any_byte_of_the_set_up_is_an_attempt_that_failed(scripted, give_up, monkeypatch):
    monkeypatch.setattr("beanstalk_client.core.LONGEST_PAUSE", 0.001)
    greeting = [
        (b"auth secret\r\n", b"AUTHENTICATED\r\n"),
        (b"use t\r\nwatch t\r\nignore default\r\n", b"USING t\r\nWATCHING 2\r\nWATCHING 1\r\n"),
    ]
    cuts = []
    for at, (request, reply) in enumerate(greeting):
        cuts += [[*greeting[:at], (request, reply[:size], give_up)] for size in range(len(reply))]
    asked = b"list-tube-used\r\n"
    server = scripted([*greeting, (asked, CLOSE)], *cuts, [*greeting, (asked, b"USING t\r\n")])
    with Client(server.address, use="t", watch="t", token="secret", reconnect_timeout=WITHIN) as queue:
        assert queue.using() == "t"
    assert len(server.said) == len(cuts) + 2


def reserve_in_pipeline(queue):
    with queue.pipeline() as together:
        together.reserve()


@pytest.mark.parametrize("ask", [Client.reserve, reserve_in_pipeline], ids=["one", "all"])
@pytest.mark.parametrize("timeout", [0.01, 60], ids=["looks", "waits"])
def test_who_waits_is_told_at_once_that_another_thread_has_closed_the_client(run, ask, timeout):
    server = run()
    queue = Client(server.address, timeout=timeout)
    told = []

    def wait():
        try:
            ask(queue)
        except ConnectionLostError as error:
            told.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    with Client(server.address) as other:
        eventually(lambda: other.stats()["current-waiting"] == 1, "it waits")
    queue.close()
    thread.join(30)
    assert len(told) == 1


def test_an_interrupt_gives_up_the_connection_so_that_no_reply_is_taken_for_another(run):
    class InterruptError(Exception):
        pass

    def interrupt(*_):
        raise InterruptError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Client(run().address) as queue:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(InterruptError):
                queue.reserve()
            job = queue.put("x")
            assert queue.reserve(0).id == job
    finally:
        signal.signal(signal.SIGALRM, before)


class Clock:
    """In place of `time`: sleeping takes no time, and no server answers."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def wait_in_vain(self, address, seconds):
        self.now += seconds
        raise TimeoutError(address)


@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
def test_a_command_fails_after_a_second_while_the_server_is_down(scripted, monkeypatch, is_silent):
    clock = Clock()
    monkeypatch.setattr("beanstalk_client.blocking.time", clock)
    server = scripted([(b"use t\r\n", b"USING t\r\n"), (b"list-tube-used\r\n", CLOSE)])
    with Client([server.address, ("127.0.0.1", servers.unused_port())], use="t") as queue:
        if is_silent:
            monkeypatch.setattr("beanstalk_client.blocking.open_socket", clock.wait_in_vain)
        with pytest.raises(ConnectionLostError, match="cannot connect"):
            queue.using()
    assert clock.now == pytest.approx(1, abs=0.01)


def test_a_socket_that_is_connected_already(run, tmp_path):
    path = tmp_path / "socket"
    run(listeners=(ListenerConfig(address=f"unix:{path}"),))
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    with Client(sock, None) as queue:
        assert queue.put(b"x") == 1
        sock.close()
        assert not queue._connection.is_alive()
        (result,) = queue.run_all([make.stats()])
        assert isinstance(result, ConnectionLostError)
        with pytest.raises(ConnectionLostError):
            queue.put(b"x")


@pytest.mark.slow
def test_the_client_runs_on_the_oldest_python_that_it_promises(run):
    """Debian's pypy3 is a real Python 3.9."""
    program = """
import sys
import beanstalk_client
from beanstalk_client import Client
with Client(("127.0.0.1", int(sys.argv[1])), use="t", watch="t") as queue:
    queue.put_with("x", key="k", delay=0.001)
    job = queue.reserve(timeout=60)
    queue.release(job, delay=1.5)
    print(job.body, queue.stats_job(job)["releases"], [entry["id"] for entry in queue.list_jobs("t", "delayed")])
    queue.put("y" * 60000)
    print(len(queue.reserve_batch(5)[0].body))
"""
    port = run().address[1]
    done = servers.run([programs.find("pypy3"), "-c", program, str(port)], {"PYTHONPATH": str(servers.ROOT / "client")})
    assert done.stderr == ""
    assert done.stdout.split() == ["x", "1", "[1]", "60000"]


def test_a_reply_too_many_ends_the_connection(scripted):
    server = scripted(
        [(b"delete 1\r\n", b"DELETED\r\nDELETED\r\n", SILENCE)],
        [(b"delete 2\r\n", b"DELETED\r\n"), (b"quit\r\n",)],
    )
    queue = Client(server.address)
    queue.delete(1)
    queue.delete(2)
    assert server.said == [b"delete 1\r\n", b"delete 2\r\n"]
    queue.quit()


FORK = """
import os, sys, threading
from beanstalk_client import Client, ReservationLostError
found = []
with Client(sys.argv[1], use="mine") as queue:
    busy = Client(sys.argv[1], watch="other")
    waits = threading.Thread(target=lambda: found.append(busy.reserve()), daemon=True)
    waits.start()
    while not queue.stats()["current-waiting"]:
        pass
    queue.put("a")
    queue.watch("mine")
    job = queue.reserve()
    child = os.fork()
    if child == 0:
        assert queue.using() == "mine" and queue.stats_job(job)["state"] == "reserved"
        try:
            queue.release(job)
        except ReservationLostError:
            sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    queue.release(job)
    queue.use("other")
    queue.put("b")
    waits.join(60)
    assert found[0].body == "b"
    assert queue.stats()["total-connections"] == 3  # of the child one
"""


def test_a_fork_does_not_use_its_parents_connection(run):
    host, port = run().address
    program = [sys.executable, "-P", "-c", FORK, f"{host}:{port}"]
    environment = os.environ | {"PYTHONPATH": str(servers.ROOT / "client")}
    assert subprocess.run(program, env=environment, timeout=WITHIN, check=False).returncode == 0


def test_a_second_thread_is_refused_while_the_first_waits(run):
    server = run()
    with Client(server.address) as queue, Client(server.address) as other, ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.reserve)
        eventually(lambda: other.stats()["current-waiting"] == 1, "the first thread waits")
        with pytest.raises(RuntimeError, match="another thread"):
            queue.tubes()
        with pytest.raises(RuntimeError, match="another thread"):
            queue.run_all([make.stats()])
        other.put("a")
        assert waiting.result().body == "a"
        assert queue.tubes() == ["default"]


@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0", "unix:{}/socket"])
async def test_a_server_in_the_event_loop_that_the_client_would_hold_up_is_told(where, tmp_path):
    def in_a_thread(address):
        with Client(address, use="t") as queue:
            assert queue.put("a") == 1

    async with Server(Config(listen=where.format(tmp_path), port=0)) as server:
        address = ("127.0.0.1", server.address[1]) if isinstance(server.address, tuple) else server.address
        with pytest.raises(RuntimeError, match=r"runs in the event loop of this thread.*AsyncClient"):
            Client(address, use="t", timeout=0.1)
        await asyncio.to_thread(in_a_thread, address)
    assert vars(asyncio.get_running_loop())["beanstalk_servers"] == []


def test_the_client_looks_at_no_module_of_the_server():
    """What a server says of itself is in its event loop, so that either may change its modules."""
    sources = [
        path for path in (servers.ROOT / "client/beanstalk_client").rglob("*.py") if "testcontainers" not in path.name
    ]
    assert [path.name for path in sources if "beanstalk_server." in path.read_text()] == []


async def test_a_server_of_another_event_loop_is_none_that_the_client_holds_up(run):
    address = run().address

    async with Server(Config(port=0)):
        with Client(address, use="t") as queue:
            assert queue.put("a") == 1


@pytest.mark.parametrize("token", ["", "secret"])
def test_connecting_again_is_part_of_the_timeout(scripted, token):
    """Each of the addresses is silent; the call ends when its own time is over, not that of each attempt."""
    proof = [(b"auth secret\r\n", b"AUTHENTICATED\r\n")] if token else []
    silent = scripted([*proof, (b"use t\r\n", b"USING t\r\n"), (b"stats\r\n", CLOSE)], *[[(b"?", SILENCE)]] * 50)
    other = scripted(*[[(b"?", SILENCE)]] * 50)
    silent.problems = other.problems = _Ignored()
    addresses = [silent.address, other.address]
    with Client(addresses, use="t", token=token, connect_timeout=1000, timeout=1000, reconnect_timeout=900) as queue:
        queue._timeout = 0.5
        with pytest.raises(ConnectionLostError):
            queue.stats()


class _Ignored(list):
    """Problems of servers that must answer nothing."""

    def append(self, problem):
        pass


class SlowSocket:
    """A connected socket of a clock that stands still but for the seconds that the pieces of replies take.

    Args:
        pieces: seconds and bytes, as they come; nothing comes after them, and an empty one is the end.
    """

    family = socket.AF_INET

    def __init__(self, clock, *pieces):
        self.clock = clock
        self.pieces = list(pieces)
        self.sent = b""
        self.timeout = None

    def settimeout(self, seconds):
        self.timeout = seconds

    def sendall(self, data):
        self.sent += data

    def send(self, data):
        self.sent += data
        return len(data)

    def recv(self, _):
        if self.timeout == 0:
            raise BlockingIOError
        seconds, data = self.pieces[0] if self.pieces else (float("inf"), b"")
        if self.timeout is not None and seconds > self.timeout:
            self.clock.now += self.timeout
            if self.pieces:
                self.pieces[0] = (seconds - self.timeout, data)
            raise TimeoutError
        self.clock.now += seconds
        if data:
            self.pieces.pop(0)
        return data

    def fileno(self):
        return 0

    def shutdown(self, how):
        pass

    def close(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("beanstalk_client.blocking.time", clock)
    monkeypatch.setattr("beanstalk_client.connection.time", clock)
    return clock


@pytest.fixture
def slow(clock, monkeypatch):
    """Makes a client that connects, one after the other, to sockets with these pieces."""

    def connect(*connections, **keywords):
        sockets = [SlowSocket(clock, *pieces) for pieces in connections]
        opened = iter(sockets)
        monkeypatch.setattr("beanstalk_client.blocking.open_socket", lambda *_: next(opened))
        queue = Client("h:1", **{"timeout": 1, "connect_timeout": 1, "reconnect_timeout": 9, **keywords})
        queue.sockets = sockets
        return queue

    return connect


def drip(data, seconds=0.4):
    return [(seconds, bytes([byte])) for byte in data]


def reserve_all(queue):
    return queue.run_all([make.reserve(5)])[0]


def raise_result(ask):
    def asked(queue):
        result = ask(queue)
        if isinstance(result, Exception):
            raise result

    return asked


@pytest.mark.parametrize(
    ("ask", "began", "ends"),
    [
        (lambda queue: queue.put("x"), 0, 1),
        (lambda queue: queue.reserve(5), 0, 6),
        (lambda queue: queue.reserve(5), 5.5, 6),
        (lambda queue: queue.reserve(), 100, 101),
        (raise_result(reserve_all), 5.5, 6),
        (reserve_in_pipeline, 100, 101),
    ],
    ids=["put", "waiting", "late", "endless", "together", "endless-together"],
)
def test_a_reply_that_drips_must_be_whole_in_time(slow, clock, ask, began, ends):
    queue = slow([(began, b"R"), *drip(b"ESERVED 1 1000000000000000000")], reconnect=False)
    with pytest.raises(NoAnswerError, match=r"no answer within [16] s"):
        ask(queue)
    assert clock.now == pytest.approx(ends, abs=0.02)


def test_a_long_body_that_comes_in_time_costs_no_more_than_the_looks_at_the_clock(slow, clock):
    queue = slow([(0, b"RESERVED 1 2000\r\n"), *drip(2000 * b"x" + b"\r\n", 0.0001)])
    allowed = []
    queue.sockets[0].settimeout = allowed.append
    assert queue.reserve(0).body == 2000 * "x"
    assert len(allowed) < 30
    assert allowed[-1] == 1


def test_the_time_of_each_reply_of_a_pipeline_begins_with_the_one_before(slow, clock):
    queue = slow(3 * [(0.9, b"INSERTED 1\r\n")] + drip(b"INSERTED 1111111"))
    assert queue.run_all([make.put(b"x")] * 3) == [1, 1, 1]
    assert clock.now == pytest.approx(2.7)
    with pytest.raises(NoAnswerError):
        queue.put("x")
    assert clock.now == pytest.approx(3.7, abs=0.02)


@pytest.mark.parametrize("ask", [lambda queue: queue.put("x", delay=0.5), lambda queue: put_later(queue)])
def test_a_question_before_a_command_is_part_of_its_timeout(slow, clock, ask):
    queue = slow([(0.9, extensions("durations"))])
    with pytest.raises(NoAnswerError, match="no answer within 1 s"):
        ask(queue)
    assert b"put" in queue.sockets[0].sent
    assert clock.now == pytest.approx(1, abs=0.02)


def put_later(queue):
    with queue.pipeline() as together:
        together.put("x", delay=0.5)


def test_the_token_is_part_of_connect_timeout(slow, clock):
    with pytest.raises(NoAnswerError, match="no answer within 1 s"):
        slow(drip(b"AUTHENTICATED\r\n"), token="secret", insecure_token=True)
    assert clock.now == pytest.approx(1, abs=0.02)


def test_the_tubes_of_a_new_connection_are_part_of_the_timeout_of_a_call_only(slow, clock):
    told = [(0.9, b"USING t\r\n"), (0.9, b"WATCHING 2\r\n"), (0.9, b"WATCHING 1\r\n")]
    queue = slow([*told, (0, b"")], told, use="t", watch="t")
    assert clock.now == pytest.approx(2.7)
    with pytest.raises(NoAnswerError):
        queue.stats()
    assert clock.now == pytest.approx(3.7, abs=0.02)


@pytest.mark.parametrize("ask", [Client.stats, lambda queue: put_later(queue)], ids=["one", "together"])
def test_the_time_that_a_reconnect_took_is_not_given_again(slow, clock, ask):
    queue = slow([(0, b"USING t\r\n"), (0, b"")], [(0.9, b"USING t\r\n")], use="t")
    if ask is not Client.stats:
        queue._drop()
    with pytest.raises(NoAnswerError, match="no answer within 1 s"):
        ask(queue)
    assert len(queue.sockets[1].sent) > len(b"use t\r\n")
    assert clock.now == pytest.approx(1, abs=0.02)


def test_the_time_in_which_a_server_reads_a_long_body_is_no_silence(slow, clock):
    queue = slow([(0.9, b"INSERTED "), (0.05, b"7\r\n")])

    def slowly(data):
        clock.now += 50

    queue.sockets[0].sendall = slowly
    assert queue.put("x" * (1 << 19)) == 7


def test_a_server_that_reads_a_batch_late_has_time_for_its_reply(slow, clock, monkeypatch):
    """It is full for most of the time, then reads all, and takes as long again for its replies."""
    queue = slow([(0.8, b"INSERTED 1\r\n"), (0.8, b"INSERTED 2\r\n")])
    (sock,) = queue.sockets
    held_up = [True]

    def send(data):
        if sock.timeout == 0 and held_up:
            raise BlockingIOError
        return len(data)

    def wait_for_room(*_):
        held_up.clear()
        clock.now += 0.9
        return True

    sock.send = send
    monkeypatch.setattr(Connection, "wait", wait_for_room)
    assert queue.run_all([make.put(b"x")] * 2) == [1, 2]
