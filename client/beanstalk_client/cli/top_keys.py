"""From the bytes of a terminal to what the person there wants of `beanstalk top`.

    bytes  → KeyDecoder →  keys: "a", "/", "up", "page-down", "enter", …  → BINDINGS →  actions

A key may come in pieces: an escape sequence is known by its last byte only, and a character of UTF-8 by its first. What
is not complete is kept until more comes; and ESC alone is the Escape key once nothing more has come for a moment, which
the caller, which has a clock, says by `expire`. An escape sequence that means nothing here is swallowed whole, so that
no part of it is taken for a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

ESCAPE_WITHIN: Final = 0.05
"""How many seconds after ESC its sequence must go on: more than a network takes between two bytes of one packet."""

LONGEST_SEQUENCE: Final = 32
"""The longest escape sequence, in bytes; what is longer is none."""

ESC: Final = 0x1B

ESCAPE, ENTER, BACKSPACE, UNKNOWN = "escape", "enter", "backspace", "unknown"
"""Keys that are no character. UNKNOWN is one that means nothing here."""

CONTROLS: Final = {
    0x03: "ctrl-c",
    0x04: "ctrl-d",
    0x08: BACKSPACE,
    0x09: "tab",
    0x0A: ENTER,
    0x0C: "ctrl-l",
    0x0D: ENTER,
    0x15: "ctrl-u",
    0x7F: BACKSPACE,
}

SEQUENCES: Final = {
    b"[A": "up",
    b"[B": "down",
    b"[C": "right",
    b"[D": "left",
    b"OA": "up",
    b"OB": "down",
    b"OC": "right",
    b"OD": "left",
    b"[H": "home",
    b"[F": "end",
    b"OH": "home",
    b"OF": "end",
    b"[1~": "home",
    b"[4~": "end",
    b"[7~": "home",
    b"[8~": "end",
    b"[5~": "page-up",
    b"[6~": "page-down",
    b"OM": ENTER,
}
"""What terminals send for keys, without ESC: xterm, VT220, rxvt, Linux; in application mode with O."""


class KeyDecoder:
    """Turns bytes into keys, however they are divided.

    Attributes:
        pending: whether a key has begun: then `expire` must be called if nothing comes within ESCAPE_WITHIN.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    @property
    def pending(self) -> bool:
        return bool(self._held)

    def feed(self, data: bytes) -> list[str]:
        """Take bytes; return the keys that are complete."""
        data = self._held + data
        keys = []
        at = 0
        while at < len(data):
            size, key = _first(data[at : at + LONGEST_SEQUENCE + 1])
            if not size:
                break
            keys.append(key)
            at += size
        self._held = data[at:]
        return keys

    def expire(self) -> list[str]:
        """Nothing more has come for a moment: what is pending is complete as it is."""
        held, self._held = self._held, b""
        if not held:
            return []
        return [ESCAPE if held == b"\x1b" else UNKNOWN]


def _first(data: bytes) -> tuple[int, str]:
    """The first key, and how many bytes it has: 0 if it is not complete."""
    byte = data[0]
    if byte == ESC:
        return _sequence(data)
    if byte in CONTROLS:
        return 1, CONTROLS[byte]
    if byte < 0x80:
        return 1, chr(byte) if byte >= 0x20 else UNKNOWN
    return _character(data)


def _character(data: bytes) -> tuple[int, str]:
    """A character of UTF-8 that is not ASCII."""
    size = 2 if 0xC2 <= data[0] < 0xE0 else 3 if 0xE0 <= data[0] < 0xF0 else 4 if 0xF0 <= data[0] < 0xF5 else 1
    for index in range(1, size):
        if index == len(data):
            return 0, ""
        if data[index] & 0xC0 != 0x80:
            return index, UNKNOWN
    try:
        return size, data[:size].decode()
    except UnicodeDecodeError:
        return size, UNKNOWN


def _sequence(data: bytes) -> tuple[int, str]:
    """A key whose first byte is ESC (ECMA-48: CSI and SS3 sequences, and Alt with a key)."""
    if len(data) == 1:
        return 0, ""
    if data[1] == ESC:
        return 1, ESCAPE  # pressed twice, or before an arrow
    if data[1] not in b"[O":
        return 2, UNKNOWN  # Alt and a key
    if data[1] == ord("O"):
        if len(data) == 2:
            return 0, ""
        return 3, SEQUENCES.get(data[1:3], UNKNOWN)
    for index in range(2, len(data)):
        byte = data[index]
        if 0x40 <= byte < 0x7F:
            if byte == ord("[") and index == 2:
                continue  # the Linux console's F1 to F5: ESC [ [ A
            return index + 1, UNKNOWN if data[2] == ord("[") else SEQUENCES.get(data[1 : index + 1], UNKNOWN)
        if not 0x20 <= byte < 0x40:
            return index, UNKNOWN  # cut off: what follows is a key of its own
        if index == LONGEST_SEQUENCE:
            return index + 1, UNKNOWN
    return 0, ""


class Action(Enum):
    """What a key asks for, whatever is on the screen."""

    UP = "one up"
    DOWN = "one down"
    PAGE_UP = "a page up"
    PAGE_DOWN = "a page down"
    FIRST = "to the first"
    LAST = "to the last"
    SORT_LEFT = "sort by the column to the left"
    SORT_RIGHT = "sort by the column to the right"
    REVERSE = "reverse the order"
    FILTER = "only tubes whose names begin so"
    LOOK = "look into the tube"
    PAUSE = "pause the tube, or resume it"
    KICK = "kick its buried jobs, or its delayed ones (asks)"
    CLEAR = "delete all its jobs (asks)"
    REFRESH = "sample now"
    REDRAW = "draw everything anew"
    HELP = "this help"
    BACK = "back"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class SortBy:
    """Sort by a column; by the same one again: reverse the order."""

    column: str


SORT_KEYS: Final = {
    "t": "tube",
    "r": "ready",
    "v": "reserved",
    "d": "delayed",
    "b": "buried",
    "i": "in",
    "o": "out",
    "g": "growth",
    "a": "age",
    "w": "waiting",
}
"""Which key sorts by which column."""

BINDINGS: Final[Mapping[str, Action | SortBy]] = {
    "up": Action.UP,
    "down": Action.DOWN,
    "page-up": Action.PAGE_UP,
    "page-down": Action.PAGE_DOWN,
    "home": Action.FIRST,
    "end": Action.LAST,
    "left": Action.SORT_LEFT,
    "right": Action.SORT_RIGHT,
    "<": Action.SORT_LEFT,
    ">": Action.SORT_RIGHT,
    "!": Action.REVERSE,
    "/": Action.FILTER,
    ENTER: Action.LOOK,
    "P": Action.PAUSE,
    "K": Action.KICK,
    "C": Action.CLEAR,
    " ": Action.REFRESH,
    "ctrl-l": Action.REDRAW,
    "?": Action.HELP,
    "h": Action.HELP,
    ESCAPE: Action.BACK,
    "q": Action.QUIT,
    "ctrl-c": Action.QUIT,
    "ctrl-d": Action.QUIT,
    **{key: SortBy(column) for key, column in SORT_KEYS.items()},
}
"""What keys mean where nothing is typed. Capital letters change something at the server."""
