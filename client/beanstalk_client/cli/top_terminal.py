"""Takes over the terminal of a process and gives it back: bytes that come are keys, and lines are drawn in place.

What it was like before comes back in `leave`, whatever has happened since.

A key may come in pieces: an escape sequence is known by its last byte only, and a character of UTF-8 by its first. What
is not complete is kept until more comes; and ESC alone is the Escape key once nothing more has come for a moment, which
the caller, which has a clock, says by `expire`. An escape sequence that means nothing here is swallowed whole, so that
no part of it is taken for a command.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import termios
import tty
from collections.abc import Sequence
from typing import Any, Final

OPEN: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
"""The alternate screen, without cursor, without wrapping, cleared (xterm)."""

CLOSE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"

CLEAR: Final = "\x1b[0m\x1b[2J"

SIZE: Final = (80, 24)
"""What a terminal has that does not say."""

ESCAPE_WITHIN: Final = 0.05
"""How many seconds after ESC its sequence must go on: more than a network takes between two bytes of one packet."""

LONGEST_SEQUENCE: Final = 32
"""The longest escape sequence, in characters; what is longer is none."""

ESCAPE, ENTER, BACKSPACE, UNKNOWN = "escape", "enter", "backspace", "unknown"
"""Keys that are no character. UNKNOWN is one that means nothing here."""

CONTROLS: Final = {
    "\x03": "ctrl-c",
    "\x04": "ctrl-d",
    "\x08": BACKSPACE,
    "\t": "tab",
    "\n": ENTER,
    "\x0c": "ctrl-l",
    "\r": ENTER,
    "\x15": "ctrl-u",
    "\x7f": BACKSPACE,
    "\N{REPLACEMENT CHARACTER}": UNKNOWN,  # what is no UTF-8
}

CURSOR_KEYS: Final = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end"}

SEQUENCES: Final = {
    **{f"[{letter}": key for letter, key in CURSOR_KEYS.items()},
    **{f"O{letter}": key for letter, key in CURSOR_KEYS.items()},
    **dict.fromkeys(("[1~", "[7~"), "home"),
    **dict.fromkeys(("[4~", "[8~"), "end"),
    "[5~": "page-up",
    "[6~": "page-down",
    "OM": ENTER,
}
"""What terminals send for keys, without ESC: xterm, VT220, rxvt, Linux; in application mode with O."""

PARAMETERS: Final = re.compile(rf"\x1b\[\[?+[ -?]{{0,{LONGEST_SEQUENCE - 3}}}+")
"""A control sequence up to its last character (ECMA-48); F1 to F5 of the Linux console have a second bracket."""


class KeyDecoder:
    """Turns bytes into keys, however they are divided."""

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def pending(self) -> bool:
        """Whether a key has begun: then `expire` must be called if nothing comes within ESCAPE_WITHIN."""
        return bool(self._held or self._characters.getstate()[0])

    def feed(self, data: bytes) -> list[str]:
        """Take bytes; return the keys that are complete."""
        self._held += self._characters.decode(data)
        keys = []
        while self._held:
            size, key = _first(self._held)
            if not size:
                break
            keys.append(key)
            self._held = self._held[size:]
        return keys

    def expire(self) -> list[str]:
        """Nothing more has come for a moment: what is pending is complete as it is."""
        held, self._held = self._held + self._characters.decode(b"", final=True), ""
        if not held:
            return []
        return [ESCAPE if held == "\x1b" else UNKNOWN]


def _first(text: str) -> tuple[int, str]:
    """The first key, and how many characters it has: 0 if it is not complete."""
    if text[0] != "\x1b":
        return 1, CONTROLS.get(text[0], text[0] if text[0] >= " " else UNKNOWN)
    following = text[1:2]
    if not following:
        return 0, ""
    if following == "\x1b":
        return 1, ESCAPE  # pressed twice, or before an arrow
    if following == "O":
        return (3, SEQUENCES.get(text[1:3], UNKNOWN)) if len(text) > 2 else (0, "")
    parameters = PARAMETERS.match(text)
    if parameters is None:
        return 2, UNKNOWN  # Alt and a key
    end = parameters.end()
    if end == len(text):
        return 0, ""
    if "@" <= text[end] <= "~":
        return end + 1, SEQUENCES.get(text[1 : end + 1], UNKNOWN)
    return end, UNKNOWN  # cut off, or too long: what follows is a key of its own


class Terminal:
    """A terminal, by its descriptors for input and output.

    Args:
        encoding: of the terminal; what it cannot show becomes `?`.
    """

    def __init__(self, fd_in: int, fd_out: int, encoding: str = "utf-8") -> None:
        self.fd_in = fd_in
        self._fd_out = fd_out
        self._encoding = encoding
        self._before: list[Any] | None = None
        self._drawn: list[str] = []
        self._entered = False

    def enter(self) -> None:
        """Take it over; also anew, when somebody else has had it meanwhile.

        Raises:
            termios.error: it has gone.
        """
        if self._before is None:
            self._before = termios.tcgetattr(self.fd_in)
        tty.setcbreak(self.fd_in, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
        self._entered = True
        self._write(OPEN)
        self._drawn = []

    def leave(self) -> None:
        """Give it back as it was."""
        if not self._entered:
            return
        self._entered = False
        # A terminal that has gone, with the window that it was in, cannot be given back.
        with contextlib.suppress(OSError):
            self._write(CLOSE)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self.fd_in, termios.TCSADRAIN, self._before or [])

    def size(self) -> tuple[int, int]:
        """Width and height, in characters."""
        try:
            width, height = os.get_terminal_size(self._fd_out)
        except OSError:
            return SIZE
        return width or SIZE[0], height or SIZE[1]

    def read(self) -> bytes:
        """What has been typed; nothing if there will be no more."""
        try:
            return os.read(self.fd_in, 4096)
        except OSError:  # EIO: it has gone
            return b""

    def forget(self) -> None:
        """Whatever is on the screen is not what was drawn: draw all of it next time."""
        self._drawn = []

    def draw(self, lines: Sequence[str]) -> None:
        """Draw lines, those that have changed."""
        parts = []
        if len(lines) != len(self._drawn):
            parts.append(CLEAR)
            self._drawn = [""] * len(lines)
        for row, (line, before) in enumerate(zip(lines, self._drawn, strict=True), 1):
            if line != before:
                # Erased first: behind a full line, the cursor is still on its last character.
                parts.append(f"\x1b[{row};1H\x1b[0m\x1b[K{line}\x1b[0m")
        self._drawn = list(lines)
        if parts:
            self._write("".join(parts))

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._fd_out, data) :]
