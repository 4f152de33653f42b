"""Plain sockets at a real server: clients that pipeline, half-close, do not read, and hang up."""

import contextlib
import gc
import random
import socket
import struct

import pytest

from harness.waiting import eventually


@pytest.fixture
def server(run):
    return run()


def test_a_client_that_half_closes_is_told_what_has_become_of_much_work(server):
    caller = server.connect()
    caller.send(b"put 0 60 60 0\r\n\r\n" * 1000)
    for _ in range(1000):
        caller.line()
    caller.send(b"reserve\r\nkick 1000\r\nclear-tube default\r\nlist-tube-used\r\n")
    eventually(lambda: server.call(lambda: server.server.broker.waiting), "it waits")
    caller.socket.shutdown(socket.SHUT_WR)
    assert caller.rest() == b"TIMED_OUT\r\nKICKED 1000\r\nCLEARED 1000\r\nUSING default\r\n"


def test_a_client_that_pipelines_100000_commands_and_reads_later(server):
    caller, other = server.connect(), server.connect()
    count = 100_000
    caller.socket.setblocking(False)
    data = memoryview(b"list-tube-used\r\n" * count)
    received = 0
    while received < count * 15:
        with contextlib.suppress(BlockingIOError):
            data = data[caller.socket.send(data) :] if data else data
        assert other.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        if not data or received or random.random() < 0.2:
            with contextlib.suppress(BlockingIOError):
                received += len(caller.socket.recv(1 << 20))


def waiting(server):
    """The connections whose clients wait for a job."""
    return server.call(lambda: [found for found in server.server.connections.open if found.session.waiting])


def test_a_client_that_never_reads_is_not_read_from(server):
    """It may send no more than the buffers hold: the socket's own, and the little that the server keeps."""
    caller = server.connect()
    producer = server.connect()
    producer.ask(b"put 0 0 1 600\r\n" + b"x" * 600 + b"\r\n")
    caller.socket.setblocking(False)
    sent = 0
    refused = 0  # in a row, each with a round of the server in between
    while refused < 1000:
        try:
            sent += caller.socket.send((b"peek-ready\r\n" * 1000)[sent % 12 :])
            refused = 0
        except BlockingIOError:
            refused += 1
            assert producer.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        assert sent < 64 << 20
    (connection,) = [found for found in server.server.connections.open if found.session.output_paused]
    assert server.call(lambda: connection.session.input_size) < 2 << 20
    assert server.call(connection.transport.get_write_buffer_size) < 4 << 20
    # When it reads at last, it gets an answer to each whole command that it has sent.
    caller.socket.setblocking(True)
    caller.socket.shutdown(socket.SHUT_WR)
    size = len(b"FOUND 1 600\r\n") + 602
    received = 0
    while piece := caller.socket.recv(1 << 20):
        received += len(piece)
    assert received == sent // len(b"peek-ready\r\n") * size


def test_a_client_may_send_much_after_a_reserve_that_waits(server):
    caller, producer = server.connect(), server.connect()
    count = 100_000
    caller.socket.setblocking(False)
    data = memoryview(b"reserve\r\n" + b"list-tube-used\r\n" * count)
    refused = 0  # in a row, each with a round of the server in between
    while data and refused < 100:
        try:
            data = data[caller.socket.send(data) :]
            refused = 0
        except BlockingIOError:
            refused += 1
            assert producer.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    (connection,) = eventually(lambda: waiting(server), "it waits")
    assert server.call(lambda: connection.session.input_size) < 1 << 20
    producer.ask(b"put 0 0 1 1\r\nx\r\n")
    expected = len(b"RESERVED 1 1\r\nx\r\n") + 15 * count
    received = 0
    while received < expected:
        with contextlib.suppress(BlockingIOError):
            data = data[caller.socket.send(data) :] if data else data
        with contextlib.suppress(BlockingIOError):
            received += len(caller.socket.recv(1 << 20))
    assert received == expected


@pytest.mark.parametrize("ending", ["shutdown", "close", "reset"])
def test_a_client_that_is_not_read_from_while_it_waits_is_seen_to_hang_up(server, ending):
    """Otherwise, it would get a job that nobody will ever see."""
    caller, producer = server.connect(), server.connect()
    caller.send(b"reserve\r\n")
    (connection,) = eventually(lambda: waiting(server), "it waits")
    caller.send(b"use aa\r\n" * 10_000)
    eventually(lambda: not connection.intake.reading, "it is not read from")
    if ending == "shutdown":
        caller.socket.shutdown(socket.SHUT_WR)
        assert caller.rest() == b"TIMED_OUT\r\n" + b"USING aa\r\n" * 10_000
    if ending == "reset":
        caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()
    eventually(lambda: server.call(lambda: server.server.broker.connections) == 1, "only the producer is connected")
    producer.ask(b"put 0 0 1 1\r\nx\r\n")
    assert server.call(lambda: server.server.broker.ready) == 1


def test_every_connection_sends_at_once_and_is_kept_alive(server):
    caller = server.connect()
    caller.ask(b"list-tube-used\r\n")
    (connection,) = server.server.connections.open
    sock = connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_nothing_is_left_of_clients_and_jobs_that_are_gone_without_the_cycle_collector(server):
    def left():
        names = [type(found).__name__ for found in gc.get_objects()]
        return [names.count(name) for name in ("Session", "Connection", "Job", "BulkKick", "BulkDisconnect")]

    gc.collect()
    before = left()
    gc.disable()
    try:
        for _ in range(20):
            caller, other = server.connect(), server.connect()
            other.send(b"reserve\r\n")
            caller.ask(b"put 0 0 1 1\r\nx\r\nput 0 9 1 1\r\ny\r\nput 0 0 1 1\r\nz\r\n")
            caller.send(b"reserve\r\nkick 5\r\nbogus\r\nquit\r\n")
            caller.rest()
            caller.close()
            other.close()
        cleaner = server.connect()
        for number in range(1, 61):
            delete = b"delete %d\r\n" % number
            eventually(lambda delete=delete: cleaner.ask(delete) == b"DELETED\r\n", "its holder is gone")
        cleaner.close()
        eventually(lambda: not server.call(lambda: len(server.server.connections.open)), "no client is connected")
        assert left() == before
    finally:
        gc.enable()
