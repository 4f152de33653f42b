"""Malformed puts: no byte of a body is taken for a command, at one server, behind a standby and with several shards."""

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from routed import RoutedCluster
from virtual import World

from beanstalk_server.access.rights import User
from beanstalk_server.wire.framing import EXTENDED_LINE_LIMIT, LINE_LIMIT
from beanstalk_server.wire.grammar import size_of_body
from tests.routing.test_router import compare, conversations, cuts, named, puts, tube

BODY = b"delete 2"
"""What a client means as a body, and no server may do."""

BAD = b"BAD_FORMAT\r\n"

SKIPPED = [
    b"put-with 0 0 60 8 key=order 17",
    b"put-with 0 0 60 8 key=a@b.example",
    "put-with 0 0 60 8 key=é".encode(),
    b"put-with 0 0 60 8 key=" + b"k" * 201,
    b"put-with 0 0 60 8 key=",
    b"put-with 0 0 60 8 key=a\0b",
    b"put-with 0 0 60 8 colour=red",
    b"put-with 0 0 60 8 tries=1 tries=1",
    b"put-with 0 0 60 8 tries=0",
    b"put-with 0 0 60 8 limit=l:0",
    b"put-with 0 0 60 8 group=g after=g",
    b"put-with 0 5 60 8 at=1",
    b"put-with -1 0 60 8",
    b"put-with 0 -1 60 8 key=k",
    b"put-with 0 0 4294967296 8",
    b"put-with 0 0 60 8 ",
    b"put-batch 0 0 60 8 extra",
    b"put-batch 0 x 60 8",
    b"put-keyed a@b.example 0 0 60 8",
    "put-keyed é 0 0 60 8".encode(),
    b"put-keyed " + b"k" * 201 + b" 0 0 60 8",
    b"put-keyed k -1 0 60 8",
    b"put-keyed  0 0 60 8",
    b"replace-keyed k! 0 0 60 8",
]
"""Lines whose size is in its place."""

LONG = b"k" * EXTENDED_LINE_LIMIT

CLOSED = [
    b"put-with",
    b"put-with ",
    b"put-with 0 0 60",
    b"put-with 0 60 8 key=k",
    b"put-with 0 0 60 8key=k",
    b"put-with 0 0 60 4294967296",
    b"put-with 0 0 60 " + b"9" * 200,
    b"put-with 0 0 0 60 8",
    b"put-with 0 0 60 8 key=" + LONG,
    b"put-batch",
    b"put-batch 0 0 60",
    b"put-batch 0 0 60 8 " + LONG,
    b"put-batch 0 0 60 8 5",
    b"put-keyed",
    b"put-keyed k 0 0 60",
    b"put-keyed k 0 0 60 8 extra",
    b"put-keyed order 17 0 0 60 8",
    b"put-keyed a 0 0 0 0 0 60 8",
    b"put-keyed " + LONG + b" 0 0 60 8",
    b"replace-keyed k 0 0 60 x",
    b"replace-keyed " + LONG,
    b"replace-keyed",
    b"put-with 0 0 60 8 key=a\nb",
    b"put-with 0 0 60 8\ndelete 2",
    b"put-with 0 0 0 60 8key=k",
    b"put-with 0 0 0 60 -8",
]
"""Lines that leave the size uncertain."""

PLAIN = [
    b"put 0 0 60 8 extra",
    b"put -1 0 60 8",
    b"put 0 0 60",
    b"put 0 0 60 x",
    b"put 0 0 60 4294967296",
    b"put 0 0 60 8 " + b"x" * LINE_LIMIT,
]

PUTS = [b"put 0 0 60 7", b"put-with 0 0 60 7 key=k", b"put-keyed k 0 0 60 7", b"put-batch 0 0 60 7"]
"""Lines that count the characters of a body that has one byte more."""


@pytest.fixture
def world():
    world = World()
    world.connect().put()  # job 1
    assert world.connect().put() == 2
    yield world
    world.check()


def is_alive(world):
    return world.connect().send(b"peek 2\r\n").startswith(b"FOUND 2 ")


@pytest.mark.parametrize("line", SKIPPED)
def test_the_body_behind_a_malformed_line_is_skipped_if_its_size_is_certain(world, line):
    client = world.connect()
    assert client.send(line + b"\r\n" + BODY + b"\r\nlist-tube-used\r\n") == BAD + b"USING default\r\n"
    assert not client.session.closed
    assert is_alive(world)


