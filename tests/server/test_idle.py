"""Clients that are idle for too long are disconnected, and no others; the test moves the clock."""

import logging
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rounds import Loop, Rounds
from tls_peers import Files, TlsCaller

from beanstalk_server.queue.units import SECOND
from beanstalk_server.server.idle import SLICE, SWEEPS, IdleSweeps
from harness.waiting import eventually

TIMEOUT = 100
LATEST = TIMEOUT + TIMEOUT / SWEEPS
"""Seconds after which an idle client is disconnected at the latest."""


class Server(Rounds):
    """One that disconnects idle clients."""

    def __init__(self, timeout=TIMEOUT):
        super().__init__()
        self.idle = IdleSweeps(lambda: list(self.connections.open), self.clock)
        self.idle.start(self.loop, timeout)

    def has(self, client):
        """Whether a client is still connected, after what has been sent has been answered."""
        self.loop.settle()
        return not client.transport.is_closing()


@pytest.fixture
def server():
    return Server()


def test_a_client_that_says_nothing_is_disconnected(server, caplog):
    caplog.set_level(logging.INFO)
    client = server.connect()
    server.loop.sleep(TIMEOUT - 1)
    assert server.has(client)
    server.loop.sleep(LATEST - TIMEOUT + 1)
    assert client.transport.closed, "what it has been sent goes out first"
    assert (server.broker.connections, server.idle.closed) == (0, 1)
    assert "closed 1 connections that were idle for 100 s" in caplog.messages


@pytest.mark.parametrize(
    "said", [b"put 0 0 60 100\r\n", b"u", b"list-tube-used\r\n", b"put 0 0 60 1\r\nx\r\n", b"\r\n"]
)
def test_the_time_begins_anew_with_whatever_a_client_sends(server, said):
    client = server.connect()
    for _ in range(5):
        server.loop.sleep(TIMEOUT - 1)
        client.send(said)
        assert server.has(client)
    server.loop.sleep(LATEST)
    assert not server.has(client), "half a command is no reason to stay"


def test_a_client_that_waits_stays_and_has_its_time_when_its_wait_is_over(server):
    client = server.connect()
    client.send(b"reserve-with-timeout 1000\r\n")
    server.loop.sleep(999)
    assert server.has(client)
    server.loop.sleep(1.01)
    assert client.read() == b"TIMED_OUT\r\n"
    server.loop.sleep(TIMEOUT * (1 - 1 / SWEEPS))
    assert server.has(client)
    server.loop.sleep(LATEST)
    assert not server.has(client)


def test_a_client_that_holds_a_job_stays_and_has_its_time_when_the_job_is_gone(server):
    client = server.connect()
    client.send(b"put 0 0 1000 1\r\nx\r\nreserve\r\n")
    server.loop.sleep(999)
    assert server.has(client)
    server.loop.sleep(1.01 + TIMEOUT * (1 - 1 / SWEEPS))
    assert (server.has(client), server.broker.ready) == (True, 1)
    server.loop.sleep(LATEST)
    assert not server.has(client)


def test_a_client_that_does_not_read_its_replies_is_left_to_the_system(server):
    client = server.connect()
    client.connection.pause_writing()
    server.loop.sleep(10 * TIMEOUT)
    assert server.has(client)
    client.connection.resume_writing()
    server.loop.sleep(2 * LATEST)
    assert not server.has(client)


def test_without_a_timeout_there_is_no_timer_and_a_reload_changes_it():
    server = Server(timeout=0)
    client = server.connect()
    assert not server.loop.later
    server.loop.sleep(1_000_000)
    assert server.has(client)
    server.idle.change(10)
    server.loop.sleep(20)
    assert not server.has(client)
    server.idle.change(0)
    other = server.connect()
    server.loop.sleep(1_000_000)
    assert server.has(other)


class Idler:
    """A client that does nothing but note when it is looked at."""

    looks = 0
    idle_since = 0
    is_closed = False

    def is_idle(self):
        return not self.is_closed

    def close_idle(self):
        assert not self.is_closed
        self.is_closed = True


def test_many_clients_are_looked_at_in_many_rounds():
    loop = Loop()
    clients = [Idler() for _ in range(SLICE * 10 + 1)]
    sweeps = IdleSweeps(lambda: list(clients), loop.clock)
    sweeps.start(loop, TIMEOUT)
    loop.now += TIMEOUT // SWEEPS * SECOND
    for rounds in range(1, 12):
        loop.go_round()
        assert sum(each.idle_since > 0 for each in clients) == min(rounds * SLICE, len(clients))
    loop.sleep(LATEST)
    assert all(each.is_closed for each in clients)
    assert sweeps.closed == len(clients)
    loop.call_soon(sweeps.stop)
    loop.settle()
    assert all(call.cancelled for _, _, call in loop.later)


@given(st.lists(st.tuples(st.sampled_from(["send", "wait", "reserve", "delete"]), st.integers(0, 3 * TIMEOUT))))
@example([("wait", 88)])  # the first sweep after the wait has looked at it before
def test_no_client_is_disconnected_that_has_been_idle_for_less(steps):
    server = Server()
    client = server.connect()
    idle_since = server.clock()
    job = 0
    for step, pause in steps:
        if step == "wait" and not job:
            said = client.send(b"reserve-with-timeout %d\r\n" % pause)
            server.loop.sleep(pause + 0.01)
            assert said + client.read() == b"TIMED_OUT\r\n"
        elif step == "reserve" and not job:
            job = int(client.send(b"put 0 0 10000 1\r\nx\r\n").split()[1])
            assert client.send(b"reserve\r\n").startswith(b"RESERVED ")
        elif step == "delete" and job:
            assert client.send(b"delete %d\r\n" % job) == b"DELETED\r\n"
            job = 0
        else:
            assert client.send(b"list-tube-used\r\n") == b"USING default\r\n"
        idle_since = server.clock()
        server.loop.sleep(pause)
        server.loop.settle()
        passed = server.clock() - idle_since
        if passed < TIMEOUT * SECOND or job:
            assert server.has(client)
        elif passed > LATEST * SECOND:
            assert not server.has(client)
        if not server.has(client):
            return


# In real servers


@pytest.mark.parametrize("kind", ["plain", "TLS", "I/O process"])
def test_idle_clients_of_real_sockets_are_disconnected(run, tmp_path, kind):
    listeners = {"listeners": (Files(tmp_path).listener(),)} if kind == "TLS" else {}
    server = run(io_processes=int(kind == "I/O process"), idle_timeout=3600, **listeners)
    connect = partial(TlsCaller, server.address) if kind == "TLS" else server.connect
    worker, holder, idle = (connect() for _ in range(3))
    holder.ask(b"put 0 0 60 1\r\nx\r\n")
    assert holder.ask(b"reserve\r\n") == b"RESERVED 1 1\r\n"
    worker.send(b"reserve\r\n")
    assert idle.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    eventually(lambda: server.call(lambda: server.server.broker.waiting) == 1, "it waits")
    sweep_twice(server)
    assert idle.rest() == b""
    assert holder.read(3) == b"x\r\n"
    assert holder.ask(b"release 1 0 0\r\n") == b"RELEASED\r\n"
    assert worker.line() == b"RESERVED 1 1\r\n"


def sweep_twice(server):
    """Let a server find out who is idle, and then let all the time pass that an idle client has."""
    idle = server.server.idle
    server.call(idle.sweep)
    clock = idle.clock
    idle.clock = lambda: clock() + 3600 * SECOND
    server.call(idle.sweep)
    idle.clock = clock
