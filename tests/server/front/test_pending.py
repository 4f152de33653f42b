"""Clients that are not known yet: each way of becoming known, each way of failing, and what it costs."""

import contextlib
import gc
import os
import socket
import struct

import pytest
from connected import nobody_is_left, pending, taken, users
from proxy_headers import V4, binary, tls, tlv
from tls_peers import Files, TlsCaller, client_certificate, client_context

from beanstalk_server import Config, ListenerConfig, UserConfig
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.server.front.listener_policy import listener_policy_of
from beanstalk_server.server.front.pending import LINGER_LIMIT, MAX_PENDING, TIME_LIMIT
from harness.caller import Caller
from harness.in_thread import ServerThread
from harness.waiting import eventually

TOKEN = "billings-token"
BILLING = UserConfig(name="billing", token_sha256=(hash_of_token(TOKEN),), uid=(os.getuid(),), produce=("bill-*",))
OTHER = UserConfig(name="other", token_sha256=(hash_of_token("others-token"),), consume=("*",))
AUTH = b"auth " + TOKEN.encode() + b"\r\n"
PROXY = b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 11300\r\n"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset
LOCAL = binary(command=0x20, family=0x00)
BEHIND_PROXY = {"proxy_protocol": True, "trusted": ("127.0.0.1",)}


@pytest.fixture
def serve(run):
    """Starts a server with one listener and two users; in the end no client may be left there."""
    started = []

    def start(address="127.0.0.1:0", **keys):
        started.append(run(listeners=(ListenerConfig(address=address, **keys),), users=(BILLING, OTHER)))
        return started[-1]

    yield start
    for server in started:
        if server.server.pending is not None:  # some clients must say who they are
            nobody_is_left(server)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def server(serve):
    return serve(auth="token")


# auth


def test_a_client_with_a_token_is_its_user(server):
    caller = server.connect()
    assert caller.ask(AUTH) == b"AUTHENTICATED\r\n"
    assert caller.ask(b"use bill-2026\r\n") == b"USING bill-2026\r\n"
    assert caller.ask(b"use mail\r\n") == b"FORBIDDEN\r\n"
    assert users(server) == ["billing"]
    assert (pending(server), taken(server)) == (0, 1)


def test_what_follows_the_token_is_done_in_order(server):
    caller = server.connect()
    caller.send(AUTH + b"use bill-1\r\nput 0 0 60 5\r\nhello\r\nlist-tube-used\r\nquit\r\n")
    assert caller.rest() == b"AUTHENTICATED\r\nUSING bill-1\r\nINSERTED 1\r\nUSING bill-1\r\n"


def test_a_client_that_half_closes_behind_its_token_gets_all_replies(server):
    caller = server.connect()
    caller.send(AUTH + b"use bill-1\r\n")
    caller.socket.shutdown(socket.SHUT_WR)
    assert caller.rest() == b"AUTHENTICATED\r\nUSING bill-1\r\n"


def test_a_client_may_give_another_token_later_and_a_wrong_one_ends_it(server):
    caller = server.connect()
    assert caller.ask(AUTH) == b"AUTHENTICATED\r\n"
    assert caller.ask(b"auth others-token\r\n") == b"AUTHENTICATED\r\n"
    assert users(server) == ["other"]
    assert server.server.listeners.failures == 0
    caller.send(b"auth wrong\r\nlist-tube-used\r\n")
    assert caller.rest() == b"UNAUTHORIZED\r\n"
    assert server.server.listeners.failures == 1


@pytest.mark.parametrize(
    "line",
    [
        b"auth wrong",
        b"auth " + TOKEN.upper().encode(),
        b"auth  " + TOKEN.encode(),
        b"auth " + TOKEN.encode() + b" ",
        b"auth " + TOKEN.encode() + b"\r",
        b"auth ",
        b"auth",
        b"AUTH " + TOKEN.encode(),
        b"auth \xff\x00",
        b"auth " + b"x" * 217,
        b"put 0 0 60 5",
        b"stats",
        b"quit ",
        b"",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 11300",
    ],
)
def test_anything_else_is_unauthorized_and_nothing_behind_it_is_done(server, line):
    caller = server.connect()
    caller.send(line + b"\r\n" + AUTH + b"use bill-1\r\nput 0 0 60 5\r\nhello\r\n")
    assert caller.rest() == b"UNAUTHORIZED\r\n"
    caller.close()
    nobody_is_left(server)
    assert b"bill" not in b"".join(server.call(server.server.broker.list_tubes))


