"""Where replies end is found in bytes that come in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from linked import pieces

from beanstalk_server.routing.reply_framer import LONGEST_LINE, LOST, ReplyFramer

REPLIES = [
    (b"INSERTED 1", b"", []),
    (b"RESERVED 1 7", b"a\r\nb\r\nc\r\n", [1]),
    (b"RESERVED_BATCH 2", b"RESERVED 3 0\r\n\r\nRESERVED 4 2\r\n\r\n\r\n", [3, 4]),
    (b"FOUND 18446744073709551615 2", b"R\n\r\n", []),
    (b"RESERVED_BATCH 0", b"", []),
    (b"OK 3", b"---\r\n", []),
    (b"", b"", []),
    (b"RELEASED", b"", []),
    (b"OUT_OF_MEMORY", b"", []),
    (b"FORBIDDEN", b"", []),
    (b"USING OK", b"", []),
]


@given(cuts=st.lists(st.integers(0, 300), max_size=30), order=st.permutations(REPLIES))
def test_replies_are_found_wherever_they_are_split(cuts, order):
    data = b"".join(line + b"\r\n" + rest for line, rest, _ in order)
    framer = ReplyFramer()
    found = []
    for piece in pieces(data, cuts):
        position = 0
        while position < len(piece):
            position = framer.find_end(piece, position)
            if position < 0:
                assert position != LOST
                break
            found.append((framer.first, list(framer.reserved)))
            framer.reserved.clear()
    assert found == [(line, job_ids) for line, _, job_ids in order]
    assert not framer.is_within


@pytest.mark.parametrize(
    "data",
    [
        b"x" * (LONGEST_LINE + 1),
        b"OK " + b"1" * LONGEST_LINE,
        b"OK so\r\n",
        b"FOUND 1 -1\r\n",
        b"RESERVED one 1\r\n",
        b"RESERVED 1\r\n",
        b"RESERVED_BATCH x\r\n",
    ],
)
def test_what_is_no_reply_is_known_as_such(data):
    assert ReplyFramer().find_end(data, 0) == LOST


def test_half_a_reply_can_be_forgotten():
    framer = ReplyFramer()
    assert framer.find_end(b"RESERVED_BATCH 2\r\nRESERVED 1 5\r\nabc", 0) == -1
    assert framer.is_within
    framer.clear()
    assert not framer.is_within
    assert framer.find_end(b"NOT_FOUND\r\n", 0) == 11
    assert (framer.first, framer.reserved) == (b"NOT_FOUND", [])
