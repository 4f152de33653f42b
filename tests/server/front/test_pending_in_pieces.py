"""However the bytes of a client come, and whenever it has to wait for its turn: what it is told is the same."""

import ipaddress
import socket
from functools import partial

import pytest
from checking import check_broker
from hypothesis import given
from hypothesis import strategies as st
from proxy_headers import BAD, GOOD, V4, binary, cut, tls
from rounds import Rounds, Transport
from tls_peers import Files

from beanstalk_server import UserConfig
from beanstalk_server.access.accounts import Accounts, hash_of_token
from beanstalk_server.server.connection import Connection
from beanstalk_server.server.front.listener_policy import CERTIFICATE, NONE, TOKEN, ListenerPolicy
from beanstalk_server.server.front.pending import LINGER_LIMIT, PendingConnection, PendingConnections

ACCOUNTS = Accounts([UserConfig(name="billing", token_sha256=hash_of_token("token"), produce="bill-*")])

HEADERS = [*GOOD, *BAD, binary(V4 + tls(b"billing")), binary(V4 + tls(b"mallory")), b"", b"PROXY TCP4"]
LINES = [
    b"auth token\r\n",
    b"auth wrong\r\n",
    b"auth token \r\n",
    b"quit\r\n",
    b"list-tubes\r\n",
    b"\r\n",
    b"auth \xff\r\n",
]
LINES += [b"auth tok", b"", b"x" * 222 + b"\r\n", b"x" * 223 + b"\r\n", b"x" * 500, b"auth token\n", b"\0" * 300]
COMMANDS = [
    b"use bill-1\r\n",
    b"use mail\r\n",
    b"put 0 0 60 5\r\nhello\r\n",
    b"auth token\r\n",
    b"auth no\r\n",
    b"quit\r\n",
]
COMMANDS += [b"list-tubes\r\n", b"put 0 0 60 5\r\nhel", b"reserve-with-timeout 0\r\n", b"\x16\x03\x01"]


class Line(Transport):
    """A connection of a client: sends to the present protocol, and records what that writes."""

    family = socket.AF_INET

    def __init__(self, protocol):
        super().__init__()
        self.protocol = protocol
        self.has_sent_eof = False

    def set_protocol(self, protocol):
        self.protocol = protocol

    def write_eof(self):
        assert not self.is_closing()
        assert not self.has_sent_eof
        self.has_sent_eof = True

    def write(self, data):
        assert not self.has_sent_eof
        super().write(data)

    def get_extra_info(self, name):
        return ("192.0.2.7", 12345) if name == "peername" else super().get_extra_info(name)


def pending_at(rounds):
    return PendingConnections(
        rounds.turns,
        partial(Connection, rounds.connections),
        lambda: rounds.listeners.allowed,
        rounds.listeners.connection_closed,
    )


class World:
    """One server without sockets, and one client that comes in at a listener policy."""

    def __init__(self, auth, wants_header, context=None):
        self.rounds = Rounds()
        self.rounds.listeners.taken = 1
        self.pending = pending_at(self.rounds)
        self.pending.start(self.rounds.loop)
        listener_policy = ListenerPolicy("here")
        listener_policy.accounts = ACCOUNTS
        listener_policy.auth = auth
        listener_policy.wants_header = wants_header
        listener_policy.context = context
        listener_policy.trusted = (ipaddress.ip_network("192.0.2.0/24"),)
        self.line = Line(PendingConnection(self.pending, listener_policy))
        self.line.protocol.connection_made(self.line)

    def send(self, data, *, is_busy):
        """Let the client send something, in a round that has no budget left if it is busy."""
        if not self.line.reading:
            self.rounds.loop.settle()
        if is_busy:
            self.rounds.turns.budget = -5
        if data and not self.line.is_closing():
            self.line.protocol.data_received(data)

    def hang_up(self):
        """Let the client shut down its sending side, and the server do the rest."""
        if not self.line.is_closing() and not self.line.protocol.eof_received():
            self.line.close()
        self.rounds.loop.settle()
        self.line.protocol.connection_lost(None)
        self.rounds.loop.settle()
        assert self.line.is_closing(), "nobody hangs up"
        assert len(self.pending) == 0
        assert self.rounds.listeners.taken == 0
        assert self.rounds.broker.connections == 0
        check_broker(self.rounds.broker)

    def converse(self, pieces, busy=()):
        for piece, is_busy in zip(pieces, [*busy, *[False] * len(pieces)], strict=False):
            self.send(piece, is_busy=is_busy)
        self.hang_up()
        return self.line.written


@given(
    st.sampled_from([NONE, TOKEN, CERTIFICATE]),
    st.booleans(),
    st.sampled_from(HEADERS),
    st.one_of(st.sampled_from(LINES), st.binary(max_size=300)),
    st.lists(st.sampled_from(COMMANDS), max_size=4),
    st.lists(st.integers(0, 3000), max_size=12),
    st.lists(st.booleans(), max_size=12),
)
def test_what_a_client_is_told_does_not_depend_on_pieces_or_turns(auth, header, first, line, commands, points, busy):
    data = (first if header else b"") + line + b"".join(commands)
    whole = World(auth, header).converse([data])
    assert World(auth, header).converse(cut(data, points), busy) == whole


