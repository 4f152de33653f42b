r"""Draws scripts: actions of up to eight clients, valid, nearly valid or garbage, cut at any byte.

A script is drawn so that it shrinks well: a list of actions, each of one client. Nothing in it depends on time: delays,
pauses and timeouts are 0, or longer than any script; a ttr of 1 is in its safety margin at once. The drawing also
avoids the intended differences of docs/differences.md, as far as it can see them; `differential.py` avoids the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeVar

from hypothesis import strategies as st

Drawn = TypeVar("Drawn")

CLIENTS: Final = 8

LIMIT: Final = 1000
"""The -z of the servers, in bytes: small, so that a body that is too big takes little time."""

JOB: Final = re.compile(rb"\{base\+(\d{3})\}")
"""Stands for an id: that of the n-th job put in this script. It is as long as the digits that replace it."""


def job(number: int) -> bytes:
    return b"{base+%03d}" % number


def with_ids(data: bytes, base: int) -> bytes:
    """What to send when this many ids were given before."""
    return JOB.sub(lambda found: b"%010d" % (base + int(found[1])), data)


@dataclass(frozen=True)
class Say:
    """Send commands, but keep the last `kept_back` bytes for the next time."""

    client: int
    commands: tuple[bytes, ...]
    kept_back: int


@dataclass(frozen=True)
class Leave:
    """Disconnect, or shut down the sending side."""

    client: int
    shuts_down: bool


Script = list[Say | Leave]


@st.composite
def mixed(draw: st.DrawFn, *kinds: tuple[int, st.SearchStrategy[Drawn]]) -> Drawn:
    """Draw one of these kinds, as often as its number says. (`one_of` counts each kind once, even if given twice.)"""
    kind = draw(st.sampled_from([index for index, (often, _) in enumerate(kinds) for _ in range(often)]))
    return draw(kinds[kind][1])


clients = st.sampled_from([0, 0, 0, 0, 1, 1, 1, 2, 2, *range(3, CLIENTS)])
ids = st.sampled_from([1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 20]).map(job)
odd_numbers = st.sampled_from(
    [
        b"",
        b" ",
        b"-1",
        b"+1",
        b"x",
        b"1x",
        b"00",
        b"  3",
        b"4294967296",
        b"18446744073709551615",
        b"18446744073709551616",
    ]
)
priorities = st.sampled_from([b"0", b"0", b"1", b"2", b"5", b"1023", b"1024", b"4294967295"])
delays = st.sampled_from([b"0", b"0", b"0", b"0", b"0", b"100", b"100", b"200", b"4294967295"])
ttrs = st.sampled_from([b"60", b"60", b"60", b"1", b"0", b"4294967295"])
pauses = st.sampled_from([b"0", b"0", b"100"])
timeouts = st.sampled_from([b"0", b"0", b"0", b"0", b"0", b"100", b"2147483647"])
bounds = st.sampled_from([b"0", b"1", b"2", b"10", b"4294967295", b"-1", b" 1", b"1x"])
tubes = st.sampled_from([b"default", b"default", b"default", b"a", b"a", b"b", b"c+d"])
odd_tubes = st.sampled_from([b"", b"-a", b"a b", b"a ", b"a*", b"a" * 200, b"a" * 201, b"\xff"])
bodies = mixed(
    (8, st.binary(max_size=8)),
    (4, st.sampled_from([b"", b"x", b"\r\n", b"quit\r\n", b"x" * 224])),
    (1, st.sampled_from([b"x" * LIMIT, b"x" * (LIMIT + 1), b"x" * (LIMIT + 99)])),
)


@st.composite
def puts(draw: st.DrawFn) -> bytes:
    """A put and its body; now and then, with a wrong size."""
    body = draw(bodies)
    size = max(0, len(body) + draw(st.sampled_from([0] * 20 + [-1, 1])))
    numbers = [draw(priorities), draw(delays), draw(ttrs), b"%d" % size]
    return b"put " + b" ".join(numbers) + b"\r\n" + body + b"\r\n"


def line(*parts: bytes | st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A command line of these parts, with spaces between them."""
    drawn = [st.just(part) if isinstance(part, bytes) else part for part in parts]
    return st.tuples(*drawn).map(lambda words: b" ".join(words) + b"\r\n")