def test_a_line_without_an_end_is_not_waited_for(server):
    caller = server.connect()
    caller.send(b"auth " + b"x" * 218)
    eventually(lambda: pending(server) == 1, "it is not known")
    caller.send(b"x")
    assert caller.rest() == b"UNAUTHORIZED\r\n"


def test_the_longest_line_is_read(server, caplog):
    caller = server.connect()
    assert caller.ask(b"auth " + b"x" * 217 + b"\r\n") == b"UNAUTHORIZED\r\n"
    caller.close()
    assert ": unknown token" in caplog.text


def test_a_refusal_reaches_a_client_that_goes_on_sending(server):
    """A socket that is closed with unread input sends a reset, which may overtake the reply."""
    for _ in range(20):
        caller = server.connect()
        for _ in range(LINGER_LIMIT // 20_000):
            caller.send(b"put 0 0 60 9990\r\n" + bytes(9990) + b"\r\n")
        assert caller.rest() == b"UNAUTHORIZED\r\n"
        caller.close()


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        ("192.0.2.7:11380", True),
        ("[::1]:11380", True),
        ("localhost:11380", True),
        ("Queue.Example.com.:11380", True),
        ("Queue.Prod.svc:80", True),
        ("", True),
        ("queue", False),
        ("evil.local", False),
        ("metadata.internal:80", False),
        ("queue.evil.svc", False),
        ("evil.localhost", False),
        (socket.gethostname(), False),
        ("evil.example:11380", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:80", False),
    ],
)
def test_a_plain_listener_for_http_answers_to_addresses_and_its_own_names(host, is_answered):
    config = ListenerConfig(address="queue.example.com:11380", protocol="http", hosts=("queue.prod.svc",))
    assert listener_policy_of(config, "", None).answers_to(host) == is_answered
    with_tokens = ListenerConfig(address="127.0.0.1:11380", protocol="http", auth="token")
    assert listener_policy_of(with_tokens, "", None).answers_to(host), "no browser has a token"


def test_a_client_that_is_refused_and_does_not_hang_up_is_cut_off_in_the_end(server):
    caller = server.connect()
    assert caller.ask(b"stats\r\n") == b"UNAUTHORIZED\r\n"
    assert caller.rest() == b""
    assert pending(server) == 1
    let_time_pass(server, TIME_LIMIT)


def test_quit_closes_and_is_no_failure(server, caplog):
    caller = server.connect()
    caller.send(b"quit\r\n" + AUTH)
    assert caller.rest() == b""
    caller.close()
    nobody_is_left(server)
    assert "refused" not in caplog.text


LEAVES_BEHIND = [
    *[({}, sent) for sent in (b"", b"auth bil", b"auth billings-token\r")],
    *[(BEHIND_PROXY, sent) for sent in (b"", b"PROXY TCP4 192.0.2.7 ", binary(V4)[:20], PROXY, PROXY + b"auth ")],
    ("TLS", b""),  # which looks whether the port is open
]


@pytest.mark.parametrize(("keys", "sent"), LEAVES_BEHIND)
@pytest.mark.parametrize("ending", ["shutdown", "close", "reset"])
def test_a_client_that_leaves_before_it_is_known_leaves_nothing_behind(serve, files, caplog, keys, sent, ending):
    server = serve(auth="token", **(files.keys() if keys == "TLS" else keys))
    caller = server.connect()
    caller.send(sent)
    eventually(lambda: pending(server) == 1, "it has arrived")
    if ending == "shutdown":
        caller.socket.shutdown(socket.SHUT_WR)
        assert caller.rest() == b""
    if ending == "reset":
        caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    caller.close()
    nobody_is_left(server)
    assert "refused" not in caplog.text


