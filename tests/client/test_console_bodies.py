"""What a body is: calls of task queues, JSON, text and bytes; and that none of them raises or runs anything."""

import base64
import contextlib
import json

import pytest
from beanstalk_client.console.bodies import (
    MAX_DECODED,
    MAX_LINES,
    MAX_SHOWN,
    call_of,
    describe,
    hex_rows,
    read_php,
    report_of,
    summary,
)
from beanstalk_client.tasks.failure import report
from hypothesis import example, given
from hypothesis import strategies as st


def celery(content, **changes):
    headers = {"lang": "py", "task": "shop.ship", "id": "5b0a", "argsrepr": "(17,)", "kwargsrepr": "{}"}
    return {
        "body": base64.b64encode(content).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {"body_encoding": "base64"},
    } | changes


PHP = (
    'O:18:"App\\Jobs\\ShipOrder":3:{s:8:"\0*\0order";i:4711;s:7:"carrier";s:4:"Grü";'
    's:4:"tags";a:2:{i:0;s:1:"a";i:1;b:1;}}'
)


@pytest.mark.parametrize(
    ("value", "source", "function", "args", "kwargs"),
    [
        ({"task": "shop.send", "args": [1], "kwargs": {"a": 2}}, "beanstalk", "shop.send", [1], {"a": 2}),
        ({"task": "shop.send"}, "beanstalk", "shop.send", [], {}),
        (celery(b'[[17], {"fast": true}, {}]'), "Celery", "shop.ship", [17], {"fast": True}),
        (
            celery(b"\x80\x04pickle", **{"content-type": "application/x-python-serialize"}),
            "Celery",
            "shop.ship",
            [],
            {},
        ),
        (celery(b"[[17"), "Celery", "shop.ship", [], {}),
        ({"task_id": "9", "task_name": "a:b", "labels": {}, "args": [1], "kwargs": {}}, "taskiq", "a:b", [1], {}),
        (
            {"displayName": "ShipOrder", "job": "x@call", "data": {"command": PHP}},
            "Laravel",
            "ShipOrder",
            [],
            {"order": 4711, "carrier": "Grü", "tags": ["a", True]},
        ),
        ({"job": "SendEmail", "data": {"to": "a@b"}}, "Laravel", "SendEmail", [], {"to": "a@b"}),
        ({"job": "SendEmail", "data": [1, 2]}, "Laravel", "SendEmail", [1, 2], {}),
    ],
)
def test_calls_of_task_queues_are_functions_and_arguments(value, source, function, args, kwargs):
    call = call_of(json.dumps(value).encode())
    assert (call.source, call.function, call.args, call.kwargs) == (source, function, args, kwargs)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"17",
        b'{"task": 5}',
        b'{"task": "a", "args": "b"}',
        b"{",
        b"[" * 100_000,
        b'{"data": 1}',
        b"\xff{",
    ],
)
def test_other_bodies_are_no_calls(body):
    assert call_of(body) is None


def test_what_php_cannot_have_written_is_shown_as_it_is():
    call = call_of(json.dumps({"displayName": "Ship", "data": {"command": "O:1"}}).encode())
    assert call.kwargs == {} and call.notes["command"] == "O:1"


@pytest.mark.parametrize(
    ("body", "kind", "lines"),
    [
        (b"", "empty", []),
        (b'{"a":1}', "json", ["{", '  "a": 1', "}"]),
        (b"one\ntwo", "text", ["one", "two"]),
        (b"17", "text", ["17"]),
        ("Grüße".encode(), "text", ["Grüße"]),
        (b"\xff\xfe", "binary", ["00000000  ff fe" + " " * 42 + "  .."]),
        (b"a\0b", "binary", ["00000000  61 00 62" + " " * 39 + "  a.b"]),
    ],
)
def test_a_body_is_shown_as_what_it_is(body, kind, lines):
    found = describe(body)
    assert (found.kind, found.lines, found.size, found.is_cut) == (kind, lines, len(body), False)


@pytest.mark.parametrize(
    "body", [b"x" * (10 * 2**20), "ü".encode() * 2**20, b"\0" * 2**20, b"[" + b"1," * MAX_DECODED + b"1]"]
)
def test_of_a_large_body_the_beginning_is_shown(body):
    found = describe(body)
    assert found.is_cut and sum(map(len, found.lines)) <= max(MAX_SHOWN, 4096 * 5) and found.size == len(body)