reserves = mixed((3, line(b"reserve-with-timeout", timeouts)), (1, st.just(b"reserve\r\n")))
transitions = st.one_of(
    line(b"reserve-job", ids),
    line(b"delete", ids),
    line(b"release", ids, priorities, delays),
    line(b"bury", ids, priorities),
    line(b"touch", ids),
    line(b"kick", bounds),
    line(b"kick-job", ids),
)


@st.composite
def held_jobs(draw: st.DrawFn) -> bytes:
    """Reserve a certain job, and do something with it."""
    number = draw(ids)
    then = draw(
        st.sampled_from(
            [
                line(b"release", st.just(number), priorities, delays),
                line(b"bury", st.just(number), priorities),
                line(b"touch", st.just(number)),
                line(b"delete", st.just(number)),
            ]
        )
    )
    return b"reserve-job " + number + b"\r\n" + draw(then)


tube_commands = mixed(
    (2, line(b"use", tubes)),
    (3, line(b"watch", tubes)),
    (1, line(b"ignore", tubes)),
    (1, line(b"pause-tube", tubes, pauses)),
)
looks = st.one_of(
    line(b"peek", ids),
    line(b"stats-job", ids),
    line(b"stats-tube", tubes),
    st.sampled_from(
        b"peek-ready peek-delayed peek-buried stats list-tubes list-tube-used list-tubes-watched".split()
    ).map(lambda word: word + b"\r\n"),
)
valid = mixed((4, puts()), (4, reserves), (6, transitions), (3, held_jobs()), (2, tube_commands), (3, looks))
odd_arguments = st.one_of(odd_numbers, odd_tubes, ids, priorities)
nearly_valid = st.one_of(
    line(
        st.sampled_from(
            b"put peek delete release bury touch kick kick-job reserve-job stats-job stats-tube use watch ignore "
            b"pause-tube pause-tubedefault reserve peek-ready list-tubes stats quit quitter".split()
        ),
        odd_arguments,
    ),
    line(b"put", odd_numbers, delays, ttrs, b"1"),
    line(b"put", priorities, delays, ttrs, odd_numbers),
    line(b"release", ids, priorities, odd_numbers),
    line(b"bury", ids, odd_numbers),
    line(b"pause-tube", odd_tubes, pauses),
    line(b"pause-tube", tubes, odd_numbers),
)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A valid command in which one byte is changed, added or removed."""
    command: bytes = draw(valid)
    position = draw(st.integers(0, len(command) - 1))
    instead: bytes = draw(st.one_of(st.binary(max_size=2), st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b" "])))
    rest: bytes = command[position + draw(st.integers(0, 1)) :]
    return command[:position] + instead + rest


garbage = st.one_of(
    st.binary(max_size=30),
    st.integers(200, 460).map(lambda length: b"y" * length + b"\r\n"),
    st.sampled_from([b"\r\n", b"\r", b"\n", b"\0\r\n", b"\r\r\n", b" \r\n", b"quit\r\n"]),
)
commands = mixed((30, valid), (2, nearly_valid), (2, mutations()), (1, garbage))
says = st.builds(
    Say,
    clients,
    st.lists(commands, min_size=1, max_size=5).map(tuple),
    mixed((4, st.just(0)), (1, st.integers(1, 40))),
)
leaves = st.builds(Leave, clients, st.booleans())
first_puts = st.builds(Say, clients, puts().map(lambda put: (put,)), st.just(0))


@st.composite
def _scripts(draw: st.DrawFn) -> Script:
    """A few jobs, so that there is something to take, and then anything."""
    actions: st.SearchStrategy[Say | Leave] = mixed((15, says), (1, leaves))
    return [*draw(st.lists(first_puts, max_size=5)), *draw(st.lists(actions, min_size=1, max_size=25))]


scripts = _scripts()

FRACTION: Final = re.compile(rb"(?<=\d)\.(?=\d)")


def said(commands: tuple[bytes, ...]) -> bytes:
    """The bytes of commands, without numbers with a fraction, which only this server understands."""
    return FRACTION.sub(b",", b"".join(commands))
