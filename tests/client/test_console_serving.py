"""The HTTP server of the console: how many connections it has, and which one ends for another."""

import contextlib
import http.client
import itertools
import resource
import socket
import ssl
import threading

import pytest
import trustme
from beanstalk_client.console import serving
from beanstalk_client.console.serving import ENDING, Accepted, Connections, make_server
from visiting import console_of

from harness.waiting import eventually

MOST = 8

TIMEOUT = 30.0


class StandIn(Accepted):
    """A connection whose requests a test says."""

    is_waiting = True


def connected(connections, peer, *, is_waiting=True):
    ours, theirs = socket.socketpair()
    accepted = StandIn(fileno=ours.detach())
    accepted.is_waiting = is_waiting
    connections.add(accepted, peer)
    return accepted, theirs


@contextlib.contextmanager
def opened(connections, *peers):
    """Connections from these peers; those of a peer in capitals have a request."""
    pairs = [connected(connections, peer.lower(), is_waiting=peer.islower()) for peer in peers]
    try:
        yield [accepted for accepted, _ in pairs]
    finally:
        for each in itertools.chain(*pairs):
            each.close()


@pytest.mark.parametrize(
    ("peers", "ended"),
    [
        (("a", "b", "a", "b"), 0),  # all have as many: the oldest
        (("a", "b", "b", "c"), 1),  # of who has the most
        (("a", "B", "b", "b", "c"), 2),  # a request is worth more than an older connection
        (("a", "B", "B", "B", "c"), 1),  # but whose requests take all places loses one
        (("A", "A", "A", "a"), 0),  # and so does who comes again
    ],
)
def test_who_has_the_most_loses_the_oldest_without_a_request(peers, ended):
    connections = Connections(len(peers) - 1)
    with opened(connections, *peers) as accepted:
        assert [each.is_ending for each in accepted] == [number == ended for number in range(len(peers))]
        assert len(connections) == len(peers)  # until the event loop has closed it
    assert len(connections) == 0


def test_none_is_accepted_while_many_are_still_closing():
    connections = Connections(1)
    with opened(connections, *"a" * ENDING):
        assert not connections.is_full
        with opened(connections, "a"):
            assert connections.is_full
        assert not connections.is_full


@contextlib.contextmanager
def serving_at(most=MOST, **settings):
    """A console in a thread: its port, and its connections."""
    app = console_of("127.0.0.1:1", login=True)
    server, listener = make_server(app, socket.create_server(("127.0.0.1", 0)), most=most, **settings)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        eventually(lambda: server.started, "the console has started")
        yield port, listener.connections
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
        listener.close()


def login_page(port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as asked:
        asked.request("GET", "/login")
        return asked.getresponse().status


def is_closed(caller):
    """Wait for the end of a connection, behind a reply to what was unfinished."""
    with contextlib.suppress(ConnectionResetError):
        while caller.recv(1000):
            pass
    return True


@contextlib.contextmanager
def unfinished(port, count, sent=b"GET / HTTP/1.1\r\n"):
    with contextlib.ExitStack() as stack:
        callers = []
        for _ in range(count):
            callers.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT)))
            callers[-1].sendall(sent)
        yield callers


@pytest.mark.sockets
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n", b"POST /login HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"])
def test_unfinished_requests_give_their_places_to_others(sent):
    with serving_at() as (port, connections), unfinished(port, 5 * MOST, sent) as callers:
        assert login_page(port) == 200
        assert is_closed(callers[0])
        eventually(lambda: len(connections) <= MOST, "those that have to end are closed")


@pytest.mark.sockets
def test_connections_count_before_their_tls_handshake(tmp_path):
    authority = trustme.CA()
    pem = tmp_path / "console.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with serving_at(certificate=str(pem)) as (port, connections), unfinished(port, 5 * MOST, b"") as callers:
        with contextlib.closing(
            http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=TIMEOUT)
        ) as own:
            own.request("GET", "/login")
            assert own.getresponse().status == 200
        assert is_closed(callers[0])
        eventually(lambda: len(connections) <= MOST, "those that have to end are closed")


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("limit", "sent"),
    [
        ("HEADER_TIME", b""),
        ("HEADER_TIME", b"GET / HTTP/1.1\r\n"),
        ("BODY_TIME", b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"),
    ],
)
def test_a_request_has_a_time_to_be_complete(limit, sent, monkeypatch):
    monkeypatch.setattr(serving, limit, 0.05)
    with serving_at() as (port, connections), unfinished(port, 1, sent) as (caller,):
        assert is_closed(caller)
        eventually(lambda: len(connections) == 0, "it is closed")


def test_half_of_the_descriptors_are_for_connections(monkeypatch):
    for descriptors, most in ((200, 100), (100_000, serving.MAX_CONNECTIONS), (resource.RLIM_INFINITY, 1000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=descriptors: (soft, soft))
        assert serving._most() == most
