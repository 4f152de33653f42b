"""Hang-ups of sockets that nobody reads from."""

import select
import socket

import pytest
from read_files import ReadFiles

from beanstalk_server.server.hangups import HangupWatch

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="hang-ups are seen on Linux only")


class Loop(ReadFiles):
    """Watches one file, and the test says when there is something in it."""

    def report(self):
        (callback,) = self.readers.values()
        callback()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def watch(loop):
    watch = HangupWatch()
    watch.start(loop)
    yield watch
    watch.stop()
    assert not loop.readers


@pytest.fixture
def ends():
    """The server's and the client's end of a connection."""
    server, client = socket.socketpair()
    with server, client:
        yield server, client


@pytest.mark.parametrize("ending", ["shutdown", "close"])
def test_a_hangup_is_reported_once_whatever_is_still_to_be_read(loop, watch, ends, ending):
    server, client = ends
    reported = []
    assert watch.watch(server.fileno(), lambda: reported.append(ending))
    client.send(b"still to be read")
    loop.report()
    assert reported == []
    if ending == "shutdown":
        client.shutdown(socket.SHUT_WR)
    else:
        client.close()
    loop.report()
    loop.report()
    assert reported == [ending]
    assert server.recv(100) == b"still to be read"


def test_a_socket_that_is_no_longer_watched_reports_nothing(loop, watch, ends):
    server, client = ends
    reported = []
    watch.watch(server.fileno(), lambda: reported.append(True))
    watch.unwatch(server.fileno())
    client.close()
    loop.report()
    assert reported == []


def test_a_socket_may_be_watched_again(loop, watch, ends):
    server, client = ends
    reported = []
    for _ in range(2):
        watch.watch(server.fileno(), lambda: reported.append(True))
        client.shutdown(socket.SHUT_WR)
        loop.report()
    assert len(reported) == 2
    watch.unwatch(server.fileno())  # it has been reported: nothing to undo


def test_a_socket_that_cannot_be_watched_is_logged_and_does_no_harm(watch, caplog):
    with open("/dev/null") as file:  # an epoll takes no such file
        assert not watch.watch(file.fileno(), lambda: None)
    assert (
        "cannot monitor a client's socket, so its disconnect will be detected late: Operation not permitted"
        in caplog.text
    )


def test_where_there_is_no_epoll_nothing_is_watched(monkeypatch, loop, ends):
    monkeypatch.delattr(select, "epoll")
    watch = HangupWatch()
    watch.start(loop)
    assert not watch.watch(ends[0].fileno(), lambda: None)
    watch.unwatch(ends[0].fileno())
    watch.stop()
    assert not loop.readers
