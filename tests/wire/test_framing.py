"""Framing: however the bytes are split, the framer finds what a plain model finds."""

import io
from itertools import pairwise

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from beanstalk_server.wire.framing import (
    BODY,
    BODY_LOST,
    BODY_SKIPPED,
    BODY_WITHOUT_CRLF,
    EXTENDED_LINE_LIMIT,
    HTTP_METHODS,
    LINE,
    LINE_LIMIT,
    LINE_TOO_LONG,
    NEED_MORE,
    Framer,
    Prefixes,
)

LONG = (b"long ",)


NOT_WHOLE = -1
TOO_LONG = -2


def end_of_line(data, may_be_long):
    """Where the CR LF of the first line is, or NOT_WHOLE or TOO_LONG: the rules, one after the other."""
    end = data[: LINE_LIMIT - 1].find(b"\r")
    if end >= 0 and data[end : end + 2] == b"\r\n":
        return end
    if len(data) < LINE_LIMIT:
        return NOT_WHOLE
    if may_be_long and data.startswith(LONG):
        end = data[:EXTENDED_LINE_LIMIT].find(b"\r\n", LINE_LIMIT - 2)
        if end >= 0:
            return end
        if len(data) < EXTENDED_LINE_LIMIT:
            return NOT_WHOLE
    return TOO_LONG


def model(data):
    """The lines and bodies in these bytes, and the rest.

    A line `body <n>` or `skip <n>` is followed by a body of that size.
    """
    found = []
    is_too_long = False
    while (end := end_of_line(data, not is_too_long)) != NOT_WHOLE:
        if end == TOO_LONG:
            if not is_too_long and data.startswith(HTTP_METHODS):
                found.append((LINE, data[: LINE_LIMIT - 2]))  # its beginning, which tells what it is
            is_too_long = True
            data = data[LINE_LIMIT:]
            continue
        line = data[:end]
        data = data[end + 2 :]
        found.append((LINE_TOO_LONG, b"") if is_too_long else (LINE, line))
        size = None if is_too_long else body_size(line)
        is_too_long = False
        if size is None:
            continue
        if len(data) < size + 2:
            break
        if line.startswith(b"skip"):
            found.append((BODY_SKIPPED, b""))
        elif data[size : size + 2] == b"\r\n":
            found.append((BODY, data[:size]))
        else:
            found.append((BODY_WITHOUT_CRLF, b""))
        data = data[size + 2 :]
    return found, data


def body_size(line):
    word, _, number = line.partition(b" ")
    return int(number) if word in (b"body", b"skip") and number.isdigit() else None


def finds(framer):
    """What the framer finds in the bytes that it has been fed."""
    found = []
    while (event := framer.next()) != NEED_MORE:
        content = framer.take()
        found.append((event, content))
        size = body_size(content) if event == LINE else None
        if size is not None:
            framer.begin_body(size, content.startswith(b"body"))
    return found


def split(data, cuts):
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


pieces_of_lines = st.sampled_from(
    [
        b"body 0\r\n",
        b"body 3\r\nabc\r\n",
        b"body 3\r\nabcde",
        b"body 500\r\n" + b"\r\n" * 251,
        b"body 300\r\n" + b"b" * 300,
        b"skip 3\r\n\r\n\r\n\r",
        b"skip 700\r\n" + b"s" * 702,
        b"line\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b"a\rb\r\n",
        b"x" * 221,
        b"x" * 222 + b"\r\n",
        b"x" * 223 + b"\r\n",
        b"x" * 224,
        b"x" * 224 + b"\r\n",
        b"x" * 700,
        b"long " + b"l" * 300 + b"\r\n",
        b"long " + b"l" * 313 + b"\r\n",
        b"long " + b"l" * 314 + b"\r\n",
        b"long \r" + b"l" * 250 + b"\r\n",
        b"long \rl\r\n",
        b"long ",
        b"l" * 215,
        b"GET /",
    ]
)
streams = st.lists(st.one_of(pieces_of_lines, st.binary(max_size=4)), max_size=10).map(b"".join)
places = st.lists(st.integers(0, 2500), max_size=20)


@settings(max_examples=examples(100))
@given(data=streams, cuts=places)
def test_the_framer_finds_what_the_model_finds_however_the_bytes_are_split(data, cuts):
    expected, rest = model(data)
    framer = Framer(LONG)
    found = []
    for piece in split(data, cuts):
        framer.feed(piece)
        found += finds(framer)
    assert found == expected
    assert framer.size() in (0, len(rest)), "the first pieces of a body are kept elsewhere"


@given(data=streams)
def test_the_framer_finds_the_same_when_bytes_come_one_by_one(data):
    framer = Framer(LONG)
    found = []
    for byte in data:
        framer.feed(bytes([byte]))
        found += finds(framer)
    assert found == model(data)[0]


@given(data=streams, cuts=places)
def test_the_framer_finds_the_same_when_all_bytes_are_fed_first(data, cuts):
    framer = Framer(LONG)
    for piece in split(data, cuts):
        framer.feed(piece)
    assert framer.size() == len(data)
    assert finds(framer) == model(data)[0]


@pytest.fixture
def framer():
    return Framer(LONG)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (b"x" * (LINE_LIMIT - 2), LINE),
        (b"x" * LINE_LIMIT, LINE_TOO_LONG),
        (b"long " + b"x" * (EXTENDED_LINE_LIMIT - 7), LINE),
        (b"long " + b"x" * (EXTENDED_LINE_LIMIT - 6), LINE_TOO_LONG),
        (b"long" + b"x" * LINE_LIMIT, LINE_TOO_LONG),
    ],
)
def test_a_line_may_be_as_long_as_its_limit_and_no_longer(framer, line, event):
    framer.feed(line + b"\r\n")
    assert framer.next() == event
    assert framer.take() == (line if event == LINE else b"")
    assert framer.next() == NEED_MORE


