"""put-with and redrive: what their lines may say, what the session asks of the queue, and what it answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import World

from beanstalk_server.queue.policy import Policy
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.wire.framing import EXTENDED_LINE_LIMIT
from beanstalk_server.wire.grammar import Arguments, read_put_with, read_redrive

BAD = b"BAD_FORMAT\r\n"
LABELS = ("share", "limit", "limit_count", "group", "after", "after_waits")
LONGEST_KEY = b"k" * 200
LARGEST = b"4294967295"
LARGEST_SECONDS = b"4294967295.999"


def read(text):
    arguments = Arguments()
    return arguments.put if read_put_with(text, arguments) else None


def said(text):
    """What the attributes of a well-formed line say."""
    put = read(text)
    assert put is not None
    assert put.trailing == b""
    attributes = put.attributes
    names = ("key", "replaces", "at", "max_tries", "backoff", "ttl", "key_hold", "once", "once_ttl")
    said = {name: getattr(attributes, name) for name in names if getattr(attributes, name)}
    labels = attributes.labels
    return said if labels is None else said | {name: getattr(labels, name) for name in LABELS if getattr(labels, name)}


# What a line may say


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (b"", {}),
        (b" key=space-42", {"key": "space-42"}),
        (b" key=k replace=1", {"key": "k", "replaces": True}),
        (b" replace=1 key=k", {"key": "k", "replaces": True}),
        (b" at=1700000000", {"at": 1_700_000_000 * SECOND}),
        (b" at=1700000000.5", {"at": 1_700_000_000 * SECOND + 500 * MILLISECOND}),
        (b" at=1700000000.000000001", {"at": 1_700_000_000 * SECOND + 1}),
        (b" at=4294967295.999999999", {"at": 2**32 * SECOND - 1}),
        (b" at=0", {"at": 1}),
        (b" tries=1", {"max_tries": 1}),
        (b" tries=4294967295", {"max_tries": 2**32 - 1}),
        (b" backoff=0.25", {"backoff": 250 * MILLISECOND}),
        (b" ttl=3600", {"ttl": 3600 * SECOND}),
        (b" key=k hold=300", {"key": "k", "key_hold": 300 * SECOND}),
        (b"   ttl=1    tries=2", {"ttl": SECOND, "max_tries": 2}),
        (b" once=t", {"once": "t", "once_ttl": 3600 * SECOND}),
        (b" once=t:0.25 tries=1", {"once": "t", "once_ttl": 250 * MILLISECOND, "max_tries": 1}),
        (b" share=s", {"share": "s"}),
        (b" limit=user-42", {"limit": "user-42", "limit_count": 1}),
        (b" limit=l:4294967295", {"limit": "l", "limit_count": 2**32 - 1}),
        (b" group=g after=a", {"group": "g", "after": "a"}),
        (b" after=a:wait tries=1", {"after": "a", "after_waits": True, "max_tries": 1}),
    ],
)
def test_attributes_follow_the_numbers_in_any_order(attributes, expected):
    assert said(b"0 0 60 5" + attributes) == expected


@pytest.mark.parametrize(
    "attributes",
    [
        b" ",
        b" ttl=1 ",
        b"ttl=1",
        b"\tttl=1",
        b" ttl",
        b" ttl=",
        b" =1",
        b" ttl =1",
        b" ttl= 1",
        b" ttl=1\tkey=k",
        b" TTL=1",
        b" colour=red",
        b" ttl=1 ttl=1",
        b" key=k key=k",
        b" key=k replace=1 replace=1",
        b" key=-k",
        b" key=",
        b" key=" + b"k" * 201,
        b" key=k=k",
        b" key=k replace=0",
        b" key=k replace=2",
        b" replace=1",
        b" hold=1",
        b" at=1.",
        b" at=.5",
        b" at=-1",
        b" at=1.0000000000",
        b" at=4294967296",
        b" tries=0",
        b" tries=1.5",
        b" tries=4294967296",
        b" backoff=0",
        b" ttl=0.000",
        b" ttl=1.0000",
        b" ttl=4294967296",
        b" ttl=1e3",
        b" key=k hold=0",
        b" once=",
        b" once=:1",
        b" once=-t",
        b" once=t:",
        b" once=t:0",
        b" once=t:-1",
        b" once=t:1:1",
        b" once=t:4294967296",
        b" once=t once=t",
        b" once=" + b"t" * 201,
        b" share=",
        b" share=s share=s",
        b" share=s:1",
        b" share=-s",
        b" share=" + b"s" * 201,
        b" limit=l:",
        b" limit=l:0",
        b" limit=l:-1",
        b" limit=l:4294967296",
        b" limit=l limit=k",
        b" limit=:1",
        b" group=g:wait",
        b" group=g group=h",
        b" after=a:later",
        b" after=a:",
        b" after=a after=a",
        b" after=a group=a",
        b" after=a:wait group=a",
        b" after=a at=1",
    ],
)
def test_a_line_that_says_anything_else_is_refused(client, attributes):
    assert client.send(b"put-with 0 0 60 5" + attributes + b"\r\nabcde\r\n") == BAD
    assert client.session.closed is (attributes[:1] == b"t"), "the size is uncertain if it is not a word"


def test_a_moment_and_a_delay_are_too_much(client):
    assert client.send(b"put-with 0 1 60 5 at=1700000000\r\nabcde\r\n") == BAD
    assert said(b"0 0.000 60 5 at=1700000000")


@pytest.mark.parametrize("numbers", [b"", b"0 0 60", b"-1 0 60 5", b"0 0 60 x", b"4294967296 0 60 5", b"0 0 60 5\0"])
def test_its_numbers_are_those_of_put(client, numbers):
    assert client.send(b"put " + numbers + b"\r\n") == BAD
    assert client.send(b"put-with " + numbers + b"\r\nabcde\r\n") == BAD


def test_the_longest_line_has_room():
    longest = b" ".join(
        [
            b"put-with %b 0 %b %b" % (LARGEST, LARGEST_SECONDS, LARGEST),
            b"key=%b replace=1 tries=%b" % (LONGEST_KEY, LARGEST),
            b"backoff=%b ttl=%b hold=%b" % (LARGEST_SECONDS, LARGEST_SECONDS, LARGEST_SECONDS),
            b"once=%b:%b" % (LONGEST_KEY, LARGEST_SECONDS),
            b"share=%b limit=%b:%b group=%b after=%b:wait"
            % (LONGEST_KEY, LONGEST_KEY, LARGEST, LONGEST_KEY, b"a" * 200),
        ]
    )
    world = World(max_job_size=2**32 - 1)
    client = world.connect()
    assert client.send(longest + b"\r\n") == b""  # it waits for the body
    assert len(longest) + 2 <= EXTENDED_LINE_LIMIT
    assert len(read(longest.removeprefix(b"put-with ")).line()) == len(longest)


@given(st.binary(max_size=40))
def test_whatever_is_sent_is_read_or_refused(text):
    put = read(b"0 0 60 5" + text)
    assert put is None or put.attributes is not None
    read(text)


# What comes of it


def test_stats_job_tells_at_its_end_what_is_demanded_of_a_job(client):
    client.send(b"put-with 0 0 60 1 key=k tries=5\r\nx\r\n")
    assert list(client.yaml(b"stats-job 1").items())[-6:] == [
        ("key", '"k"'),
        ("tries", "0"),
        ("max-tries", "5"),
        ("reason", '""'),
        ("origin", '""'),
        ("expires-in", "0"),
    ]


def test_a_moment_counts_by_what_the_wall_clock_says_when_the_body_has_come():
    world = World()
    offset = 1_700_000_000 * SECOND - world.now
    world.info.clock_offset = lambda: offset
    client = world.connect()
    client.send(b"put-with 0 0 60 3 at=1700000005.25\r\n")
    offset -= 60 * SECOND
    assert client.send(b"abc\r\n") == b"INSERTED 1\r\n"
    assert client.yaml(b"stats-job 1")["time-left"] == "65"
    assert client.yaml(b"stats-job 1")["delay"] == "0"
    world.sleep(65.2)
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    world.sleep(0.1)
    assert client.send(b"reserve-with-timeout 0\r\n") == b"RESERVED 1 3\r\nabc\r\n"


# What a tube's policy makes of it


def test_puts_that_a_policy_refuses_get_replies_that_clients_know():
    limits = Policy(max_jobs=1, max_bytes=5, max_delay=10 * SECOND, max_job_size=6)
    client = World(policies={"t": limits}).connect()
    client.send(b"use t\r\n")
    assert client.send(b"put 0 0 60 7\r\nhello !\r\n") == b"JOB_TOO_BIG\r\n"
    assert client.send(b"put 0 11 60 7\r\nhello !\r\n") == b"JOB_TOO_BIG\r\n", "no later attempt could help"
    assert client.send(b"put 0 11 60 1\r\nx\r\n") == b"DRAINING\r\n"
    assert client.send(b"put-with 0 0 60 4 key=k\r\nhell\r\n") == b"INSERTED 4\r\n"
    assert client.send(b"put-keyed k 0 11 60 5\r\nhello\r\n") == b"EXISTS 4\r\n"
    assert client.send(b"put 0 0 60 1\r\nx\r\n") == b"DRAINING\r\n"
    assert client.send(b"replace-keyed k 0 0 60 6\r\nhello!\r\n") == b"DRAINING\r\n"
    assert client.send(b"replace-keyed k 0 0 60 7\r\nhello !\r\n") == b"JOB_TOO_BIG\r\n"
    for found in (client.yaml(b"stats-tube t"), client.yaml(b"stats")):
        assert [found[f"refused-{what}"] for what in ("jobs", "bytes", "delay", "size")] == ["1", "1", "1", "3"]
    assert client.yaml(b"stats-tube t")["bytes"] == "4"


def test_a_tube_without_a_policy_shows_none_of_its_rows(client):
    assert list(client.yaml(b"stats-tube default"))[-1] == "pause-time-left"


def test_a_job_that_expires_says_when_and_its_key_is_held():
    client = World(policies={"t": Policy(ttl=5 * SECOND, key_hold=10 * SECOND)}).connect()
    client.send(b"use t\r\nput-keyed k 0 0 60 1\r\nx\r\n")
    client.world.sleep(1.5)
    assert client.yaml(b"stats-job 1")["expires-in"] == "3"
    client.world.sleep(4)
    assert client.send(b"stats-job 1\r\npeek-keyed k\r\n") == b"NOT_FOUND\r\n" * 2
    assert client.send(b"put-with 0 0 60 1 key=k ttl=1\r\nx\r\n") == b"EXISTS 1\r\n"
    assert client.send(b"put-with 0 0 60 1 key=k replace=1\r\nx\r\n") == b"TOO_LATE 1\r\n"
    for found in (client.yaml(b"stats"), client.yaml(b"stats-tube t")):
        assert (found["expired-jobs"], found["held-keys"]) == ("1", "1")


def test_a_tube_that_is_throttled_says_so_while_it_is():
    client = World(policies={"t": Policy(interval=2 * SECOND, burst=1, max_reserved=5)}).connect()
    client.send(b"watch t\r\nuse t\r\nput 0 0 60 3\r\none\r\nput 0 0 60 3\r\ntwo\r\n")
    assert client.yaml(b"stats-tube t")["throttled"] == "0"
    client.send(b"reserve\r\n")
    assert list(client.yaml(b"stats-tube t").items())[-2:] == [("bytes", "6"), ("throttled", "1")]
    assert client.send(b"peek-ready\r\n") == b"FOUND 2 3\r\ntwo\r\n"
    client.world.sleep(2.1)
    assert client.yaml(b"stats-tube t")["throttled"] == "0"


# redrive


@pytest.mark.parametrize(
    "text", [b"", b"dead", b"dead ", b" dead 1", b"dead 1 ", b"dead -1", b"dead x", b"-dead 1", b"dead 4294967296"]
)
def test_a_malformed_redrive_is_refused(client, text):
    assert client.send(b"redrive " + text + b"\r\n") == BAD
    assert not read_redrive(text, Arguments())
