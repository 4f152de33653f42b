"""The relay passes what it should, late where it should, and nothing where it should not."""

import contextlib
import socket
import threading
import time

import pytest

from harness.caller import Caller
from harness.relays import Relay


class Echo(threading.Thread):
    """Says everything again, and ends a connection when its client has."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()

    def run(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self.say, args=(sock,), daemon=True).start()

    def say(self, sock):
        with sock, contextlib.suppress(OSError):
            while data := sock.recv(1 << 16):
                sock.sendall(data)


@pytest.fixture
def echo():
    server = Echo()
    server.start()
    yield server
    server.listener.shutdown(socket.SHUT_RDWR)
    server.listener.close()
    server.join(60)


@pytest.fixture
def relay(echo):
    made = Relay(echo.address)
    yield made
    made.close()


@pytest.fixture
def connect(relay):
    with contextlib.ExitStack() as stack:

        def make():
            caller = Caller(relay.address)
            stack.callback(caller.close)
            return caller

        yield make


def test_it_passes_everything_in_both_directions(connect):
    caller = connect()
    text = b"".join(b"%07d\n" % number for number in range(100_000))
    sender = threading.Thread(target=caller.send, args=(text,))
    sender.start()
    assert caller.read(len(text)) == text
    sender.join(60)


def test_an_end_is_passed_and_what_comes_from_the_other_side_too(connect):
    caller = connect()
    caller.send(b"the last words\n")
    caller.socket.shutdown(socket.SHUT_WR)
    assert caller.rest() == b"the last words\n"


def test_what_is_cut_is_reset_and_stays_so_until_it_is_mended(relay, connect):
    caller = connect()
    assert caller.ask(b"a\n") == b"a\n"
    relay.cut()
    with pytest.raises(ConnectionResetError):
        caller.line()
    with pytest.raises(ConnectionResetError):  # while it connects, if that comes so soon
        connect().line()
    relay.mend()
    assert connect().ask(b"c\n") == b"c\n"


def test_what_is_silent_passes_nothing_until_it_is_mended(relay, connect):
    caller = connect()
    assert caller.ask(b"a\n") == b"a\n"
    relay.silence()
    newcomer = connect()
    for each, text in ((caller, b"b\n"), (newcomer, b"c\n")):
        each.send(text)
        each.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            each.socket.recv(1)
        each.socket.settimeout(60)
    relay.mend()
    assert caller.socket.recv(10) == b"b\n"
    assert newcomer.socket.recv(10) == b"c\n"


def test_what_is_delayed_comes_later_and_in_order(relay, connect):
    caller = connect()
    relay.delay(0.05)
    began = time.monotonic()
    for number in range(10):
        caller.send(b"%d\n" % number)
    assert [int(caller.line()) for _ in range(10)] == list(range(10))
    assert time.monotonic() - began >= 0.1


def test_a_target_that_refuses_resets_the_connection(relay, connect, echo):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        relay.target = gone.getsockname()
    with pytest.raises(ConnectionResetError):
        connect().line()
    relay.target = echo.address
    assert connect().ask(b"a\n") == b"a\n"


def test_what_the_target_says_may_be_rewritten(relay, connect):
    caller = connect()
    relay.rewrite("127.0.0.1:1234", "127.0.0.1:5678")
    assert caller.ask(b"go to 127.0.0.1:1234\n") == b"go to 127.0.0.1:5678\n"
    with pytest.raises(ValueError, match="same length"):
        relay.rewrite("a", "bc")
