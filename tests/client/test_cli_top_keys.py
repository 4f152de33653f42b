"""Bytes of a terminal become keys, however they are divided."""

import itertools

import pytest
from beanstalk_client.cli.top_keys import LONGEST, NAMES, KeyDecoder
from hypothesis import given
from hypothesis import strategies as st


def keys(*pieces):
    decoder = KeyDecoder()
    found = [key for piece in pieces for key in decoder.feed(piece)]
    return [*found, *decoder.expire()]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"q", ["q"]),
        (b"\r", ["enter"]),
        (b"\n", ["enter"]),
        (b"\x7f\x08", ["backspace", "backspace"]),
        (b"\x1b", ["escape"]),
        (b"\x1b\x1b", ["escape", "escape"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\x1b[A\x1bOB", ["up", "down"]),
        (b"\x1b[5~\x1b[6~", ["page-up", "page-down"]),
        (b"\x1b[1;5A", ["unknown"]),  # Ctrl and an arrow
        (b"\x1b[200~q\x1b[201~", ["unknown", "q", "unknown"]),
        (b"\x1b[[Aq", ["unknown", "q"]),  # F1 of the Linux console
        (b"\x1b[<0;10;20Mq", ["unknown", "q"]),  # a mouse
        (b"\x1bq", ["unknown"]),  # Alt and q does not quit
        (b"\x1b[", ["unknown"]),
        (b"\x1b[12\x1b[A", ["unknown", "up"]),  # cut off
        (b"\x1b[1\rq", ["unknown", "enter", "q"]),
        ("ä€𝄞".encode(), ["ä", "€", "𝄞"]),
        (b"\xffq", ["unknown", "q"]),
        (b"\xe2\x82q", ["unknown", "q"]),
        (b"\x00", ["unknown"]),
    ],
)
def test_a_key_is_known_by_its_bytes(data, expected):
    assert keys(data) == expected


@pytest.mark.parametrize(("sequence", "key"), [each for each in NAMES.items() if len(each[0]) > 1])
def test_a_sequence_may_come_in_pieces(sequence, key):
    data = sequence.encode()
    for cut in range(len(data) + 1):
        assert keys(data[:cut], data[cut:]) == [key]
    assert keys(*(data[at : at + 1] for at in range(len(data)))) == [key]


alphabet = st.sampled_from([*b"\x1b\x1b\x1b[O[OABq~59;1\r\x7f/", 0xC3, 0xA4, 0xE2, 0x82, 0xAC, 0xFF, 0x00])


@given(st.lists(alphabet, max_size=80).map(bytes), st.lists(st.integers(0, 80), max_size=8))
def test_how_bytes_are_divided_makes_no_difference(data, cuts):
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert keys(*(data[a:b] for a, b in itertools.pairwise(edges))) == keys(data)


@given(st.lists(alphabet, max_size=200).map(bytes))
def test_what_is_kept_is_bounded(data):
    decoder = KeyDecoder()
    decoder.feed(data)
    assert len(decoder._held) <= LONGEST + 3
    decoder.expire()
    assert not decoder.pending
    assert decoder.feed(b"q") == ["q"]
