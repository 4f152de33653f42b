"""Decodes keys from the bytes of a terminal, which may be divided anywhere.

A key may come in pieces: an escape sequence ends with its last byte, a character of UTF-8 begins with its length. What
is incomplete is kept until more comes. ESC alone is the Escape key when nothing more has come for a moment: then the
caller calls `expire`. An unknown escape sequence is one unknown key, so that no part of it acts as a key.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

ESCAPE_WITHIN: Final = 0.05
"""Seconds after which an incomplete key is complete as it is."""

ESCAPE, ENTER, BACKSPACE, UNKNOWN = "escape", "enter", "backspace", "unknown"
"""Keys that are no character. UNKNOWN has no meaning here."""

LONGEST: Final = 32
"""Maximum characters of an escape sequence."""

KEY: Final = re.compile(
    rf"\x1b\[\[?+[ -?]{{0,{LONGEST}}}+(?:[@-~]|(?=[^ -~]|[ -?]))"  # ECMA-48, or cut off; Linux has F1 as ESC [[A
    r"|\x1bO.|\x1b[^\x1b\[O]|\x1b(?=\x1b)|[^\x1b]",
    re.DOTALL,
)
"""The first key of a text, unless it is incomplete."""

ARROWS: Final = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end"}

NAMES: Final = {
    "\x04": "ctrl-d",
    "\x08": BACKSPACE,
    "\n": ENTER,
    "\x0c": "ctrl-l",
    "\r": ENTER,
    "\x15": "ctrl-u",
    "\x1b": ESCAPE,
    "\x7f": BACKSPACE,
    "\N{REPLACEMENT CHARACTER}": UNKNOWN,  # no UTF-8
    **{f"\x1b{introducer}{letter}": key for letter, key in ARROWS.items() for introducer in "[O"},
    **dict.fromkeys(("\x1b[1~", "\x1b[7~"), "home"),
    **dict.fromkeys(("\x1b[4~", "\x1b[8~"), "end"),
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\x1bOM": ENTER,
}
"""What terminals send for keys: xterm, VT220, rxvt, Linux; in application mode with O."""


class KeyDecoder:
    """Turns bytes into keys."""

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def pending(self) -> bool:
        """Whether a key is incomplete: then call `expire` if nothing comes within ESCAPE_WITHIN."""
        return bool(self._held or self._characters.getstate()[0])

    def feed(self, data: bytes) -> list[str]:
        """Take bytes; return the keys that are complete."""
        self._held += self._characters.decode(data)
        keys = []
        while found := KEY.match(self._held):
            key = found[0]
            keys.append(NAMES.get(key, key if len(key) == 1 and key >= " " else UNKNOWN))
            self._held = self._held[found.end() :]
        return keys

    def expire(self) -> list[str]:
        """Return the incomplete key, which nothing will complete."""
        held, self._held = self._held + self._characters.decode(b"", final=True), ""
        return [NAMES.get(held, UNKNOWN)] if held else []