@pytest.mark.parametrize("auth", [NONE, TOKEN, CERTIFICATE])
def test_a_client_that_sends_byte_by_byte_is_told_the_same(auth):
    for line in LINES:
        data = binary(V4 + tls(b"billing")) + line + b"".join(COMMANDS)
        whole = World(auth, True).converse([data])
        assert World(auth, True).converse([bytes([byte]) for byte in data]) == whole


@given(st.binary(max_size=400), st.booleans())
def test_nothing_but_a_token_is_answered_with_more_than_one_word(data, wants_header):
    assert World(TOKEN, wants_header).converse([data]) in (b"", b"UNAUTHORIZED\r\n")


def test_a_refused_client_is_read_from_only_so_far():
    world = World(TOKEN, False)
    world.send(b"stats\r\n", is_busy=False)
    assert world.line.has_sent_eof
    for _ in range(LINGER_LIMIT >> 16):
        world.send(bytes(1 << 16), is_busy=False)
    assert not world.line.aborted
    world.send(b"x", is_busy=False)
    assert world.line.aborted
    world.hang_up()


def test_a_pending_connection_that_fails_is_dropped_and_logged(caplog):
    world = World(TOKEN, False)

    def fail(_):
        raise RuntimeError("broken")

    world.line.protocol.listener_policy.accounts = type("Broken", (), {"by_token": fail})
    world.send(b"auth token\r\n", is_busy=True)
    world.rounds.loop.settle()
    assert world.line.aborted
    assert "accepting a client failed; this is a bug in the server" in caplog.text
    assert "auth token" not in caplog.text
    world.hang_up()


def test_new_clients_wait_while_others_wait_for_their_handshakes():
    rounds = Rounds()
    rounds.listeners.limit = 16
    pending = pending_at(rounds)
    pending.start(rounds.loop)
    come = []
    for _ in range(5):
        come.append(PendingConnection(pending, World(TOKEN, True).line.protocol.listener_policy))
        come[-1].connection_made(Line(come[-1]))
    rounds.turns.handshakes.extend(come[:2])
    assert not pending.is_crowded()
    rounds.turns.handshakes.append(come[2])
    assert pending.is_crowded(), "the oldest would give way, halfway through its handshake"
    pending.remove(come[0])
    assert not pending.is_crowded()


# Those who are accepted while a reload, or the end of the server, takes effect


def test_whoever_is_accepted_at_a_listener_that_is_gone_is_closed():
    rounds = Rounds()
    pending = pending_at(rounds)
    pending.start(rounds.loop)
    listener_policy = ListenerPolicy("here")
    for protocol in (Connection(rounds.connections, listener_policy), PendingConnection(pending, listener_policy)):
        rounds.listeners.taken = 1
        listener_policy.closed = True
        line = Line(protocol)
        protocol.connection_made(line)
        assert line.aborted
        protocol.connection_lost(None)
        assert (rounds.listeners.taken, len(pending), rounds.broker.connections) == (0, 0, 0)


def test_whoever_is_accepted_unasked_at_a_listener_that_has_come_to_ask_is_closed():
    rounds = Rounds()
    rounds.listeners.taken = 1
    listener_policy = ListenerPolicy("here")
    connection = Connection(rounds.connections, listener_policy)
    listener_policy.auth = TOKEN
    line = Line(connection)
    connection.connection_made(line)
    assert line.aborted
    connection.connection_lost(None)
    assert (rounds.listeners.taken, rounds.broker.connections) == (0, 0)


# How long one takes up room


@pytest.mark.parametrize(
    ("sent", "budget"), [(b"no TLS\r\n", 100), (b"\x16\x03\x01\x00\x05hello", 100), (b"\x16\x03\x01\x00\x05hello", -1)]
)
def test_whoever_fails_the_handshake_takes_up_room_until_the_connection_is_gone(tmp_path, caplog, sent, budget):
    world = World(TOKEN, wants_header=False, context=Files(tmp_path).context())
    world.rounds.turns.budget = budget
    world.send(sent, is_busy=False)
    world.rounds.loop.settle()
    assert world.line.closed
    assert len(caplog.messages) == 1
    assert (world.rounds.listeners.taken, len(world.pending)) == (1, 1)
    world.hang_up()
    assert len(caplog.messages) == 1


def test_whoever_is_not_known_and_reads_nothing_is_cut_off(caplog):
    world = World(TOKEN, wants_header=False)
    world.line.protocol.pause_writing()  # as when TLS has answered more changes of keys than the socket holds
    assert world.line.aborted
    assert caplog.messages == ["192.0.2.7:12345 refused at here: does not read replies"]
    world.hang_up()