def test_a_client_that_is_not_known_is_no_client_of_the_queue(server):
    waiting = [server.connect() for _ in range(3)]
    eventually(lambda: pending(server) == 3, "they have arrived")
    assert server.call(lambda: server.server.broker.connections) == 0
    for caller in waiting:
        caller.close()


def test_a_token_is_never_logged(run, caplog):
    caplog.set_level("DEBUG")
    server = run(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(BILLING,), verbosity=2)
    for sent in (AUTH, b"auth wrong-token\r\n", b"AUTH " + AUTH, b"auth  wrong-token\r\n"):
        caller = server.connect()
        caller.send(sent + b"auth wrong-token\r\n")
        caller.rest()
        caller.close()
    caller = server.connect()
    for sent in (AUTH, b"list-tubes\nauth wrong-token\r\n", b"0 AUTH\twrong-token\r\n", b"use auth-1\r\n", b"quit\r\n"):
        caller.send(sent)
    caller.rest()
    caller.close()
    assert " < unknown command of 27 bytes" in caplog.text
    assert " < use auth-1" in caplog.text
    assert "refused at 127.0.0.1:" in caplog.text
    assert "connected as billing" in caplog.text
    assert TOKEN not in caplog.text
    assert "wrong-token" not in caplog.text


# A fixed user, and the peer's


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_whoever_comes_in_at_a_listener_with_a_user_is_that_user(serve, tmp_path, kind):
    server = serve(f"unix:{tmp_path}/s" if kind == "unix" else "127.0.0.1:0", user="billing")
    caller = server.connect()
    assert caller.ask(b"use mail\r\n") == b"FORBIDDEN\r\n"
    assert caller.ask(b"auth others-token\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert users(server) == ["billing"]
    assert server.server.pending is None


def test_the_peer_of_a_unix_socket_is_known_by_its_uid(serve, tmp_path):
    server = serve(f"unix:{tmp_path}/s", auth="peer")
    caller = server.connect()
    assert caller.ask(b"use bill-1\r\n") == b"USING bill-1\r\n"
    assert caller.ask(b"use mail\r\n") == b"FORBIDDEN\r\n"
    assert caller.ask(b"auth others-token\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert users(server) == ["billing"]


def test_a_peer_whose_uid_is_no_users_is_refused(run, tmp_path, caplog):
    nobody = UserConfig(name="nobody", uid=(os.getuid() + 1,))
    server = run(listeners=(ListenerConfig(address=f"unix:{tmp_path}/s", auth="peer"),), users=(nobody,))
    caller = server.connect()
    assert caller.rest() == b"UNAUTHORIZED\r\n"
    caller.close()
    nobody_is_left(server)
    assert f"refused at unix:{tmp_path}/s: no user has the uid {os.getuid()}" in caplog.text


# Behind a proxy


def test_a_trusted_proxy_says_whom_it_speaks_for(run, caplog):
    caplog.set_level("INFO")
    listener = ListenerConfig(address="127.0.0.1:0", proxy_protocol=True, trusted=("127.0.0.0/8",))
    server = run(listeners=(listener,), verbosity=1)
    for header in (PROXY, binary(V4 + tlv(0x04, b"x" * 100)), binary(V4 + tls())):
        caller = server.connect()
        caller.send(header + b"list-tube-used\r\n")
        assert caller.line() == b"USING default\r\n"
        assert "192.0.2.7:12345 connected" in caplog.text
        caplog.clear()
        caller.close()
        eventually(lambda: "192.0.2.7:12345 disconnected" in caplog.text, "it is logged")
    nobody_is_left(server)


@pytest.mark.parametrize("header", [LOCAL, b"PROXY UNKNOWN\r\n"])
def test_a_proxy_that_speaks_for_itself_is_served(serve, header):
    server = serve(**BEHIND_PROXY)
    caller = server.connect()
    assert caller.ask(header + b"list-tube-used\r\n") == b"USING default\r\n"


def test_the_header_of_a_proxy_that_is_not_trusted_is_not_read(serve, caplog):
    server = serve(proxy_protocol=True, trusted=("192.0.2.0/24", "::/0"))
    caller = server.connect()
    assert caller.rest() == b""
    caller.close()
    nobody_is_left(server)
    assert ": not a trusted proxy" in caplog.text


def test_the_header_of_a_client_that_is_gone_is_not_read_where_its_address_is_not_known_any_more(serve):
    server = serve(auth="certificate", proxy_protocol=True, trusted=("192.0.2.0/24",))

    def come_and_go():
        """Between two looks of the event loop."""
        caller = server.connect()
        caller.send(binary(V4 + tls(b"billing")) + b"use bill-1\r\nput 0 0 60 5\r\nhello\r\n")
        caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        caller.close()

    server.call(come_and_go)
    eventually(lambda: taken(server) == 0, "no client is connected")
    assert not server.call(lambda: len(server.server.broker.jobs))


@pytest.mark.parametrize(
    "sent", [b"list-tube-used\r\n", b"PROXY TCP4 1.2.3.4\r\n", binary(V4[:4]), b"PROXY TCP4 " + b"x" * 100]
)
def test_a_bad_header_closes(serve, caplog, sent):
    server = serve(**BEHIND_PROXY)
    caller = server.connect()
    caller.send(sent)
    assert caller.rest() == b""
    caller.close()
    nobody_is_left(server)
    assert "refused at 127.0.0.1:" in caplog.text


def test_a_proxy_on_a_dual_stack_socket_is_known_by_its_ipv4_address(serve):
    server = serve("[::]:0", **BEHIND_PROXY)
    caller = Caller(("127.0.0.1", server.address[1]))
    assert caller.ask(PROXY + b"list-tube-used\r\n") == b"USING default\r\n"


def test_who_may_open_a_unix_socket_is_a_trusted_proxy(serve, tmp_path):
    server = serve(f"unix:{tmp_path}/s", proxy_protocol=True)
    caller = server.connect()
    assert caller.ask(PROXY + b"list-tube-used\r\n") == b"USING default\r\n"


def test_the_name_in_a_certificate_comes_from_the_proxy(serve, caplog):
    server = serve(auth="certificate", **BEHIND_PROXY)
    caller = server.connect()
    assert caller.ask(binary(V4 + tls(b"billing")) + b"use mail\r\n") == b"FORBIDDEN\r\n"
    assert users(server) == ["billing"]
    caller.close()
    for header, reason in (
        (binary(V4 + tls(b"mallory\n")), r"no user has the name in the certificate: 'mallory\n'"),
        (binary(V4 + tls(verify=1)), "no certificate"),
        (binary(V4), "no certificate"),
        (PROXY, "no certificate"),
    ):
        caller = server.connect()
        caller.send(header + b"list-tube-used\r\n")
        assert caller.rest() == b"UNAUTHORIZED\r\n"
        caller.close()
        assert f"192.0.2.7:12345 refused at 127.0.0.1:{server.address[1]}: {reason}" in caplog.text
        caplog.clear()


def test_a_proxy_that_looks_whether_the_server_is_alive_is_no_failure(serve, caplog):
    server = serve(auth="certificate", **BEHIND_PROXY)
    caller = server.connect()
    caller.send(LOCAL)
    assert caller.rest() == b"UNAUTHORIZED\r\n"
    caller.close()
    nobody_is_left(server)
    assert "refused" not in caplog.text


# TLS


def connect_tls(server, name="", header=b""):
    """Connect with TLS, as a client with a certificate for a name if one is given, after a PROXY header."""
    certificate = client_certificate(common_name=name) if name else None
    return TlsCaller(server.address, client_context(certificate), header)


def test_a_token_through_tls(serve, files):
    server = serve(auth="token", **files.keys())
    caller = connect_tls(server)
    caller.send(AUTH + b"use bill-1\r\nuse mail\r\nquit\r\n")
    assert caller.rest() == b"AUTHENTICATED\r\nUSING bill-1\r\nFORBIDDEN\r\n"


def test_a_refusal_through_tls_is_whole(serve, files):
    server = serve(auth="token", **files.keys())
    for _ in range(20):
        caller = connect_tls(server)
        caller.send(b"auth wrong\r\n" + b"put 0 0 60 9990\r\n" + bytes(9990) + b"\r\n")
        caller.send(bytes(50_000))
        assert caller.rest() == b"UNAUTHORIZED\r\n"
        caller.close()


def test_tls_behind_a_proxy(serve, files, caplog):
    server = serve(auth="certificate", **BEHIND_PROXY, **files.keys(mutual=True))
    caller = connect_tls(server, "billing", PROXY)
    assert caller.ask(b"use mail\r\n") == b"FORBIDDEN\r\n"
    caller.close()
    caller = connect_tls(server, "mallory", binary(V4 + tls(b"billing")))  # its own certificate counts
    assert caller.rest() == b"UNAUTHORIZED\r\n"
    caller.close()
    nobody_is_left(server)
    assert "192.0.2.7:12345 refused at" in caplog.text


def test_whoever_may_come_in_through_tls_needs_no_name(serve, files):
    server = serve(**files.keys())
    caller = connect_tls(server)
    assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
    assert users(server) == ["nobody"]


def test_a_handshake_that_fails_or_takes_too_long_leaves_nothing_behind(serve, files, caplog):
    server = serve(**files.keys())
    for sent in (b"list-tube-used\r\n", b"\x16\x03\x01\x00\x05hello", PROXY):
        caller = server.connect()
        caller.send(sent)
        caller.rest()
        caller.close()
    nobody_is_left(server)
    assert caplog.text.count("refused at") == 3
    slow = server.connect()
    slow.send(b"\x16\x03\x01")
    eventually(lambda: pending(server) == 1, "it has arrived")
    let_time_pass(server, TIME_LIMIT)
    assert slow.rest() == b""
    slow.close()
    nobody_is_left(server)
    assert "not authenticated within 10 s" in caplog.text


# How many, and for how long


def let_time_pass(server, nanoseconds):
    """Move the clock by which pending connections are timed, and let them look at it."""

    def pass_on():
        turns = server.server.turns
        clock = turns.clock
        turns.clock = lambda: clock() + nanoseconds
        server.server.pending.expire()

    server.call(pass_on)


def test_who_is_not_known_after_ten_seconds_is_closed(server, caplog):
    silent, slow = server.connect(), server.connect()
    slow.send(b"auth ")
    known = server.connect()
    assert known.ask(AUTH) == b"AUTHENTICATED\r\n"
    eventually(lambda: pending(server) == 2, "two are not known")
    let_time_pass(server, TIME_LIMIT - 9_000_000_000)
    assert pending(server) == 2
    let_time_pass(server, 9_000_000_000)
    for caller in (silent, slow):
        assert caller.rest() == b""
        caller.close()
    assert caplog.text.count("not authenticated within 10 s") == 2
    assert (server.server.pending.timeouts, server.server.listeners.failures) == (2, 0)
    assert known.ask(b"use bill-1\r\n") == b"USING bill-1\r\n"


def test_when_a_thousand_are_not_known_the_oldest_gives_way(server, caplog):
    idle = [server.connect() for _ in range(MAX_PENDING)]
    eventually(lambda: pending(server) == MAX_PENDING, "they have arrived")
    newer = server.connect()
    assert newer.ask(AUTH) == b"AUTHENTICATED\r\n"
    assert idle[0].rest() == b""
    assert pending(server) == MAX_PENDING - 1
    idle += [server.connect() for _ in range(3)]
    for caller in idle[1:3]:
        assert caller.rest() == b""
    assert pending(server) == MAX_PENDING
    assert idle[3].ask(AUTH) == b"AUTHENTICATED\r\n"
    for caller in [newer, *idle]:
        caller.close()
    nobody_is_left(server)
    assert "evicted: 1024 unauthenticated connections" in caplog.text
    assert (server.server.pending.displaced, server.server.pending.timeouts) == (3, 0)


def test_nobody_gives_way_who_waits_for_the_server(server):
    server.call(setattr, server.server.listeners, "limit", 1000)
    server.call(server.server.turns.share_rounds, 64)  # a round has turns for fewer than it may accept
    callers = []

    def come_at_once():
        for _ in range(900):
            callers.append(server.connect())
            callers[-1].send(AUTH)

    server.call(come_at_once)
    assert {caller.line() for caller in callers} == {b"AUTHENTICATED\r\n"}
    for caller in callers:
        caller.close()
    nobody_is_left(server)
    assert server.server.pending.displaced == 0


def test_those_who_are_not_known_take_half_of_the_connections_that_there_may_be(server):
    server.call(setattr, server.server.listeners, "limit", 10)
    idle = [server.connect() for _ in range(20)]
    eventually(lambda: (pending(server), taken(server)) == (5, 5), "all but five have given way")
    caller = server.connect()
    assert caller.ask(AUTH) == b"AUTHENTICATED\r\n"
    for each in [caller, *idle]:
        each.close()


def test_a_client_that_leaves_while_it_waits_for_its_turn_leaves_nothing_behind(server):
    for sent in (b"auth bill", b"auth wrong\r\n", AUTH):
        caller = server.connect()
        eventually(lambda: pending(server) == 1, "it has arrived")

        def spend():
            server.server.turns.budget = -1000

        server.call(spend)
        caller.send(sent)
        caller.close()
        nobody_is_left(server)


@pytest.mark.parametrize("kind", ["plain", "tls", "proxy"])
def test_a_server_stops_at_once_whoever_has_not_said_who_it_is(loop_factory, tmp_path, files, kind):
    keys = {"plain": {}, "tls": files.keys(), "proxy": {"proxy_protocol": True}}[kind]
    listener = ListenerConfig(address=f"unix:{tmp_path}/s", auth="token", **keys)
    server = ServerThread(Config(listeners=(listener,), users=(BILLING,)), loop_factory)
    callers = [server.connect() for _ in range(50)]
    for caller in callers[:25]:
        caller.send({"plain": b"auth ", "tls": b"\x16\x03\x01\x02", "proxy": PROXY + b"auth"}[kind])
    eventually(lambda: pending(server) == 50, "they have arrived")
    server.stop()
    assert len(server.server.pending) == server.server.listeners.taken == 0
    for caller in callers:
        with contextlib.suppress(ConnectionResetError):  # what has not been read is lost
            assert caller.rest() == b""
        caller.close()


def test_whoever_becomes_known_while_the_server_stops_is_closed(loop_factory, caplog):
    server = ServerThread(
        Config(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(BILLING,)), loop_factory
    )
    callers = [server.connect() for _ in range(5)]
    eventually(lambda: pending(server) == 5, "they have arrived")

    def come_in_and_stop():
        """Between two looks of the event loop."""
        for caller in callers:
            caller.send(AUTH + b"use bill-1\r\n")
        server.server._begin_stop()

    server.call(come_in_and_stop)
    server.stop()
    for caller in callers:
        with contextlib.suppress(ConnectionResetError):
            caller.rest()
        caller.close()
    assert not caplog.messages


def test_nothing_is_left_of_those_who_came_without_the_cycle_collector(serve, files):
    def left():
        names = [type(found).__name__ for found in gc.get_objects()]
        return [names.count(name) for name in ("PendingConnection", "TlsTransport", "Connection", "Session", "partial")]

    plain, secure = serve(auth="token"), serve(auth="token", **files.keys())
    connect_tls(secure).close()
    nobody_is_left(secure)
    gc.collect()
    before = left()
    gc.disable()
    try:
        for sent in (AUTH + b"quit\r\n", b"auth wrong\r\n", b"quit\r\n"):
            for caller in (plain.connect(), connect_tls(secure)):
                caller.send(sent)
                caller.rest()
                caller.close()
        for sent in (b"no handshake at all\r\n", b"\x16\x03\x01"):
            caller = secure.connect()
            caller.send(sent)
            caller.close()
        for sent in (b"", AUTH):
            caller = connect_tls(secure)
            if sent:
                caller.ask(sent)
            descriptor = caller.socket.detach()
            os.write(descriptor, b"\x17\x03\x03\x00\x20" + bytes(32))  # a record that is none
            os.close(descriptor)
        nobody_is_left(plain)
        nobody_is_left(secure)
        eventually(lambda: left() == before, "nothing is left")
    finally:
        gc.enable()