@pytest.mark.parametrize("depth", [300, 900, 5000, 100_000])
def test_what_is_nested_deeply_is_shown_somehow(depth):
    for body in (b"[" * depth + b"]" * depth, b'{"task":"a","args":' + b"[" * depth + b"]" * depth + b"}"):
        assert describe(body).lines and summary(body)


def test_half_a_character_at_the_end_is_no_text():
    assert describe("Grü".encode()[:-1]).kind == "binary"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"task": "shop.send", "args": [17], "kwargs": {"fast": true}}', "shop.send(17, fast=true)"),
        (b'{"job": 17, "error": "KeyError", "buried": "x"}', "report on job 17: KeyError"),
        (b"one\ntwo", "one two"),
        (b"\xff\x00", "ff 00"),
        (b"x" * 1000, "x" * 120),
        (b"", ""),
    ],
)
def test_a_body_in_one_line(body, text):
    assert summary(body) == text


def test_the_report_of_a_worker_is_read():
    trace = "Traceback (most recent call last):\nKeyError: 'x'\n"
    body = report(17, "mails", "KeyError: 'x'", 3, by="worker", trace=trace, task="shop.send")
    found = describe(body)
    assert (found.report.job, found.report.task, found.report.error, found.report.tries) == (
        17,
        "shop.send",
        "KeyError: 'x'",
        3,
    )
    assert found.report.traceback[-1] == "KeyError: 'x'" and found.call is None
    assert report_of(b'{"job": "17", "error": 1, "buried": 2}') is None


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"N;", None),
        (b"b:1;", True),
        (b"i:-5;", -5),
        (b"d:0.5;", 0.5),
        (b's:3:"a"b";', 'a"b'),
        (b"a:0:{}", []),
        (b'a:1:{s:1:"k";N;}', {"k": None}),
        (b'O:1:"A":1:{s:4:"\0A\0b";O:1:"C":0:{}}', {"b": {"class": "C"}}),
        (b'E:9:"Suit:Club";', "Suit:Club"),
    ],
)
def test_what_php_serializes_is_read(data, value):
    assert read_php(data) == value


@pytest.mark.parametrize(
    "data", [b"", b"x", b's:9:"a";', b"a:1:{", b"a:1:{i:0;", b"i:1;i:2;", b'C:1:"A":0:{}', b"a:1:{i:0;" * 40]
)
def test_what_php_cannot_have_written_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"."):
        read_php(data)


@given(st.binary())
def test_any_bytes_have_a_body(body):
    found = describe(body)
    assert found.size == len(body)
    assert list(hex_rows(body)) == list(hex_rows(body))


@example(b"a:1:{i:0;b:1;}")
@given(st.binary() | st.from_regex(rb"([aOsidbN]:?[0-9]{0,2}[:;{}\"]{0,3}){0,20}"))
def test_any_bytes_are_php_or_a_value_error(data):
    with contextlib.suppress(ValueError):
        assert json.dumps(read_php(data)), "it can be shown"


MEMBERS = """
task args kwargs headers body properties data job displayName error buried task_name command body_encoding content-type
traceback
""".split()

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=6),
    max_leaves=12,
)


@given(JSON)
def test_any_json_has_a_body(value):
    body = json.dumps(value).encode()
    found = describe(body)
    assert (found.kind, found.size) == ("json" if isinstance(value, (list, dict)) else "text", len(body))
    assert json.loads("\n".join(found.lines)) == value


def test_no_more_of_json_is_made_than_is_shown(monkeypatch):
    made = []
    encode = json.JSONEncoder.iterencode
    monkeypatch.setattr(
        json.JSONEncoder,
        "iterencode",
        lambda *args, **how: (made.append(each) or each for each in encode(*args, **how)),
    )
    found = describe(b"[" * 100 + b",".join([b"1"] * 100_000) + b"]" * 100)
    assert found.is_cut and len("\n".join(found.lines)) == MAX_SHOWN
    assert sum(map(len, made)) < 2 * MAX_SHOWN


@pytest.mark.parametrize("count", [MAX_LINES - 1, MAX_LINES, 60_000])
def test_a_body_is_shown_up_to_a_number_of_lines(count):
    found = describe(b"\n" * (count - 1) + b"x")
    assert len(found.lines) == min(count, MAX_LINES) and found.is_cut == (count > MAX_LINES)
