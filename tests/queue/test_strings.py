"""The functions of `librt.strings` in Python do what those of the library do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from librt import strings as library

from beanstalk_server.queue import strings

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 255)),
    st.tuples(st.just("write"), st.binary(max_size=300)),
    st.tuples(st.just("truncate"), st.integers(0, 600)),
)


@given(st.lists(STEP, max_size=10))
def test_both_writers_hold_the_same_bytes(steps: list[tuple[str, int | bytes]]) -> None:
    writers = [strings.BytesWriter(), library.BytesWriter()]
    for name, argument in steps:
        for writer in writers:
            if name != "truncate" or int(argument) <= len(writer):
                getattr(writer, name)(argument)
        assert writers[0].getvalue() == writers[1].getvalue()
        assert len(writers[0]) == len(writers[1])


@given(st.lists(st.tuples(st.just("i32"), I32) | st.tuples(st.just("i64"), I64)))
def test_numbers_come_back_from_either(numbers: list[tuple[str, int]]) -> None:
    places = []
    writers = [strings.BytesWriter(), library.BytesWriter()]
    for kind, number in numbers:
        places.append(len(writers[0]))
        for module, writer in zip((strings, library), writers, strict=True):
            getattr(module, f"write_{kind}_le")(writer, number)
    assert writers[0].getvalue() == writers[1].getvalue()
    for at, (kind, number) in zip(places, numbers, strict=True):
        for module in (strings, library):
            assert getattr(module, f"read_{kind}_le")(writers[0].getvalue(), at) == number
