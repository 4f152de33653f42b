"""HTTP at one connection: what is asked, in whatever pieces, by whom, and for how long."""

import json

import pytest
from operator_site import Operators, RequestPolicy, parsed, status

from beanstalk_server.access.rights import User
from beanstalk_server.admin.http import (
    ANSWER_TIME,
    IDLE_TIME,
    JUST_COME,
    LINGER_LIMIT,
    LINGER_TIME,
    MAX_CONNECTIONS,
    MAX_HEADERS,
    MAX_UNDONE,
    PIECE,
    REQUEST_TIME,
)
from beanstalk_server.admin.scrapes import SLICE
from beanstalk_server.admin.site import MOST_PAGES

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture
def operators():
    return Operators()


# Requests


def test_a_request_may_come_in_pieces(operators):
    transport = operators.connect()
    for index in range(len(HEALTH)):
        assert not transport.written
        answer = operators.send(transport, HEALTH[index : index + 1])
    assert parsed(answer)[::2] == (200, "ok\n")


def test_a_connection_stays(operators):
    transport = operators.connect()
    for _ in range(3):
        assert status(operators.send(transport, HEALTH)) == 200
        assert not transport.is_closing()


def test_requests_that_come_together_are_answered_in_order_one_in_each_round(operators):
    transport = operators.connect()
    transport.protocol.data_received(HEALTH * 50 + b"GET /nothing HTTP/1.1\r\nHost: here\r\n\r\n" + HEALTH)
    operators.loop.go_round()
    assert transport.written.count(b"HTTP/1.1 200") == 1
    operators.loop.settle()
    statuses = [int(each[:3]) for each in transport.take().split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200] * 50 + [404, 200]


def test_whoever_sends_much_at_once_is_not_read_from_and_others_have_their_turns(operators):
    hog, other = operators.connect(), operators.connect()
    hog.protocol.data_received(HEALTH * (MAX_UNDONE // len(HEALTH) + 1))
    assert not hog.reading
    other.protocol.data_received(HEALTH)
    operators.loop.go_round()
    operators.loop.go_round()
    assert status(other.take()) == 200
    operators.loop.settle()
    assert hog.reading
    assert hog.written.count(b"HTTP/1.1 200") == MAX_UNDONE // len(HEALTH) + 1


def test_head_is_answered_without_a_body(operators):
    for path in ("/metrics", "/healthz", "/nothing"):
        got, headers, body = operators.ask(path, method="GET")
        code, of_head, nothing = operators.ask(path, method="HEAD")
        assert (code, nothing) == (got, "")
        assert of_head["content-type"] == headers["content-type"]
        assert abs(int(of_head["content-length"]) - len(body.encode())) < 10  # CPU time goes on


def test_http_1_0_is_answered_and_closed(operators):
    transport = operators.connect()
    answer = operators.send(transport, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert parsed(answer)[::2] == (200, "ok\n")
    assert transport.is_closing()


def test_whoever_wants_its_connection_closed_gets_that(operators):
    transport = operators.connect()
    answer = operators.send(transport, b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    assert parsed(answer)[1]["connection"] == "close"
    assert transport.is_closing()


@pytest.mark.parametrize(
    "target", ["/healthz?", "/healthz?a=b&c", "http://here/healthz", "HTTPS://here:1/healthz?x", "/healthz#x"]
)
def test_what_stands_around_a_path_does_not_matter(operators, target):
    assert operators.ask(target)[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/metrics/", "/metricsx", "//metrics", "/HEALTHZ", "/readyz/other", "/%68ealthz"]
)
def test_there_is_nothing_at_other_paths(operators, path):
    assert operators.ask(path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "BREW", "get"])
def test_other_methods_are_refused(operators, method):
    code, headers, _ = operators.ask("/metrics", "Content-Length: 0", method=method)
    assert (code, headers["allow"], headers["connection"]) == (405, "get, head", "close")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),  # without a host
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET  /healthz HTTP/1.1\r\nHost: here\r\n\r\n", 400),
        (b"GET /health z HTTP/1.1\r\nHost: here\r\n\r\n", 400),
        (b"GET healthz HTTP/1.1\r\nHost: here\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: here\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost here\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nA : b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nA: \x00\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),  # a handshake
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),
        (b"put 0 0 60 2\r\n\r\n\r\n", 400),
        (b"\r\n\r\n\r\n\r\n", 400),
        (b"GET /" + b"x" * MAX_HEADERS, 431),
        (b"GET / HTTP/1.1\r\nHost: here\r\nA: " + b"x" * MAX_HEADERS, 431),
        (b"GET / HTTP/1.1\r\nHost: here\r\n" + b"A: b\r\n" * MAX_HEADERS, 431),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nA: " + b"x" * MAX_HEADERS + b"\r\n\r\n", 431),  # in one piece
        (b"GET /healthz?" + b"x" * MAX_HEADERS + b" HTTP/1.1\r\nHost: here\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\n", 413),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", 413),
        (b"HEAD /healthz HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nxxxxxxxxx", 413),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ],
)
def test_what_is_no_request_is_refused_and_nobody_else_notices(operators, sent, expected):
    other = operators.connect()
    transport = operators.connect()
    answer = operators.send(transport, sent)
    code, headers, _ = parsed(answer)
    assert (code, headers["connection"]) == (expected, "close")
    assert transport.has_ended or transport.is_closing()
    operators.loop.sleep(LINGER_TIME)
    assert transport.is_closing()
    assert status(operators.send(other, HEALTH)) == 200
    assert operators.site.requests[expected] == 1