@pytest.mark.parametrize("line", CLOSED)
def test_nothing_is_done_behind_a_malformed_line_that_leaves_the_size_uncertain(world, line):
    client = world.connect()
    assert client.send(b"list-tube-used\r\n" + line + b"\r\n" + BODY + b"\r\nquit\r\n") == b"USING default\r\n" + BAD
    assert client.session.closed
    assert is_alive(world)


@pytest.mark.parametrize("user", [None, User("ann", produce=["*"], consume=["*"]), User("eve", consume=["*"])])
def test_a_user_changes_nothing_about_that(world, user):
    client = world.connect(user)
    assert client.send(SKIPPED[0] + b"\r\n" + BODY + b"\r\n") == BAD
    assert client.send(CLOSED[2] + b"\r\n" + BODY + b"\r\n") == BAD
    assert client.session.closed
    assert is_alive(world)


@pytest.mark.parametrize("line", PUTS[1:])
def test_a_body_that_is_longer_than_its_size_closes_the_connection(world, line):
    client = world.connect()
    assert client.send(line + b"\r\ndelete 2\r\ndelete 2\r\n") == b"EXPECTED_CRLF\r\n"
    assert client.session.closed
    assert is_alive(world)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"put-with 0 0 60 7 key=-", BAD),
        (b"put-with 0 0 60 7 key=k", b"FORBIDDEN\r\n"),
        (b"put-batch 0 0 60 7", b"FORBIDDEN\r\n"),
    ],
)
def test_so_does_one_that_is_skipped(world, line, reply):
    client = world.connect(User("eve", consume=["*"]))
    assert client.send(line + b"\r\ndelete 2\r\ndelete 2\r\n") == reply
    assert client.session.closed
    assert is_alive(world)


def test_a_body_that_is_too_big_and_longer_than_its_size_closes_the_connection(world):
    client = world.connect()
    assert client.send(b"put-with 0 0 60 70000\r\n" + b"x" * 70_000 + b"\r\n") == b"JOB_TOO_BIG\r\n"
    assert client.send(b"put-with 0 0 60 70000\r\n" + b"x" * 70_001) == b""
    assert client.send(b"\r\n" + BODY + b"\r\n") == b"JOB_TOO_BIG\r\n"
    assert client.session.closed


def test_a_client_that_ends_its_lines_with_lf_alone_gets_no_body_done(world):
    client = world.connect()
    first = b"put-with 0 0 60 30\n" + b"x" * 30 + b"\r\n"  # one line, whose size would be that of the next command
    assert client.send(first + b"put-with 0 0 60 20\n" + b"x" * 11 + b"\r\n" + BODY + b"\r\n") == BAD
    assert client.session.closed
    assert is_alive(world)


def test_by_default_a_malformed_put_of_the_protocol_goes_on_as_in_beanstalkd(world):
    client = world.connect()
    assert client.send(PLAIN[0] + b"\r\n" + BODY + b"\r\n") == BAD + b"DELETED\r\n"
    assert client.send(PUTS[0] + b"\r\ndelete 2\r\n") == b"EXPECTED_CRLF\r\n", "and a LF is what is left"
    assert not client.session.closed


@pytest.mark.parametrize("line", PLAIN)
def test_a_malformed_put_closes_the_connection_where_the_listener_says_so(world, line):
    client = world.connect(closes_after_put=True)
    assert client.send(line + b"\r\n" + BODY + b"\r\n") == BAD
    assert client.session.closed
    assert is_alive(world)


@pytest.mark.parametrize("size", [7, 70_000])
def test_a_put_whose_body_is_longer_than_its_size_closes_the_connection_there(world, size):
    client = world.connect(closes_after_put=True)
    reply = b"EXPECTED_CRLF\r\n" if size == 7 else b"JOB_TOO_BIG\r\n"
    assert client.send(b"put 0 0 60 %d\r\n" % size + b"x" * size + b"y\r\n" + BODY + b"\r\n") == reply
    assert client.session.closed
    assert is_alive(world)


def test_what_is_too_big_is_skipped_there_as_everywhere(world):
    client = world.connect(closes_after_put=True)
    body = b"x" * 70_000 + b"\r\n"
    assert client.send(b"put 0 0 60 70000 extra\r\n" + body + b"list-tube-used\r\n") == (
        b"JOB_TOO_BIG\r\nUSING default\r\n"
    )