@pytest.mark.parametrize("length", [LINE_LIMIT - 1, 2 * LINE_LIMIT - 1])
def test_a_crlf_that_straddles_the_limit_is_not_the_end_of_a_line_as_in_beanstalkd(framer, length):
    framer.feed(b"x" * length + b"\r\n")
    assert framer.next() == NEED_MORE
    framer.feed(b"next\r\n")
    assert framer.next() == LINE_TOO_LONG
    framer.feed(b"next\r\n")
    assert framer.next() == LINE
    assert framer.take() == b"next"


@pytest.mark.parametrize(
    "data", [b"long a\rb\r\n" + b"x" * 300, (b"long a\rb\r\n" + b"x" * 300)[:230] + b"\r\n" + b"y" * 300]
)
def test_a_line_that_is_found_would_also_be_found_without_what_follows(framer, data):
    framer.feed(data)
    while (event := framer.next()) != NEED_MORE:
        if event == LINE:
            line = framer.take()
            alone = Framer(LONG)
            alone.feed(line + b"\r\n")
            assert alone.next() == LINE
            assert alone.take() == line
            return


def test_a_long_command_ends_only_at_a_crlf_within_its_own_limit(framer):
    framer.feed(b"long \r" + b"x" * 250 + b"\r\n")
    assert framer.next() == LINE
    assert framer.take() == b"long \r" + b"x" * 250


def test_a_line_however_long_takes_no_memory_and_no_stack(framer):
    framer.feed(b"x" * 1_000_000)
    assert framer.next() == NEED_MORE
    assert framer.size() < LINE_LIMIT


def test_what_has_been_taken_is_not_kept(framer):
    framer.feed(b"body 3\r\nabc\r\n")
    framer.next()
    framer.take()
    framer.begin_body(3, True)
    framer.next()
    assert framer.take() == b"abc"
    assert framer.take() == framer.data == b""
    assert framer._body is None


def test_a_body_that_nobody_wants_is_not_kept(framer):
    framer.begin_body(1 << 30, False)
    for _ in range((1 << 30) // (1 << 24)):
        framer.feed(bytes(1 << 24))
        assert framer.next() == NEED_MORE
        assert framer.size() == 0
        assert framer._body is None
    framer.feed(b"\r\nline\r\n")
    assert framer.next() == BODY_SKIPPED
    assert framer.next() == LINE


class NoRoom(io.BytesIO):
    """Stands for a body when memory is short."""

    def write(self, piece):
        raise MemoryError


def test_a_body_that_does_not_fit_into_memory_is_lost_and_what_follows_it_is_not(framer):
    framer.begin_body(9, True)
    framer.feed(b"12")
    assert framer.next() == NEED_MORE
    framer._body = NoRoom()
    framer.feed(b"345")
    assert framer.next() == NEED_MORE
    framer.feed(b"6789\r\nline\r\n")
    assert framer.next() == BODY_LOST
    assert framer.take() == b""
    assert framer.next() == LINE


@pytest.mark.parametrize(("first", "last", "is_torn"), [(b"345", b"6789\r\n", False), (b"3456789\r\n", b"", True)])
def test_the_end_of_a_lost_body_is_uncertain_if_it_was_lost_at_its_end(framer, first, last, is_torn):
    framer.begin_body(9, True)
    framer.feed(b"12")
    framer.next()
    framer._body = NoRoom()
    framer.feed(first)
    found = framer.next()
    if last:
        framer.feed(last)
        found = framer.next()
    assert (found, framer.is_torn) == (BODY_LOST, is_torn)


def test_the_prefix_of_the_next_line_is_known_before_its_end(framer):
    framer.feed(b"del")
    framer.feed(b"ete ")
    assert framer.begins_with((b"kick ", b"delete "))
    assert not framer.begins_with((b"kick ",))
    framer.feed(b"1\r\n")
    assert framer.next() == LINE
    assert framer.take() == b"delete 1"
    framer.begin_body(9, True)
    framer.feed(b"kick 1\r\n")
    assert not framer.begins_with((b"kick ",)), "that is a body"
    framer.next()
    framer.feed(b"\r\n\r" + b"x" * 300 + b"kick 1\r\n")
    framer.next()
    framer.next()
    assert not framer.begins_with((b"x",)), "that is the rest of a line that is too long"


def test_the_end_of_a_body_is_known_before_it_is_read(framer):
    framer.begin_body(5, True)
    framer.feed(b"ab")
    assert not framer.ends_body()
    framer.next()
    framer.feed(b"cde")
    framer.feed(b"\r")
    assert not framer.ends_body()
    framer.feed(b"\n")
    assert framer.ends_body()
    assert framer.next() == BODY
    assert framer.take() == b"abcde"
    assert not framer.ends_body()
    framer.begin_body(1, False)
    framer.feed(b"a\r\n")
    assert not framer.ends_body(), "nobody wants it"


def test_what_is_cleared_is_forgotten(framer):
    framer.feed(b"line\r\nhalf")
    framer.feed(b" a line\r\n")
    framer.clear()
    assert framer.size() == 0
    framer.feed(b"next\r\n")
    assert framer.next() == LINE
    assert framer.take() == b"next"


@pytest.mark.parametrize("line", [b"", b"q", b"quit", b"quitting", b"qui", b"GET /", b"GET", b"put 0", b"\r", b"\xff"])
def test_a_line_begins_with_one_of_several_prefixes_as_bytes_have_it(line):
    prefixes = (b"quit", b"GET ", b"\r")
    assert Prefixes(prefixes).begin(line) == line.startswith(prefixes)
