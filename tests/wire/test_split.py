"""Any bytes, split anywhere, get the same replies as in one piece; and nothing breaks."""

import re
from itertools import pairwise

from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from virtual import World

commands = st.sampled_from(
    [
        b"put 0 0 1 3\r\nabc\r\n",
        b"put 5 1 1 0\r\n\r\n",
        b"put 0 0 1 3\r\nabcd\r\n",
        b"put 0 0 1 70000\r\n" + b"x" * 70002,
        b"put 0 0 1 500\r\n" + b"\r\n" * 251,
        b"use a\r\n",
        b"watch a\r\n",
        b"ignore default\r\n",
        b"reserve-with-timeout 0\r\n",
        b"reserve-job 1\r\n",
        b"reserve-batch 2 0\r\n",
        b"put-batch 0 0 1 12\r\n1\r\na\r\n1\r\nb\r\n\r\n",
        b"put-batch 0 0 1 3\r\nabc\r\n",
        b"delete-batch 1 2 3 4\r\n",
        b"delete-batch " + b"12345678901234567890 " * 999 + b"3\r\n",
        b"release-batch 5 0 1 2 3\r\n",
        b"touch-batch 1 2 3 x\r\n",
        b"cancel-reserve\r\n",
        b"reserve-mode weighted\r\n",
        b"watch a 3\r\n",
        b"put-with 0 0 60 1 share=s limit=l:2 group=g\r\nx\r\n",
        b"put-with 0 0 60 1 after=g:wait\r\nx\r\n",
        b"delete 1\r\n",
        b"release 1 0 0\r\n",
        b"release 1 0 9\r\n",
        b"bury 1 0\r\n",
        b"kick 9\r\n",
        b"kick-job 2\r\n",
        b"touch 1\r\n",
        b"peek-ready\r\n",
        b"peek 2\r\n",
        b"stats\r\n",
        b"stats-job 1\r\n",
        b"stats-tube default\r\n",
        b"list-tubes\r\n",
        b"list-jobs default ready 0 9\r\n",
        b"list-jobs default delayed 0 9\r\n",
        b"stats-tubes - 9\r\n",
        b"pause-tube default 0\r\n",
        b"nonsense\r\n",
        b"x" * 224,
        b"y" * 500 + b"\r\n",
        b"\r",
        b"\n",
        b"\r\r\n",
        b"\0\r\n",
        b"put ",
        b"quit",
    ]
)
conversations = st.lists(st.one_of(commands, st.binary(max_size=8)), max_size=12).map(b"".join)


def timeless(replies):
    """Replies without the seconds since a job was put, and until it is due."""
    return re.sub(rb"(age|time-left): [0-9.]+", rb"\1: ?", replies)


@settings(max_examples=examples(50))
@given(data=conversations, cuts=st.lists(st.integers(0, 2000), max_size=20))
def test_any_bytes_give_the_same_replies_wherever_they_are_split(data, cuts):
    whole = World(pace=1).connect()
    replies = whole.send(data)
    world = World(pace=1)
    split = world.connect()
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = b""
    for start, end in pairwise(places):
        pieces += split.send(data[start:end])
        world.check()
    assert timeless(pieces) == timeless(replies)
    assert split.session.closed == whole.session.closed


@given(data=conversations)
@example(data=b"put 5 1 1 0\r\n\r\nlist-jobs default delayed 0 9\r\n")  # what comes in pieces is done later
@example(data=b"put 0 0 1 3\r\nabc\r\nlist-jobs default ready 0 9\r\n")  # whose job was younger than the list
def test_bytes_that_come_one_by_one_give_the_same_replies(data):
    data = data[:3000]
    whole = World(pace=1).connect()
    replies = whole.send(data)
    world = World(pace=1)
    split = world.connect()
    assert timeless(b"".join(split.send(bytes([byte])) for byte in data)) == timeless(replies)
    world.check()