def test_each_malformed_put_is_counted_once(world):
    client = world.connect()
    client.send(b"".join(line + b"\r\n" + BODY + b"\r\n" for line in SKIPPED))
    client.send(PLAIN[0] + b"\r\n" + PUTS[0] + b"\r\ndelete 2\r\n")
    client.send(b"put 0 0 60 1\r\nx\r\nput-with 0 0 60 1\r\nx\r\n")
    client.send(PUTS[1] + b"\r\ndelete 2\r\n")
    assert client.session.malformed_puts == len(SKIPPED) + 3


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (b"put-with 0 0 60 8 key=order 17", 8),
        (b"put-with  0 0  60 8", 8),
        (b"put-with 0 0 60 8 key=a\rb", -1),
        (b"put-with 0 0 60 8 key=a\nb", -1),
        (b"put-keyed a\n 0 0 60 8", -1),
        (b"put-keyed a b 0 0 8", 8),  # as well as the size of a key "a b" could be: the line has no other
        (b"put-keyed a\rb 0 0 60 8", -1),
        (b"put-batch 0 0 60 0", 0),
    ],
)
def test_the_size_of_a_body_is_in_one_place_of_a_line(line, size):
    assert size_of_body(line) == size


# The same bytes from one server, a standby and several shards

malformed = st.sampled_from([line + b"\r\n" + BODY + b"\r\n" for line in SKIPPED + CLOSED + PLAIN + PUTS])
useful = st.sampled_from(
    [
        b"put-with 0 0 60 8 key=k\r\ndelete 2\r\n",
        b"put-batch 0 0 60 6\r\n1\r\na\r\n\r\n",
        b"list-tube-used\r\n",
        b"delete 2\r\n",
        b"peek 3\r\n",
        b"reserve-with-timeout 0\r\n",
    ]
)


@settings(max_examples=examples(150))
@given(
    shards=st.sampled_from([1, 2, 3, 8]),
    closes=st.booleans(),
    data=conversations(malformed, puts, named, useful),
    how=cuts,
    back=cuts,
    ends=st.booleans(),
)
@example(
    shards=3,
    closes=False,
    data=b"put 0 0 1 3\r\nabc\r\nuse a\r\nput-with 0 0 60 7 key=k\r\ndelete 2\r\ndelete 2\r\ndelete 3\r\n",
    how=range(200),
    back=range(200),
    ends=False,
)
def test_a_standby_and_several_shards_answer_as_one_server(shards, closes, data, how, back, ends):
    compare(shards, data, how, back, ends, closes_after_put=closes)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_router_counts_what_it_refuses_itself_and_leaves_the_rest_to_leaders(shards):
    for line, counted in ((CLOSED[0], 1), (CLOSED[8], 1), (SKIPPED[0], 0), (PUTS[1], 0), (PUTS[0], 0)):
        client = RoutedCluster(shards).connect(closes_after_put=True)
        client.send(line + b"\r\n" + BODY + b"\r\n")
        assert client.router.malformed_puts == counted, line


@pytest.mark.parametrize("line", CLOSED)
def test_a_router_sends_nothing_of_a_body_whose_end_is_uncertain_to_any_shard(line):
    cluster = RoutedCluster(3)
    ids = [cluster.connect().send(b"use %b\r\nput 0 0 60 1\r\nx\r\n" % tube(shard, 3)) for shard in range(3)]
    deletes = b"".join(b"delete %b\r\n" % reply.split()[-1] for reply in ids)
    client = cluster.connect()
    assert client.send(line + b"\r\n" + deletes) == BAD
    assert client.closed


def test_what_has_no_answer_yet_is_answered_before_a_router_refuses_a_put():
    cluster = RoutedCluster(3)
    client = cluster.connect()
    cluster.without_leader.update(range(3))
    for shard in range(3):
        cluster.lose(shard, is_clean=True)
    client.give(b"put 0 0 60 1\r\nx\r\n" + CLOSED[8] + b"\r\n" + BODY + b"\r\n")
    assert client.read() == b""
    for shard in range(3):
        cluster.lead(shard)
    reply, _, rest = client.read().partition(b"\r\n")
    assert reply.startswith(b"INSERTED ")
    assert rest == BAD
    assert client.closed
