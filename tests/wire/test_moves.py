"""A client that another server goes on with: it sends nothing twice, and is answered as if nothing had been."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import World

from beanstalk_server.wire.grammar import Arguments, read_put, read_put_keyed, read_put_with, read_replace_keyed

READERS = {
    b"put": read_put,
    b"put-keyed": read_put_keyed,
    b"replace-keyed": read_replace_keyed,
    b"put-with": read_put_with,
}


def moved(client, rest=b""):
    """What a client is answered that has moved to a server without jobs, and sends the rest there."""
    assert client.session.can_move()
    commands = client.session.take_commands(client.world.now)
    client.disconnect()
    client.world.check()
    other = World(compat="1.12").connect()
    return other, other.send(commands) + other.send(rest)


@pytest.mark.parametrize(
    ("line", "job"),
    [
        (b"put 7 0 60 5", {"pri": "7", "delay": "0", "ttr": "60"}),
        (b"put  4294967295   0.250 4294967295.999 5", {"pri": "4294967295", "ttr": "4294967295"}),
        (b"put-keyed k 7 2.1 0 5", {"pri": "7", "delay": "2", "ttr": "1"}),
        (b"replace-keyed %b 7 0 60 5" % (b"k" * 200), {"pri": "7"}),
        (b"put-with 7 2 60 5", {"pri": "7", "delay": "2"}),
        (b"put-with 7 0 60 5 key=k tries=3 ttl=0.5", {"pri": "7", "key": "k", "max-tries": "3"}),
    ],
)
def test_a_put_moves_with_what_has_come_of_its_body(line, job):
    for come in (b"", b"1", b"12345", b"12345\r"):
        client = World().connect()
        assert client.send(line + b"\r\n") == b""
        for byte in come:
            client.send(bytes([byte]))
        other, reply = moved(client, b"12345\r\n"[len(come) :])
        assert reply == b"INSERTED 1\r\n"
        found = other.yaml(b"stats-job 1")
        assert {name: found[name] for name in job} == job
        assert other.send(b"reserve-job 1\r\n") == b"RESERVED 1 5\r\n12345\r\n"


def test_what_has_come_behind_a_body_moves_with_it(client):
    client.session.pause_output()
    client.session.queue_input(b"put 0 0 60 5\r\n12345\r\nlist-tube-used\r\nput 0 0 60 1\r\nx")
    _, reply = moved(client, b"\r\n")
    assert reply == b"INSERTED 1\r\nUSING default\r\nINSERTED 2\r\n"


def test_a_body_without_its_end_is_refused_at_the_other_server_as_here(client):
    client.send(b"put 0 0 60 5\r\n123")
    _, reply = moved(client, b"45xx\r\nlist-tube-used\r\n")
    assert reply.startswith(b"EXPECTED_CRLF\r\n")


def test_a_client_whose_body_is_not_kept_cannot_move(client):
    client.send(b"put 0 0 60 70000\r\n")
    assert not client.session.can_move()
    assert client.send(b"x" * 70002) == b"JOB_TOO_BIG\r\n"
    assert client.session.can_move()


def test_a_client_whose_line_is_too_long_cannot_move(client):
    client.send(b"x" * 300)
    assert not client.session.can_move()


def test_half_a_line_moves(client):
    client.send(b"list-tube-")
    assert moved(client, b"used\r\n")[1] == b"USING default\r\n"


def test_a_reserve_that_waits_moves_with_the_rest_of_its_time(client):
    client.send(b"reserve-with-timeout 2.5\r\nlist-tube-used\r\n")
    client.world.sleep(1)
    other, reply = moved(client)
    assert reply == b""
    other.world.sleep(1.4)
    assert other.read() == b""
    other.world.sleep(0.2)
    assert other.read() == b"TIMED_OUT\r\nUSING default\r\n"


ARGUMENTS = ("priority", "delay", "ttr", "size", "trailing")
ATTRIBUTES = ("key", "replaces", "at", "max_tries", "backoff", "ttl", "key_hold")


def read(line):
    word, _, text = line.partition(b" ")
    arguments = Arguments()
    assert READERS[word](text, arguments)
    return arguments.put


puts = st.builds(
    lambda word, numbers, spaces: word + b" " + spaces.join(numbers),
    st.sampled_from([b"put", b"put-keyed k.k", b"replace-keyed (k)"]),
    st.tuples(
        *[
            st.from_regex(rb"[0-9]{1,9}" + fraction, fullmatch=True)
            for fraction in (rb"", rb"(\.[0-9]{1,3})?", rb"(\.[0-9]{1,3})?", rb"")
        ]
    ),
    st.sampled_from([b" ", b"   "]),
)


def seconds(digits):
    return st.from_regex(rb"[1-9][0-9]{0,8}(\.[0-9]{1,%d})?" % digits, fullmatch=True)


attributes = st.lists(
    st.one_of(
        st.just(b"replace=1"),
        seconds(9).map(b"at=%b".__mod__),
        st.integers(1, 2**32 - 1).map(b"tries=%d".__mod__),
        st.tuples(st.sampled_from([b"backoff", b"ttl", b"hold"]), seconds(3)).map(b"=".join),
    ),
    unique_by=lambda word: word.partition(b"=")[0],
).map(lambda words: b" ".join([b"put-with 7 0 1.5 3 key=a;b", *words]))


@given(puts | attributes)
def test_the_line_that_is_made_of_the_arguments_of_a_put_gives_the_same_arguments(line):
    put = read(line)
    again = read(put.line())
    assert [getattr(put, name) for name in ARGUMENTS] == [getattr(again, name) for name in ARGUMENTS]
    assert (put.attributes is None) == (again.attributes is None) == line.startswith(b"put ")
    if put.attributes is not None:
        assert all(getattr(put.attributes, name) == getattr(again.attributes, name) for name in ATTRIBUTES)