def test_a_body_of_no_bytes_is_none(operators):
    assert operators.ask("/healthz", "Content-Length: 0")[0] == 200


def test_what_comes_behind_a_refusal_is_dropped_up_to_a_bound(operators):
    transport = operators.connect()
    operators.send(transport, b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n")
    assert not operators.send(transport, bytes(LINGER_LIMIT))
    assert not transport.is_closing()
    operators.send(transport, b"x")
    assert transport.is_closing()


# Time


def test_a_request_that_is_not_complete_in_time_is_told_so(operators):
    transport = operators.connect()
    operators.send(transport, b"GET /healthz HTTP/1.1\r\n")
    operators.loop.sleep(REQUEST_TIME - 1)
    operators.send(transport, b"Host: here\r\n")  # which does not make the time longer
    operators.loop.sleep(1)
    assert status(transport.take()) == 408
    operators.loop.sleep(LINGER_TIME)
    assert transport.is_closing()


def test_whoever_sends_nothing_is_closed_without_a_word(operators):
    transport = operators.connect()
    operators.loop.sleep(REQUEST_TIME)
    assert transport.is_closing()
    assert not transport.written


def test_a_connection_may_be_idle_between_two_requests_but_not_for_ever(operators):
    transport = operators.connect()
    operators.send(transport, HEALTH)
    operators.loop.sleep(IDLE_TIME - 1)
    assert status(operators.send(transport, HEALTH)) == 200
    operators.loop.sleep(IDLE_TIME)
    assert transport.is_closing()
    assert not transport.written


def test_whoever_does_not_read_its_answer_is_closed_and_the_page_is_dropped(operators):
    transport = operators.connect()
    transport.protocol.pause_writing()
    operators.send(transport, METRICS)
    operators.loop.sleep(ANSWER_TIME)
    assert transport.is_closing()
    assert operators.ask("/metrics")[0] == 200


def test_a_long_answer_is_sent_in_pieces_as_fast_as_it_is_read():
    operators = Operators(2000, iter(range(0, 1 << 40, SLICE)).__next__)
    tubes = operators.world.broker.tubes
    for index in range(2000):
        tubes.add(f"t{index}")
    transport = operators.connect()
    transport.protocol.data_received(METRICS)
    while not transport.written:
        operators.loop.go_round()
    got = transport.take()
    assert len(got) < 4 * PIECE
    transport.protocol.pause_writing()
    operators.loop.settle()
    assert not transport.written
    transport.protocol.resume_writing()
    operators.loop.settle()
    got += transport.take()
    assert len(parsed(got)[2].encode()) == int(parsed(got)[1]["content-length"])


def test_nothing_more_is_written_to_a_client_that_is_found_to_be_gone(operators, monkeypatch):
    """The event loop logs a warning for each further write, and a page has many pieces."""
    transport = operators.connect()
    writes = []

    def write(data):
        writes.append(data)
        transport.closed = True  # as after a reset, until the event loop tells of it

    monkeypatch.setattr(transport, "write", write)
    operators.send(transport, METRICS)
    assert len(writes) == 1
    transport.protocol.connection_lost(ConnectionResetError())
    assert operators.ask("/metrics")[0] == 200
    assert operators.site._pages == len(operators.connections) - 1 == 0


# Bounds


def test_of_too_many_connections_the_one_that_has_been_idle_longest_gives_way(operators):
    callers = [operators.connect() for _ in range(MAX_CONNECTIONS)]
    operators.loop.sleep(JUST_COME)
    operators.send(callers[0], HEALTH)
    one_more = operators.connect()
    assert [each.is_closing() for each in callers[:3]] == [False, True, False]
    assert status(operators.send(one_more, HEALTH)) == 200
    assert len(operators.connections) == MAX_CONNECTIONS
    assert operators.gone == 1


def test_who_asks_gives_way_to_nobody_and_who_has_just_come_to_as_many_others(operators):
    asking = [operators.connect() for _ in range(MAX_CONNECTIONS)]
    operators.loop.sleep(JUST_COME)
    for each in asking:
        each.protocol.data_received(METRICS)
    others = [operators.connect() for _ in range(MAX_CONNECTIONS)]
    assert not any(each.is_closing() for each in asking + others)
    one_more = operators.connect()
    assert [each.is_closing() for each in others[:3]] == [True, False, False]
    assert status(operators.send(one_more, HEALTH)) == 200
    assert not any(each.is_closing() for each in asking + others[1:])


def test_whoever_does_not_read_answers_gives_way_to_a_newer_one_and_a_page_that_is_written_does_not(operators):
    asking = [operators.connect() for _ in range(MAX_CONNECTIONS)]
    for each in asking[1:]:
        each.protocol.pause_writing()
        operators.send(each, HEALTH * 3)
    asking[0].protocol.data_received(METRICS)
    operators.loop.go_round()
    assert all(not each.protocol.is_idle for each in asking)
    assert operators.ask("/healthz")[0] == 200
    assert [each.is_closing() for each in asking[:3]] == [False, True, False]
    operators.loop.settle()
    assert status(asking[0].take()) == 200


def test_pages_under_way_are_bounded(operators):
    readers = [operators.connect() for _ in range(MOST_PAGES)]
    for each in readers:
        each.protocol.pause_writing()
        operators.send(each, METRICS)
    code, headers, _ = operators.ask("/metrics")
    assert (code, headers["retry-after"]) == (503, "1")
    assert operators.ask("/healthz")[0] == 200
    readers[0].abort()
    assert operators.ask("/metrics")[0] == 200


def test_who_has_hung_up_is_answered_what_it_has_asked(operators):
    transport = operators.connect()
    transport.protocol.data_received(METRICS)
    assert transport.protocol.eof_received()
    operators.loop.settle()
    assert status(transport.take()) == 200
    assert transport.is_closing()
    transport = operators.connect()
    transport.protocol.data_received(METRICS[:-1])
    transport.protocol.eof_received()
    operators.loop.settle()
    assert transport.is_closing()


def test_who_hangs_up_without_a_request_is_closed(operators):
    transport = operators.connect()
    operators.send(transport, HEALTH)
    transport.protocol.eof_received()
    operators.loop.settle()
    assert transport.is_closing()
    assert not transport.written


def test_a_bug_costs_one_connection(operators, caplog):
    transport, other = operators.connect(), operators.connect()
    transport.protocol.take_turn = lambda: 1 / 0
    operators.send(transport, HEALTH)
    assert "an HTTP connection failed" in caplog.text
    assert transport.is_closing()
    assert status(operators.send(other, HEALTH)) == 200


# Rights

OPERATOR = User("operator", inspect=("*",))
LIMITED = User("limited", inspect=("mail-*",), admin=("*",))


def test_a_page_of_another_host_is_told_nothing():
    operators = Operators()
    transport = operators.connect()
    assert status(operators.send(transport, METRICS.replace(b"here", b"evil.example"))) == 421
    assert status(operators.send(transport, METRICS)) == 200


TOKENS = RequestPolicy("token", tokens={"secret": OPERATOR, "small": LIMITED})


@pytest.mark.parametrize("path", ["/metrics", "/stats.json"])
def test_figures_need_a_token_where_tokens_are_asked_for(operators, path):
    code, headers, _ = operators.ask(path, policy=TOKENS)
    assert (code, headers["www-authenticate"]) == (401, 'bearer realm="beanstalk-server"')
    code, headers, _ = operators.ask(path, "Authorization: Bearer wrong", policy=TOKENS)
    assert (code, headers["www-authenticate"]) == (401, 'bearer realm="beanstalk-server", error="invalid_token"')
    assert operators.ask(path, "Authorization: Bearer small", policy=TOKENS)[0] == 403
    assert operators.ask(path, "Authorization: Bearer secret", policy=TOKENS)[0] == 200
    assert operators.ask(path, "authorization:   BEARER   secret  ", policy=TOKENS)[0] == 200
    assert operators.refused == [("somebody", "unknown token")]


@pytest.mark.parametrize(
    "headers",
    [
        ["Authorization: secret"],
        ["Authorization: Basic secret"],
        ["Authorization: Bearer"],
        ["Authorization: Bearer secret", "Authorization: Bearer secret"],
    ],
)
def test_what_is_no_bearer_of_one_token_is_told_what_is_needed(operators, headers):
    assert operators.ask("/metrics", *headers, policy=TOKENS)[0] == 401
    assert not operators.refused


def test_health_needs_nothing(operators):
    for path in ("/healthz", "/readyz", "/readyz/cluster"):
        assert operators.ask(path, policy=TOKENS)[0] == 200


@pytest.mark.parametrize(("user", "expected"), [(None, 200), (OPERATOR, 200), (LIMITED, 403)])
def test_where_nobody_is_asked_the_user_of_the_listener_counts(operators, user, expected):
    assert operators.ask("/metrics", policy=RequestPolicy(user=user))[0] == expected


@pytest.mark.parametrize(("user", "expected"), [(None, 403), (OPERATOR, 200), (LIMITED, 403), (User("gone"), 403)])
def test_who_is_recognized_has_the_rights_that_it_has_by_now(operators, user, expected):
    assert (
        operators.ask("/metrics", policy=RequestPolicy("certificate", users=[OPERATOR, LIMITED]), user=user)[0]
        == expected
    )


def test_answers_are_counted(operators):
    operators.ask("/nothing")
    operators.ask("/healthz")
    operators.source.more["requests"] = operators.site.requests
    body = operators.ask("/metrics")[2]
    assert 'beanstalkd_http_requests_total{code="200"} 1\n' in body
    assert 'beanstalkd_http_requests_total{code="404"} 1\n' in body
    assert json.loads(operators.ask("/stats.json")[2])["server"]
